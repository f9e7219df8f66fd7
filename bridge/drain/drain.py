"""Drain: sends the records of many partitions, file by file, to one sink, each record exactly once.

A file here is one drained file, or one batch of records for a record sink. Owns the order of the steps, and
no thread: step() does what is possible now, and returns the time until there is more to do. bridge.py calls
it, waits, and tries failed steps again.

A file
  1. is decided: a contiguous range of one partition, with the losses before it;
  2. is written down as an intent (checkpoint), with its number, which determines its name;
  3. is put; the sink stores a name once, so a repeated put stores nothing twice;
  4. is written down as done, when all files that were decided before it are done.

Several files are in flight at once (in_flight.py), and may arrive in any order. Readers of the lake use the
numbers, and wait for a missing one. For a sink that takes records one by one step 2 is absent. Files that are
not written down as done are sent again, up to the resend limit (resend.py).

After a kill at any instruction there are two cases. Without an intent, the sink has nothing of that file.
With an intent, the next drain reads the same records again, builds the same bytes and puts the same name. If
those records are gone, the drain checks whether the sink has the name.

Not covered: a store that answers "no such name", and executes a put of the killed process after that, while
the records of that put are gone from ring and log. The gap report then names the doubled drain_seq.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass
from typing import Any

from bridge.drain.checkpoint import Checkpoint
from bridge.drain.clock import SYSTEM, DrainClock
from bridge.drain.dead_letters import DeadLetters
from bridge.drain.in_flight import InFlightFile, InFlightWindow
from bridge.drain.losses import Losses
from bridge.drain.partitions import TICK_S, Partitions
from bridge.drain.past_streams import note_streams, streams_left
from bridge.drain.reconcile import is_there, reconcile
from bridge.drain.resend import ResendLimit, bounded
from bridge.drain.scheduler import Demand, Scheduler
from bridge.drain.sender import FileDelivery, RecordDelivery, Shipment, SinkDelivery
from bridge.drain.settings import BridgeSettings
from bridge.errors import SinkUnavailable, SourceError
from bridge.format.cursor import Cursor
from bridge.format.file_builder import RecordBatch, WriteIntent
from bridge.format.installation import Installation
from bridge.format.lake_epoch import EPOCH_BITS, ring_epoch
from bridge.rangeset import union
from bridge.sinks.interface import Leasing, RecordSink, Sink
from bridge.source.partition_source import (
    ANOTHER_EDGE,
    PartitionSource,
    RecordBuffer,
    RecordLog,
    RingName,
    cut,
)
from persistence.errors import LogError
from persistence.stats import MILLISECOND_NS, LatencyHistogram
from ringbuf.errors import RingError

__all__ = ["Drain", "Lost", "Moved", "Totals"]

log = logging.getLogger(__name__)

Lost = Sequence[tuple[int, int]]  # ranges of offsets, both ends included
# ring name, epoch, offset, lost: the sink has all records of the ring below the offset, except the lost ones
Moved = Callable[[str, int, int, Lost], object]

SETTLE_S = 60.0  # with a full window: the sink's answer ends the wait, not this time
FINISH_S = 32.0  # a sink answers within half a minute
SAVE_S = 1.0  # interval of saving arrivals while more files are in flight: these may be sent again


@dataclass(slots=True)
class Totals:
    """Totals of this drain since it began."""

    files: int = 0
    records: int = 0
    bytes: int = 0
    lost_records: int = 0  # declared in a footer
    damaged_records: int = 0  # did not verify in a ring: declared lost, unless the log has them
    dead_letters: int = 0
    retries: int = 0


class Drain:
    """Drain of the rings of `settings` into `sink`. Belongs to one thread.

    `cold`: the log, if any. `moved` is called after the sink has taken a file, and for each partition before
    the first file of this process and of an epoch. `settled` is called on any thread after an answer of the
    sink: then step() has work.
    """

    def __init__(
        self,
        settings: BridgeSettings,
        sink: Sink,
        checkpoint: Checkpoint,
        cold: RecordLog | None = None,
        moved: Moved | None = None,
        *,
        settled: Callable[[], object] = lambda: None,
        clock: DrainClock = SYSTEM,
    ) -> None:
        self._delivery: SinkDelivery = (
            RecordDelivery(settings, sink) if isinstance(sink, RecordSink) else FileDelivery(settings, sink)
        )
        # Intents are written down in groups: half of the files wait for a place, while the others are put.
        self._most = settings.window * (2 if self._delivery.begins and settings.window > 1 else 1)
        self._resend: ResendLimit | None = None
        if isinstance(sink, RecordSink):
            self._resend = ResendLimit(settings.resend_max_records, settings.resend_max_bytes)
            settings = bounded(settings, 2 * settings.window)
        self.settings = settings
        self.totals = Totals()
        self.times = LatencyHistogram(MILLISECOND_NS)  # oldest record of a file to its acknowledgement
        self.last_ack: float | None = None  # monotonic
        self.intake_paused = False  # no file is begun; files in flight continue
        self.checkpoint = checkpoint
        left = streams_left(settings, checkpoint)
        copies = settings.log_dir, settings.runtime_dir
        self.installation = Installation.open(settings.state_dir, copies)
        if isinstance(sink, Leasing):
            sink.hold_as(self.installation.holder())
        self.partitions = Partitions(
            settings, cold, clock, self.cursor_of, self._known, left, self.installation.lake_epoch
        )
        self.plan = Scheduler(settings)
        self.dead_letters = DeadLetters(settings)
        self.clock = clock
        self._sink = sink
        self._moved = moved
        self._settled = settled
        if not self._delivery.begins:
            checkpoint.abandon()
        self._window = InFlightWindow([InFlightFile(intent) for intent in checkpoint.intents])
        self._buffers: list[RecordBuffer] = []
        self._begun = False  # the content of the sink is known
        self._collected = False  # collect() was called
        self._stale = False  # the sink has failed: its presence is checked again
        self._scan_at = 0.0
        self._saved_at = 0.0

    @property
    def drain_seq(self) -> int:
        """Number of the last file that the sink has."""
        return self.checkpoint.drain_seq

    @property
    def in_flight(self) -> int:
        """Number of files that the sink has and has not answered."""
        return self._window.outstanding

    def step(self) -> float:
        """Do what is possible now. Return the seconds until there is more to do; 0: now.

        Raises SinkError, CheckpointError, SourceError (at the begin): nothing is lost, call again.
        """
        now = self.look()  # before any request to the sink: so the lag is known while the sink is away
        if not self._begun:
            self._begin()
        progress = self._settle()
        progress |= self._send(self._window.to_send())
        wait_s = SETTLE_S
        if not (self._window.probing or self._window.restoring or self.intake_paused):
            decided, wait_s = self._decide(now)
            progress |= self._send(decided) or wait_s <= 0
        progress |= self._settle()
        progress |= self._save()
        self.totals.damaged_records = self.partitions.damaged_records
        return 0.0 if progress else min(wait_s, max(self._scan_at - now, TICK_S))

    def look(self) -> float:
        """Find new rings if it is time to. Return the time. Also for a drain that is held."""
        now = self.clock.monotonic()
        if now >= self._scan_at:
            self.partitions.scan(self.is_busy)
            self._scan_at = now + self.settings.scan_interval_ms / 1000
        if self.intake_paused:
            self.partitions.demands(lambda _: None)  # notes since when records wait
        return now

    @property
    def idle(self) -> bool:
        """True if no record waits to be sent, as of the last step()."""
        return not self.partitions.waiting

    def drained(self) -> bool:
        """True if the sink has all records that are in the rings now."""
        self.partitions.scan(self.is_busy)
        return not self._window.files and not any(map(self.partitions.waits, self.partitions.sources))

    def _known(self) -> list[RingName]:
        return [RingName(*name) for name in self.checkpoint.cursors]

    def cursor_of(self, name: RingName) -> Cursor | None:
        """Cursor of a partition after all its files in flight; None: it was never begun."""
        cursor = self.checkpoint.cursors.get(name)
        for file in self._window.of(name):
            if cursor is not None and cursor.epoch == file.intent.epoch:
                cursor = cursor.after(file.intent)
        return cursor

    def oldest_ns_of(self, name: RingName) -> int | None:
        """Timestamp of the oldest record that waits or is in flight, or of a record shortly before it."""
        waits = self.partitions.oldest_ns(name)
        times_ns = [] if waits is None else [waits]
        times_ns += [
            file.shipment.batch.first_timestamp_ns for file in self._window.of(name) if file.shipment
        ]
        return min(times_ns, default=None)

    def is_busy(self, name: RingName) -> bool:
        """True if files of the partition are in flight."""
        return any(self._window.of(name))

    def redirect(self, name: RingName, cursor: Cursor) -> None:
        """Move the cursor of a partition; files in flight are not changed. Raises CheckpointError."""
        self.checkpoint.move(cursor)
        self.partitions.forget(name)
        self._saved()

    def collect(self) -> None:
        """Take the answers of the sink, and send nothing. Raises SinkError, CheckpointError.

        The first call completes units of a crash that the sink has, from the front on.
        """
        if self._window.restoring and not self._collected:
            self._collected = True  # one try: a sink that is away would delay the commands
            self._find_restored()
        self._settle()
        self._save()

    def _find_restored(self) -> None:
        if not self._begun:
            self._begin()
        for file in self._window.files:
            if isinstance(self._sink, RecordSink) or not is_there(
                self._sink, file.intent, self.settings.edge_id
            ):
                return
            file.acknowledged = True

    def wait_for_one(self) -> None:
        """Wait until the sink has answered about any file in flight."""
        wait(
            [file.future for file in self._window.files if file.future is not None], FINISH_S, FIRST_COMPLETED
        )

    def finish(self) -> None:
        """Wait at most half a minute for the files in flight, and save the progress. Raises as collect()."""
        wait([file.future for file in self._window.files if file.future is not None], FINISH_S)
        self._settle()
        if not self.checkpoint.saved:
            self._saved()

    def close(self) -> None:
        """Complete the files in flight, and detach from all rings. The caller closes checkpoint and sink."""
        self._delivery.close()
        self.partitions.close()

    # ---- begin ----

    def _begin(self) -> None:
        note_streams(self.settings, self.checkpoint)
        self._sink.begin(self.settings.edge_id)
        if not isinstance(self._sink, RecordSink):
            reconcile(self._sink, self.checkpoint, self._first_offset_of, self.installation.owns)
            self._window.files = [InFlightFile(intent) for intent in self.checkpoint.intents]
        self._begun = True
        for cursor in self.checkpoint.cursors.values():
            self._report_all(cursor)

    def _first_offset_of(self, name: RingName, epoch: int) -> int | None:
        self.partitions.scan(self.is_busy)
        source = self.partitions.sources.get(name)
        try:
            return dict(source.epochs()).get(epoch) if source else None
        except (LogError, RingError, OSError) as error:
            raise SourceError(
                f"{name.ring}: the first offset of epoch {epoch} cannot be read: {error}",
                hint="give the user of the bridge access to the log, and check its disk",
            ) from error

    # ---- decisions ----

    def _decide(self, now: float) -> tuple[list[InFlightFile], float]:
        """Files to begin now, and the seconds until there may be another."""
        decided: list[InFlightFile] = []
        left_out: set[tuple[RingName, bool]] = set()
        moved = False
        window = self.settings.window
        if len(self._window) > window:
            return [], SETTLE_S  # the next files are written down together
        # One file while the sink has nothing to do; several while it has.
        room = min(self._most, len(self._window) + (window if self._window.outstanding else 1))
        while len(self._window) < room and self._has_room():
            waiting = self.partitions.demands(self._move_to_epoch)
            demands = [demand for demand in waiting if (demand.name, demand.live) not in left_out]
            if not (demands := self._without(demands)):
                break
            demand = self.plan.choose(demands, now)
            if isinstance(demand, float):
                return self._begin_files(decided), 0.0 if moved else demand
            with self.partitions.blamed(demand.name):
                file = self._next_file(self.partitions.sources[demand.name], demand)
                if isinstance(file, InFlightFile):
                    decided.append(file)
                    self._window.files.append(file)
                    continue
                moved |= file
                if file:
                    continue
            left_out.add((demand.name, demand.live))
        full = len(self._window) >= self._most or not self._has_room()
        wait_s = SETTLE_S if full else TICK_S if left_out else self.settings.scan_interval_ms / 1000
        return self._begin_files(decided), 0.0 if moved else wait_s

    def _has_room(self) -> bool:
        """True if the resend limit leaves room for a file."""
        return self._resend is None or self._resend.has_room(self.settings, self._window.files)

    def _without(self, demands: list[Demand]) -> list[Demand]:
        """The demands without backlog, if a backlog file would take the last place that live records need."""
        backlog = sum(1 for file in self._window.files if file.backlog)
        max_files = max(self.settings.window - 1, 1)
        return [demand for demand in demands if demand.live or backlog < max_files]

    def _begin_files(self, decided: list[InFlightFile]) -> list[InFlightFile]:
        """The files, written down if required. Raises CheckpointError: none was written."""
        if decided:
            try:
                intents = [file.intent for file in decided]
                self.checkpoint.begin(intents, saved=self._delivery.begins)
            except BaseException:
                for file in decided:
                    self._window.files.remove(file)
                raise
        return decided

    def _next_file(self, source: PartitionSource, demand: Demand) -> InFlightFile | bool:
        """A file of this partition; otherwise True if the partition has advanced in another way."""
        cursor = self.cursor_of(source.name)
        assert cursor is not None
        start = cursor.live_offset if demand.live else cursor.next_offset
        buffer = self._buffers.pop() if self._buffers else RecordBuffer()
        batch = source.read(cursor.epoch, start, self.plan.limit_bytes(demand), buffer)
        quiet = not any(self._window.of(source.name))
        if batch is None:
            self._buffers.append(buffer)
            if cursor.ahead:
                ended = source.is_gone or source.moved_on(cursor.epoch)
                return quiet and ended and self._pass(cursor, demand)
            return quiet and self._next_epoch(source, cursor)
        stop = None if demand.live else cursor.stop_offset
        end = batch.first_offset + self.settings.file_records
        if stop is not None:
            if batch.first_offset >= stop:
                self._buffers.append(buffer)
                return quiet and self._pass(cursor, demand)
            end = min(end, stop)
        batch = cut(batch, end - 1)
        if self._resend is not None:
            part = self._resend.part_of(batch, self._window.files)
            if part is None:
                self._buffers.append(buffer)
                return False
            batch = part
        if stop is not None:
            self.partitions.backlog_ns[source.name] = batch.last_timestamp_ns
        if quiet and stop is None and self._splits(source, cursor, batch):
            self._buffers.append(buffer)
            return True
        file = InFlightFile(self._intent(source, cursor, start, batch), buffer, backlog=not demand.live)
        file.shipment = Shipment(file.intent, batch)
        self._delivery.prepare(file.shipment)
        self.plan.sent(demand, batch.length)
        if demand.live and (waiting := self.partitions.waiting.get(source.name)):
            waiting.since, waiting.oldest_ns = self.clock.monotonic(), batch.last_timestamp_ns
        return file

    def _pass(self, cursor: Cursor, demand: Demand) -> bool:
        """The backlog is gone: declare it lost, and move the cursor behind the drained range that follows."""
        stop = cursor.stop_offset
        if demand.live or stop is None:
            return False
        self.checkpoint.move(cursor.gone(stop))
        return True

    def _splits(self, source: PartitionSource, cursor: Cursor, batch: RecordBatch) -> bool:
        """True if the backlog is old enough that live records are drained in parallel from now on."""
        age_ms = self.clock.age_s(batch.first_timestamp_ns) * 1000
        late = max(self.settings.live_after_ms, 3 * self.settings.linger_ms)
        end = source.end_offset()
        if not self.settings.live_share or age_ms < late or source.moved_on(cursor.epoch) or end is None:
            return False
        split = cursor.split(end) if end > batch.last_offset + 1 else cursor
        if split is not cursor:
            log.info(
                "live records drained in parallel with the backlog stream=%s partition=%d from=%d",
                *source.name,
                end,
            )
            self.checkpoint.move(split)
            self.partitions.waiting.pop(source.name, None)
            self.partitions.backlog_ns[source.name] = batch.first_timestamp_ns
        return split is not cursor

    def _intent(self, source: PartitionSource, cursor: Cursor, start: int, batch: RecordBatch) -> WriteIntent:
        begun = [file.intent for file in self._window.files]
        first = start == cursor.next_offset
        lost = tuple(union((*cursor.owed, *_range(start, batch.first_offset))))
        return WriteIntent(
            drain_seq=self.checkpoint.number(begun),
            created_ns=self.clock.wall_ns(),
            stream=cursor.stream,
            partition=cursor.partition,
            epoch=cursor.epoch,
            epoch_first_offset=cursor.epoch_first_offset,
            previous=cursor.previous,
            first_offset=batch.first_offset,
            last_offset=batch.last_offset,
            lost=lost,
            skipped=_range(cursor.accounted_offset, cursor.next_offset) if first else (),
            compressed=self.settings.compress == "zstd",
            earlier_lost=cursor.earlier_lost,
            earlier_skipped=cursor.earlier_skipped,
            installation=self.installation.identity.id if cursor.epoch >> EPOCH_BITS else "",
            **self._causes(source, cursor, lost),
        )

    def _causes(self, source: PartitionSource, cursor: Cursor, lost: Lost) -> dict[str, Any]:
        """Causes of the losses that the next file declares."""
        if not (lost or cursor.earlier_lost):
            return {}
        ranges = [*cursor.earlier_lost, *((cursor.epoch, *lost_range) for lost_range in lost)]
        damaged = [(lost_range[0], *part) for lost_range in ranges for part in source.damaged_in(*lost_range)]
        return {"damaged": tuple(damaged), "logged": source.is_logged()}

    def _move_to_epoch(self, cursor: Cursor) -> None:
        self.checkpoint.move(cursor)
        self._report_all(cursor)

    def _next_epoch(self, source: PartitionSource, cursor: Cursor) -> bool:
        """Continue with the next epoch; that of the cursor was read to its end. False: no next epoch."""
        epochs = source.epochs()
        later = epochs
        if self.installation.owns(cursor.epoch):
            later = [epoch for epoch in epochs if ring_epoch(epoch[0]) > ring_epoch(cursor.epoch)]
        if not later:
            if epochs and epochs[-1][0] != cursor.epoch:
                raise SourceError(
                    f"{source.path}: epoch {ring_epoch(epochs[-1][0])}, after epoch "
                    f"{ring_epoch(cursor.epoch)} that has been drained",
                    hint=ANOTHER_EDGE,
                )
            source.read_to_its_end()
            return False
        epoch, first = later[0]
        self._move_to_epoch(cursor.next_epoch(epoch, first, source.end_of(cursor.epoch)))
        source.forget_before(epoch)
        log.info("epoch begun stream=%s partition=%d epoch=%d after=%d", *source.name, epoch, cursor.epoch)
        return True

    # ---- sending ----

    def _send(self, files: Sequence[InFlightFile]) -> bool:
        """Send these files. True if there were any. Raises SinkError."""
        if self._stale and files:
            self._sink.begin(self.settings.edge_id)
            self._stale = False
        for file in files:
            if file.shipment is None:
                if self._window.files[0] is not file:
                    break  # after a crash, one after the other
                if not self._read_again(file):
                    return True
            assert file.shipment is not None
            file.sent_at = self.clock.monotonic()
            try:
                file.future = self._delivery.send(file.shipment)
            except SinkUnavailable:
                self._window.probing = True
                raise
            file.future.add_done_callback(lambda _: self._settled())
        return any(file.future is not None for file in files)

    def _read_again(self, file: InFlightFile) -> bool:
        """Read the records of a file that a crash has interrupted. False: it was resolved without them."""
        if (batch := self._batch_again(file)) is not None:
            file.shipment = Shipment(file.intent, batch)
            return True
        assert not isinstance(self._sink, RecordSink)  # such a sink has no file in flight after a crash
        file.acknowledged = is_there(self._sink, file.intent, self.settings.edge_id)
        if not file.acknowledged:
            log.error("drained file dropped: records lost drain_seq=%d", file.intent.drain_seq)
            self.checkpoint.give_up()
            self._window.files.remove(file)
        return False

    def _batch_again(self, file: InFlightFile) -> RecordBatch | None:
        intent = file.intent
        if file.name not in self.partitions.sources:
            self.partitions.scan(self.is_busy)
        source = self.partitions.of(file.name)
        try:
            return source.read_exactly(intent.epoch, intent.first_offset, intent.last_offset)
        except (SourceError, LogError, RingError, OSError) as error:
            log.error("drained file not read again drain_seq=%d reason=%s", intent.drain_seq, error)
            return None

    def _settle(self) -> bool:
        """Take the answers of the sink. True if it has taken a file. Raises SinkError."""
        failure = self._window.take_answers(self.clock.monotonic(), self._acknowledged)
        progress = False
        if failure is not None:  # whatever the result of the others
            self.totals.retries += 1
            self._stale = True
            self._window.rewinding = not self._delivery.begins
        for file in self._window.finished():
            self._reject(file)
            self.checkpoint.finish()
            self._count(file)
            if self._resend is not None:
                self._resend.acknowledged(file)
            cursor = self.checkpoint.cursors[file.name]
            self._report(cursor, (*file.intent.lost, *cursor.owed))
            if file.buffer is not None:
                self._buffers.append(file.buffer)
            progress = True
        if self._window.rewound():
            self.checkpoint.abandon()
        if failure is not None:
            raise failure
        return progress

    def _reject(self, file: InFlightFile) -> None:
        rejected = [*file.rejected, *(file.shipment.rejected if file.shipment else ())]
        if rejected and file.shipment is not None:
            self.dead_letters.add(file.intent, file.shipment.batch, rejected)
            self.totals.dead_letters += len(rejected)

    def _acknowledged(self, file: InFlightFile) -> None:
        self.last_ack = self.clock.monotonic()
        if file.shipment is not None:
            self.plan.measured(file.shipment.length, file.took_s)
            self.times.add(int(self.clock.age_s(file.shipment.batch.first_timestamp_ns) * 1e9))

    def _count(self, file: InFlightFile) -> None:
        intent = file.intent
        lost = sum(last - first + 1 for *_, first, last in (*intent.lost, *intent.earlier_lost))
        self.totals.files += 1
        self.totals.records += intent.last_offset - intent.first_offset + 1
        self.totals.lost_records += lost
        self.totals.bytes += file.shipment.length if file.shipment else 0
        if lost:
            ranges = [*intent.earlier_lost, *intent.lost]
            log.warning("records declared lost drain_seq=%s lost=%s", intent.drain_seq, ranges)
        log.debug("drained drain_seq=%d", intent.drain_seq)

    def _report_all(self, cursor: Cursor) -> None:
        """Report the progress and all known losses, which a broker that was killed may not know."""
        losses = self.checkpoint.losses.get((cursor.stream, cursor.partition), Losses())
        lost = [(first, last) for epoch, first, last in losses.lost if epoch == cursor.epoch]
        self._report(cursor, (*lost, *cursor.owed))

    def _report(self, cursor: Cursor, lost: Lost) -> None:
        if self._moved is not None:
            name = RingName(cursor.stream, cursor.partition)
            self._moved(name.ring, ring_epoch(cursor.epoch), cursor.accounted_offset, lost)

    def _save(self) -> bool:
        """Save the checkpoint if it is time to. True if that made room under the resend limit."""
        now = self.clock.monotonic()
        if self.checkpoint.saved:
            return False
        due = self._resend is not None and self._resend.is_due()
        if self._window.files and now - self._saved_at < SAVE_S and not due:
            return False  # the next files are written down soon, and this progress with them
        self._saved()
        self._saved_at = now
        return self._resend is not None

    def _saved(self) -> None:
        self.checkpoint.save()
        if self._resend is not None:
            self._resend.saved()


def _range(first: int, end: int) -> tuple[tuple[int, int], ...]:
    return ((first, end - 1),) if end > first else ()
