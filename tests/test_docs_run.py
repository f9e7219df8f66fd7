"""Commands and programs of README, tutorials and how-to pages, run as they stand against a broker."""

import asyncio
import json
import os
import shlex
import shutil
import signal
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from brim.asyncio import connect
from edge.cli import VERSION
from tests.support.children import Child
from tests.support.documented import Newcomer, lines_of
from tests.support.documents import block_of, commands, parse
from tests.support.old_version import OLD_VERSION, OldVersion
from tests.support.paho_client import Paho
from tests.support.waiting import wait_until

TUTORIAL = "docs/tutorials/first-minutes.md"
LOCAL = "docs/how-to/local-programs.md"
GROUPS = "docs/how-to/consumer-groups.md"
PLUG_IN = "docs/how-to/write-an-auth-plug-in.md"
USERS = "docs/how-to/users-and-acl.md"
BRIDGES = "docs/how-to/bridges.md"

TEMPERATURE = ("plant/1/temp", b"21.5")
VIBRATION = ("plant/1/vibration", struct.pack("<2d", 1.5, 2.5))


@pytest.fixture
def newcomer(tmp_path: Path, runtime_directory: Path) -> Newcomer:
    return Newcomer(tmp_path, runtime_directory)


@contextmanager
def publishing(newcomer: Newcomer, topic: str, payload: bytes) -> Iterator[None]:
    """A message at QoS 1 again and again, since no program reports that it has subscribed."""
    over = threading.Event()

    async def publish() -> None:
        async with connect(f"mqtt://127.0.0.1:{newcomer.ports['mqtt']}") as client:
            while not over.is_set():
                await client.publish(topic, payload, qos=1)
                await asyncio.sleep(0.02)

    thread = threading.Thread(target=asyncio.run, args=(publish(),))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def first_line(newcomer: Newcomer, child: Child, topic: str, payload: bytes) -> str:
    """The first line that a program prints about records."""
    with child, publishing(newcomer, topic, payload):
        return child.line()


@pytest.mark.parametrize("page", ["README.md", TUTORIAL])
def test_each_subscriber_of_the_first_minutes_gets_the_message(page: str, newcomer: Newcomer) -> None:
    with newcomer.broker():
        subscribers = [newcomer.start(*words, "-C", "1") for words in lines_of(page, "sub")]
        published = lines_of(page, "pub")[0]
        try:
            wait_until(lambda: _subscribed(json.loads(newcomer.run("status", "--json"))) >= len(subscribers))
            newcomer.run(*published)
            assert [child.line() for child in subscribers] == [published[-1]] * len(subscribers)
        finally:
            for child in subscribers:
                child.__exit__(None, None, None)
        assert ": 1 record," in newcomer.run(*lines_of(page, "status")[0])


def _subscribed(status: dict[str, Any]) -> int:
    readers = [reader for ring in status["rings"] for reader in ring["readers"] if not reader["own"]]
    clients: int = sum(client["subscriptions"] for client in status["clients"])
    prefixes: int = status["zmq"]["prefixes"]
    return len(readers) + clients + prefixes


def test_a_record_of_the_tutorial_is_logged_replayed_and_drained(newcomer: Newcomer) -> None:
    file = newcomer.write("brim.toml", text := block_of(TUTORIAL, "toml"))
    assert "no mistakes" in newcomer.run("check", str(file))
    with newcomer.broker(text):
        newcomer.run(*lines_of(TUTORIAL, "pub")[-1])
        wait_until(lambda: '"payload": "21.5"' in newcomer.run(*lines_of(TUTORIAL, "replay")[0]))
        assert "active" in newcomer.run(*lines_of(TUTORIAL, "segments")[0])
        wait_until(lambda: list(newcomer.directory.rglob("*.brim")))
        assert "0 lost" in newcomer.run(*lines_of(TUTORIAL, "bridge")[0])


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the Debian package openssl")
def test_a_device_gets_in_by_tls_and_password(newcomer: Newcomer) -> None:
    """README, "A device on the network", with the certificate and the client of docs/how-to/tls.md."""
    [user] = lines_of("README.md", "passwd")
    newcomer.run(*user, "--password-stdin", text="secret\n")
    (newcomer.directory / "password").write_text("secret\n")
    [certificate] = [words for page, words in commands("openssl") if page.name == "tls.md"]
    subprocess.run(["openssl", *certificate], cwd=newcomer.directory, check=True, capture_output=True)
    text = block_of("README.md", "toml")
    assert "no mistakes" in newcomer.run("check", str(newcomer.write("brim.toml", text)))
    [client] = lines_of("docs/how-to/tls.md", "pub")
    client[client.index("--username") + 1] = user[-1]
    client[client.index("--password") : client.index("--password") + 2] = ["--password-file", "password"]
    with newcomer.broker(text):
        newcomer.run(*client)
        (newcomer.directory / "password").write_text("wrong\n")
        assert newcomer.status(*client)[0] == 4


