"""The command as a person or a service manager meets it: real processes, real ports, real signals."""

import asyncio
import json
import os
import shutil
import signal
import socket
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from brim import producer
from brim import subscribe as subscribe_shm
from edge.cli import main
from edge.cli.exit_status import Exit
from edge.cli.run_loop import _ready, _watch
from edge.client import Client, connect
from edge.config.listener import Listener
from edge.config.loader import parse
from edge.config.schema import Config
from edge.server.sd_notify import notify, watchdog_interval_s
from edge.server.server import BrokerServer
from tests.support.children import Child, ModuleChild
from tests.support.small_disk import fill, small_disk
from tests.support.waiting import PATIENCE_S, until, wait_until

pytestmark = pytest.mark.usefixtures("wakeup_ends")


class Site:
    """The directories of one broker, which lives several times."""

    def __init__(self, runtime_dir: Path, state_dir: Path) -> None:
        self.runtime_dir = runtime_dir
        self.state_dir = state_dir
        self.port = 0

    @contextmanager
    def broker(self, text: str = "", **environment: str) -> Iterator[ModuleChild]:
        """A running one, with this configuration."""
        file = self.state_dir / "brim.toml"
        file.write_text(text)
        directories = ("--runtime-dir", self.runtime_dir, "--state-dir", self.state_dir)
        arguments = ("run", "--port", 0, "--config", file, *directories)
        with ModuleChild("edge", *arguments, environment=environment) as child:
            ready = child.lines_until("brim status")
            self.port = int(ready[0].partition("mqtt 127.0.0.1:")[2].partition(",")[0])
            yield child

    def status(self) -> dict[str, Any]:
        """As `brim status --json` prints it."""
        with ModuleChild("edge", "status", "--json", "--runtime-dir", self.runtime_dir) as child:
            _, out, error = child.wait()
        assert out, error
        status: dict[str, Any] = json.loads(out)
        return status

    def client(self) -> Client:
        return connect(f"mqtt://127.0.0.1:{self.port}")


@pytest.fixture
def site(runtime_directory, tmp_path):
    return Site(runtime_directory, tmp_path)


def ended(child: Child, number: int = signal.SIGTERM) -> str:
    """Its log, after an orderly end."""
    status, _, log = child.stop(number)
    assert status == 0, log
    assert "Traceback" not in log
    return log


async def publish(site: Site, topic: str, count: int) -> None:
    """QoS 1: acknowledged when this returns."""
    async with site.client() as client:
        for number in range(count):
            await client.publish(topic, str(number).encode(), qos=1)


# the command, which prints the number of threads when the table of descriptors is enlarged
COUNTED = """
import sys, threading
from edge.cli import main
from edge.transport import descriptors
enlarge = descriptors.make_table
def counted(config, allowed):
    print("threads", threading.active_count())
    enlarge(config, allowed)
descriptors.make_table = counted
sys.exit(main(sys.argv[1:]))
"""


def test_the_table_of_descriptors_is_enlarged_before_any_thread_begins(site):
    """With threads the kernel waits for all processors meanwhile, which takes 10 ms of each start."""
    directories = ("--runtime-dir", site.runtime_dir, "--state-dir", site.state_dir)
    with Child(COUNTED, "run", "--port", 0, *directories) as child:
        assert child.line() == "threads 1"
        child.lines_until("brim status")
        assert child.stop()[0] == 0


def in_memory(site: Site, filters: str, count: int) -> list[tuple[str, int, bytes]]:
    """(ring, offset, payload) of the oldest records of these topics."""
    found: list[tuple[str, int, bytes]] = []
    with subscribe_shm(filters, runtime_dir=site.runtime_dir, start="oldest") as subscription:
        for batch in subscription:
            found += [(batch.ring, record.offset, bytes(record)) for record in batch]
            if len(found) >= count:
                return found
    raise AssertionError


