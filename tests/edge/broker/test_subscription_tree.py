"""Both tries agree with matches(), the one definition of which filter matches which name."""

from __future__ import annotations

from array import array

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge.broker.steps import at_once
from edge.broker.subscription_tree import SubscriptionTree, TopicNames, overlap
from edge.mqtt import matches
from tests.support.mqtt_bench import Bench

# Few levels and letters, so that names and filters meet; with empty levels and $.
LEVELS = st.sampled_from(["", "a", "b", "$x"])
NAMES = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = st.tuples(
    st.lists(st.one_of(LEVELS, st.just("+")), min_size=0, max_size=4), st.sampled_from([[], ["#"]])
).map(lambda parts: "/".join(parts[0] + parts[1])).filter(bool)  # fmt: skip


@given(st.lists(st.tuples(FILTERS, st.integers(0, 5), st.integers(0, 2)), max_size=30), NAMES)
def test_the_tree_finds_everybody_whose_filters_match_with_their_highest_qos(
    subscriptions: list[tuple[str, int, int]], name: str
) -> None:
    tree: SubscriptionTree[int] = SubscriptionTree()
    model: dict[tuple[str, int], int] = {}
    for topic_filter, subscriber, qos in subscriptions:
        tree.add(topic_filter, subscriber, qos)
        model[topic_filter, subscriber] = qos
    expected: dict[int, int] = {}
    for (topic_filter, subscriber), qos in model.items():
        if matches(topic_filter, name):
            expected[subscriber] = max(qos, expected.get(subscriber, 0))
    assert tree.match(name) == expected
    for subscriber in range(6):
        assert at_once(tree.matching_one(name, subscriber)) == expected.get(subscriber)


@given(FILTERS, FILTERS, NAMES)
def test_two_filters_that_match_the_same_name_overlap(one: str, other: str, name: str) -> None:
    if matches(one, name) and matches(other, name):
        assert overlap(one, other)
        assert overlap(other, one)


@given(st.lists(st.tuples(FILTERS, st.integers(0, 3)), max_size=20), st.data())
def test_the_tree_is_empty_again_when_all_have_unsubscribed(
    subscriptions: list[tuple[str, int]], data: st.DataObject
) -> None:
    tree: SubscriptionTree[int] = SubscriptionTree()
    for topic_filter, subscriber in subscriptions:
        tree.add(topic_filter, subscriber, 1)
    for topic_filter, subscriber in data.draw(st.permutations(sorted(set(subscriptions)))):
        assert tree.remove(topic_filter, subscriber)
        assert not tree.remove(topic_filter, subscriber)
    assert not tree._exact
    assert tree._root.children is None


@given(st.lists(NAMES, unique=True, max_size=30), FILTERS)
def test_the_names_give_the_ids_of_all_that_a_filter_matches(names: list[str], topic_filter: str) -> None:
    known = TopicNames()
    for topic, name in enumerate(names):
        known.add(name, topic)
    expected = [topic for topic, name in enumerate(names) if matches(topic_filter, name)]
    assert sorted(known.match(topic_filter) or ()) == expected
    assert len(known) == len(names)
    few = known.match(topic_filter, 3)
    assert sorted(few) == expected if few is not None else len(names) > 1
    assert sorted(known.match(topic_filter, 1_000) or ()) == expected


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(NAMES, unique=True, max_size=30), st.lists(FILTERS, max_size=5))
def test_a_look_through_all_names_in_c_agrees(names: list[str], filters: list[str]) -> None:
    with Bench() as bench:
        ids = {bench.broker.router.topic_of(name): name for name in names}
        for topic_filter in filters:
            found = array("I", bench.engine.topics_scan(topic_filter.encode(), 0, 1_000, 1_000)[0])
            assert [ids[topic] for topic in found] == [name for name in names if matches(topic_filter, name)]


@given(st.lists(NAMES, unique=True, max_size=20), st.data())
def test_names_that_are_removed_leave_nothing_and_harm_no_other(
    names: list[str], data: st.DataObject
) -> None:
    known = TopicNames()
    for topic, name in enumerate(names):
        known.add(name, topic)
    left = dict(enumerate(names))
    for topic in data.draw(st.permutations(sorted(left))):
        known.remove(left.pop(topic))
        visible = sorted(topic for topic, name in left.items() if not name.startswith("$"))
        assert sorted(known.match("#") or ()) == visible
    assert known._root == {}
    assert len(known) == 0