@pytest.mark.parametrize(
    ("page", "begins", "message", "printed"),
    [
        ("README.md", "import numpy", VIBRATION, "b'plant/1/vibration' "),
        ("README.md", "import asyncio", TEMPERATURE, "plant/1/temp b'21.5'"),
        (LOCAL, "import numpy", VIBRATION, "b'plant/1/vibration' "),
        (LOCAL, "import brim\n\nwith brim.subscribe_zmq", TEMPERATURE, "plant/1/temp "),
    ],
)
def test_a_program_that_is_shown_prints_the_message(
    page: str, begins: str, message: tuple[str, bytes], printed: str, newcomer: Newcomer
) -> None:
    with newcomer.broker():
        assert first_line(newcomer, newcomer.program(page, begins), *message).startswith(printed)


def test_a_producer_that_is_shown_publishes_its_record(newcomer: Newcomer) -> None:
    with newcomer.broker():
        with newcomer.program(LOCAL, "import brim\n\nwith brim.producer") as child:
            status, _, log = child.wait()
        assert status == 0, log
        assert "default@camera: 1 record," in newcomer.run("status")


def test_a_ring_without_a_broker_is_read(newcomer: Newcomer) -> None:
    with newcomer.program(LOCAL, "from brim import Ring") as child:
        assert child.line() == "0 b'plant/1/temp' b'21.5'"


def test_a_group_that_is_shown_is_operated(newcomer: Newcomer) -> None:
    with newcomer.broker():
        with newcomer.program(GROUPS, "import asyncio") as member:
            with publishing(newcomer, *TEMPERATURE):
                assert member.line() == "plant/1/temp b'21.5'"
            member.stop(signal.SIGINT)  # it leaves the group
        wait_until(lambda: newcomer.status(*lines_of(GROUPS, "consumers", "reset")[0])[0] == 0)
        for words in lines_of(GROUPS, "consumers"):
            if "--secret-key" not in words:  # of another machine: tests/edge/cli/test_consumers.py
                newcomer.run(*words)
        assert "billing" not in newcomer.run("consumers", "ls")


def test_the_plug_in_that_is_shown_decides(newcomer: Newcomer) -> None:
    pytest.importorskip("amqtt", reason="needs the extra amqtt")
    newcomer.write("tokens.py", block_of(PLUG_IN, "python"))
    text = block_of(PLUG_IN, "toml")
    assert "no mistakes" in newcomer.run("check", str(newcomer.write("brim.toml", text)))
    [client] = lines_of(PLUG_IN, "pub")
    with newcomer.broker(text) as broker:
        newcomer.run(*client)
        broker.log_until("connected")
        assert newcomer.status(*["wrong" if word == "secret" else word for word in client])[0] == 4
        refused = [word.replace("plant/press", "plant/other") for word in client]
        assert newcomer.status(*refused, "-q", "1", "--protocol", "5")[0] == 4


def test_users_and_rules_that_are_shown_bind(newcomer: Newcomer) -> None:
    for words in lines_of(USERS, "passwd")[:2]:
        newcomer.run(*words, "--password-stdin", text="secret\n")
    newcomer.write("password", "secret\n")
    newcomer.write("acl", block_of(USERS, "", "topic read"))
    login = ("--username", "ann", "--password-file", "password", "-q", "1", "--protocol", "5")
    text = f"{block_of(USERS, 'toml', '[auth]')}\n[[listener]]\nport = 1883\n"
    with newcomer.broker(text):
        newcomer.run("pub", "plant/press/7", "21.5", *login)
        assert newcomer.status("pub", "plant/secret/7", "21.5", *login)[0] == 4
        assert newcomer.status("pub", "status/7", "21.5", *login)[0] == 4
        newcomer.run("sessions")
    newcomer.run(*lines_of(USERS, "passwd")[2])


def test_the_bridge_that_is_shown_is_operated(newcomer: Newcomer) -> None:
    text = block_of(BRIDGES, "toml", "[[stream]]")
    with newcomer.broker(text):
        file = newcomer.directory / "brim.toml"
        running = [
            str(file) if word == "brim.toml" else word for word in lines_of(BRIDGES, "bridge", "run")[0]
        ]
        with newcomer.start(*running) as bridge:
            bridge.log_until("bridge started")
            newcomer.run("pub", "plant/a/press/7", "21.5", "-q", "1")
            wait_until(lambda: list(newcomer.directory.rglob("*.brim")))
            for words in lines_of(BRIDGES, "bridge")[1:]:
                newcomer.run(*words)