async def test_one_publish_reaches_mqtt_memory_and_zeromq(site):
    """`brim run`, three `brim sub` and a `brim pub`: the five commands of README."""
    with site.broker() as broker:
        where = ("--runtime-dir", site.runtime_dir)
        port = ("--port", site.port)
        subscribers = [
            ModuleChild("edge", "sub", "plant/#", "-v", "-C", 1, *how, *port)
            for how in ((), ("--shm", *where), ("--zmq", *where))
        ]
        try:
            await until(lambda: all_subscribed(site.status()))
            with ModuleChild("edge", "pub", "plant/1/temp", "21.5", *port) as publisher:
                assert publisher.wait()[0] == 0
            assert [child.line() for child in subscribers] == ["plant/1/temp 21.5"] * 3
            assert [child.wait()[0] for child in subscribers] == [0, 0, 0]
        finally:
            for child in subscribers:
                child.__exit__(None, None, None)
        ended(broker)
    assert not (site.runtime_dir / "control.sock").exists()
    assert not (site.runtime_dir / "zmq.sock").exists()


def all_subscribed(status: dict[str, Any]) -> bool:
    readers = [reader for ring in status["rings"] for reader in ring["readers"] if not reader["own"]]
    subscriptions = sum(client["subscriptions"] for client in status["clients"])
    return bool(subscriptions and status["zmq"]["prefixes"] and readers)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda it: it.name)
def test_a_signal_ends_the_broker_in_order(site, number):
    with site.broker() as broker:
        log = ended(broker, number)
    assert "stopping because=" in log
    assert log.rstrip().endswith("stopped")


SLOW_END = """
import asyncio, sys
from edge.cli import main, stop_request
from edge.server import server

end = server.BrokerServer.__aexit__
stop_request.REPEAT_S = float(sys.argv[1])

async def slow(self, *error):
    print("ending", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await end(self, *error)

server.BrokerServer.__aexit__ = slow
sys.exit(main(sys.argv[2:]))
"""


def slow_end(site: Site, repeat_s: float) -> Child:
    """A broker that ends in order after it got a line."""
    directories = ("--runtime-dir", site.runtime_dir, "--state-dir", site.state_dir)
    return Child(SLOW_END, repeat_s, "run", "--port", 0, *directories)


def test_a_second_signal_ends_it_at_once(site):
    with slow_end(site, 0) as broker:
        broker.lines_until("brim status")
        broker.process.send_signal(signal.SIGTERM)
        assert broker.line() == "ending"
        assert broker.stop(signal.SIGINT)[0] == -signal.SIGINT
    with site.broker() as again:
        ended(again)


def test_a_signal_that_is_repeated_at_once_ends_it_in_order(site):
    """As `timeout` does: once to the process, and once to its group."""
    with slow_end(site, 3600) as broker:
        broker.lines_until("brim status")
        broker.process.send_signal(signal.SIGTERM)
        assert broker.line() == "ending"
        broker.process.send_signal(signal.SIGTERM)
        broker.say("end")
        assert ended(broker, signal.SIGINT).rstrip().endswith("stopped")


def test_a_port_that_is_taken_names_who_has_it_and_what_to_do(site):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        arguments = ("--port", port, "--runtime-dir", site.runtime_dir, "--state-dir", site.state_dir)
        with ModuleChild("edge", "run", *arguments) as child:
            status, out, error = child.wait()
    assert status == 2
    assert out == ""
    assert f"port {port} of 127.0.0.1 is used by " in error
    assert f"(pid {os.getpid()})" in error
    assert "stop it, or set port in [[listener]], or run with --port 0" in error
    assert "Traceback" not in error
    # Nothing is half started.
    assert sorted(path.name for path in site.runtime_dir.iterdir()) == ["brim.lock", "installation"]


