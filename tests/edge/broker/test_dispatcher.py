"""Effects of each control packet, given to the engine and the broker without sockets."""

from array import array

import pytest

from edge.broker.dispatcher import BrokerLimits
from edge.broker.router import TopicLimits
from edge.engine.engine import EngineLimits
from edge.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
)
from tests.support.mqtt_bench import Bench

# ---- PUBLISH and delivery ----


def test_a_message_becomes_a_record_and_reaches_who_subscribed(bench: Bench) -> None:
    reader, writer = bench.client("r"), bench.client("w")
    reader.subscribe("plant/+/temp")
    writer.send(Publish("plant/1/temp", b"21"), Publish("plant/1/hum", b"40"), Publish("plant/2/temp", b"22"))
    assert bench.records() == [("plant/1/temp", b"21"), ("plant/1/hum", b"40"), ("plant/2/temp", b"22")]
    assert reader.publishes() == [("plant/1/temp", b"21", 0), ("plant/2/temp", b"22", 0)]


@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_a_message_is_delivered_at_the_lower_qos(bench: Bench, published: int, granted: int) -> None:
    reader, writer = bench.client("r"), bench.client("w")
    reader.subscribe("t", qos=granted)
    writer.send(Publish("t", b"x", published, packet_id=9 if published else 0))
    assert reader.publishes() == [("t", b"x", min(published, granted))]


def test_overlapping_filters_deliver_once_at_the_highest_qos(bench: Bench) -> None:
    reader, writer = bench.client("r"), bench.client("w")
    writer.send(Publish("a/b", b"known before"))
    reader.subscribe("a/#")
    reader.subscribe("a/+", qos=2)
    reader.subscribe("a/b", qos=1)
    writer.send(Publish("a/b", b"1", 2, packet_id=1), Publish("a/c", b"2", 2, packet_id=2))
    assert reader.publishes() == [("a/b", b"1", 2), ("a/c", b"2", 2)]
    reader.send(Unsubscribe(1, ("a/+",)))
    assert reader.received() == [UnsubAck(1)]
    writer.send(
        PubRel(1), PubRel(2), Publish("a/b", b"3", 2, packet_id=1), Publish("a/c", b"4", 2, packet_id=2)
    )
    assert reader.publishes() == [("a/b", b"3", 1), ("a/c", b"4", 0)]
    reader.send(Subscribe(2, (Subscription("a/b", 0),)), Unsubscribe(3, ("a/#", "a/b")))
    assert len(reader.received()) == 2
    writer.send(Publish("a/b", b"5"))
    assert reader.publishes() == []


def test_a_subscription_that_is_replaced_has_its_new_qos_also_when_it_is_lower(bench: Bench) -> None:
    reader, writer = bench.client("r"), bench.client("w")
    reader.subscribe("t", qos=2)
    writer.send(Publish("t", b"1", 1, packet_id=1))
    assert reader.publishes() == [("t", b"1", 1)]
    reader.subscribe("t", qos=0)
    writer.send(Publish("t", b"2", 1, packet_id=2))
    assert reader.publishes() == [("t", b"2", 0)]


def test_a_route_of_a_session_that_has_ended_is_not_mistaken_for_its_successors(bench: Bench) -> None:
    writer, old = bench.client("w"), bench.client("old")
    old.subscribe("t")
    writer.send(Publish("t", b"1"))
    old.drop()
    new = bench.client("new")  # in the same place of the engine's memory
    new.subscribe("t")
    new.send(Unsubscribe(1, ("t",)))
    assert new.received() == [UnsubAck(1)]
    writer.send(Publish("t", b"2"))
    assert new.publishes() == []


def test_wildcards_do_not_match_dollar_topics_at_the_first_level(bench: Bench) -> None:
    reader = bench.client("r")
    bench.broker.publish("$SYS/a", b"known before")
    reader.subscribe("#", "+/a", "+/b")
    bench.broker.publish("$SYS/a", b"1")
    bench.broker.publish("$SYS/b", b"2")
    assert reader.publishes() == []
    reader.subscribe("$SYS/#")
    bench.broker.publish("$SYS/a", b"3")
    bench.broker.publish("$SYS/b", b"4")
    assert reader.publishes() == [("$SYS/a", b"3", 0), ("$SYS/b", b"4", 0)]


def test_qos_1_is_acknowledged_when_it_is_in_the_ring(bench: Bench) -> None:
    writer = bench.client()
    writer.send(Publish("t", b"1", 1, packet_id=40), Publish("t", b"2", 1, packet_id=41))
    assert writer.received() == [PubAck(40), PubAck(41)]
    assert bench.records() == [("t", b"1"), ("t", b"2")]