def test_the_transform_that_is_shown_makes_fahrenheit() -> None:
    from bridge.drain.transform import TransformedRecord

    names: dict[str, Any] = {}
    exec(compile(block_of(BRIDGES, "python"), "bridges.md", "exec"), names)
    given = TransformedRecord(7, 1, b"plant/1/temp", 0, b"", b"100")
    assert list(names["fahrenheit"]([given])) == [TransformedRecord(7, 1, b"plant/1/temp", 0, b"", b"212.0")]


def test_the_log_is_looked_into_with_and_without_a_broker(newcomer: Newcomer) -> None:
    page = "docs/how-to/log.md"
    text = '[[stream]]\nname = "plant"\ntopics = ["plant/#"]\ndurability = "disk"\n'
    local = [
        words for words in [*lines_of(page, "segments"), *lines_of(page, "replay")] if "--to" not in words
    ]
    without_a_broker = [words for words in local if words[1] in {"repair", "archive"}]
    with newcomer.broker(text):
        newcomer.run("pub", "plant/1/temp", "21.5", "-q", "1")
        wait_until(lambda: "21.5" in newcomer.run("replay", "--from", "-1m"))  # the record has its proof
        for words in [words for words in local if words not in without_a_broker]:
            newcomer.run(*words)
        lines, drained = lines_of(page, "segments", "export")
        newcomer.run(*(word for word in lines if not word.startswith("2026")), "2020-01-01")
        newcomer.run(*drained)
        [again] = [words for words in lines_of(page, "replay") if "--to" in words]
        place = f"mqtt://127.0.0.1:{newcomer.ports['mqtt']}"
        with newcomer.start("sub", "again/#", "-C", "1", "-v") as subscriber:
            wait_until(lambda: _subscribed(json.loads(newcomer.run("status", "--json"))))
            newcomer.run(*(place if word.startswith("mqtt:") else word for word in again))
            assert subscriber.line() == "again/plant/1/temp 21.5"
    assert json.loads((newcomer.directory / "day.jsonl").read_text())["payload"] == "21.5"
    assert list((newcomer.directory / "drained").rglob("*.brim"))
    for words in without_a_broker:
        newcomer.run(*words)


def test_a_backup_that_is_shown_is_made_and_restored(newcomer: Newcomer) -> None:
    page = "docs/how-to/backup-and-restore.md"
    make, verify = lines_of(page, "backup")
    [restore] = lines_of(page, "restore")
    text = '[[stream]]\nname = "plant"\ntopics = ["plant/#"]\ndurability = "disk"\n'
    with newcomer.broker(text):
        newcomer.run("pub", "plant/1/temp", "21.5", "-q", "1")
        newcomer.run(*make)
        newcomer.run(*verify)
        wait_until(lambda: "21.5" in newcomer.run("replay", "--from", "-1m"))
        for words in lines_of(page, "segments", "export"):
            newcomer.run(*("2020-01-01" if word.startswith("2026") else word for word in words))
    for words in lines_of(page, "segments", "verify") + lines_of(page, "segments", "repair"):
        newcomer.run(*words)
    newcomer.forget_state()
    assert "try\n  brim run --config" in newcomer.run(*restore)
    assert lines_of(page, "run") == [["run", "--config", "brim.toml"]]
    with newcomer.broker(text):
        assert "21.5" in newcomer.run("replay", "--from", "-1h")


@pytest.mark.parametrize("ends_by", [signal.SIGTERM, signal.SIGKILL])
def test_an_upgrade_that_is_shown_keeps_messages_in_memory(ends_by: int, newcomer: Newcomer) -> None:
    page = "docs/how-to/upgrade.md"
    file = newcomer.write("brim.toml", "[[listener]]\nport = 1883\n")
    old = OldVersion(newcomer.directory / "old")
    with old.broker("--config", file, environment=newcomer.environment) as broker:
        before = json.loads(newcomer.run("status", "--json"))
        newcomer.ports["mqtt"] = int(before["listeners"][0].rpartition(":")[2])
        Paho(newcomer.ports["mqtt"], "away", clean=False, topic="plant/#").stop()
        newcomer.run("pub", "plant/1/temp", "21.5", "-q", "1")
        newcomer.run("pub", "plant/2/temp", "20", "-q", "1", "-r")
        assert newcomer.status(*lines_of(page, "backup")[0])[0] == 1  # the messages are only in memory
        newcomer.run(*lines_of(page, "check")[0])
        broker.stop(ends_by) if ends_by == signal.SIGTERM else broker.kill()
    with newcomer.broker("[[listener]]\nport = 1883\n"):
        newcomer.run(*lines_of(page, "status")[0])
        after = json.loads(newcomer.run("status", "--json"))
        assert (before["version"], after["version"]) == (OLD_VERSION, VERSION)
        [ring] = after["rings"]
        assert (ring["epoch"], ring["end_offset"]) == (before["rings"][0]["epoch"], 2)
        away = Paho(newcomer.ports["mqtt"], "away", clean=False)
        assert [bytes(away.message().payload) for _ in range(2)] == [b"21.5", b"20"]
        away.stop()
        assert newcomer.run("sub", "plant/2/temp", "-C", "1") == "20\n"