def test_a_second_broker_on_the_same_directories_is_told_of_the_first(site):
    with site.broker() as broker:
        arguments = ("--port", 0, "--runtime-dir", site.runtime_dir, "--state-dir", site.state_dir)
        with ModuleChild("edge", "run", *arguments) as second:
            status, _, error = second.wait()
        assert status == 2
        assert f"is in use by another broker (pid {broker.pid})" in error
        assert site.status()["pid"] == broker.pid
        ended(broker)


def test_a_wrong_configuration_starts_nothing_and_tells_every_mistake(site):
    file = site.state_dir / "brim.toml"
    file.write_text("[limits]\nsesions_max = 1\n[zmq]\nenabled = 3\n")
    for verb, expected in ((("run", "--config"), Exit.CONFIGURATION), (("check",), Exit.USAGE)):
        with ModuleChild("edge", *verb, file) as child:
            status, _, error = child.wait()
        assert status == expected
        assert f"{file}:2: limits.sesions_max: there is no such setting; did you mean sessions_max?" in error
        assert f"{file}:4: zmq.enabled: 3 is neither true nor false" in error


async def test_what_was_acknowledged_survives_kill_9_of_the_broker(site):
    for _ in range(3):
        with site.broker() as broker:
            await publish(site, "plant/1", 50)
            epoch = site.status()["rings"][0]["epoch"]
            broker.kill()
    with site.broker() as broker:
        records = await asyncio.to_thread(in_memory, site, "plant/#", 150)
        assert [offset for _, offset, _ in records] == list(range(150))
        assert [int(payload) for _, _, payload in records] == [*range(50)] * 3
        assert site.status()["rings"][0]["epoch"] == epoch
        ended(broker)


async def test_retained_messages_survive_kill_9_of_the_broker(site):
    """As they were: the last one of a topic, and none where an empty one cleared it."""
    with site.broker() as broker:
        async with site.client() as client:
            for topic, payload in (("a", b"old"), ("b", b"gone"), ("a", b"new"), ("b", b"")):
                await client.publish(f"kept/{topic}", payload, qos=1, retain=True)
            await client.publish("kept/c", b"never retained", qos=1)
        broker.kill()
    with site.broker() as broker:
        async with site.client() as client, client.subscribe("kept/#", qos=1) as kept:
            await client.publish("kept/end", b"", qos=1)
            found = []
            async for message in kept:
                if message.topic == "kept/end":
                    break
                found.append((message.topic, bytes(message.payload), message.retain))
        assert found == [("kept/a", b"new", True)]
        ended(broker)


DURABLE = '[[stream]]\nname = "safe"\ntopics = ["safe/#"]\ndurability = "disk"\nring_bytes = "8 MiB"\n'


async def test_what_was_acknowledged_on_disk_survives_the_loss_of_memory(site):
    """Kill -9, and the runtime directory is gone, as after a power cut: the log has the next offset."""
    with site.broker(DURABLE) as broker:
        await publish(site, "safe/1", 20)
        before = next(ring for ring in site.status()["rings"] if ring["name"] == "safe-0")
        broker.kill()
    for path in site.runtime_dir.iterdir():
        path.unlink()
    with site.broker(DURABLE) as broker:
        ring = next(ring for ring in site.status()["rings"] if ring["name"] == "safe-0")
        assert ring["end_offset"] == before["end_offset"] == 20
        assert ring["epoch"] > before["epoch"]
        await publish(site, "safe/1", 1)
        assert (await asyncio.to_thread(in_memory, site, "safe/#", 1))[0][:2] == ("safe-0", 20)
        assert "log recovered segments=1 rings=1 damaged=0" in ended(broker)


