"""The publisher of due messages: a message to a stream with a synced log counts after the sync."""

from concurrent.futures import Future
from typing import Any

import pytest

from edge.config.schema import Durability
from edge.delayed.publisher import DelayedPublisher
from edge.delayed.store import StoredMessage
from edge.engine.engine import OK
from tests.support.mqtt_bench import Bench, OwnPartition


def done_at_once(function: Any) -> Future[Any]:
    """As Listener.submit(), on this thread."""
    answer: Future[Any] = Future()
    answer.set_result(function())
    return answer


def publisher_of(bench: Bench, *more: OwnPartition) -> DelayedPublisher:
    return DelayedPublisher(bench.broker, done_at_once, done_at_once, lambda: [bench.partition, *more])


def message(topic: str = "t") -> StoredMessage:
    return StoredMessage(1, topic, 0, b"", b"v", 1, True)


@pytest.mark.parametrize("durability", [Durability.DISK, Durability.UPSTREAM])
def test_the_log_must_be_synced_up_to_the_end_of_the_messages(durability: Durability) -> None:
    with Bench(durability=durability) as bench:
        codes, ends = publisher_of(bench).publish([message(), message()])
        assert codes == [OK, OK]
        assert ends == [(bench.partition.ring, bench.partition.writer.end_position)]


def test_no_log_must_be_synced_for_a_message_to_another_stream() -> None:
    with Bench() as bench:
        other = bench.add_partition(bench.directory, "synced-0", Durability.DISK)
        assert publisher_of(bench, other).publish([message()]) == ([OK], [])
