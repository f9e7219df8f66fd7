"""Delayed messages without sockets: a batch that fails halfway is read again, and losses are counted."""

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from edge.config.schema import AckGate
from edge.delayed import delivery
from edge.delayed.clock import StoreClock
from edge.delayed.delivery import DelayedLimits, DelayedMessages
from edge.delayed.publisher import DelayedPublisher
from edge.delayed.ring import RING, DelayedPartition, StoreGate
from edge.delayed.store import DelayedStore
from edge.errors import EdgeError
from ringbuf import Ring
from tests.edge.delayed.test_publisher import done_at_once
from tests.support.mqtt_bench import Bench
from tests.support.waiting import PATIENCE_S, wait_until

LIMITS = DelayedLimits(1_000, 1 << 20)


class FailingClock(StoreClock):
    """A clock that has no memory for the third record, once."""

    failed = False

    def arrived_ns(self) -> Callable[[int], int]:
        arrived, count = super().arrived_ns(), 0

        def counted(stamp_ns: int) -> int:
            nonlocal count
            count += 1
            if count == 3 and not self.failed:
                self.failed = True
                raise MemoryError
            return arrived(stamp_ns)

        return counted


@contextmanager
def started(
    ring: Ring,
    directory: Path,
    bench: Bench,
    make_clock: Callable[..., StoreClock] = StoreClock,
    *,
    earlier: bool = True,
) -> Iterator[DelayedMessages]:
    """The messages of a ring, whose records are from before the start if `earlier`."""
    writer = ring.writer(when_full="block", blocking_readers="admitted")
    reader = ring.reader(name="delayed", start="oldest", blocks_writer=True, local=True)
    store = DelayedStore(directory / "delayed.sqlite", synced=False)
    publisher = DelayedPublisher(bench.broker, done_at_once, done_at_once, list)
    end = ring.extremes().end_offset if earlier else 0
    partition = DelayedPartition(RING, ring, writer, StoreGate(AckGate.NONE), reader, end)
    messages = DelayedMessages(partition, store, publisher, LIMITS, make_clock)
    try:
        messages.start()
        yield messages
    finally:
        messages.stop()
        reader.close()


@contextmanager
def messages_in(
    runtime: Path, directory: Path, clock: StoreClock | None = None, payloads: int = 5
) -> Iterator[DelayedMessages]:
    with Bench() as bench, Ring.create(runtime / RING, capacity_bytes=1 << 16, epoch=1) as ring:
        writer = ring.writer(when_full="block", blocking_readers="admitted")
        for number in range(payloads):
            writer.publish(b"%d" % number, key="$delayed/3600/t")
        make_clock = StoreClock if clock is None else lambda _: clock
        with started(ring, directory, bench, make_clock, earlier=False) as messages:
            yield messages