async def test_a_local_producers_records_reach_mqtt_clients(site):
    with site.broker() as broker:
        async with site.client() as client, client.subscribe("cam/#") as messages:
            with producer("cam", runtime_dir=site.runtime_dir) as writer:
                for number in range(3):
                    writer.publish(f"frame {number}", key="cam/1")
                async with asyncio.timeout(PATIENCE_S):
                    got = [await anext(messages) for _ in range(3)]
        assert [(message.topic, bytes(message.payload)) for message in got] == [
            ("cam/1", f"frame {number}".encode()) for number in range(3)
        ]
        await asyncio.to_thread(spoil, site.runtime_dir / "default@cam.ring")
        with producer("cam", runtime_dir=site.runtime_dir) as writer:  # of a ring that is garbage now
            writer.publish("x", key="cam/1")
        await publish(site, "plant/1", 5)  # the broker is unharmed
        ended(broker)


RELIABLE = """
[[stream]]
name = "cam"
topics = ["cam/#"]
when_full = "block"
queue_timeout_ms = 20000
[[producer]]
name = "one"
stream = "cam"
ring_bytes = "64 KiB"
"""


async def test_a_producer_that_is_too_fast_waits_for_the_broker_instead_of_losing_records(site):
    """Forty times what its ring holds, on a stream that blocks."""
    count = 2500
    with site.broker(RELIABLE) as broker:
        async with site.client() as client, client.subscribe("cam/#") as messages:
            writing = asyncio.create_task(asyncio.to_thread(write_frames, site, count))
            async with asyncio.timeout(PATIENCE_S):
                got = [int(bytes((await anext(messages)).payload[:8])) for _ in range(count)]
            assert await writing == count
        assert got == list(range(count))
        assert site.status()["lost"] == {}
        ended(broker)


def write_frames(site: Site, count: int) -> int:
    """Write frames; return the number of those that were accepted."""
    with producer("one", "cam", runtime_dir=site.runtime_dir) as writer:
        return sum(
            writer.publish(f"{number:8}" + "x" * 1000, key="cam/1") is not None for number in range(count)
        )


def spoil(ring: Path) -> None:
    """Garbage over its first records."""
    with ring.open("r+b") as file:
        file.seek(16384)
        file.write(b"\xff" * 4096)


def test_status_tells_what_is_there_and_ends_with_3_when_nothing_is(site, capsys):
    assert main(["status", "--runtime-dir", str(site.runtime_dir)]) == 3
    assert "no broker answers at" in capsys.readouterr().err
    with site.broker('edge_id = "press-7"\n' + DURABLE) as broker:
        asyncio.run(publish(site, "safe/1", 3))
        status = site.status()
        assert (status["edge_id"], status["pid"]) == ("press-7", broker.pid)
        assert status["listeners"] == [f"127.0.0.1:{site.port}"]
        assert status["mqtt"]["published"] == 3
        assert status["log"]["records"] == 3
        assert status["lost"] == {}
        assert main(["status", "--runtime-dir", str(site.runtime_dir), "--clients", "--readers"]) == 0
        out = capsys.readouterr().out
        assert "ring     safe-0: 3 records" in out
        assert "reader log" in out
        assert "lost     nothing" in out
        ended(broker)


def test_what_needs_attention_is_the_exit_status(site, capsys):
    (site.state_dir / "file").write_text("")
    lake = f'[[bridge]]\nname = "lake"\nto = "file://{site.state_dir}/file/lake"\nlinger_ms = 0\n'
    with site.broker(lake) as broker:
        asyncio.run(publish(site, "plant/1", 1))
        wait_until(lambda: site.status()["bridges"][0]["condition"] == "retrying")
        assert main(["status", "--runtime-dir", str(site.runtime_dir)]) == 1
        assert "WARNING  bridge lake is retrying" in capsys.readouterr().out
        assert main(["bridge", "status", "--runtime-dir", str(site.runtime_dir)]) == 1
        assert "lake: retrying" in capsys.readouterr().out
        ended(broker)


def drained(lake: Path) -> list[str]:
    return [path.name for path in lake.rglob("*.brim")]


