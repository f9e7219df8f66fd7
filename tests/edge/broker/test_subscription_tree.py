"""The engine's tries of filters and names agree with those in Python, and both with matches(), the one
definition of which filter matches which name.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge.broker.sliced_work import at_once
from edge.broker.subscription_tree import SubscriptionTree, overlap
from edge.engine.engine import Engine, EngineLimits, Match, engine_of
from edge.engine.subscription_options import NO_LOCAL, RETAIN_AS_PUBLISHED, route_options
from edge.mqtt import matches
from tests.support import topic_tries
from tests.support.mqtt_bench import Bench

# Few levels and letters, so that names and filters meet; with empty levels and $.
LEVELS = st.sampled_from(["", "a", "b", "$x"])
NAMES = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = st.tuples(
    st.lists(st.one_of(LEVELS, st.just("+")), min_size=0, max_size=4), st.sampled_from([[], ["#"]])
).map(lambda parts: "/".join(parts[0] + parts[1])).filter(bool)  # fmt: skip
TERMS = st.builds(
    lambda qos, options, identifier: qos | options | identifier << 8,
    st.integers(0, 2),
    st.sampled_from([0, 0, NO_LOCAL, RETAIN_AS_PUBLISHED, NO_LOCAL | RETAIN_AS_PUBLISHED]),
    st.sampled_from([0, 0, 1, 127, 128, 268_435_455]),
)
CHANGES = st.lists(st.tuples(st.booleans(), FILTERS, st.integers(0, 4), TERMS), max_size=40)
QUICK = settings(deadline=None, suppress_health_check=list(HealthCheck))

Route = tuple[int, int, tuple[bytes, ...]]  # session, options, identifiers


def identifiers_of(wire: bytes) -> tuple[bytes, ...]:
    """Each Subscription Identifier property, sorted."""
    found: list[bytes] = []
    while wire:
        end = next(i for i in range(1, len(wire)) if wire[i] < 128) + 1
        found.append(wire[:end])
        wire = wire[end:]
    return tuple(sorted(found))


def sessions_of(engine: Engine, match: Match) -> list[int]:
    return sorted(array("Q", engine.match_sessions(match)))


def routes_to(bench: Bench, match: Match, name: str) -> list[Route]:
    """The routes that a match gives a topic of its own."""
    engine = bench.engine
    topic = engine.topic_find(name.encode())
    engine.routes_clear(topic)
    engine.match_routes(match, topic, b"")
    return sorted(
        (session, tag & 0xFF, identifiers_of(engine.subscription_ids_of(tag >> 8)))
        for session, tag in engine.routes_of(topic)
    )


@contextmanager
def sessions(count: int) -> Iterator[tuple[Bench, list[int]]]:
    with Bench() as bench:
        yield bench, [bench.engine.session_open(10, False, b"", b"", False) for _ in range(count)]


@QUICK
@given(CHANGES, NAMES, st.integers(1, 4))
def test_the_engine_routes_a_topic_as_the_python_tree_says(
    changes: list[tuple[bool, str, int, int]], name: str, work: int
) -> None:
    with sessions(5) as (bench, handles):
        oracle: topic_tries.SubscriptionTree[int] = topic_tries.SubscriptionTree()
        engine = bench.engine
        assert bench.broker.router.topic_of(name) is not None
        for adds, topic_filter, number, terms in changes:
            if adds:
                oracle.add(topic_filter, handles[number], terms)
                engine.filter_add(topic_filter.encode(), handles[number], terms)
            else:
                there = oracle.remove(topic_filter, handles[number])
                assert engine.filter_remove(topic_filter.encode(), handles[number]) == there
        expected = oracle.match(name)
        match = engine.match_begin(name.encode(), 0)
        while not engine.match_step(match, work):
            pass
        assert set(sessions_of(engine, match)) == set(expected)
        wanted = sorted(
            (session, options, identifiers_of(identifiers))
            for session, terms in expected.items()
            for options, identifiers in route_options(terms)
        )
        assert routes_to(bench, match, name) == wanted
        for handle in handles:
            own = at_once(SubscriptionTree(engine).matching(name, handle))
            assert routes_to(bench, own, name) == [its for its in wanted if its[0] == handle]


@given(st.lists(st.tuples(FILTERS, st.integers(0, 5), st.integers(0, 2)), max_size=30), NAMES)
def test_the_python_tree_finds_everybody_whose_filters_match_with_their_highest_qos(
    subscriptions: list[tuple[str, int, int]], name: str
) -> None:
    tree: topic_tries.SubscriptionTree[int] = topic_tries.SubscriptionTree()
    model: dict[tuple[str, int], int] = {}
    for topic_filter, subscriber, qos in subscriptions:
        tree.add(topic_filter, subscriber, qos)
        model[topic_filter, subscriber] = qos
    expected: dict[int, int] = {}
    for (topic_filter, subscriber), qos in model.items():
        if matches(topic_filter, name):
            expected[subscriber] = max(qos, expected.get(subscriber, 0))
    assert tree.match(name) == expected


@given(FILTERS, FILTERS, NAMES)
def test_two_filters_that_match_the_same_name_overlap(one: str, other: str, name: str) -> None:
    if matches(one, name) and matches(other, name):
        assert overlap(one, other)
        assert overlap(other, one)


@QUICK
@given(st.lists(NAMES, unique=True, max_size=30), st.lists(FILTERS, max_size=5), st.data())
def test_the_engine_finds_the_known_names_of_a_filter_by_search_and_by_scan(
    names: list[str], filters: list[str], data: st.DataObject
) -> None:
    with Bench() as bench:
        engine, oracle = bench.engine, topic_tries.TopicNames()
        ids: dict[int, str] = {}
        for name in names:
            topic = bench.broker.router.topic_of(name)
            assert topic is not None
            ids[topic] = name
            oracle.add(name, topic)
        for topic_filter in filters:
            expected = sorted(topic for topic, name in ids.items() if matches(topic_filter, name))
            assert sorted(oracle.match(topic_filter) or ()) == expected
            assert list(array("I", engine.topics_scan(topic_filter.encode(), 0, 1_000, 1_000)[0])) == expected
            found = engine.topics_match(topic_filter.encode(), 1_000)
            assert found is not None
            assert sorted(array("I", found)) == expected
            few = engine.topics_match(topic_filter.encode(), data.draw(st.integers(0, 10)))
            assert few is None or sorted(array("I", few)) == expected


def test_topics_that_are_forgotten_leave_the_other_names_as_they_were() -> None:
    with Bench(engine=EngineLimits(topics_max=40)) as bench:
        for number in range(400):
            assert bench.broker.router.topic_of(f"a/{number % 60}/{'b/' * (number % 7)}c") is not None
            known = sorted(array("I", bench.engine.topics()))
            for topic_filter in ("#", "a/#"):
                assert (
                    sorted(array("I", bench.engine.topics_match(topic_filter.encode(), 9_999) or b""))
                    == known
                )


@pytest.mark.parametrize("removed", ["a/#", "a/+/c", "#", "a/b/c"])
def test_a_match_goes_on_after_filters_were_removed(removed: str) -> None:
    with sessions(1) as (bench, (session,)):
        engine = bench.engine
        for topic_filter in ("a/#", "a/+/c", "#", "a/b/c", "+/b/c"):
            engine.filter_add(topic_filter.encode(), session, 1)
        for begun in range(8):
            engine.filter_add(removed.encode(), session, 1)
            match = engine.match_begin(b"a/b/c", 0)
            done = any(engine.match_step(match, 1) for _ in range(begun))
            engine.filter_remove(removed.encode(), session)
            while not done:
                done = engine.match_step(match, 1)
            assert len(sessions_of(engine, match)) in {4, 5}


def test_a_session_that_has_ended_is_found_by_no_match() -> None:
    with sessions(2) as (bench, (gone, stays)):
        engine = bench.engine
        for session in (gone, stays):
            engine.filter_add(b"a/#", session, 1)
        engine.session_close(gone)
        match = engine.match_begin(b"a/b", 0)
        assert engine.match_step(match, 100)
        assert sessions_of(engine, match) == [stays]
        assert engine.filter_remove(b"a/#", gone)
        assert not engine.filter_remove(b"a/#", gone)


def test_a_match_outlives_its_engine_and_serves_no_other() -> None:
    engine, other = engine_of(), engine_of()
    engine.filter_add(b"a/#", 1, 1)
    match = engine.match_begin(b"a/b", 0)
    with pytest.raises(ValueError, match="another engine"):
        other.match_step(match, 1)
    del engine
    del match


@pytest.mark.parametrize("topic_filter", [b"", b"x" * 65_536])
def test_filters_without_a_length_that_mqtt_has_are_refused(topic_filter: bytes) -> None:
    engine = engine_of()
    for call in (
        lambda: engine.filter_add(topic_filter, 1, 1),
        lambda: engine.filter_remove(topic_filter, 1),
        lambda: engine.match_begin(topic_filter, 1),
        lambda: engine.topics_match(topic_filter, 1),
    ):
        with pytest.raises(ValueError, match="1 to 65535"):
            call()