def test_qos_2_stores_a_message_once_however_often_it_is_sent(bench: Bench) -> None:
    writer = bench.client("w", clean_start=False)
    writer.send(Publish("t", b"1", 2, packet_id=9))
    assert writer.received() == [PubRec(9)]
    writer.drop()
    writer = bench.client("w", clean_start=False, present=True)
    writer.send(Publish("t", b"1", 2, dup=True, packet_id=9), PubRel(9), PubRel(9))
    assert writer.received() == [PubRec(9), PubComp(9), PubComp(9)]
    writer.send(Publish("t", b"2", 2, packet_id=9))
    assert writer.received() == [PubRec(9)]
    assert bench.records() == [("t", b"1"), ("t", b"2")]


def test_order_of_one_connection_is_kept_around_what_python_handles(bench: Bench) -> None:
    client = bench.client()
    client.send(
        Publish("a", b"before"),
        Subscribe(1, (Subscription("a"),)),
        Publish("a", b"1"),
        Publish("new topic", b"x"),
        Publish("a", b"2"),
        Unsubscribe(2, ("a",)),
        Publish("a", b"after"),
    )
    answers = client.received()
    client.send(Disconnect(), Publish("a", b"nothing counts any more"))
    assert SubAck(1, (ReasonCode.SUCCESS,)) in answers
    assert UnsubAck(2) in answers
    assert [packet.payload for packet in answers if isinstance(packet, Publish)] == [b"1", b"2"]
    assert [payload for _, payload in bench.records()] == [b"before", b"1", b"x", b"2", b"after"]
    assert not client.is_open


@pytest.mark.parametrize(
    "data",
    [
        b"\x36\x05\x00\x01t\x00\x01",  # QoS 3 [MQTT-3.3.1-4]
        b"\x38\x03\x00\x01t",  # DUP at QoS 0 [MQTT-3.3.1-2]
        b"\x32\x05\x00\x01t\x00\x00",  # packet identifier 0 [MQTT-2.3.1-1]
        b"\x32\x03\x00\x01t",  # no packet identifier
        b"\x30\x02\x00\x00",  # empty topic [MQTT-4.7.3-1]
        b"\x30\x03\x00\x02t",  # topic longer than the packet
        b"\x30\x01\x00",
        b"\x30\x00",
        b"\x30\x04\x00\x02\xc3\x28",  # no UTF-8 [MQTT-1.5.3-1]
        b"\x30\x03\x00\x01+",  # wildcard [MQTT-3.3.2-2]
        b"\x30\x05\x00\x03a/#",
        b"\x30\x03\x00\x01\x00",  # NUL [MQTT-1.5.3-2]
        b"\x40\x03\x00\x01\x00",  # PUBACK with a byte too many
        b"\x41\x02\x00\x01",  # PUBACK with flags
        b"\x60\x02\x00\x01",  # PUBREL without its flag [MQTT-3.6.1-1]
        b"\x40\x02\x00\x00",
        b"\xc1\x00",  # PINGREQ with flags
        b"\xc0\x01\x00",
        b"\x80\x06\x00\x01\x00\x01t\x00",  # SUBSCRIBE without its flag [MQTT-3.8.1-1]
        b"\x82\x02\x00\x01",  # SUBSCRIBE for nothing [MQTT-3.8.3-3]
        b"\x82\x06\x00\x01\x00\x01t\x03",  # QoS 3
        b"\x82\x07\x00\x01\x00\x02a#\x00",
        b"\xa2\x02\x00\x01",
        b"\xe1\x00",
        b"\x20\x02\x00\x00",  # CONNACK: the server's
        b"\xd0\x00",
        b"\x00\x00",
        b"\xf0\x00",
        b"\x30\xff\xff\xff\xff\x01",  # a length of five bytes
    ],
)
def test_a_malformed_packet_ends_its_connection_and_no_other(bench: Bench, data: bytes) -> None:
    good, bad = bench.client("good"), bench.client("bad")
    good.subscribe("t")
    bad.raw(data)
    assert not bad.is_open
    assert bad.bytes_received() == b""
    good.send(Publish("t", b"still here"))
    assert good.publishes() == [("t", b"still here", 0)]
    assert bench.broker.sessions.get("bad") is None


