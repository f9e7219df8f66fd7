"""Topic filters in SQL mean the same as in MQTT."""

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.mqtt.errors import ProtocolError
from edge.mqtt.topic_filters import check_filter, matches
from edge.sql.topic_filters import any_topic, quoted, topic_condition

LEVELS = st.sampled_from(["", "a", "b", "$a", "a.b", "it's", "ä", "x\ny", "[a]"])
NAMES = st.lists(LEVELS, min_size=1, max_size=4).map("/".join)
FILTERS = st.lists(LEVELS | st.sampled_from(["+", "#", "+"]), min_size=1, max_size=4).map("/".join)


def holds(condition: str, topic: str) -> bool:
    found = duckdb.execute(f"SELECT {condition} FROM (SELECT {quoted(topic)} AS topic)").fetchone()
    assert found is not None
    return bool(found[0])


@settings(max_examples=300, deadline=None)
@given(FILTERS, NAMES)
def test_a_condition_holds_for_the_topics_that_a_filter_matches(topic_filter, name):
    try:
        check_filter(topic_filter)
    except ProtocolError:
        return
    assert holds(topic_condition(topic_filter), name) == matches(topic_filter, name)


@pytest.mark.parametrize(("topic", "found"), [("a", True), ("b/c", True), ("c", False)])
def test_one_filter_of_several_is_enough(topic, found):
    assert holds(any_topic(["a", "b/#"]), topic) is found
