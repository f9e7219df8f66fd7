"""The broker continues to serve: real processes, real sockets, clients that come and go."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from edge.mqtt import Properties, PubAck, Publish, Will
from tests.support.brim_process import BrimProcess
from tests.support.mqtt_socket import SocketClient

KEPT = Properties(session_expiry_interval_s=3_600)
SETTINGS = "[sessions]\njournal_bytes = 1048576\n"  # the smallest; a snapshot is due after an eighth of it
WILL = Will("guest/will", bytes(50_000))  # four of these make a snapshot due
ASLEEP = 40  # sessions that each message is queued for: 172 bytes of the journal
BATCH, BATCHES = 200, 40  # more than the journal holds
ROUNDS = 3


def come_and_go(port: int, number: int) -> None:
    """Two sessions that are kept, with a subscription and a will."""
    for turn in range(2):
        with SocketClient(port, f"guest-{number}-{turn}", properties=KEPT, will=WILL) as client:
            client.subscribe(f"guest/{number}", 1)


def test_a_publisher_is_served_after_clients_with_kept_sessions_came_and_went(
    runtime_directory: Path, tmp_path: Path
) -> None:
    """Notes about them make a snapshot due while Python handles their packets; the flood after that needs
    it.
    """
    with (
        BrimProcess(runtime_directory / "run", tmp_path, SETTINGS, bridge=False) as broker,
        ThreadPoolExecutor(2) as guests,
    ):
        for number in range(ASLEEP):
            with SocketClient(broker.port, f"asleep-{number}", properties=KEPT) as asleep:
                asleep.subscribe("t", 1)
        with SocketClient(broker.port, "publisher") as publisher:
            for _ in range(ROUNDS):
                assert list(guests.map(come_and_go, [broker.port] * 2, range(2))) == [None, None]
                for _ in range(BATCHES):
                    publisher.send(*(Publish("t", bytes(20), 1, packet_id=n + 1) for n in range(BATCH)))
                    assert all(isinstance(publisher.receive(), PubAck) for _ in range(BATCH))
