"""Retained messages that an operator clears, while the ring or the log of their topic takes no records."""

from edge.broker.retained_admin import RetainedAdmin
from edge.config.schema import Durability
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