def test_an_exception_while_a_packet_is_handled_ends_that_connection_only(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = bench.client("good"), bench.client("bad", will=Will("gone", b"bad"))
    good.subscribe("gone")

    def broken(topic: str) -> None:
        raise RuntimeError("planted")

    bench.partition_of, keep = broken, bench.partition_of  # type: ignore[assignment]
    bad.send(Publish("first seen", b"x"))
    bench.partition_of = keep
    assert not bad.is_open
    assert "planted" in caplog.text
    caplog.clear()  # its traceback would keep the broker, and with it the ring
    good.send(Publish("first seen", b"y"))
    assert good.is_open
    assert ("first seen", b"y") in bench.records()


# ---- limits ----


def test_topics_and_filters_have_bounds() -> None:
    limits = BrokerLimits(topics=TopicLimits(topic_max_bytes=10, topic_levels_max=3), subscriptions_max=2)
    with Bench(limits=limits) as bench:
        for topic in ("12345678901", "a/b/c/d"):
            client = bench.client()
            client.send(Publish(topic, b"x"))
            assert not client.is_open
        client = bench.client()
        client.send(
            Subscribe(1, tuple(Subscription(name) for name in ("12345678901", "a/b/c/d", "1", "2", "3", "1")))
        )
        failed, granted = ReasonCode.UNSPECIFIED_ERROR, ReasonCode.SUCCESS
        assert client.received() == [SubAck(1, (failed, failed, granted, granted, failed, granted))]
        assert bench.records() == []


def test_client_identifiers_have_a_bound() -> None:
    with Bench(limits=BrokerLimits(client_id_max_bytes=30)) as bench:
        wire = bench.wire()
        wire.send(Connect("x" * 31))
        assert wire.received() == [ConnAck(False, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID)]


def test_a_full_topic_table_forgets_what_is_not_used_and_never_what_is_retained() -> None:
    with Bench(engine=EngineLimits(topics_max=64)) as bench:
        client, reader = bench.client(), bench.client("r")
        client.send(Publish("kept", b"r", retain=True))
        for i in range(500):
            client.send(Publish(f"t/{i}", b"%d" % i))
        assert len(bench.records()) == 501
        assert bench.stats.gauges()["topics"] <= 64
        assert len(array("I", bench.engine.topics())) == bench.stats.gauges()["topics"]
        reader.subscribe("#")
        client.send(Publish("t/3", b"again"), Publish("t/499", b"again"))
        assert reader.publishes() == [("t/3", b"again", 0), ("t/499", b"again", 0)]


def test_long_names_fill_the_topic_table_as_many_do() -> None:
    with Bench(engine=EngineLimits(topics_max_bytes=100_000)) as bench:
        client = bench.client()
        for i in range(50):
            client.send(Publish(f"{i}/" + "x" * 9_000, b"x"))
            assert bench.stats.gauges()["topics_bytes"] <= 100_000
        assert len(bench.records()) == 50
        client.send(Publish("deep" + "/" * 200, b"x"), Publish("t", b"x", retain=True))
        assert bench.stats.gauges()["topics_bytes"] > 200 * 100
        assert len(array("I", bench.engine.topics())) == bench.stats.gauges()["topics"]
        client.send(Publish("x" * 65_535, b"x", 1, packet_id=1), Publish("y" * 65_535, b"x", 1, packet_id=2))
        assert client.received() == [PubAck(1), PubAck(2)]
        assert len(bench.records()) == 54


def test_the_filters_of_a_client_have_a_bound() -> None:
    with Bench(limits=BrokerLimits(subscriptions_max_bytes=10_000)) as bench:
        client = bench.client()
        granted, failed = ReasonCode.SUCCESS, ReasonCode.UNSPECIFIED_ERROR
        for filters, codes in (
            (("x" * 5_000, "y" * 5_000, "z"), (granted, failed, granted)),
            (("/" * 40, "/" * 30, "x" * 5_000), (failed, granted, granted)),
        ):
            client.send(Subscribe(1, tuple(Subscription(name) for name in filters)))
            assert client.received() == [SubAck(1, codes)]
        client.send(Unsubscribe(2, ("x" * 5_000,)), Subscribe(3, (Subscription("y" * 5_000),)))
        assert client.received() == [UnsubAck(2), SubAck(3, (granted,))]


def test_a_topic_table_full_of_retained_topics_drops_new_ones_and_counts_them() -> None:
    with Bench(engine=EngineLimits(topics_max=4)) as bench:
        client = bench.client()
        for i in range(6):
            client.send(Publish(f"t/{i}", b"x", 1, retain=True, packet_id=i + 1))
        assert client.received() == [PubAck(i + 1) for i in range(6)]
        assert [topic for topic, _ in bench.records()] == ["t/0", "t/1", "t/2", "t/3"]
        assert bench.stats.dropped()["topics"] == 2
