"""A disk that stays full while kept sessions have more to write down than their journal holds.

Streams in memory are served, a kill costs nothing, and when there is room the disk has everything again.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.mqtt import Properties, PubAck, Publish, Subscribe, Subscription
from tests.support.brim_process import BrimProcess
from tests.support.mqtt_socket import SocketClient
from tests.support.small_disk import fill, small_disk
from tests.support.status_report import report_of
from tests.support.waiting import wait_until

MIB = 1 << 20
KEPT = Properties(session_expiry_interval_s=600)
SESSIONS = 200
WINDOW, WINDOWS = 100, 50  # 812 bytes for each message: more than the journal and its log hold
SETTINGS = """
[sessions]
journal_bytes = 1048576
[log]
segment_bytes = 1048576
[[stream]]
name = "t"
topics = ["t/#"]
durability = "interval"
ring_bytes = 4194304
sync_interval_ms = 50
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 256 * MIB) as found:
        yield found


def subscribe(broker: BrimProcess, client_id: str) -> None:
    with SocketClient(broker.port, client_id, clean_start=False, properties=KEPT) as client:
        client.send(Subscribe(1, (Subscription("memory/#", 1),)))
        client.receive()


def publish(broker: BrimProcess) -> None:
    """More than the journal holds, all of it acknowledged."""
    with SocketClient(broker.port, "p") as client:
        for _ in range(WINDOWS):
            client.send(*(Publish("memory/1", b"x", 1, packet_id=number + 1) for number in range(WINDOW)))
            for _ in range(WINDOW):
                answer = client.receive()
                assert isinstance(answer, PubAck)
                assert not answer.reason_code.failed


def received(broker: BrimProcess, client_id: str, count: int) -> None:
    """So many messages wait for that session."""
    with SocketClient(broker.port, client_id, clean_start=False, properties=KEPT) as client:
        assert client.session_present
        for _ in range(count):
            packet = client.receive()
            assert isinstance(packet, Publish)
            client.send(PubAck(packet.packet_id))


def test_a_full_disk_stops_no_stream_in_memory_however_long(runtime_directory: Path, disk: Path) -> None:
    broker = BrimProcess(runtime_directory, disk, SETTINGS, bridge=False)
    with broker:
        for number in range(SESSIONS):
            subscribe(broker, f"kept-{number}")
        filler = fill(disk)
        publish(broker)
        subscribe(broker, "late")
        broker.kill()
        broker.start()  # the disk is full
        assert report_of(runtime_directory)["mqtt"]["snapshot_failure"]
        received(broker, "kept-0", WINDOW * WINDOWS)
        received(broker, "late", 0)
        filler.unlink()
        broker.log_until("log accepts records again")
        assert not report_of(runtime_directory)["mqtt"]["snapshot_failure"]
        subscribe(broker, "last")
        wait_until(lambda: report_of(runtime_directory)["log"]["unsynced_bytes"] == 0)
        broker.kill()
        shutil.rmtree(runtime_directory)  # as a power cut does
        runtime_directory.mkdir()
        broker.start()
        for name in ("kept-1", "late", "last"):
            received(broker, name, 0)


def test_memory_keeps_no_snapshot_while_the_log_continues_the_one_on_the_disk(
    runtime_directory: Path, tmp_path: Path
) -> None:
    place = tmp_path / "state" / "sessions.state"
    obstacle = place.with_name("sessions.state.tmp")  # of which a snapshot is made
    (obstacle / "in the way").mkdir(parents=True)
    with BrimProcess(runtime_directory, tmp_path, SETTINGS, bridge=False) as broker:
        wait_until(lambda: report_of(runtime_directory)["mqtt"]["snapshot_failure"])
        subscribe(broker, "kept")
        assert not list(runtime_directory.glob("sessions.state*"))
        shutil.rmtree(obstacle)
        broker.log_until("sessions kept again")
        assert place.is_file()
