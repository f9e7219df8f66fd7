"""Delivery of delayed messages: moves records into the store, and publishes the due ones.

    take       a batch of records from the ring
    publish    messages that are due
    commit     insert the taken messages, remove the published ones whose logs are synced, store the next
               offset: one transaction
    release    the batch: the ring may overwrite its records now

Owns the thread and the order of these steps. Runs nothing on the MQTT thread, except by DelayedPublisher.

Invariants: the ring keeps a record until the store has it. Published messages stay in the store until the
logs of their streams are synced, however long a disk stalls, and are not published again. They are at most
BATCH_MAX, which kill -9 repeats. A message never leaves early. A failed transaction is
repeated unchanged, and nothing is published meanwhile. A store that cannot be opened is tried again, too. The
engine counts a tenant's message from its arrival, and this module corrects that by what the store has.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing, suppress
from typing import Any, NamedTuple

from msgspec import Struct

from edge.broker.delayed_topics import delayed_target
from edge.broker.synced_changes import Ends, unsynced
from edge.config.schema import DELAY_LIMIT_S
from edge.delayed.clock import StoreClock
from edge.delayed.publisher import DelayedPublisher
from edge.delayed.ring import DelayedPartition
from edge.delayed.store import (
    DelayedMessage,
    DelayedStore,
    StoredMessage,
    TenantUse,
    list_messages,
    use_of,
)
from edge.engine.engine import OK, TOO_LARGE
from edge.errors import EdgeError
from edge.log_throttle import LogThrottle
from edge.logging_setup import pairs
from edge.mqtt.reason_codes import ReasonCode
from ringbuf import FLAG_EXPIRY, FLAG_QOS, FLAG_RETAIN, Batch, WakeupThread
from ringbuf.errors import OffsetGone, RingError

log = logging.getLogger(__name__)

BATCH_MAX = 1_024  # records taken, and messages published, in one transaction
BATCH_MAX_BYTES = 4 << 20  # of payloads published in one transaction
RETRY_NS = 1_000_000_000  # after a stream has refused a message
RETRY_S = 1.0  # after a failed transaction
SYNC_S = 1.0  # longest time without a sync of commits for which no publisher waits
SYNC_POLL_S, LOOK_S = 0.002, 0.05  # while published messages wait: looks at logs, and for more messages
SYNC_WARN_S = 5.0  # a log that lacks published messages for so long is reported
JUMP_CHECK_S = 10.0  # between two checks of the wall clock for a jump
FLAGS = FLAG_QOS | FLAG_RETAIN | FLAG_EXPIRY
NS = 1_000_000_000
INTEGER_MAX = (1 << 63) - 1  # of SQLite


class DelayedLimits(Struct, frozen=True):
    """Bounds of the store. Names as in the configuration."""

    messages_max: int
    messages_max_bytes: int
    sync_s: float | None = None  # None: no syncs in addition to commits
    lack_of_room: Callable[[], str] = lambda: ""  # reason why the disk takes no more messages, or ""


class _Transaction(Struct):
    """A transaction that has not been committed yet."""

    batch: Batch | None = None
    added: list[DelayedMessage] = []
    removed: list[StoredMessage] = []
    postponed: list[tuple[int, int]] = []
    ring_cursor: tuple[int, int] = (0, 0)
    answers: list[tuple[Future[bool], bool]] = []  # results, set after the commit

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.removed or self.postponed or self.batch is not None)


class _Unsynced(NamedTuple):
    """Published messages, the ends of rings that their logs must reach, and the time of publication."""

    messages: list[StoredMessage]
    ends: Ends
    since_s: float


class DelayedMessages:
    """All delayed messages of a broker, from start() to stop(). Other methods: on any thread."""

    def __init__(
        self,
        partition: DelayedPartition,
        store: DelayedStore,
        publisher: DelayedPublisher,
        limits: DelayedLimits,
        make_clock: Callable[[tuple[int, int] | None], StoreClock] = StoreClock,
    ) -> None:
        self.totals: Counter[str] = Counter()
        self._ring, self._reader = partition.ring, partition.reader
        self._wakeup_reader = partition.ring.reader(name="delayed wakeup", local=True)
        self._chunk_holder = partition.ring.reader(
            name="delayed chunk", start="oldest", blocks_writer=True, local=True
        )
        self._held_chunk = -1  # begin of the chunk that it holds
        self._earlier_end = partition.earlier_end
        self._store, self._publisher, self._limits = store, publisher, limits
        self._reported: TenantUse = Counter()  # what the engine knows of the store
        self._make_clock = make_clock
        self._clock: StoreClock  # from the first time that the store is open
        self._has_begun = False  # True from that time on
        self._wall_ahead_ns = 0  # wall time minus time of the store's clock
        self._transaction: _Transaction | None = None  # begun, not committed
        self._unsynced: deque[_Unsynced] = deque()
        self._look_s = 0.0  # time of the next look for due messages while others are unsynced
        self._cancels: deque[tuple[int, Future[bool]]] = deque()
        self._refusal = 0
        self.failure = ""
        self._may_warn = LogThrottle(time.monotonic)
        self._may_warn_of_log = LogThrottle(time.monotonic)
        self._may_log_refusal = LogThrottle(time.monotonic)
        self._sync_at: float | None = None
        self._wakeup, self._event = WakeupThread(), threading.Event()
        self._armed = self._stopping = False
        self._thread = threading.Thread(target=self._run, name="brim-delayed")

    def start(self) -> None:
        """Start the thread. It continues after the last stored record."""
        try:
            self._open_store()
        except (OSError, sqlite3.Error) as error:
            self._store_failed(error)
        self._thread.start()

    def stop(self) -> None:
        """Stop after the transaction that has begun. May be called twice."""
        self._stopping = self._publisher.stopping = True
        self._event.set()
        if self._thread.is_alive():
            self._thread.join()
        self._wakeup.close()
        self._wakeup_reader.close()
        self._chunk_holder.close()
        self._store.close()
        if self._transaction is not None:
            for answer, _ in self._transaction.answers:
                hint = "look for it with `brim delayed ls` after the next start"
                answer.set_exception(EdgeError("the broker stops; the message may still be there", hint=hint))
            self._transaction.answers = []
        for _, answer in self._cancels:
            answer.cancel()

    def status(self) -> dict[str, Any]:
        """Figures for the status report; totals since the start."""
        names = ("delivered", "cancelled", "postponed", "invalid", "damaged", "too_large")
        return {
            "pending": self._store.messages,
            "bytes": self._store.stored_bytes,
            "refuses": bool(self._refusal),
            "failure": self.failure,
            **{name: self.totals[name] for name in names},
            "lost": self.totals["lost"] + self._reader.lost,
        }

    def page(self, after: tuple[int, int], limit: int, payload_max: int) -> list[dict[str, Any]]:
        """Messages after (due_ns, id), in the order of delivery; `due_unix_ns` is wall time.

        Reads files. Raises EdgeError: the file cannot be read now.
        """
        after = (min(max(after[0], -1), INTEGER_MAX), min(max(after[1], 0), INTEGER_MAX))
        try:
            rows = list_messages(self._store.path, after, limit, payload_max)
        except sqlite3.Error as error:
            text = f"{self._store.path}: delayed messages cannot be read now: {error}"
            raise EdgeError(text, hint="try again; if it stays so, see the log of the broker") from error
        for row in rows:
            row["due_unix_ns"] = row["due_ns"] + self._wall_ahead_ns
        return rows

    def cancel(self, message_id: int) -> Future[bool]:
        """Remove a message. The result is False if the store does not have it."""
        answer: Future[bool] = Future()
        if not 0 < message_id < INTEGER_MAX:
            answer.set_result(False)
            return answer
        self._cancels.append((message_id, answer))
        self._event.set()
        if self._stopping:  # maybe after the last look of the thread
            answer.cancel()
        return answer

    # ---- the thread ----

    def _run(self) -> None:
        while not self._stopping:
            try:
                if not (self._store.is_open and self._has_begun):
                    self._open_store()
                if not self._run_transaction():
                    self._sleep()
            except (OSError, sqlite3.Error) as error:
                self._store_failed(error)
                self._event.wait(RETRY_S)
            except Exception:
                log.exception("delayed messages failed, repeated after a pause %s", pairs(pause_s=RETRY_S))
                self._event.wait(RETRY_S)
        try:
            self._finish()
        except (OSError, sqlite3.Error) as error:
            log.error("published delayed messages not removed, they come again %s", pairs(reason=error))

    def _open_store(self) -> None:
        self._store.open()
        if self._has_begun:  # the file is new, after a damaged one: it gets ring cursor and clock
            self._store.sync(self._clock.pair())
            return
        self._clock = self._make_clock(self._store.clock)
        self._seek()
        self._publisher.stored(self._reader.offset)
        self._wall_ahead_ns = self._measure_wall_ahead()
        self._reported.subtract(self._earlier_use())
        self._report_use()
        self._has_begun = True
        log.info("delayed messages continued %s", pairs(messages=self._store.messages))

    def _seek(self) -> None:
        """Continue after the last stored record, if the ring still has the epoch of that record."""
        epoch, offset = self._store.ring_cursor
        extremes = self._ring.extremes()
        if epoch == self._ring.epoch and offset <= extremes.end_offset:
            try:
                self._reader.seek(offset)
            except OffsetGone as error:
                self._reader.seek(error.nearest)
                self.totals["lost"] += error.nearest - offset
                log.error("delayed messages lost in the ring %s", pairs(records=error.nearest - offset))
        elif self._store.is_interrupted:
            self._store.report_dropped(1)
        self._hold_chunk()

    def _hold_chunk(self) -> None:
        """Hold the chunk of the ring in which the first record that is not stored begins.

        A start finds an offset by the first record of its chunk. In a full ring the writer would have
        overwritten that record, and the others of the chunk would be lost. The release of a batch moves
        self._reader past the chunk, so another reader holds the chunk.
        """
        chunk = self._reader.cursor - self._reader.cursor % self._ring.chunk_bytes
        if chunk == self._held_chunk:
            return
        with closing(self._ring.reader(with_slot=False)) as probe:

            def cursor_at(offset: int) -> int:
                with suppress(OffsetGone):  # it stands at the nearest one then
                    probe.seek(offset)
                return probe.cursor

            held = range(self._chunk_holder.offset, self._reader.offset + 1)
            if count := bisect_right(held, chunk, key=cursor_at):
                self._chunk_holder.seek(held[count - 1])
                self._held_chunk = chunk

    def _earlier_use(self) -> TenantUse:
        """Use of tenants by records of the ring from before this start, which the engine has not counted."""
        use: TenantUse = Counter()
        reader = self._wakeup_reader  # self._reader stays, and keeps these records
        reader.seek(self._reader.offset)
        while (left := self._earlier_end - reader.offset) > 0:
            try:
                batch = reader.read_many(min(BATCH_MAX, left))
            except RingError:
                reader.skip()  # _take() reports it
                continue
            try:
                use.update(use_of(self._messages_of(batch)))
            finally:
                batch.release()
        return use

    def _report_use(self, taken: TenantUse | None = None) -> None:
        """Report what the store has of each tenant now. The engine has counted `taken` at their arrival."""
        changes = Counter(self._store.tenant_use)
        changes.subtract(self._reported)
        changes.subtract(taken or {})
        self._reported = self._store.tenant_use
        if any(changes.values()) or not self._has_begun:
            self._publisher.count_tenants(changes)

    def _run_transaction(self) -> bool:
        """One transaction. False if there was nothing to do."""
        self._event.clear()
        if self._transaction is None:
            # Kept from its first step on: after a failure at any step, this same transaction is committed.
            self._transaction = _Transaction(ring_cursor=(self._ring.epoch, self._reader.offset))
            self._cancel(self._transaction)
            self._take(self._transaction)
            self._remove_synced(self._transaction)
            self._publish_due(self._transaction)
        transaction, taken = self._transaction, None
        if not transaction.is_empty:
            taken = self._store.apply(
                transaction.added,
                transaction.removed,
                transaction.postponed,
                transaction.ring_cursor,
                self._clock.pair(),
                sync=bool(transaction.answers),  # a power cut must not undo a confirmed removal
            )
        self._committed(transaction, taken)
        return not transaction.is_empty

    def _committed(self, transaction: _Transaction, taken: TenantUse | None) -> None:
        self._transaction = None
        self.failure = self._limits.lack_of_room()
        self._report_use(taken)
        if transaction.batch is not None:
            try:
                self._hold_chunk()
            finally:  # a held batch would stop publishers
                transaction.batch.release()
            self._publisher.stored(transaction.ring_cursor[1])
        for answer, is_removed in transaction.answers:
            answer.set_result(is_removed)
        self._refuse(ReasonCode.QUOTA_EXCEEDED if self._is_full() else ReasonCode.SUCCESS)
        if self._limits.sync_s is not None:
            self._sync_when_due(changed=not transaction.is_empty)

    def _sync_when_due(self, *, changed: bool) -> None:
        assert self._limits.sync_s is not None
        now = time.monotonic()
        if self._sync_at is not None and now >= self._sync_at:
            self._store.sync(self._clock.pair())
            self._sync_at = None
        elif changed and self._sync_at is None:
            self._sync_at = now + self._limits.sync_s

    def _cancel(self, transaction: _Transaction) -> None:
        seen: set[int] = set()
        published = self._published()
        for _ in range(len(self._cancels)):
            message_id, answer = self._cancels[0]  # and stays there if the store fails
            message = None if message_id in seen | published else self._store.find(message_id)
            self._cancels.popleft()
            if not answer.set_running_or_notify_cancel():  # its client has left
                continue
            if message is not None:
                seen.add(message_id)
                transaction.removed.append(message)
                self.totals["cancelled"] += 1
            transaction.answers.append((answer, message is not None))

    # ---- from the ring ----

    def _is_full(self) -> bool:
        limits = self._limits
        return (
            self._store.messages >= limits.messages_max
            or self._store.stored_bytes >= limits.messages_max_bytes
            or bool(self.failure)
        )

    def _take(self, transaction: _Transaction) -> None:
        if self._is_full():
            return
        try:
            batch = self._reader.read_many(min(BATCH_MAX, self._limits.messages_max - self._store.messages))
        except RingError as error:
            log.error("delayed records damaged in the ring, skipped %s", pairs(reason=error))
            self._reader.skip()
            return
        if len(batch) == 0:
            return
        try:
            transaction.added = self._messages_of(batch)
        except BaseException:  # such as a lack of memory: the next transaction reads the batch again
            self._reader.seek(batch.offsets[0])
            batch.release()
            raise
        self.totals["invalid"] += len(batch) - len(transaction.added)
        transaction.batch = batch
        transaction.ring_cursor = (self._ring.epoch, batch.offsets[-1] + 1)

    def _messages_of(self, batch: Batch) -> list[DelayedMessage]:
        """The messages of records whose names are valid."""
        messages, arrived_ns = [], self._clock.arrived_ns()
        for record in batch:
            # the ring may hold messages from before delay_max_s was lowered
            target = delayed_target(record.key.decode("utf-8", "replace"), DELAY_LIMIT_S)
            if target is None:
                continue
            seconds, topic = target
            due_ns = arrived_ns(record.timestamp_ns) + seconds * NS
            flags, payload = record.flags & FLAGS, record.bytes()
            messages.append(DelayedMessage(due_ns, topic, flags, record.properties, payload))
        return messages

    # ---- to the topics ----

    def _publish_due(self, transaction: _Transaction) -> None:
        now_ns, now_s = self._clock.now_ns(), time.monotonic()
        if self._unsynced and now_s < self._look_s:
            return
        self._look_s = now_s + LOOK_S
        done = self._published() | {message.id for message in transaction.removed}
        stored = self._store.due(now_ns, BATCH_MAX, BATCH_MAX_BYTES)
        due = [message for message in stored if message.id not in done][: max(BATCH_MAX - len(done), 0)]
        intact = [message for message in due if message.is_intact]
        for message in due:
            if not message.is_intact:
                self.totals["damaged"] += 1
                transaction.removed.append(message)
                log.error("delayed message damaged, dropped %s", pairs(id=message.id, topic=message.topic))
        codes, ends = self._publisher.publish(intact)
        published = [message for message, code in zip(intact, codes, strict=False) if code == OK]
        self.totals["delivered"] += len(published)
        if ends:
            self._unsynced.append(_Unsynced(published, ends, now_s))
            self._remove_synced(transaction)
        else:
            transaction.removed += published
        for message, code in zip(intact, codes, strict=False):
            if code == OK:
                continue
            if code == TOO_LARGE:
                self.totals["too_large"] += 1
                transaction.removed.append(message)
            else:
                self.totals["postponed"] += 1
                transaction.postponed.append((message.id, now_ns + RETRY_NS))

    def _published(self) -> set[int]:
        """Numbers of the messages that are published, and that wait for the sync of their logs."""
        return {message.id for part in self._unsynced for message in part.messages}

    def _remove_synced(self, transaction: _Transaction) -> None:
        """Remove the published messages whose logs are synced now."""
        left: deque[_Unsynced] = deque()
        now_s = time.monotonic()
        for part in self._unsynced:
            lacking = unsynced(part.ends)
            if not lacking:
                transaction.removed += part.messages
                continue
            left.append(part)
            if now_s - part.since_s > SYNC_WARN_S and self._may_warn_of_log():
                facts = pairs(rings=",".join(lacking), messages=len(part.messages))
                log.warning("delayed messages published, not yet synced; check the disk of the log %s", facts)
        self._unsynced = left

    def _finish(self) -> None:
        """At the stop, remove the published messages. Those that are not synced in time come again."""
        until_s = time.monotonic() + SYNC_WARN_S
        while self._unsynced and self._transaction is None and self._store.is_open:
            transaction = _Transaction(ring_cursor=self._store.ring_cursor)
            self._remove_synced(transaction)
            if transaction.removed:
                clock = self._clock.pair()
                self._store.apply((), transaction.removed, (), transaction.ring_cursor, clock)
            elif time.monotonic() > until_s:
                return
            else:
                time.sleep(SYNC_POLL_S)

    # ---- waiting ----

    def _sleep(self) -> None:
        """Wait for a record, a due message or a command."""
        if not self._is_full():
            if not self._armed:
                self._wakeup_reader.seek_latest()
                self._armed = True
                self._wakeup.watch(self._wakeup_reader, self._record_came)
            if self._reader.lag:
                return
        if self._cancels or self._stopping:
            return
        if self._clock.has_jumped():
            self._store.apply((), (), (), self._store.ring_cursor, self._clock.pair())
            self._wall_ahead_ns = self._measure_wall_ahead()
        self._event.wait(self._pause_s())

    def _record_came(self) -> None:
        self._armed = False
        self._event.set()

    def _pause_s(self) -> float | None:
        """Longest time to wait; None: until an event."""
        if self._unsynced:
            return min(max(SYNC_POLL_S, (time.monotonic() - self._unsynced[-1].since_s) / 8), LOOK_S)
        pauses = []
        if self._sync_at is not None:
            pauses.append(self._sync_at - time.monotonic())
        if self.failure:  # the room on the disk is looked at again
            pauses.append(RETRY_S)
        if (due_ns := self._store.next_due_ns()) is not None:
            pauses += [(due_ns - self._clock.now_ns()) / NS, JUMP_CHECK_S]
        return max(0.0, min(pauses)) if pauses else None

    def _measure_wall_ahead(self) -> int:
        scale, wall = self._clock.pair()
        return wall - scale

    def _refuse(self, reason: int) -> None:
        if reason == self._refusal:
            return
        self._refusal = reason
        self._publisher.refuse(reason)
        if reason and self._may_log_refusal():
            cause = self.failure or f"{self._store.messages} messages, {self._store.stored_bytes} bytes"
            remedy = "free or repair the disk" if self.failure else "raise the limits of [delayed]"
            log.warning("delayed messages refused; %s %s", remedy, pairs(cause=cause))

    def _store_failed(self, error: OSError | sqlite3.Error) -> None:
        is_damage = isinstance(error, sqlite3.DatabaseError) and not isinstance(
            error, sqlite3.OperationalError
        )
        if is_damage:
            self.totals["damaged"] += self._store.messages
            self._unsynced.clear()  # these messages are in the damaged file
            if self._transaction is not None:
                self._transaction.removed, self._transaction.postponed = [], []
            try:
                self._store.rename(str(error))
            except OSError as again:
                error = again
            else:
                return
        self.failure = str(error)
        if self._may_warn():
            facts = pairs(file=self._store.path, reason=error)
            log.error("delayed messages not stored, repeated each second %s", facts)
        self._refuse(ReasonCode.QUOTA_EXCEEDED)
