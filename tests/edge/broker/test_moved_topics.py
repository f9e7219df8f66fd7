"""Moved topics: a stream is added to a running engine, and known topics go to its rings."""

from __future__ import annotations

from array import array

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from edge.broker.engine_rings import FILTERS_TRIED_MAX, PLACES_MAX
from edge.broker.sliced_work import at_once
from edge.config.schema import Durability
from edge.engine.engine import engine_of
from edge.mqtt import Connect, PubAck, PubComp, Publish, PubRec, PubRel, Version
from edge.mqtt.topic_filters import matches
from ringbuf import crc32c
from tests.support.mqtt_bench import Bench, OwnPartition

Rules = list[tuple[list[str], list[OwnPartition]]]

NAMES = st.lists(st.sampled_from("ab"), min_size=1, max_size=3).map("/".join)
FILTERS = st.sampled_from(["a", "a/#", "+/b", "b/+", "#", "a/+/b", "$SYS/#"])


def partition_of(rules: Rules, topic: str) -> OwnPartition:
    """The rule of edge/streams/streams.py."""
    of_streams = (rings for filters, rings in rules[:-1] if any(matches(each, topic) for each in filters))
    partitions = next(of_streams, rules[-1][1])
    return partitions[crc32c(topic.encode()) % len(partitions)]


def add(bench: Bench, rules: Rules) -> int:
    """Use `rules`, and move the topics; how many moved."""
    moved: list[int] = []
    bench.partition_of = lambda topic: partition_of(rules, topic)
    bench.broker.router.rings.add_streams(rules)
    at_once(bench.broker.router.rings.moving_topics(moved.append))
    return moved[0]


def ring_of(bench: Bench, topic: str) -> str:
    return bench.broker.router.rings.ring_of_topic(bench.engine.topic_find(topic.encode()))


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=40)
@given(
    st.lists(st.tuples(st.lists(FILTERS, min_size=1, max_size=2), st.integers(1, 3)), max_size=3),
    st.lists(st.tuples(st.lists(FILTERS, min_size=1, max_size=2), st.integers(0, 3)), min_size=1, max_size=3),
    st.lists(NAMES, unique=True, max_size=12),
    st.lists(NAMES, unique=True, max_size=12),
)
def test_topics_are_in_the_rings_that_a_new_engine_would_give_them(
    first: list[tuple[list[str], int]], more: list[tuple[list[str], int]], names: list[str], later: list[str]
) -> None:
    with Bench() as rings:

        def stream(filters: list[str], number: int, partitions: int) -> tuple[list[str], list[OwnPartition]]:
            made = [rings.add_partition(rings.directory, f"s{number}-{index}") for index in range(partitions)]
            return filters, made

        rules = [stream(filters, number, count) for number, (filters, count) in enumerate(first)]
        rules.append((["#"], [rings.partition]))
        with Bench(streams=rules) as bench:
            bench.partition_of = lambda topic: partition_of(rules, topic)
            client = bench.client("p")
            for name in names:
                client.send(Publish(name, b"1"))
            for number, (filters, place) in enumerate(more, 10):
                rules = rules.copy()
                rules.insert(min(place, len(rules) - 1), stream(filters, number, 2))
                add(bench, rules)
                for name in {*names, *later}:
                    client.send(Publish(name, b"2"))
                    assert ring_of(bench, name) == partition_of(rules, name).name


