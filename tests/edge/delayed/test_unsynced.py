"""Published messages whose logs are not synced: they stay in the store, and are not published again."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edge.config.schema import AckGate, Durability
from edge.delayed import delivery
from edge.delayed.delivery import DelayedLimits, DelayedMessages
from edge.delayed.publisher import DelayedPublisher
from edge.delayed.ring import RING, DelayedPartition, StoreGate
from edge.delayed.store import FILE_NAME, DelayedMessage, DelayedStore, list_messages
from edge.mqtt.reason_codes import ReasonCode
from ringbuf import Ring, Writer
from tests.edge.delayed.test_publisher import done_at_once
from tests.support.mqtt_bench import Bench
from tests.support.waiting import PATIENCE_S, wait_until

LIMITS = DelayedLimits(10_000, 1 << 20, sync_s=0.01)
LOOKS_S = 0.3  # in which a mistake would show


def due(*topics: str) -> list[DelayedMessage]:
    return [DelayedMessage(1, topic, 0, b"", b"v") for topic in topics]


def stored(directory: Path) -> list[int]:
    return [row["id"] for row in list_messages(directory / FILE_NAME, (-1, 0), 10_000, 1)]


@contextmanager
def started(
    bench: Bench, directory: Path, *added: DelayedMessage
) -> Iterator[tuple[DelayedMessages, Writer]]:
    """Messages of a broker whose only stream, and log, is that of the bench."""
    store = DelayedStore(directory / FILE_NAME, synced=True)
    if added:
        store.open()
        store.apply(added, (), (), (1, 0), (0, time.time_ns()))
        store.close()
    with Ring.create(directory / RING, capacity_bytes=1 << 16, epoch=1) as ring:
        writer = ring.writer(when_full="block", blocking_readers="admitted")
        reader = ring.reader(name="delayed", start="oldest", blocks_writer=True, local=True)
        publisher = DelayedPublisher(bench.broker, done_at_once, done_at_once, lambda: [bench.partition])
        partition = DelayedPartition(RING, ring, writer, StoreGate(AckGate.UPSTREAM), reader, 0)
        messages = DelayedMessages(partition, store, publisher, LIMITS)
        try:
            messages.start()
            yield messages, writer
        finally:
            messages.stop()
            reader.close()


def sync(bench: Bench) -> None:
    bench.partition.ring.durable(bench.partition.writer.end_position)


def topics(bench: Bench) -> list[str]:
    return [topic for topic, _ in bench.records()]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(delivery, "SYNC_WARN_S", 0.05)
    with Bench(durability=Durability.DISK) as bench:
        yield bench


def test_a_message_is_published_once_and_removed_after_the_sync(
    bench: Bench, runtime_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with started(bench, runtime_directory, *due("t", "t")) as (messages, _):
        wait_until(lambda: "not yet synced" in caplog.text)
        time.sleep(LOOKS_S)
        assert topics(bench) == ["t", "t"]
        assert stored(runtime_directory) == [1, 2]
        sync(bench)
        wait_until(lambda: messages.status()["pending"] == 0)
        assert topics(bench) == ["t", "t"]
        assert messages.status()["delivered"] == 2


def test_others_are_published_and_cancelled_while_a_log_stalls(bench: Bench, runtime_directory: Path) -> None:
    with started(bench, runtime_directory, *due("t")) as (messages, writer):
        wait_until(lambda: topics(bench) == ["t"])
        for seconds, topic in ((0, "soon"), (3600, "late")):
            writer.publish(b"v", key=f"$delayed/{seconds}/{topic}")
        wait_until(lambda: topics(bench) == ["t", "soon"])
        assert messages.cancel(3).result(PATIENCE_S)
        assert not messages.cancel(1).result(PATIENCE_S), "it is published"
        assert stored(runtime_directory) == [1, 2]


def test_unsynced_messages_are_at_most_one_batch(
    bench: Bench, runtime_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "BATCH_MAX", 3)
    with started(bench, runtime_directory, *due(*"abcde")) as (messages, _):
        wait_until(lambda: topics(bench) == ["a", "b", "c"])
        time.sleep(LOOKS_S)
        assert topics(bench) == ["a", "b", "c"]
        sync(bench)
        wait_until(lambda: topics(bench) == [*"abcde"])
        sync(bench)
        wait_until(lambda: messages.status()["pending"] == 0)


def test_a_message_to_a_stream_whose_log_fails_is_not_published(
    bench: Bench, runtime_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "RETRY_NS", 10_000_000)
    durability = bench.broker.router.durability
    durability.refuse(bench.partition.name, ReasonCode.QUOTA_EXCEEDED)
    with started(bench, runtime_directory, *due("t")) as (messages, _):
        wait_until(lambda: messages.status()["postponed"] > 1)
        assert topics(bench) == []
        durability.refuse(bench.partition.name, ReasonCode.SUCCESS)
        wait_until(lambda: topics(bench) == ["t"])


def test_an_unsynced_message_stays_over_a_stop(bench: Bench, runtime_directory: Path) -> None:
    with started(bench, runtime_directory, *due("t")):
        wait_until(lambda: topics(bench) == ["t"])
    assert stored(runtime_directory) == [1]


def test_a_synced_message_is_removed_at_a_stop(
    bench: Bench, runtime_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with started(bench, runtime_directory, *due("t")) as (messages, _):
        wait_until(lambda: topics(bench) == ["t"])
        messages._stopping = True
        messages._event.set()
        monkeypatch.setattr(delivery, "SYNC_WARN_S", PATIENCE_S)
        sync(bench)
    assert stored(runtime_directory) == []


def test_a_damaged_file_has_no_unsynced_messages(
    bench: Bench, runtime_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*_: object) -> None:
        monkeypatch.undo()
        raise sqlite3.DatabaseError("damaged")

    with started(bench, runtime_directory, *due("t")) as (messages, writer):
        wait_until(lambda: topics(bench) == ["t"])
        monkeypatch.setattr(DelayedStore, "due", damaged)
        wait_until(lambda: messages.status()["damaged"] == 1)
        wait_until(lambda: messages.status()["pending"] == 0)
        sync(bench)
        writer.publish(b"v", key="$delayed/3600/next")
        wait_until(lambda: messages.status()["pending"] == 1)
        assert stored(runtime_directory) == [1], "the first message of the new file"