def test_a_batch_that_fails_halfway_is_read_again(
    runtime_directory: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(delivery, "RETRY_S", 0.01)
    clock = FailingClock(None)
    with messages_in(runtime_directory, tmp_path, clock) as messages:
        wait_until(lambda: messages.status()["pending"] == 5)
        assert clock.failed
        rows = messages.page((-1, 0), 10, 10)
        assert [row["payload"] for row in rows] == [b"0", b"1", b"2", b"3", b"4"]
    caplog.clear()  # its traceback holds the records, and so the memory of the ring


def test_records_that_the_ring_no_longer_has_are_counted(runtime_directory: Path, tmp_path: Path) -> None:
    store = DelayedStore(tmp_path / "delayed.sqlite", synced=False)
    store.open()
    store.apply((), (), (), (1, 0), (0, 1))
    store.close()
    with messages_in(runtime_directory, tmp_path, payloads=3_000) as messages:
        lost = messages.status()["lost"]
        assert lost > 0
        wait_until(lambda: messages.status()["pending"] == min(3_000 - lost, LIMITS.messages_max))


def test_a_list_that_cannot_be_read_is_an_error_with_a_remedy(
    runtime_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*_: object) -> None:
        raise sqlite3.OperationalError("database is locked")

    with messages_in(runtime_directory, tmp_path) as messages:
        monkeypatch.setattr(delivery, "list_messages", unreadable)
        with pytest.raises(EdgeError, match="cannot be read now: database is locked") as caught:
            messages.page((-1, 0), 10, 10)
        assert caught.value.hint


def test_a_damaged_file_that_cannot_be_replaced_at_once_ends_no_delivery(
    runtime_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delivery, "RETRY_S", 0.01)
    failures: list[Exception] = [sqlite3.OperationalError("no room"), OSError("no room")]
    load, damaged = DelayedStore._load, [True]

    def failing_load(store: DelayedStore) -> None:
        if store.renamed and failures:
            raise failures.pop(0)
        load(store)

    def damaged_next(store: DelayedStore) -> int | None:
        if damaged:
            damaged.clear()
            raise sqlite3.DatabaseError("damaged")
        return None

    monkeypatch.setattr(DelayedStore, "_load", failing_load)
    monkeypatch.setattr(DelayedStore, "next_due_ns", damaged_next)
    with messages_in(runtime_directory, tmp_path) as messages:
        wait_until(lambda: not failures and not messages.status()["refuses"])
        assert messages.status()["damaged"] == 5
        with closing(sqlite3.connect(tmp_path / "delayed.sqlite")) as db:
            row = db.execute("SELECT epoch, next_offset, messages FROM state").fetchone()
        assert row == (1, 5, 0)
    caplog.clear()  # its tracebacks hold the records, and so the memory of the ring


class ClockOfCancels(StoreClock):
    """A clock by which all messages are due in the transaction that cancels one."""

    def __init__(self) -> None:
        super().__init__(None)
        self.totals: Counter[str] = Counter()

    def now_ns(self) -> int:
        return super().now_ns() + (2 * 3_600_000_000_000 if self.totals["cancelled"] else 0)


def test_a_message_that_is_due_when_it_is_cancelled_is_not_published(
    runtime_directory: Path, tmp_path: Path
) -> None:
    """Two requests come in one transaction; one has removed the message."""
    clock, answers = ClockOfCancels(), [Future[bool](), Future[bool]()]
    with messages_in(runtime_directory, tmp_path, clock) as messages:
        clock.totals = messages.totals
        wait_until(lambda: messages.status()["pending"] == 5)
        messages._cancels.extend((1, answer) for answer in answers)
        messages._event.set()
        assert [answer.result(PATIENCE_S) for answer in answers] == [True, False]
        wait_until(lambda: messages.status()["pending"] == 0)
        assert (messages.totals["cancelled"], messages.totals["delivered"]) == (1, 4)


def test_requests_to_cancel_end_although_their_transaction_is_not_committed(
    runtime_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with messages_in(runtime_directory, tmp_path) as messages:
        wait_until(lambda: messages.status()["pending"] == 5)
        monkeypatch.setattr(messages._store, "apply", fail)
        answer = messages.cancel(1)
        wait_until(lambda: messages._transaction is not None and bool(messages._transaction.answers))
        assert not answer.cancel(), "the result of the commit could not be set"
        messages.stop()
        with pytest.raises(EdgeError, match="broker stops"):
            answer.result(timeout=0)
        assert messages.cancel(2).cancelled(), "no thread answers a request after the stop"


def make_store(directory: Path, next_offset: int) -> None:
    """An empty store, which continues at that record of the ring."""
    store = DelayedStore(directory / "delayed.sqlite", synced=False)
    store.open()
    store.apply((), (), (), (1, next_offset), (0, 1))
    store.close()


def test_a_cursor_beyond_the_end_of_the_ring_begins_at_its_oldest_record(
    runtime_directory: Path, tmp_path: Path
) -> None:
    make_store(tmp_path, next_offset=6)
    with messages_in(runtime_directory, tmp_path) as messages:
        wait_until(lambda: messages.status()["pending"] == 5)
        assert messages.status()["lost"] == 0


def test_a_cursor_at_the_end_of_the_ring_takes_no_record_twice(
    runtime_directory: Path, tmp_path: Path
) -> None:
    make_store(tmp_path, next_offset=5)
    with messages_in(runtime_directory, tmp_path) as messages:
        assert not messages.cancel(1).result(PATIENCE_S)  # after the first transaction
        assert messages.status()["pending"] == 0


def test_a_message_of_a_damaged_file_is_not_removed_from_the_next_one(
    runtime_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rename that fails leaves the file; the next attempt to open it renames it."""
    monkeypatch.setattr(delivery, "RETRY_S", 0.01)
    apply, rename, load = DelayedStore.apply, DelayedStore.rename, DelayedStore._load
    failures = ["apply", "rename", "load"]

    def failing(name: str) -> bool:
        if failures[:1] != [name]:
            return False
        failures.pop(0)
        return True

    def damaged_apply(
        store: DelayedStore, added: object, removed: object, *rest: object, **more: object
    ) -> object:
        if removed and failing("apply"):
            raise sqlite3.DatabaseError("damaged")
        return apply(store, added, removed, *rest, **more)  # type: ignore[arg-type]

    def failing_rename(store: DelayedStore, reason: str) -> None:
        if failing("rename"):
            store.close()
            raise OSError("read-only")
        rename(store, reason)

    def damaged_load(store: DelayedStore) -> None:
        if failing("load"):
            raise sqlite3.DatabaseError("damaged")
        load(store)

    monkeypatch.setattr(DelayedStore, "apply", damaged_apply)
    monkeypatch.setattr(DelayedStore, "rename", failing_rename)
    monkeypatch.setattr(DelayedStore, "_load", damaged_load)
    with messages_in(runtime_directory, tmp_path) as messages:
        wait_until(lambda: messages.status()["pending"] == 5)
        assert messages.cancel(1).result(PATIENCE_S)
        assert failures == []
        assert messages.status()["pending"] == 0
