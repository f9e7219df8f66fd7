"""The publisher of due messages: a message to a stream with a synced log counts after the sync."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from edge.config.schema import Durability
from edge.delayed.publisher import DelayedPublisher
from edge.delayed.store import StoredMessage
from edge.engine.engine import OK
from tests.support.mqtt_bench import Bench, OwnPartition
from tests.support.waiting import PATIENCE_S

LOOK_S = 0.1


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
def test_a_message_counts_as_published_once_its_record_is_synced(durability: Durability) -> None:
    with Bench(durability=durability) as bench, ThreadPoolExecutor(1) as pool:
        publisher = publisher_of(bench)
        result = pool.submit(publisher.publish, [message(), message()])
        time.sleep(LOOK_S)
        assert not result.done()
        bench.settle()
        bench.partition.ring.durable(bench.partition.writer.end_position)
        assert result.result(PATIENCE_S) == [OK, OK]


def test_a_message_to_another_stream_counts_at_once(caplog: pytest.LogCaptureFixture) -> None:
    with Bench() as bench:
        other = bench.add_partition(bench.directory, "synced-0", Durability.DISK)
        assert publisher_of(bench, other).publish([message()]) == [OK]
    assert caplog.text == ""  # it would say that it has waited too long
