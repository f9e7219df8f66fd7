"""A broker that has stopped serving is noticed, reported, and served again, by itself or after its end."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from edge.mqtt import (
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
    Version,
    encode,
)
from edge.observe.prometheus import page
from edge.server.watchdog import EXIT_STALLED
from tests.support.children import ModuleChild
from tests.support.mqtt_socket import SocketClient
from tests.support.ports import free_port
from tests.support.stalled_broker import TICKS
from tests.support.status_report import report_of
from tests.support.waiting import PATIENCE_S, wait_until

KEPT = Properties(session_expiry_interval_s=3_600)
BATCH = 200
ASLEEP = 40  # sessions that each message is queued for: 172 bytes of the journal, which has 1 MiB
FLOOD = 50  # batches: more than that
EXIT_S = TICKS.tick_ms * TICKS.exit / 1_000


class Plant:
    """A broker process with a mistake (tests/support/stalled_broker.py)."""

    def __init__(self, runtime_dir: Path, directory: Path) -> None:
        self.port = free_port()
        self.runtime_dir, self.state_dir = runtime_dir / "run", directory / "state"
        self._config = directory / "brim.toml"
        lines = [f'edge_id = "here"\nruntime_dir = {json.dumps(str(self.runtime_dir))}']
        lines += [f"state_dir = {json.dumps(str(self.state_dir))}\n[[listener]]\nport = {self.port}"]
        self._config.write_text("\n".join([*lines, "[sessions]\njournal_bytes = 1048576"]))

    @contextmanager
    def running(self, mistake: str) -> Iterator[ModuleChild]:
        environment = {"MISTAKE": mistake, "STATE": str(self.state_dir)}
        module = "tests.support.stalled_broker"
        with ModuleChild(module, "run", "--config", self._config, environment=environment) as child:
            child.lines_until("ready")
            yield child

    def status(self) -> dict[str, Any]:
        return report_of(self.runtime_dir)

    def client(self, client_id: str, **fields: Any) -> SocketClient:
        return SocketClient(self.port, client_id, **fields)

    def sessions(self) -> None:
        """Sessions that sleep, each with a subscription of QoS 1."""
        for number in range(ASLEEP):
            with self.client(f"asleep-{number}", properties=KEPT) as client:
                client.send(Subscribe(1, (Subscription("t", 1),)))
                assert isinstance(client.receive(), SubAck)


@pytest.fixture
def plant(runtime_directory: Path, tmp_path: Path) -> Plant:
    return Plant(runtime_directory, tmp_path)


def flood(publisher: SocketClient, batches: int = FLOOD) -> int:
    """Publish batches, each when the last was acknowledged; how many messages, if all were."""
    acknowledged = 0
    for _ in range(batches):
        publisher.send(*(Publish("t", bytes(20), 1, packet_id=n + 1) for n in range(BATCH)))
        for _ in range(BATCH):
            assert isinstance(publisher.receive(), PubAck)
            acknowledged += 1
    return acknowledged


def acknowledged_before_the_end(publisher: SocketClient) -> int:
    """Messages of a flood that are acknowledged until the broker ends."""
    count = 0
    try:
        while True:
            publisher.send(*(Publish("t", bytes(20), 1, packet_id=n + 1) for n in range(BATCH)))
            for _ in range(BATCH):
                assert isinstance(publisher.receive(), PubAck)
                count += 1
    except (EOFError, ConnectionError):
        return count


def test_a_lost_request_for_a_checkpoint_costs_seconds_and_is_reported(plant: Plant) -> None:
    with plant.running("deaf") as child:
        plant.sessions()
        with plant.client("publisher") as publisher:
            assert flood(publisher) == FLOOD * BATCH
        wait_until(lambda: plant.status()["watchdog"]["stalled_s"] == 0)
        status = plant.status()
        assert status["watchdog"]["stalls"] >= 1
        assert status["watchdog"]["last"] == "clients were not served"
        assert "brim_stalls_total" in page(status)
        child_status, _, log = child.stop()
        assert child_status == 0
    assert "clients not served" in log
    assert "journal_full=True" in log
    assert "Thread 0x" in log
    assert "clients served again" in log


def test_a_stall_that_lasts_ends_the_process_and_the_next_one_has_what_was_acknowledged(plant: Plant) -> None:
    with plant.running("mute") as child:
        plant.sessions()
        with plant.client("publisher") as publisher:
            acknowledged = acknowledged_before_the_end(publisher)
        status, _, log = child.wait()
        assert status == EXIT_STALLED, log
    assert "process ends; the next start continues" in log
    with plant.running("") as child:
        with plant.client("asleep-0", version=Version.V5, properties=KEPT, clean_start=False) as client:
            assert client.session_present
            for _ in range(acknowledged):
                packet = client.receive()
                assert isinstance(packet, Publish)
                client.send(PubAck(packet.packet_id))
        child.stop()


@pytest.mark.parametrize("mistake", ["asleep", "grasping"])
def test_a_thread_that_is_stuck_is_shown_and_the_process_ends(plant: Plant, mistake: str) -> None:
    """Also where no Python runs, because that thread keeps the interpreter's lock."""
    with plant.running(mistake) as child:
        with plant.client("sleeper") as client:
            client.send(Publish("$sleep/now", b"x", 1, packet_id=1))
            with pytest.raises((EOFError, ConnectionError)):
                client.receive()
        status, _, log = child.wait()
    assert status == EXIT_STALLED, log
    assert "the MQTT thread is stuck" in log
    assert "in sleeping" in log or "in handled" in log