def test_an_edge_that_was_renamed_continues(newcomer: Newcomer) -> None:
    page = "docs/how-to/several-instances.md"
    [rename] = lines_of(page, "bridge", "rename-edge")
    bridge = block_of(BRIDGES, "toml", "[[stream]]").replace("in_broker = false\n", "")
    _, _, old, new, *_ = rename
    with newcomer.broker(f'edge_id = "{old}"\n{bridge}'):
        newcomer.run("pub", "plant/a/press/7", "21.5", "-q", "1")
        wait_until(lambda: list(newcomer.directory.rglob("*.brim")))
    file = newcomer.write("brim.toml", f'edge_id = "{new}"\n{bridge}')
    status, _, error = newcomer.status("check", str(file))
    assert (status, "rename-edge" in error) == (2, True)
    newcomer.run(*rename)
    newcomer.run("check", str(file))


def test_two_instances_run_next_to_each_other(newcomer: Newcomer, tmp_path: Path) -> None:
    page = "docs/how-to/several-instances.md"
    text = block_of(page, "toml").replace("/dev/shm/brim-b", f"{newcomer.runtime_dir}/b")
    second = Newcomer(tmp_path / "second", newcomer.runtime_dir / "b")
    second.directory.mkdir()
    with newcomer.broker(), second.broker(text):
        second.run("pub", "plant/1", "b")
        assert json.loads(second.run("status", "--json"))["edge_id"] == "plant-7-b"
        assert json.loads(newcomer.run("status", "--json"))["mqtt"]["published"] == 0
        status, _, error = newcomer.status("run", "--port", "0")
        assert (status, "is in use by another broker (pid" in error) == (2, True)


def test_the_command_of_the_unit_for_systemd_is_accepted(newcomer: Newcomer) -> None:
    [words] = [it for it in lines_of("docs/how-to/service.md", "service", "install") if "--print" in it]
    unit = newcomer.run(*words)
    [command] = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
    parse(shlex.split(command.partition(" brim ")[2]))
    settings = {line.partition("=")[0] for line in unit.splitlines() if "=" in line}
    assert {"Type", "WatchdogSec", "Restart", "RuntimeDirectoryPreserve"} <= settings
    assert "RemoveIPC" not in settings  # it would remove rings in /dev/shm at a stop


def test_an_instance_has_its_own_broker(
    newcomer: Newcomer, monkeypatch: pytest.MonkeyPatch, runtime_directory: Path
) -> None:
    _, [_, *instance], sub = (
        lines_of("docs/how-to/several-instances.md", verb)[0] for verb in ("run", "status", "sub")
    )
    home = str(newcomer.directory)
    newcomer.environment |= {"RUNTIME_DIRECTORY": "", "STATE_DIRECTORY": "", "HOME": home}
    with newcomer.start("run", *instance, "--port", "0") as broker:
        try:
            ready = "".join(broker.lines_until("brim status"))
            assert f"brim status {' '.join(instance)}" in ready
            newcomer.ports["mqtt"] = int(ready.partition("127.0.0.1:")[2].split()[0])
            facts = json.loads(newcomer.run("status", *instance, "--json"))
            assert facts["edge_id"].endswith("-b")
            with newcomer.start(*sub, "-C", "1") as subscriber:
                wait_until(
                    lambda: json.loads(newcomer.run("status", *instance, "--json"))["rings"][0]["readers"]
                )
                newcomer.run("pub", "plant/1", "b")
                assert subscriber.line() == "b"
            assert broker.stop()[0] == 0
        finally:
            shutil.rmtree(f"/dev/shm/brim-{os.geteuid()}-b", ignore_errors=True)
    assert (newcomer.directory / ".local/state/brim-b/brim.lock").exists()


def test_the_service_of_an_instance_that_is_shown_has_its_own_directories(newcomer: Newcomer) -> None:
    [install] = lines_of("docs/how-to/several-instances.md", "service", "install")
    newcomer.write("b.toml", block_of("docs/how-to/several-instances.md", "toml"))
    unit = newcomer.run(*install, "--print", "--system")
    assert " --instance b --config " in unit
    assert "\nStateDirectory=brim-b\n" in unit
    assert "\nRuntimeDirectory=brim-b\n" in unit


def _has_reader(status: dict[str, Any]) -> bool:
    return any(ring["readers"] for ring in status["rings"])
