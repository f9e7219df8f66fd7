"""Retained messages and queues of streams, and of partitions, that a configuration no longer has."""

import pytest

from edge.mqtt import Properties, PubAck, Publish, UnsubAck, Unsubscribe
from tests.edge.server.test_added_streams import LOGGED, PLANT, desk, publish, receive, subscribe
from tests.edge.server.test_live_configuration import Desk
from tests.support.mqtt_socket import SocketClient

__all__ = ["desk"]  # a fixture

KEPT = Properties(session_expiry_interval_s=600)
RING_BYTES = 64 << 10
RECORDS = 120


@pytest.mark.parametrize("payload", [b"8", b""])
@pytest.mark.parametrize(("killed", "lost_memory"), [(True, True), (True, False), (False, False)])
def test_a_removed_stream_keeps_its_retained_messages_and_replaces_no_newer_one(
    desk: Desk, killed: bool, lost_memory: bool, payload: bytes
) -> None:
    end = desk.broker.kill if killed else desk.broker.stop
    with SocketClient(desk.broker.port, "p") as client:
        publish(client, "plant/1", 6, retain=True)
        assert desk.reload(PLANT + 'durability = "disk"\n')["failed"] == []
        publish(client, "plant/1", 7, retain=True)
        publish(client, "plant/2", 7, retain=True)
    end()
    if lost_memory:
        (desk.broker.runtime_dir / "plant-0.ring").unlink()
    desk.write("")
    desk.broker.start()
    with SocketClient(desk.broker.port, "p") as client:
        subscribe(client, "plant/#")  # the retained messages of the removed stream are there
        assert receive(client, 2) == [7, 7]
        client.send(Unsubscribe(1, ("plant/#",)))
        assert isinstance(client.receive(), UnsubAck)
        client.send(Publish("plant/1", payload, 1, True, packet_id=1))
        assert isinstance(client.receive(), PubAck)
    end()
    desk.write(PLANT + 'durability = "disk"\n')
    desk.broker.start()
    with SocketClient(desk.broker.port, "s") as subscriber:
        subscribe(subscriber, "plant/1")
        message = subscriber.next(0.1)
        assert (bytes(message.payload) if isinstance(message, Publish) else b"") == payload
        subscribe(subscriber, "plant/2")
        assert receive(subscriber, 1) == [7]


@pytest.mark.parametrize("killed", [True, False])
def test_fewer_partitions_keep_the_newest_retained_message_of_each_topic(desk: Desk, killed: bool) -> None:
    end = desk.broker.kill if killed else desk.broker.stop
    for payload, partitions in ((1, 7), (2, 3), (3, 7), (4, 1), (5, 7)):
        end()
        desk.write(PLANT + f"partitions = {partitions}\n")
        desk.broker.start()
        with SocketClient(desk.broker.port, "p") as client:
            if payload > 1:
                subscribe(client, "plant/+")
                assert receive(client, 20) == [payload - 1] * 20
                subscribe(client, "plant/only/+")
                assert sorted(receive(client, 5 * payload - 5)) == sorted([*range(1, payload)] * 5)
                client.send(Unsubscribe(1, ("plant/+", "plant/only/+")))
                assert isinstance(client.receive(), UnsubAck)
            for number in range(5):
                publish(client, f"plant/only/{payload}{number}", payload, retain=True)
            for number in range(20):
                publish(client, f"plant/{number}", payload, retain=True)


def test_queued_records_of_a_removed_stream_without_a_log_are_reported_and_counted(desk: Desk) -> None:
    assert desk.reload(PLANT)["failed"] == []
    with SocketClient(desk.broker.port, "kept", clean_start=False, properties=KEPT) as subscriber:
        subscribe(subscriber, "#")
    with SocketClient(desk.broker.port, "p") as client:
        publish(client, "plant/1", 1, 2, 3)
        publish(client, "other", 4)
    desk.broker.kill()
    desk.write("")
    desk.broker.start()
    text = desk.broker.log_until("queued records lost")
    (line,) = [line for line in text.splitlines() if "queued records lost" in line]
    assert "keep a [[stream]] until its queues are empty" in line
    assert line.endswith("records=3 removed_rings=plant-0")
    with SocketClient(desk.broker.port, "kept", clean_start=False, properties=KEPT) as subscriber:
        assert receive(subscriber, 1) == [4]
    assert desk.request()["mqtt"]["dropped"]["overrun"] == 3