def test_a_walk_over_many_topics_moves_each_one() -> None:
    with Bench() as rings, Bench() as bench:
        client = bench.client("p")
        for number in range(3 * PLACES_MAX):
            client.send(Publish(f"a/{number}" if number % 2 else f"b/{number}", b"1"))
        before = bench.engine.topics()
        steps = 0
        rules = [(["a/#"], [rings.partition]), (["#"], [bench.partition])]
        rings.partition.name = "added-0"
        bench.broker.router.rings.add_streams(rules)
        moved: list[int] = []
        for _ in bench.broker.router.rings.moving_topics(moved.append):
            steps += 1
            client.send(Publish(f"a/{3 * PLACES_MAX + steps}", b"1"))  # new, while the others move
            client.send(Publish("a/1", b"2"))
        assert len(bench.engine.topics()) == len(before) + 4 * steps
        assert moved == [3 * PLACES_MAX // 2]
        assert steps > 3
        assert add(bench, rules) == 0


def test_a_step_examines_fewer_topics_if_there_are_many_filters() -> None:
    with Bench() as rings, Bench() as bench:
        client = bench.client("p")
        for number in range(PLACES_MAX):
            client.send(Publish(f"a/{number}", b"1"))
        rings.partition.name = "added-0"
        filters = [f"+/+/{number}" for number in range(4 * FILTERS_TRIED_MAX // PLACES_MAX)]
        bench.broker.router.rings.add_streams([(filters, [rings.partition]), (["#"], [bench.partition])])
        steps = sum(1 for _ in bench.broker.router.rings.moving_topics(lambda _: None))
        assert steps > 4
        many = [*filters, *(f"+/+/+/{number}" for number in range(FILTERS_TRIED_MAX))]
        bench.broker.router.rings.add_streams([(many, [rings.partition]), (["#"], [bench.partition])])
        assert sum(1 for _ in bench.broker.router.rings.moving_topics(lambda _: None)) >= PLACES_MAX


def test_queued_records_of_both_rings_come_in_order() -> None:
    with Bench() as rings, Bench() as bench:
        rings.partition.name = "added-0"
        reader = bench.client5("s", expiry_s=60, clean_start=False)
        reader.subscribe("a/#", qos=1)
        reader.drop()
        client = bench.client("p")
        client.send(*(Publish("a/1", b"%d" % number, 1, packet_id=1) for number in range(3)))
        add(bench, [(["a/#"], [rings.partition]), (["#"], [bench.partition])])
        client.send(*(Publish("a/1", b"%d" % number, 1, packet_id=1) for number in range(3, 6)))
        reader = bench.wire(Version.V5)
        reader.send(Connect("s", version=Version.V5, clean_start=False))
        _, *messages = reader.received()
        assert [bytes(each.payload) for each in messages if isinstance(each, Publish)] == [
            b"%d" % number for number in range(6)
        ]


@pytest.mark.parametrize("before", [Durability.DISK, Durability.PROCESS])
@pytest.mark.parametrize("after", [Durability.DISK, Durability.PROCESS])
def test_a_repeated_message_is_not_acknowledged_before_its_earlier_ring_is_durable(
    before: Durability, after: Durability
) -> None:
    with Bench() as rings, Bench(durability=before) as bench:
        rings.partition.name, rings.partition.durability = "added-0", after
        client = bench.client("p", clean_start=False)
        client.send(Publish("a/1", b"once", 2, packet_id=7))
        assert client.received() == ([] if before is Durability.DISK else [PubRec(7)])
        client.drop()
        add(bench, [(["a/#"], [rings.partition]), (["#"], [bench.partition])])
        client = bench.client("p", clean_start=False, present=True)
        client.send(Publish("a/1", b"once", 2, dup=True, packet_id=7))
        if before is Durability.DISK:
            assert client.received() == []
            bench.settle(50)
            assert client.received() == []
            for ring in (rings.partition, bench.partition):
                ring.ring.durable(ring.writer.end_position)
                bench.settle(50)
        assert client.received() == [PubRec(7)]
        client.send(PubRel(7))
        assert client.received() == [PubComp(7)]
        assert bench.records() == [("a/1", b"once")]
        assert rings.records() == []


def test_a_message_that_waits_for_room_goes_to_the_ring_of_the_added_stream() -> None:
    with Bench() as rings, Bench(writer={"when_full": "block", "queue_timeout_ms": 10_000}) as bench:
        rings.partition.name = "added-0"
        blocking = bench.partition.ring.reader(blocks_writer=True)
        client = bench.client("p")
        payload = bytes(100_000)
        for number in range(12):
            client.send(Publish("a/1", payload, 1, packet_id=number + 1))
        stored = len(client.received())
        assert stored < 12
        add(bench, [(["a/#"], [rings.partition]), (["#"], [bench.partition])])
        bench.settle(50)
        client.raw(b"")
        assert client.received() == [PubAck(number + 1) for number in range(stored, 12)]
        assert (len(bench.records()), len(rings.records())) == (stored, 12 - stored)
        blocking.close()


def test_invalid_streams_leave_the_earlier_ones() -> None:
    with Bench() as bench:
        client = bench.client("p")
        client.send(Publish("a", b"1"))
        with pytest.raises(ValueError, match="is no ring"):
            bench.engine.streams_set([(b"#", bench_rings(77))])
        with pytest.raises(ValueError, match="partitions"):
            bench.engine.streams_set([(b"#", bench_rings())])
        with pytest.raises(TypeError):
            bench.engine.streams_set([(b"#",)])  # type: ignore[list-item]
        with pytest.raises(TypeError):
            bench.engine.streams_set([(b"#", bench_rings(1)), ("x", 1)])  # type: ignore[list-item]
        client.send(Publish("b", b"2"))
        assert bench.records() == [("a", b"1"), ("b", b"2")]


def bench_rings(*numbers: int) -> array[int]:
    return array("H", numbers)


def test_an_engine_without_room_for_a_ring_keeps_its_streams() -> None:
    """The 4,095 rings of an engine are more than a configuration allows; the second partition fails."""
    with Bench() as rings, Bench() as bench:
        client = bench.client("p")
        client.send(Publish("a/1", b"1"))
        while True:
            try:
                bench.engine.add_ended_ring(False)
            except OverflowError:
                break
        bench.engine.remove_ring(100)  # room for one of two
        other = rings.add_partition(rings.directory, "added-1")
        rings.partition.name = "added-0"
        rules = [(["a/#"], [rings.partition, other]), (["#"], [bench.partition])]
        with pytest.raises(OverflowError):
            bench.broker.router.rings.add_streams(rules)
        client.send(Publish("a/1", b"2"), Publish("a/2", b"3"))
        assert bench.records() == [("a/1", b"1"), ("a/1", b"2"), ("a/2", b"3")]
        bench.engine.remove_ring(101)
        assert add(bench, rules) == 2


def test_an_engine_that_ends_frees_the_streams() -> None:
    engine = engine_of()
    for count in (1, 5, 0, 2):
        engine.streams_set([(b"a/#\0b/#", bench_rings(*[0] * 7))] * count)