def told_what_to_do(site, lake: Path, capsys) -> None:
    """A bridge in another process takes the same commands as one in the broker."""

    def tell(*words: str) -> str:
        assert main(["bridge", *words, "--runtime-dir", str(site.runtime_dir)]) == 0
        return str(capsys.readouterr().out)

    assert "paused" in tell("pause")
    there = drained(lake)
    asyncio.run(publish(site, "plant/1", 7))
    wait_until(lambda: "7 records behind" in tell("status"))
    assert drained(lake) == there
    assert "7 records would be skipped, offsets 15 to 21" in tell("skip", "lake", "--dry-run")
    assert "7 records are skipped, offsets 15 to 21" in tell("skip", "lake", "--stream", "default")
    assert "resumed" in tell("resume", "lake")
    asyncio.run(publish(site, "plant/1", 1))
    wait_until(lambda: site.status()["bridges"][0]["totals"]["records"] == 6)  # a file is there before that
    assert "offsets 12 to 22 are drained again" in tell("backfill", "--stream", "default", "--from", "12")
    last = "-00000000000000000012-00000000000000000022.brim"
    wait_until(lambda: any(name.endswith(last) for name in drained(lake)))
    assert main(["bridge", "backfill", "--stream", "x", "--from", "0"]) == 3


def test_a_bridge_drains_in_the_broker_or_as_a_process_of_its_own(site, capsys):
    lake = site.state_dir / "lake"
    section = f'[[bridge]]\nname = "lake"\nto = "file://{lake}"\nlinger_ms = 0\n'
    with site.broker(section) as broker:
        asyncio.run(publish(site, "plant/1", 10))
        wait_until(lambda: site.status()["bridges"][0]["totals"]["records"] == 10)
        ended(broker)
    inside = drained(lake)
    assert inside
    with site.broker(section + "in_broker = false\n") as broker:
        (state,) = site.status()["bridges"]
        assert state["condition"] == "stopped"
        assert "brim bridge run lake" in state["remedy"]
        assert main(["bridge", "status", "--runtime-dir", str(site.runtime_dir)]) == 1
        first, remedy = capsys.readouterr().out.splitlines()
        assert first == f"lake: stopped; to file://{lake}", "no number that nobody knows"
        assert "brim bridge run lake" in remedy
        asyncio.run(publish(site, "plant/1", 5))
        arguments = ("--config", site.state_dir / "brim.toml")
        directories = ("--runtime-dir", site.runtime_dir, "--state-dir", site.state_dir)
        with ModuleChild("edge", "bridge", "run", "lake", *arguments, *directories) as bridge:
            wait_until(lambda: len(drained(lake)) > len(inside))
            wait_until(lambda: site.status()["bridges"][0]["totals"]["records"] == 5)
            told_what_to_do(site, lake, capsys)
            ended(bridge)
        ended(broker)
    shutil.rmtree(lake)


@pytest.mark.parametrize(
    ("runtime_dir", "instance", "options"),
    [
        (None, None, ""),
        (None, "b", " --instance b"),
        ("/run/a b", None, " --runtime-dir '/run/a b'"),
        ("/run/a", "b", " --runtime-dir /run/a"),
    ],
)
def test_the_commands_of_a_start_name_its_runtime_directory_only_if_it_is_another(
    runtime_dir, instance, options
):
    settings = parse(f'runtime_dir = "{runtime_dir}"' if runtime_dir else "")
    listener = SimpleNamespace(addresses=[])
    broker: Any = SimpleNamespace(
        config=settings, listener=listener, version="1", zmq_endpoint=None, metrics_url=""
    )
    text = _ready(broker, Namespace(instance=instance), 0.1)
    assert text.splitlines()[-1] == f"  brim status{options}"