def test_a_thread_that_was_stuck_and_goes_on_is_counted(plant: Plant) -> None:
    with plant.running("nodding") as child:
        with plant.client("sleeper") as client:
            client.send(Publish("$sleep/now", b"x", 1, packet_id=1))
            assert isinstance(client.receive(), PubAck)
        wait_until(lambda: plant.status()["watchdog"]["stalls"] == 1)
        assert plant.status()["watchdog"]["last"].startswith("the MQTT thread was stuck")
        shown = subprocess.run(
            [sys.executable, "-m", "edge", "status", "--runtime-dir", str(plant.runtime_dir)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "stalls   1, the last" in shown.stdout
        status, _, log = child.stop()
    assert status == 0
    assert "MQTT thread continued" in log


def test_a_process_that_was_stopped_has_not_stalled(plant: Plant) -> None:
    """Its watchdog had no more turns than its MQTT thread."""
    with plant.running("") as child, plant.client("c") as client:
        os.kill(child.pid, signal.SIGSTOP)
        client.send(Publish("t", b"x", 1, packet_id=1))
        time.sleep(1.2 * EXIT_S)
        os.kill(child.pid, signal.SIGCONT)
        assert isinstance(client.receive(), PubAck)
        assert plant.status()["watchdog"] == {"stalls": 0, "stalled_s": 0, "last": "", "last_ago_s": None}
        assert child.stop()[0] == 0


def test_a_process_that_was_stopped_hears_its_clients_before_it_ends_them(plant: Plant) -> None:
    """Their pings lie in the sockets, more of them than are read between two looks at deadlines."""
    with plant.running("") as child, ExitStack() as stack:
        address = ("127.0.0.1", plant.port)
        clients = [stack.enter_context(socket.create_connection(address, PATIENCE_S)) for _ in range(300)]
        for number, client in enumerate(clients):
            client.sendall(encode(Connect(f"c{number}", keep_alive_s=2)))
        for client in clients:
            assert client.recv(4) == b"\x20\x02\0\0"
        os.kill(child.pid, signal.SIGSTOP)
        for client in clients:
            client.sendall(encode(PingReq()))
        time.sleep(3.5)  # more than one and a half keep-alives
        os.kill(child.pid, signal.SIGCONT)
        assert {client.recv(2) for client in clients} == {encode(PingResp())}
        assert child.stop()[0] == 0


def test_a_disk_that_fails_and_is_reported_ends_nothing(plant: Plant) -> None:
    """The next start would find the same disk; clients wait until it works again."""
    with plant.running("no disk") as child:
        plant.sessions()
        (plant.state_dir / "no-disk").touch()
        with plant.client("publisher") as publisher:
            publisher.send(
                *(Publish("t", bytes(20), 1, packet_id=n % 60_000 + 1) for n in range(FLOOD * BATCH))
            )
            time.sleep(1.5 * EXIT_S)
            report = plant.status()
            assert report["watchdog"]["stalls"] == 0
            assert report["mqtt"]["snapshot_failure"]
            (plant.state_dir / "no-disk").unlink()
            assert all(isinstance(publisher.receive(), PubAck) for _ in range(FLOOD * BATCH))
        status, _, log = child.stop()
    assert status == 0
    assert "session snapshot failed" in log


def test_a_broker_that_a_client_leaves_in_the_middle_of_its_packets_has_not_stalled(plant: Plant) -> None:
    """No client is there any more: nothing waits for the broker."""
    packets = [Subscribe(number, (Subscription(f"t/{number}", 0),)) for number in range(1, 11)]
    with plant.running("none") as child:
        for number in range(3):
            with plant.client(f"c{number}") as client:
                client.send(*packets, Disconnect())
            time.sleep(2 * TICKS.serve * TICKS.tick_ms / 1_000)
            assert plant.status()["watchdog"]["stalls"] == 0
        assert child.stop()[0] == 0
