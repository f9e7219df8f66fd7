"""Properties of records that local producers write, which may say anything."""

import pytest

from edge.engine.engine import NO_TOPIC
from edge.mqtt import (
    ConnAck,
    Connect,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    Publish,
    Subscribe,
    Subscription,
    Version,
)
from ringbuf import FLAG_EXPIRY
from tests.support.mqtt_bench import Bench, Wire
from tests.support.mqtt_producer import producer_of

EXPIRY_10_S = b"\x02\x00\x00\x00\x0a"
CONTENT_TYPE = b"\x03\x00\x01c"


def wire_form(properties: bytes) -> bytes:
    """With their length in front."""
    return bytes((len(properties),)) + properties


def subscriber(bench: Bench, qos: int = 0) -> Wire:
    """A client that speaks MQTT 5, to t."""
    wire = bench.client("s", version=Version.V5)
    wire.send(Subscribe(1, (Subscription("t", qos),)))
    wire.received()
    return wire


def test_properties_of_a_local_producer_reach_subscribers_as_those_of_a_client() -> None:
    with Bench() as bench, producer_of(bench) as producer:
        wire, old = subscriber(bench), bench.client("old")
        old.subscribe("t")
        producer.publish(("t", b"x"), properties=wire_form(CONTENT_TYPE))
        producer.publish(("t", b"y"), properties=wire_form(EXPIRY_10_S + CONTENT_TYPE), flags=FLAG_EXPIRY)
        producer.publish(
            ("t", b"z"), properties=wire_form(CONTENT_TYPE + b"\x23\x00\x01")
        )  # an alias means nothing here
        wanted = Properties(content_type="c")
        assert wire.received() == [
            Publish("t", b"x", properties=wanted),
            Publish("t", b"y", properties=Properties(content_type="c", message_expiry_interval_s=10)),
            Publish("t", b"z", properties=wanted),
        ]
        assert [payload for _, payload, _ in old.publishes()] == [b"x", b"y", b"z"]


@pytest.mark.parametrize(
    "properties",
    [
        b"\x0b\x05",  # a subscription identifier
        b"\x03\x00\x09c",  # longer than all
        b"\x7f",  # there is no such property
        b"\x15\x00\x01a",  # not of PUBLISH
        CONTENT_TYPE * 2,
        b"\x02\x00",
    ],
)
def test_what_would_be_malformed_for_a_client_is_not_sent(properties: bytes) -> None:
    with Bench() as bench, producer_of(bench) as producer:
        wire = subscriber(bench)
        producer.publish(("t", b"x"), properties=wire_form(properties))
        producer.publish(("t", b"fine"))
        assert wire.received() == [Publish("t", b"fine")]
        assert bench.stats.dropped()["forged"] == 1


def test_properties_that_change_after_the_record_was_routed_are_looked_at_again() -> None:
    with Bench() as bench, producer_of(bench) as producer:
        wire = subscriber(bench)
        producer.publish(("t", b"x"), properties=wire_form(CONTENT_TYPE))
        producer.spoil(b"\x03\x00\x01c", b"\x03\x00\x05c")
        assert wire.received() == []
        producer.publish(("t", b"y"), properties=wire_form(CONTENT_TYPE))
        producer.spoil(b"\x04\x03\x00\x01c", b"\xff\xff\xff\xff\xff")
        assert wire.received() == []
        assert bench.stats.dropped()["forged"] == 2


def test_properties_are_not_looked_at_where_their_subscriber_is_being_read() -> None:
    with Bench() as bench, producer_of(bench) as producer:
        wire, other = subscriber(bench), bench.client("other")
        other.subscribe("said")
        bench.client("p").send(Publish("said", b"before"))  # a topic that is known
        wire.send(Publish("said", b"before"))
        other.received()
        given = CONTENT_TYPE + b"\x26\x00\x03aaa\x00\x20" + b"b" * 32
        producer.publish(("t", b"x"), properties=wire_form(given))
        wire.send(PingReq(), Publish("said", b"what the client said"))
        assert wire.received()[-1] == PingResp()
        assert other.publishes() == [("said", b"what the client said", 0)]


def test_a_topic_that_changes_behind_an_alias_is_found_out() -> None:
    with Bench() as bench, producer_of(bench) as producer:
        wire = bench.client("s", version=Version.V5, properties=Properties(topic_alias_maximum=5))
        wire.send(Subscribe(1, (Subscription("#"),)))
        wire.received()
        producer.publish(("topic", b"1"))
        (first,) = wire.received()
        assert isinstance(first, Publish)
        assert first.properties.topic_alias
        producer.publish(("topic", b"2"))
        producer.spoil(b"topic", b"other")
        assert wire.received() == []
        assert bench.stats.dropped()["forged"] == 1


def test_a_source_that_goes_takes_what_is_in_flight_with_it_whatever_was_acknowledged_before() -> None:
    with Bench() as bench:
        with producer_of(bench) as producer:
            wire = subscriber(bench, qos=1)
            for number in range(40):
                producer.publish(("t", b"%d" % number), flags=1)
            assert len(wire.received()) == 40
            wire.send(*(PubAck(identifier) for identifier in range(2, 41)))
        assert bench.stats.clients(bench.broker.sessions)[0].in_flight == 0


def absent_subscriber(bench: Bench) -> int:
    """Handle of a session that waits for t/# without its client."""
    wire = bench.client5("s", expiry_s=1_000)
    wire.send(Subscribe(1, (Subscription("t/#", 1),)))
    wire.received()
    wire.drop()
    session = bench.broker.sessions.get("s")
    assert session is not None
    return session.handle


def returned(bench: Bench) -> list[tuple[str, bytes]]:
    """(topic, payload) of the messages that its client gets when it connects again."""
    wire = bench.wire(Version.V5)
    wire.send(Connect("s", clean_start=False, version=Version.V5))
    accepted, *messages = wire.received()
    assert isinstance(accepted, ConnAck)
    return [(it.topic, bytes(it.payload)) for it in messages if isinstance(it, Publish)]


def age(bench: Bench) -> None:
    """Let the clock hand pass each topic twice."""
    for _ in range(2):
        bench.engine.topics_age(1_000)


def test_a_topic_of_a_record_that_waits_in_a_producer_ring_is_not_forgotten_before_the_record_has_gone() -> (
    None
):
    with Bench() as bench, producer_of(bench) as producer:
        absent_subscriber(bench)
        sent = [(f"t/{number}", b"%d" % number) for number in range(5)]
        producer.publish(*sent, flags=1)
        age(bench)
        assert [bench.engine.topic_find(topic.encode()) == NO_TOPIC for topic, _ in sent] == [False] * 5
        for _ in range(100):  # the ring overwrites them, and the broker has copies
            producer.publish(("other", bytes(1_000)))
        age(bench)
        assert [bench.engine.topic_find(topic.encode()) == NO_TOPIC for topic, _ in sent] == [True] * 5
        assert returned(bench) == sent
        assert bench.stats.dropped()["forged"] == 0


def test_a_record_of_a_producer_whose_topic_a_full_table_has_forgotten_is_dropped_at_delivery() -> None:
    with Bench() as bench, producer_of(bench) as producer:
        handle = absent_subscriber(bench)
        producer.publish(("t/1", b"x"), ("t/2", b"y"), flags=1)
        while bench.engine.topics_recycle(1_000):  # other topics first
            pass
        assert bench.engine.queue_topics(handle) == b""  # as a change of the access rules requests
        assert bench.engine.queue_names(handle) == []
        assert returned(bench) == []
        assert bench.stats.dropped()["forged"] == 2
