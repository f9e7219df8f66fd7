"""A runtime directory without room: what absent sessions wait for is not overwritten, others are served."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from edge.mqtt import Disconnect, PubAck, Publish, ReasonCode, SubAck, Subscribe, Subscription, Version
from tests.support.brim_process import BrimProcess
from tests.support.mqtt_socket import SocketClient
from tests.support.small_disk import fill, small_disk
from tests.support.status_report import report_of
from tests.support.waiting import wait_until

SETTINGS = """
[[stream]]
name = "waited"
topics = ["waited/#"]
ring_bytes = "64 KiB"
[[stream]]
name = "other"
topics = ["other/#"]
ring_bytes = "64 KiB"
[[stream]]
name = "default"
topics = ["#"]
ring_bytes = "64 KiB"
[limits]
packet_max_bytes = "4 KiB"
queued_records_max = 100_000
[sessions]
journal_bytes = "1 MiB"
[zmq]
enabled = false
[sys]
interval_s = 0
"""
DISK_BYTES = 4 << 20
BODY = bytes(400)
LAP = 150  # messages, about


@contextmanager
def full_broker(runtime_directory: Path, directory: Path) -> Iterator[tuple[BrimProcess, Path]]:
    with small_disk(runtime_directory / "small", DISK_BYTES) as disk:
        disk.chmod(0o750)
        with BrimProcess(disk, directory, SETTINGS, bridge=False) as broker:
            yield broker, disk


def sleeper(broker: BrimProcess, client_id: str, topic: str) -> None:
    with SocketClient(broker.port, client_id, Version.V311, clean_start=False) as client:
        client.send(Subscribe(1, (Subscription(topic, 2),)))
        assert isinstance(client.receive(), SubAck)
        client.send(Disconnect())


def publish(client: SocketClient, topic: str, number: int) -> ReasonCode:
    """The answer to one message."""
    client.send(Publish(topic, b"%d " % number + BODY, 1, packet_id=number % 60_000 + 1))
    answer = client.receive()
    assert isinstance(answer, PubAck), answer
    return answer.reason_code


def until_refused(client: SocketClient) -> list[int]:
    """Publishes one after the other; the numbers that were acknowledged before one was refused."""
    for number in range(60_000):
        reason = publish(client, "waited/a", number)
        if reason == ReasonCode.QUOTA_EXCEEDED:
            return list(range(number))
        assert reason == ReasonCode.SUCCESS
    raise AssertionError("the file system is never full")


def everything(broker: BrimProcess, client_id: str, count: int) -> list[int]:
    """The next messages of its queue, in order: so many."""
    found: list[int] = []
    with SocketClient(broker.port, client_id, Version.V311, clean_start=False) as client:
        assert client.session_present
        while len(found) < count:
            packet = client.receive()
            assert isinstance(packet, Publish)
            found.append(int(bytes(packet.payload).split()[0]))
            client.send(PubAck(packet.packet_id))
        client.send(Disconnect())
    return found


def status_of(broker: BrimProcess) -> dict[str, Any]:
    return report_of(broker.runtime_dir)


def counters(broker: BrimProcess) -> dict[str, Any]:
    counted: dict[str, Any] = status_of(broker)["mqtt"]
    return counted


def is_done(broker: BrimProcess, client_id: str) -> bool:
    """True: nothing waits for that client, and all that it was sent is acknowledged."""
    return any(
        (it["client_id"], it["queued"], it["in_flight"]) == (client_id, 0, 0)
        for it in status_of(broker)["clients"]
    )


def test_publishers_are_refused_while_copies_find_no_room_and_others_are_served(
    runtime_directory: Path, tmp_path: Path
) -> None:
    with full_broker(runtime_directory, tmp_path) as (broker, disk):
        sleeper(broker, "sleeper", "waited/#")
        filler = fill(disk)
        with (
            SocketClient(broker.port, "p") as client,
            SocketClient(broker.port, "old", Version.V311) as old,
            SocketClient(broker.port, "other") as other,
        ):
            acknowledged = until_refused(client)
            assert len(acknowledged) < 2 * LAP
            assert counters(broker)["spill_errno"] != 0
            old.send(Publish("waited/a", 4 * BODY, 1, packet_id=1))
            assert old.is_cut()  # MQTT 3.1.1 has no other way to report it
            for number in range(10 * LAP):  # no kept session waits for these
                assert publish(other, "other/a", number) == ReasonCode.NO_MATCHING_SUBSCRIBERS
            assert counters(broker)["spill_refused"] >= 2
            broker.kill()
            broker.start()  # without room, too
        with SocketClient(broker.port, "p") as client:
            number = len(acknowledged)
            assert publish(client, "waited/a", number) == ReasonCode.QUOTA_EXCEEDED
            filler.unlink()
            wait_until(lambda: publish(client, "waited/a", number) == ReasonCode.SUCCESS)
            for number in range(len(acknowledged) + 1, 10 * LAP):
                assert publish(client, "waited/a", number) == ReasonCode.SUCCESS
        assert counters(broker)["spill_errno"] == 0
        assert everything(broker, "sleeper", 10 * LAP) == list(range(10 * LAP))


def test_a_full_runtime_directory_is_tidied_when_a_session_has_taken_what_it_waited_for(
    runtime_directory: Path, tmp_path: Path
) -> None:
    with full_broker(runtime_directory, tmp_path) as (broker, disk):
        sleeper(broker, "sleeper", "waited/#")
        with SocketClient(broker.port, "p") as client:
            acknowledged = until_refused(client)
            assert len(acknowledged) > 10 * LAP
            assert everything(broker, "sleeper", len(acknowledged)) == acknowledged
            wait_until(lambda: publish(client, "waited/a", 0) == ReasonCode.SUCCESS)
        assert disk.exists()


def test_a_journal_that_is_full_finds_room_for_its_snapshot_in_a_full_runtime_directory(
    runtime_directory: Path, tmp_path: Path
) -> None:
    """Otherwise no client would be served."""
    with full_broker(runtime_directory, tmp_path) as (broker, disk):
        sleeper(broker, "reader", "other/#")
        fill(disk)
        reader = SocketClient(broker.port, "reader", Version.V311, clean_start=False)
        with reader, SocketClient(broker.port, "p") as client:
            for first in range(0, 60_000, 100):
                numbers = range(first, first + 100)
                client.send(*(Publish("other/a", b"%d" % it, 1, packet_id=it % 60_000 + 1) for it in numbers))
                for number in numbers:
                    packet = reader.receive()
                    assert isinstance(packet, Publish)
                    assert int(bytes(packet.payload)) == number
                    reader.send(PubAck(packet.packet_id))
                for _ in numbers:
                    answer = client.receive()
                    assert isinstance(answer, PubAck)
                    assert answer.reason_code == ReasonCode.SUCCESS
            reader.send(Disconnect())
        wait_until(lambda: is_done(broker, "reader"))
        broker.kill()
        broker.start()
        with SocketClient(broker.port, "p") as client:
            assert publish(client, "other/a", 7) == ReasonCode.SUCCESS
        assert everything(broker, "reader", 1) == [7]


@pytest.mark.parametrize("what", ["runtime directory", "spill file"])
def test_a_start_without_what_was_copied_reports_how_many_records_are_lost(
    what: str, runtime_directory: Path, tmp_path: Path
) -> None:
    settings = SETTINGS.replace("[sessions]", '[sessions]\ndurability = "interval"')
    broker = BrimProcess(runtime_directory, tmp_path, settings, bridge=False)
    broker.start()
    sleeper(broker, "sleeper", "waited/#")
    with SocketClient(broker.port, "p") as client:
        for number in range(3 * LAP):
            assert publish(client, "waited/a", number) == ReasonCode.SUCCESS
    broker.stop()
    for file in runtime_directory.iterdir():
        if what == "runtime directory" or file.name == "sessions.spill":
            file.unlink()
    broker.start()
    with SocketClient(broker.port, "p") as client:
        assert publish(client, "waited/a", 9999) == ReasonCode.SUCCESS
    with SocketClient(broker.port, "sleeper", Version.V311, clean_start=False) as client:
        got: list[int] = []
        while not got or got[-1] != 9999:
            packet = client.receive()
            assert isinstance(packet, Publish)
            got.append(int(bytes(packet.payload).split()[0]))
            client.send(PubAck(packet.packet_id))
    log = broker.stop()
    lost = 3 * LAP - (len(got) - 1)
    assert lost > LAP
    assert f"records={lost}" in next(line for line in log.splitlines() if "records lost" in line)
