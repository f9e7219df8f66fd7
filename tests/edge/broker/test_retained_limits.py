"""The store of retained messages when it is full: no stored message is lost, and publishers are notified."""

import logging

import pytest

from edge.broker.dispatcher import BrokerLimits
from edge.config.schema import Durability
from edge.engine.engine import EngineLimits
from edge.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
    Subscribe,
    Subscription,
    Version,
    Will,
)
from edge.recovery.retained_store import retained_in
from tests.support.mqtt_bench import Bench, Wire

V5 = Version.V5
QUOTA = ReasonCode.QUOTA_EXCEEDED
UNHEARD = ReasonCode.NO_MATCHING_SUBSCRIBERS
TWO = EngineLimits(retained_max=2, retained_max_bytes=4_000)


def retained_by(bench: Bench, topic_filter: str = "#") -> dict[str, bytes]:
    """Retained messages that a new subscriber receives."""
    late = bench.client("late")
    late.send(Subscribe(1, (Subscription(topic_filter),)))
    found = {it.topic: bytes(it.payload) for it in late.received() if isinstance(it, Publish)}
    late.drop()
    return found


def full(bench: Bench) -> Wire:
    """An MQTT 5 client that has filled the store of two."""
    client = bench.client5("hoarder")
    client.send(Publish("a", b"old a", retain=True), Publish("b", b"old b", retain=True))
    return client


@pytest.mark.parametrize("qos", [1, 2])
def test_a_full_store_refuses_a_message_of_mqtt_5_and_keeps_the_old_values(qos: int) -> None:
    with Bench(engine=TWO) as bench:
        client, heard = full(bench), bench.client("live")
        heard.subscribe("c")
        client.send(Publish("c", b"new", qos, retain=True, packet_id=1))
        assert client.received() == [(PubAck if qos == 1 else PubRec)(1, QUOTA)]
        assert heard.received() == []  # refused as a whole
        client.send(Publish("a", b"a larger value" + bytes(5_000), qos, retain=True, packet_id=1))
        assert client.received() == [(PubAck if qos == 1 else PubRec)(1, QUOTA)]
        assert retained_by(bench) == {"a": b"old a", "b": b"old b"}
        assert bench.stats.dropped()["retained full"] == 2


def test_qos_2_that_was_stored_before_the_store_was_full_is_acknowledged_again() -> None:
    with Bench(engine=TWO) as bench:
        client = bench.client5("c")
        client.send(Publish("a", b"1", 2, retain=True, packet_id=7), Publish("b", b"2", retain=True))
        client.send(Publish("a", b"1", 2, dup=True, retain=True, packet_id=7))
        codes = [it.reason_code for it in client.received() if isinstance(it, PubRec)]
        assert codes == [ReasonCode.SUCCESS] * 2
        client.send(PubRel(7))
        assert len(bench.records()) == 2


@pytest.mark.parametrize(
    ("version", "qos"), [(Version.V311, 0), (Version.V311, 1), (Version.V311, 2), (V5, 0)]
)
def test_where_a_message_cannot_be_refused_it_is_delivered_and_not_retained(
    version: Version, qos: int
) -> None:
    with Bench(engine=TWO) as bench:
        full(bench)
        client, heard = bench.client("c", version=version), bench.client5("live")
        heard.send(Subscribe(1, (Subscription("c", 1, retain_as_published=True),)))
        heard.received()
        client.send(Publish("c", b"new", qos, retain=True, packet_id=1 if qos else 0))
        assert {getattr(it, "reason_code", None) for it in client.received()} <= {ReasonCode.SUCCESS}
        (delivered,) = (it for it in heard.received() if isinstance(it, Publish))
        assert (delivered.payload, delivered.retain) == (b"new", False)
        assert retained_by(bench) == {"a": b"old a", "b": b"old b"}
        assert bench.stats.totals()["retained_refused"] == 1


def test_a_message_that_was_not_retained_is_not_retained_after_a_restart_either() -> None:
    with Bench(engine=TWO) as bench:
        full(bench)
        bench.client("c").send(Publish("a", bytes(5_000), retain=True))
        with Bench(engine=TWO) as again:
            again.broker.retained.restore(retained_in(bench.partition.ring))
            assert retained_by(again) == {"a": b"old a", "b": b"old b"}


def test_a_full_store_lets_a_topic_have_another_value_that_is_not_larger() -> None:
    with Bench(engine=TWO) as bench:
        client = full(bench)
        client.send(Publish("a", b"new a", 1, retain=True, packet_id=1))
        assert client.received() == [PubAck(1, UNHEARD)]
        client.send(Publish("a", b"", 1, retain=True, packet_id=1))  # which makes room for another
        client.send(Publish("c", b"new c", 1, retain=True, packet_id=2))
        assert client.received() == [PubAck(1, UNHEARD), PubAck(2, UNHEARD)]
        assert retained_by(bench) == {"b": b"old b", "c": b"new c"}


def test_a_store_without_a_byte_left_lets_a_value_be_replaced_but_not_grow() -> None:
    with Bench(engine=EngineLimits(retained_max_bytes=2_000)) as bench:
        client = bench.client5("c")
        client.send(Publish("a", bytes(1_800), 1, retain=True, packet_id=1))
        for payload, code in ((bytes(1_801), UNHEARD), (bytes(1_990), QUOTA), (b"x" * 1_700, UNHEARD)):
            client.received()
            client.send(Publish("a", payload, 1, retain=True, packet_id=2))
            assert client.received() == [PubAck(2, code)]
        assert retained_by(bench) == {"a": b"x" * 1_700}


