"""Topics that clients use for the first time: made by the parser by rules, as Python would make them."""

from array import array
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge.auth.acl import Access, AccessRule, AccessRules
from edge.broker.dispatcher import BrokerLimits
from edge.broker.router import TopicLimits
from edge.engine.engine import NO_TOPIC, EngineLimits, EventKind, Table
from edge.engine.subscription_options import NO_LOCAL, RETAIN_AS_PUBLISHED
from edge.mqtt import (
    PubAck,
    Publish,
    ReasonCode,
    Subscription,
    Version,
    encode,
    matches,
)
from edge.mqtt.properties import Properties
from ringbuf import crc32c
from tests.support.mqtt_bench import Bench, OwnPartition, Wire

V5 = Version.V5
ALL = AccessRule(Access.READWRITE, "#", is_pattern=True)
NAMES = st.lists(st.sampled_from(["", "a", "b", "$x"]), min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = st.lists(st.sampled_from(["", "a", "b", "+", "$x"]), min_size=1, max_size=3).flatmap(
    lambda levels: st.sampled_from(["/".join(levels), "/".join([*levels, "#"])])
).filter(bool)  # fmt: skip


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A bench whose parser knows the ring of every topic."""
    with Bench() as bench:
        assert bench.broker.router.topic_of("begin") is not None
        yield bench


def events_of(bench: Bench, wire: Wire, *publishes: Publish) -> list[int]:
    """Kinds of the events that the parser leaves, which are then handled."""
    bench.engine.feed(wire.handle, b"".join(encode(packet, wire.version) for packet in publishes))
    events = bench.engine.events()
    bench.broker.handle(events)
    bench.settle()
    return [kind for kind, *_ in events]


def test_a_new_topic_does_not_stop_the_parser(bench: Bench) -> None:
    writer, reader = bench.client("w"), bench.client("r")
    reader.subscribe("a/#")
    publishes = [Publish(f"a/{number}", b"%d" % number) for number in range(100)]
    assert events_of(bench, writer, *publishes) == []
    assert reader.publishes() == [(f"a/{number}", b"%d" % number, 0) for number in range(100)]
    assert len(bench.records()) == 100


@pytest.mark.parametrize("name", ["a/+", "#", "$SYS/x", "x/" * 201, "y" * 65_536, "a\0b"])
def test_names_about_which_rules_do_not_decide_are_left_to_python(name: str) -> None:
    with Bench(limits=BrokerLimits(topics=TopicLimits(topic_max_bytes=60_000))) as bench:
        assert bench.broker.router.topic_of("begin") is not None
        before = len(array("I", bench.engine.topics()))
        writer, data = bench.client("w"), name.encode()[:65_535]
        bench.engine.feed(writer.handle, b"\x30\xff\xff\x03"[:1] + packet_of(data))
        assert [kind for kind, *_ in bench.engine.events()] == [EventKind.TOPIC]
        assert len(array("I", bench.engine.topics())) == before


def packet_of(name: bytes) -> bytes:
    """Remaining Length, and body of a PUBLISH of QoS 0 with an empty payload."""
    length, wire = len(name) + 2, b""
    while length > 127:
        wire += bytes((length % 128 + 128,))
        length //= 128
    return wire + bytes((length,)) + len(name).to_bytes(2, "big") + name


def test_invalid_utf_8_is_left_to_python(bench: Bench) -> None:
    writer = bench.client("w")
    bench.engine.feed(writer.handle, b"\x30" + packet_of(b"a/\xff"))
    assert [kind for kind, *_ in bench.engine.events()] == [EventKind.TOPIC]


def test_topics_beyond_the_quota_of_an_owner_are_refused_without_python() -> None:
    quota = [0] * len(Table)
    quota[Table.TOPICS] = 3
    with Bench(engine=EngineLimits(owner_max=(tuple(quota), tuple(quota)))) as bench:
        assert bench.broker.router.topic_of("begin") is not None
        # a connection without a socket has no address, so its sessions count for no owner
        writer = bench.client5("w")
        session = bench.broker.sessions.get("w")
        assert session is not None
        bench.engine.session_client(session.handle, b"uann", b"", False)
        publishes = [Publish(f"a/{n}", b"", 1, packet_id=n + 1) for n in range(5)]
        assert events_of(bench, writer, *publishes) == []
        reached = ReasonCode.QUOTA_EXCEEDED
        assert [its.reason_code for its in writer.received() if isinstance(its, PubAck)][3:] == [reached] * 2
        assert bench.engine.topic_find(b"a/2") != NO_TOPIC
        assert bench.engine.topic_find(b"a/3") == NO_TOPIC
        assert bench.stats.gauges()["topics"] == 4


def test_a_topic_behind_an_alias_is_made_too(bench: Bench) -> None:
    writer, reader = bench.client5("w"), bench.client("r")
    reader.subscribe("+")
    alias = Properties(topic_alias=1)
    assert (
        events_of(bench, writer, Publish("t", b"1", properties=alias), Publish("", b"2", properties=alias))
        == []
    )
    assert [payload for _, payload, _ in reader.publishes()] == [b"1", b"2"]


def test_a_full_table_is_left_to_python_which_forgets_topics() -> None:
    with Bench(engine=EngineLimits(topics_max=64)) as bench:
        assert bench.broker.router.topic_of("begin") is not None
        writer = bench.client("w")
        kinds = [kind for n in range(500) for kind in events_of(bench, writer, Publish(f"t/{n}", b""))]
        assert 0 < len(kinds) < 100
        assert len(bench.records()) == 500


# ---- rules about clients ----


def rules(*more: AccessRule) -> AccessRules:
    return AccessRules([ALL, *more])


def test_subscribers_to_which_no_rule_denies_a_topic_do_not_stop_the_parser() -> None:
    with Bench(access=rules()) as bench:
        assert bench.broker.router.topic_of("begin") is not None
        writer, reader = bench.client("w"), bench.client("r")
        reader.subscribe("a/#")
        assert events_of(bench, writer, Publish("a/1", b"1")) == []
        assert reader.publishes() == [("a/1", b"1", 0)]


def test_subscribers_about_which_rules_decide_get_what_the_rules_say() -> None:
    secret = AccessRule(Access.DENY, "a/+/secret/%c", is_pattern=True)
    reads = AccessRules(
        [AccessRule(Access.WRITE, "#", is_pattern=True), AccessRule(Access.READ, "a/#", is_pattern=True)]
    )
    with Bench(access=reads) as bench:
        assert bench.broker.router.topic_of("begin") is not None
        writer, reader = bench.client("w"), bench.client("r")
        reader.subscribe("#")
        assert events_of(bench, writer, Publish("a/1", b"1"), Publish("b/1", b"2")) != []
        assert reader.publishes() == [("a/1", b"1", 0)]
        bench.broker.acl_changed(rules())
        bench.settle()
        later = bench.client("w2")
        assert events_of(bench, later, Publish("b/2", b"3")) == []
        assert reader.publishes() == [("b/2", b"3", 0)]
        bench.broker.acl_changed(rules(secret))
        bench.settle()
        events_of(bench, bench.client("w3"), Publish("a/1/secret/r", b"4"), Publish("b/3", b"5"))
        assert reader.publishes() == [("b/3", b"5", 0)]


def test_a_group_is_asked_about_when_rules_decide() -> None:
    with Bench(access=rules()) as bench:
        assert bench.broker.router.topic_of("begin") is not None
        writer, member = bench.client("w"), bench.client5("m")
        member.subscribe("$share/g/a/#")
        assert events_of(bench, writer, Publish("a/1", b"1")) == [EventKind.TOPIC]
        assert member.publishes() == [("a/1", b"1", 0)]


def test_a_client_whose_rules_changed_is_asked_about(bench: Bench) -> None:
    writer = bench.client("w")
    assert events_of(bench, writer, Publish("a/1", b"")) == []
    bench.broker.acl_changed(None)
    assert events_of(bench, writer, Publish("a/2", b"")) == [EventKind.TOPIC]


# ---- equal to Python ----


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=30)
@given(
    st.lists(
        st.tuples(FILTERS, st.integers(0, 2), st.integers(0, 2), st.sampled_from([0, 0, 7, 200])), max_size=12
    ),
    st.lists(NAMES, min_size=1, max_size=6, unique=True),
    st.sampled_from([0, NO_LOCAL, RETAIN_AS_PUBLISHED]),
)
def test_the_parser_routes_a_new_topic_as_python_does(
    subscriptions: list[tuple[str, int, int, int]], names: list[str], options: int
) -> None:
    found: list[Any] = []
    for by_rules in (True, False):
        with Bench(by_rules=by_rules) as bench:
            router, engine = bench.broker.router, bench.engine
            assert router.topic_of("begin") is not None
            writer = bench.client("w")
            clients = [bench.client5(f"c{number}") for number in range(3)]
            for topic_filter, number, qos, identifier in subscriptions:
                session = bench.broker.sessions.get(f"c{number}")
                assert session is not None
                router.subscribe(
                    session,
                    Subscription(
                        topic_filter, qos, bool(options & NO_LOCAL), bool(options & RETAIN_AS_PUBLISHED)
                    ),
                    identifier,
                )
            events_of(bench, writer, *(Publish(name, b"") for name in names))
            topics = [engine.topic_find(name.encode()) for name in names]
            found.append(
                [
                    sorted(
                        (session, options & 0xFF, engine.subscription_ids_of(options >> 8))
                        for session, options in engine.routes_of(topic)
                    )
                    for topic in topics
                ]
            )
            del clients
    assert found[0] == found[1]


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=30)
@given(
    st.lists(st.lists(FILTERS, min_size=1, max_size=3), max_size=3), st.lists(NAMES, unique=True, max_size=20)
)
def test_the_parser_stores_topics_in_the_partitions_that_streams_say(
    filters: list[list[str]], names: list[str]
) -> None:
    with Bench(by_rules=False) as rings:
        streams = [
            (
                wanted,
                [rings.add_partition(rings.directory, f"s{number}-{index}") for index in range(1 + number)],
            )
            for number, wanted in enumerate([*filters, ["#"]])
        ]

        def partition_of(topic: str) -> OwnPartition:
            its = next(
                (
                    partitions
                    for wanted, partitions in streams[:-1]
                    if any(matches(its, topic) for its in wanted)
                ),
                streams[-1][1],
            )
            return its[crc32c(topic.encode()) % len(its)]

        with Bench(by_rules=False, streams=streams) as bench:
            bench.partition_of = partition_of
            writer = bench.client("w")
            for name in ("a", "a/b", "b", "b/a/b", "/a", "a/", *names):
                bench.broker.router.rings.number_of(partition_of(name))
            names = [name for name in names if not name.startswith("$")]
            assert events_of(bench, writer, *(Publish(name, name.encode()) for name in names)) == []
            for name in names:
                reader = partition_of(name).ring.reader(start="oldest")
                keys = set()
                while (record := reader.poll()) is not None:
                    keys.add(record.key.decode())
                reader.close()
                assert name in keys
