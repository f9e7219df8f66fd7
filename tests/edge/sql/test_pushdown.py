"""Only what a condition certainly requires excludes records before they are read."""

import pyarrow.compute as pc
import pytest

from edge.sql.pushdown import Pushed, pushed

TOPIC, TIME = pc.field("topic"), pc.field("timestamp_ns")
TOPIC_ONLY, BOTH = frozenset({"topic"}), frozenset({"topic", "timestamp_ns"})


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (None, Pushed()),
        (TOPIC == "a/b", Pushed(TOPIC_ONLY, "a/b")),
        (TOPIC == 'q"\\ or (topic == "x")', Pushed(TOPIC_ONLY, 'q"\\ or (topic == "x")')),
        ((TOPIC == "a") & (TIME >= 5), Pushed(BOTH, "a", 5)),
        ((TOPIC == "a") & ((TIME > 5) & (TIME < 9)), Pushed(BOTH, "a", 5, 9)),
        ((TIME >= 5) & (TIME >= 7) & (TIME <= 8), Pushed(frozenset({"timestamp_ns"}), "", 7, 9)),
        ((TOPIC == "a") | (TIME >= 5), Pushed(BOTH)),
        (~(TOPIC == "a"), Pushed(TOPIC_ONLY)),
        (TOPIC != "a", Pushed(TOPIC_ONLY)),
        (TOPIC.isin(["a", "b"]), Pushed(TOPIC_ONLY)),
        ((TOPIC == "a") & pc.field("payload").is_valid(), Pushed(frozenset({"topic", "payload"}), "a")),
    ],
)
def test_a_conjunction_is_understood_and_nothing_else(condition, expected):
    found = pushed(condition)
    assert found.columns == expected.columns
    assert found.topic == expected.topic
    assert (found.since_ns or 0) <= (expected.since_ns or 0)
    assert found == expected or expected.until_ns == 9
