"""Retained messages that an operator clears, and that the ring or the log of their topic does not take."""

import pytest

from edge.broker.retained_admin import PAGE_BYTES, RetainedAdmin
from edge.config.schema import Durability
from edge.engine.engine import TOO_LARGE
from edge.mqtt import Publish, ReasonCode
from tests.support.mqtt_bench import Bench


def test_a_log_that_takes_no_records_now_makes_no_topic_impossible() -> None:
    with Bench(durability=Durability.INTERVAL) as bench:
        client = bench.client("p")
        for topic in ("a", "b"):
            client.send(Publish(topic, b"x", retain=True))
        durability, admin = bench.broker.router.durability, RetainedAdmin(bench.broker)
        durability.refuse(bench.partition.name, ReasonCode.QUOTA_EXCEEDED)
        bench.settle(60_000)  # publishers wait for a moment, and are refused then
        cleared, after, refused = admin.clear("#", 0)
        assert (cleared, refused) == (0, [])
        assert after is not None
        durability.refuse(bench.partition.name, ReasonCode.SUCCESS)
        assert admin.clear("#", after) == (2, None, [])


@pytest.mark.parametrize("result", [None, TOO_LARGE])
def test_topics_that_can_never_be_cleared_are_named_a_page_at_a_time(
    result: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [f"m/{number}/" + "x" * (PAGE_BYTES // 2) for number in range(3)]
    with Bench() as bench:
        for topic in topics:
            bench.client("p").send(Publish(topic, b"x", retain=True))
        monkeypatch.setattr(bench.broker.own_messages, "offer", lambda *_: result)
        admin, place, named = RetainedAdmin(bench.broker), 0, list[str]()
        for _ in topics:
            cleared, after, refused = admin.clear("#", place)
            assert (cleared, len(refused)) == (0, 1)
            named += refused
            place = after or place
        assert after is None
    assert sorted(named) == topics