@pytest.mark.parametrize("settings", ["", PLANT], ids=["removed", "process"])
def test_the_log_of_an_earlier_configuration_is_read_though_no_stream_has_a_log_now(
    desk: Desk, settings: str
) -> None:
    desk.broker.stop()
    without_log = desk.config.read_text().replace(LOGGED, "")
    desk.config.write_text(without_log + PLANT + 'durability = "disk"\n')
    desk.broker.start()
    with SocketClient(desk.broker.port, "kept", clean_start=False, properties=KEPT) as subscriber:
        subscribe(subscriber, "#")
    with SocketClient(desk.broker.port, "p") as client:
        publish(client, "plant/1", 1, 2, 3)
    desk.broker.kill()
    (desk.broker.runtime_dir / "plant-0.ring").unlink()
    desk.config.write_text(without_log + settings)
    desk.broker.start()
    with SocketClient(desk.broker.port, "kept", clean_start=False, properties=KEPT) as subscriber:
        assert receive(subscriber, 3) == [1, 2, 3]
    assert desk.request()["lost"] == {}


def test_a_stream_that_keeps_its_ring_and_gives_up_its_log_loses_no_queued_record(desk: Desk) -> None:
    desk.broker.stop()
    plant = PLANT + f"ring_bytes = {RING_BYTES}\n"
    desk.write(plant + 'durability = "interval"\n')
    desk.broker.start()
    with SocketClient(desk.broker.port, "kept", clean_start=False, properties=KEPT) as subscriber:
        subscribe(subscriber, "#")
    with SocketClient(desk.broker.port, "p") as client:
        for number in range(RECORDS):  # the ring overwrites half of them
            publish_wide(client, number)
    desk.broker.stop()
    desk.write(plant)
    end = RECORDS
    for count in (5, 5, RECORDS):  # the last ones overwrite those that the log does not have
        desk.broker.start()
        with SocketClient(desk.broker.port, "p") as client:
            for number in range(end, end + count):
                publish_wide(client, number)
        end += count
        desk.broker.kill()
    desk.broker.start()
    with SocketClient(desk.broker.port, "kept", clean_start=False, properties=KEPT) as subscriber:
        assert receive(subscriber, end) == [*range(end)]
    assert desk.request()["lost"] == {}
    assert desk.request()["mqtt"]["dropped"]["overrun"] == 0


def publish_wide(client: SocketClient, number: int) -> None:
    """Publish a number in a payload of 1 KiB."""
    client.send(Publish("plant/1", b"%01024d" % number, 1, packet_id=1))
    assert isinstance(client.receive(), PubAck)


@pytest.mark.parametrize("damaged", [2, 3])
def test_a_damaged_record_in_the_log_of_a_removed_stream_costs_no_other_queued_record(
    desk: Desk, damaged: int
) -> None:
    desk.broker.stop()
    desk.write(PLANT + 'durability = "disk"\n')
    desk.broker.start()
    with SocketClient(desk.broker.port, "kept", clean_start=False, properties=KEPT) as subscriber:
        subscribe(subscriber, "plant/#")
    with SocketClient(desk.broker.port, "p") as client:
        publish(client, "plant/1", 77771, 77772, 77773)
    desk.broker.stop()
    desk.broker.start()
    with SocketClient(desk.broker.port, "p") as client:
        publish(client, "logged/1", 4)  # begins another segment
    desk.broker.stop()
    (desk.broker.runtime_dir / "plant-0.ring").unlink()
    segment = min((desk.directory / "state/log").glob("*.log"))
    segment.write_bytes(segment.read_bytes().replace(b"7777%d" % damaged, b"xxxxx"))
    desk.write("")
    desk.broker.start()
    with SocketClient(desk.broker.port, "kept", clean_start=False, properties=KEPT) as subscriber:
        assert receive(subscriber, 2) == [77770 + number for number in (1, 2, 3) if number != damaged]
    assert desk.request()["mqtt"]["dropped"]["overrun"] == 1