def test_values_that_slow_subscribers_still_hold_are_bounded_too() -> None:
    with Bench(engine=EngineLimits(retained_max_bytes=100_000)) as bench:
        publisher, hoarder = bench.client5("p"), bench.client("hoarder")
        for n in range(50):  # who acknowledges nothing
            publisher.send(Publish("t", b"%02d" % n + bytes(9_000), 1, retain=True, packet_id=1))
            hoarder.subscribe("t", qos=1)
        assert bench.stats.gauges()["retained_bytes"] <= 2 * 100_000
        assert bench.stats.dropped()["retained full"] > 30
        late = bench.client5("other")
        late.send(Publish("mine", bytes(50_000), 1, retain=True, packet_id=1))
        assert late.received() == [PubAck(1, UNHEARD)]  # others have their room all the same


def test_messages_of_sys_take_no_room_of_clients() -> None:
    with Bench(engine=TWO, limits=BrokerLimits(sys_interval_s=10)) as bench:
        assert len(retained_by(bench, "$SYS/#")) > 20
        assert bench.stats.gauges()["retained"] == bench.stats.gauges()["retained_bytes"] == 0
        full(bench)
        assert retained_by(bench) == {"a": b"old a", "b": b"old b"}
        bench.settle(11_000)
        assert retained_by(bench, "$SYS/broker/retained messages/count") == {
            "$SYS/broker/retained messages/count": b"2"
        }


def test_the_log_names_a_full_store_and_not_for_each_message(caplog: pytest.LogCaptureFixture) -> None:
    with Bench(engine=TWO) as bench, caplog.at_level(logging.WARNING):
        full(bench)
        client = bench.client("c")
        for n in range(5):
            client.send(Publish(f"more/{n}", b"x", 1, retain=True, packet_id=1))
            bench.settle(1_000)
        (line,) = (it.getMessage() for it in caplog.records)
        assert "retained_max" in line
        assert "messages=1 " in line
        bench.settle(11_000)
        assert "messages=4 " in caplog.records[-1].getMessage()


# ---- no store at all ----

NONE = EngineLimits(retained_max=0)


def test_a_broker_without_a_store_says_so_in_connack() -> None:
    with Bench(engine=NONE) as bench:
        wire = bench.wire(V5)
        wire.send(Connect("c", version=V5))
        (answer,) = wire.received()
        assert isinstance(answer, ConnAck)
        assert answer.properties.retain_available == 0
        other = bench.wire(Version.V311)
        other.send(Connect("d"))
        assert other.received() == [ConnAck(False)]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_client_of_mqtt_5_that_retains_there_is_told_and_disconnected(qos: int) -> None:
    with Bench(engine=NONE) as bench:
        client = bench.client5("c")
        client.send(Publish("t", b"x", qos, retain=True, packet_id=1 if qos else 0))
        assert client.received() == [Disconnect(ReasonCode.RETAIN_NOT_SUPPORTED)]
        assert not client.is_open
        assert bench.records() == []


def test_a_client_of_mqtt_3_that_retains_there_is_delivered_only() -> None:
    with Bench(engine=NONE) as bench:
        heard, client = bench.client("live"), bench.client("c")
        heard.subscribe("t")
        client.send(Publish("t", b"x", 1, retain=True, packet_id=1))
        assert client.received() == [PubAck(1)]
        assert heard.publishes() == [("t", b"x", 0)]
        assert retained_by(bench) == {}


def test_a_will_that_is_to_be_retained_there_is_refused_or_only_published() -> None:
    with Bench(engine=NONE) as bench:
        will = Will("gone", b"x", retain=True)
        wire = bench.wire(V5)
        wire.send(Connect("c", version=V5, will=will))
        (answer,) = wire.received()
        assert isinstance(answer, ConnAck)
        assert answer.reason_code is ReasonCode.RETAIN_NOT_SUPPORTED
        heard = bench.client("live")
        heard.subscribe("gone")
        bench.client("d", will=will).drop()
        assert heard.publishes() == [("gone", b"x", 0)]
        assert retained_by(bench) == {}


def test_nothing_retained_is_put_back_where_there_is_no_store() -> None:
    with Bench() as bench:
        full(bench)
        with Bench(engine=NONE, limits=BrokerLimits(sys_interval_s=10)) as again:
            assert again.broker.retained.restore(retained_in(bench.partition.ring)) == 0
            assert retained_by(again) == {}
            assert retained_by(again, "$SYS/broker/uptime") != {}


def test_room_is_promised_before_a_record_is_durable() -> None:
    """Subscribers receive only durable records: the store checks its limits when the message comes."""
    with Bench(engine=TWO, durability=Durability.DISK) as bench:
        bench.partition.ring.show_durable(True)
        client = bench.client5("c")
        client.send(*(Publish(f"t/{n}", b"x", 1, retain=True, packet_id=n + 1) for n in range(3)))
        bench.partition.ring.durable(bench.partition.writer.end_position)
        bench.settle()
        assert client.received() == [PubAck(1, UNHEARD), PubAck(2, UNHEARD), PubAck(3, QUOTA)]
        assert sorted(retained_by(bench)) == ["t/0", "t/1"]
