"""A client that loses a permission while the broker is down: its queue and subscriptions deliver nothing."""

from pathlib import Path

import pytest

from edge.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
    Unsubscribe,
    Version,
)
from edge.mqtt.properties import Properties
from tests.support.brim_process import BrimProcess
from tests.support.kept_bench import Lives
from tests.support.mqtt_bench import Bench, Wire
from tests.support.mqtt_socket import RawClient
from tests.support.rules import AllButSecret


def come(bench: Bench) -> Wire:
    wire = bench.wire(Version.V5)
    properties = Properties(session_expiry_interval_s=3600)
    wire.send(Connect("c", clean_start=False, version=Version.V5, properties=properties))
    return wire


def publish(bench: Bench, *topics: str, retain: bool = False) -> None:
    publisher = bench.client("publisher")
    for number, topic in enumerate(topics, 1):
        publisher.send(Publish(topic, topic.encode(), 1, packet_id=number, retain=retain))
    publisher.drop()


def topics(client: Wire) -> list[str]:
    return [it.topic for it in client.received() if isinstance(it, Publish)]


def test_who_lost_a_right_while_the_broker_was_down_gets_nothing_of_it() -> None:
    rules = AllButSecret()
    with Lives(access=rules) as lives:
        bench = lives.start()
        client = come(bench)
        client.send(Subscribe(1, (Subscription("#", 1),)), Disconnect())
        publish(bench, "open", retain=True)
        publish(bench, "shut", "open", "shut")
        rules.secret = "shut"
        bench = lives.restart()
        publish(bench, "shut", "open")
        client = come(bench)
        assert topics(client) == ["open", "open", "open"]
        publish(bench, "shut", "open")
        assert topics(client) == ["open"]


def test_who_keeps_its_rights_gets_it_all() -> None:
    with Lives(access=AllButSecret()) as lives:
        client = come(lives.start())
        client.send(Subscribe(1, (Subscription("#", 1),)), Disconnect())
        assert lives.bench is not None
        publish(lives.bench, "open", "shut")
        assert topics(come(lives.restart())) == ["open", "shut"]


LOGGED = """
[[stream]]
name = "logged"
topics = ["logged/#"]
durability = "interval"
ring_bytes = "128 KiB"
[limits]
packet_max_bytes = "8 KiB"
[auth]
acl_file = "acl"
"""
COUNT, BODY = 300, bytes(1_000)  # several times around the ring


def publish_logged(broker: BrimProcess, first: int) -> None:
    """Publish the numbers from `first` on, in turn to open and shut."""
    with RawClient(broker.port) as publisher:
        publisher.send(Connect("publisher"))
        assert isinstance(publisher.packet(), ConnAck)
        for n in range(first, first + COUNT):
            topic = ("logged/open", "logged/shut")[n % 2]
            publisher.send(Publish(topic, n.to_bytes(4, "big") + BODY, 1, packet_id=n + 1))
            assert publisher.packet() == PubAck(n + 1)


def received_logged(broker: BrimProcess, wanted: list[int]) -> None:
    """The client gets these numbers, in their order, and nothing after them."""
    with RawClient(broker.port) as client:
        client.send(Connect("c", clean_start=False))
        assert client.packet() == ConnAck(True)
        for n in wanted:
            message = client.publish()
            assert int.from_bytes(message.payload[:4], "big") == n
            client.send(PubAck(message.packet_id))
        client.ping()


@pytest.mark.parametrize("topic_filter", ["logged/#", "$share/g/logged/#"])
@pytest.mark.parametrize("unsubscribed", [False, True])
def test_records_that_only_the_log_has_are_decided_about_when_they_are_read(
    runtime_directory: Path, tmp_path: Path, topic_filter: str, unsubscribed: bool
) -> None:
    acl = tmp_path / "acl"
    acl.write_text("topic readwrite logged/#\n")
    with BrimProcess(runtime_directory, tmp_path, LOGGED, bridge=False) as broker:
        with RawClient(broker.port) as client:
            client.send(Connect("c", clean_start=False), Subscribe(1, (Subscription(topic_filter, 1),)))
            assert isinstance(client.packet(), ConnAck)
            assert isinstance(client.packet(), SubAck)
            client.send(Disconnect())
        publish_logged(broker, 0)
        if unsubscribed and topic_filter[0] != "$":  # what waits stays
            with RawClient(broker.port) as client:
                client.send(Connect("c", clean_start=False), Unsubscribe(1, (topic_filter,)), Disconnect())
        broker.kill()
        broker.start()
        acl.write_text("topic readwrite logged/open\ntopic write logged/shut\n")
        broker.kill()
        broker.start()
        if not unsubscribed:
            publish_logged(broker, COUNT)
        received_logged(broker, list(range(0, COUNT if unsubscribed else 2 * COUNT, 2)))