class Manager:
    """Stand-in for systemd: a datagram socket, named in the environment."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.settimeout(PATIENCE_S)

    def heard(self) -> str:
        return self.socket.recv(4096).decode()


def test_a_service_manager_is_told_when_it_is_ready_alive_and_stopping(site):
    manager = Manager(site.state_dir / "notify")
    with manager.socket:
        environment = {"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "50000"}
        with site.broker(**environment) as broker:
            heard = [manager.heard() for _ in range(4)]
            assert "READY=1" in heard[:2]
            assert heard.count("WATCHDOG=1") == 3
            ended(broker)
            while manager.heard() != "STOPPING=1":
                pass


async def test_a_broker_whose_mqtt_thread_hangs_stops_saying_that_it_is_alive(site, monkeypatch):
    manager = Manager(site.state_dir / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", str(manager.path))
    monkeypatch.setenv("WATCHDOG_USEC", "50000")
    config = Config(runtime_dir=site.runtime_dir, state_dir=site.state_dir, listener=(Listener(port=0),))
    free = threading.Event()
    with manager.socket:
        async with BrokerServer(config, "test", lambda: None) as broker:
            watching = asyncio.create_task(_watch(broker))
            assert await asyncio.to_thread(manager.heard) == "WATCHDOG=1"
            broker.listener.call(free.wait)
            await asyncio.to_thread(wait_until, partial(quiet, manager))
            free.set()
            assert await asyncio.to_thread(manager.heard) == "WATCHDOG=1"
            watching.cancel()


def quiet(manager: Manager) -> bool:
    """Nothing for ten watchdog intervals."""
    manager.socket.settimeout(0.25)
    try:
        manager.heard()
    except TimeoutError:
        return True
    finally:
        manager.socket.settimeout(PATIENCE_S)
    return False


def test_without_a_service_manager_nothing_is_told(monkeypatch, tmp_path):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    notify("READY=1")
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    assert watchdog_interval_s() == 0.5
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert watchdog_interval_s() is None


def test_a_log_for_machines_is_json_line_by_line(site):
    directories = ("--runtime-dir", site.runtime_dir, "--state-dir", site.state_dir)
    with ModuleChild("edge", "run", "--port", 0, "--log-format", "json", "--quiet", *directories) as child:
        wait_until((site.runtime_dir / "control.sock").exists)
        status, out, log = child.stop()
    assert (status, out) == (0, "")
    lines = [json.loads(line) for line in log.splitlines()]
    assert {"level", "logger", "message", "time_ns"} <= lines[0].keys()
    assert any(line["message"].startswith("ready") for line in lines)


def test_a_broker_that_has_just_started_is_light(site):
    with site.broker() as broker:
        loaded = (Path("/proc") / str(broker.pid) / "maps").read_text()
        status = (Path("/proc") / str(broker.pid) / "status").read_text()
        anonymous_kib = int(status.partition("RssAnon:")[2].split()[0])
        ended(broker)
    for name in ("pydantic", "numpy", "pyarrow", "obstore"):
        assert name not in loaded
    assert anonymous_kib < 40 << 10


def test_many_clients_at_once_do_not_make_the_report_too_long(site):
    """Sessions with long names and a subscription each: the answer fits, and says how many it omits."""
    with site.broker() as broker:
        asyncio.run(open_sessions(site, 150))
        status = site.status()
        assert len(status["clients"]) == 100
        assert status["clients_not_shown"] == 50
        assert status["shortened"] == []
        ended(broker)
    assert threading.active_count() < 10


async def open_sessions(site: Site, count: int) -> None:
    for number in range(count):
        name = f"{'x' * 200}-{number}"
        client = connect(f"mqtt://127.0.0.1:{site.port}", client_id=name, clean_start=False)
        async with client, client.subscribe("a/b"):
            pass


def test_a_first_start_on_a_full_disk_names_the_file_and_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path / "runtime"))
    with small_disk(tmp_path / "state", 1 << 20) as disk:
        fill(disk)
        monkeypatch.setenv("STATE_DIRECTORY", str(disk))
        assert main(["run", "--port", "0"]) == Exit.USAGE
    file = disk / "installation"
    assert capsys.readouterr().err.splitlines()[-2:] == [
        f"brim run: {file}: No space left on device",
        "  free space on that disk, then start the broker again",
    ]
