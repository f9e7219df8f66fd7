"""Drain: sends the records of many partitions, file by file, to one sink, each record exactly once.

A file here is one drained file, or one batch of records for a record sink. Owns the order of the steps, and
no thread: step() does what is possible now, and returns the time until there is more to do. bridge.py calls
it, waits, and tries failed steps again. next_files.py decides which records become files.

A file
  1. is decided: a contiguous range of one partition, with the losses before it;
  2. is written down as an intent (checkpoint), with its number, which determines its name;
  3. is put; the sink stores a name once, so a repeated put stores nothing twice;
  4. is written down as done, when all files that were decided before it are done.

Several files are in flight at once (in_flight.py), and may arrive in any order. Readers of the lake use the
numbers, and wait for a missing one. For a sink that takes records one by one step 2 is absent. Files that are
not written down as done are sent again, up to the resend limit (resend_limit.py).

After a kill at any instruction there are two cases. Without an intent, the sink has nothing of that file.
With an intent, the next drain reads the same records again, builds the same bytes and puts the same name. If
those records are gone, the drain checks whether the sink has the name.

Not covered: a store that executes a put after the number of the file was given to another file. This needs
one of two events. The store first answers "no such name", and the records of the file are gone from ring and
log. Or the store executes the put 25 s or more after the request timed out, and another bridge has taken over
the lease (lease.py). A batch query then still reads each record once. A stream that has passed the number
does not read the late file. The gap report names the number.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass

from bridge.drain.checkpoint import Checkpoint
from bridge.drain.clock import SYSTEM, DrainClock
from bridge.drain.dead_letters import DeadLetters
from bridge.drain.in_flight import InFlightFile, InFlightWindow
from bridge.drain.losses import Losses
from bridge.drain.next_files import FULL_WINDOW_S, Lost, NextFiles
from bridge.drain.partitions import TICK_S, Partitions
from bridge.drain.past_streams import note_streams, streams_left
from bridge.drain.reconcile import is_there, reconcile
from bridge.drain.resend_limit import ResendLimit, bounded
from bridge.drain.sender import FileDelivery, RecordDelivery, Shipment, SinkDelivery
from bridge.drain.settings import BridgeSettings
from bridge.errors import SinkUnavailable, SourceError
from bridge.format.cursor import Cursor
from bridge.format.installation import Installation
from bridge.format.lake_epoch import ring_epoch
from bridge.format.record_batch import RecordBatch
from bridge.sinks.interface import Decoding, Leasing, RecordSink, Sink
from bridge.source.partition_source import (
    RecordLog,
    RingName,
    unreadable,
)
from persistence.errors import LogError
from persistence.stats import MILLISECOND_NS, LatencyHistogram
from ringbuf.errors import RingError

log = logging.getLogger(__name__)

# ring name, epoch, offset, lost: the sink has all records of the ring below the offset, except the lost ones
ProgressReport = Callable[[str, int, int, Lost], object]

FINISH_S = 32.0  # a sink answers within half a minute
SAVE_S = 1.0  # interval of saving arrivals while more files are in flight: these may be sent again


@dataclass(slots=True)
class Totals:
    """Totals of a bridge since its process began."""

    files: int = 0
    records: int = 0
    bytes: int = 0
    lost_records: int = 0  # declared in a footer
    damaged_records: int = 0  # did not verify in a ring: declared lost, unless the log has them
    dead_letters: int = 0
    retries: int = 0
    restarts: int = 0  # of the drain, after an error of no known class (restarts.py)
    rescued_records: int = 0  # with a value that does not fit the payload schema


class Drain:
    """Drain of the rings of `settings` into `sink`. Belongs to one thread.

    `record_log`: the log, if any. `on_progress` is called after the sink has taken a file, and for each
    partition before the first file of this process and of an epoch. `on_answer` is called on any thread after
    an answer of the sink: then step() has work.
    """

    def __init__(
        self,
        settings: BridgeSettings,
        sink: Sink,
        checkpoint: Checkpoint,
        record_log: RecordLog | None = None,
        on_progress: ProgressReport | None = None,
        *,
        on_answer: Callable[[], object] = lambda: None,
        clock: DrainClock = SYSTEM,
    ) -> None:
        self._delivery: SinkDelivery = (
            RecordDelivery(settings, sink) if isinstance(sink, RecordSink) else FileDelivery(settings, sink)
        )
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
            settings, record_log, clock, self.cursor_of, self._known, left, self.installation.lake_epoch
        )
        self.dead_letters = DeadLetters(settings)
        self.clock = clock
        self._sink = sink
        self._on_progress = on_progress
        self._on_answer = on_answer
        if not self._delivery.uses_intents:
            checkpoint.abandon()
        self._window = InFlightWindow([InFlightFile(intent) for intent in checkpoint.intents])
        self.next_files = NextFiles(
            settings,
            checkpoint,
            self._window,
            self.partitions,
            self.installation,
            self._delivery,
            self._resend,
            clock,
            self._report_all,
        )
        self._begun = False  # the content of the sink is known
        self._collected = False  # collect() was called
        self._stale = False  # the sink has failed: another bridge may have had a turn meanwhile
        self._turn = ""  # at the sink
        self._scan_at = 0.0
        self._saved_at = 0.0

    def count_in(self, totals: Totals, times: LatencyHistogram) -> None:
        """Continue the counts of an earlier drain of this bridge."""
        self.totals, self.times = totals, times
        self.partitions.damaged_records = totals.damaged_records

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
        now = self.scan_if_due()  # before any request to the sink: so the lag is known while the sink is away
        if not self._begun:
            self._begin()
        progress = self._take_answers()
        progress |= self._send(self._window.to_send())
        wait_s = FULL_WINDOW_S
        if not (self._window.probing or self._window.restoring or self.intake_paused):
            decided, wait_s = self.next_files.decide(now)
            progress |= self._send(decided) or wait_s <= 0
        progress |= self._take_answers()
        progress |= self._save_if_due()
        self.totals.damaged_records = self.partitions.damaged_records
        return 0.0 if progress else min(wait_s, max(self._scan_at - now, TICK_S))

    def scan_if_due(self) -> float:
        """Find new rings if it is time to, also while paused. Return the present time."""
        now = self.clock.monotonic()
        if now >= self._scan_at:
            self.partitions.scan(self.is_busy)
            self._scan_at = now + self.settings.scan_interval_ms / 1000
        if self.intake_paused:
            self.partitions.demands(lambda _: None)  # records the time since which records wait
        return now

    @property
    def failing(self) -> bool:
        """True if the sink has failed and has taken nothing since, and records wait for it."""
        return self._window.failed and (bool(self._window.files) or not self.idle)

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
        self._save_now()

    def collect(self) -> None:
        """Take the answers of the sink, and send nothing. Raises SinkError, CheckpointError.

        The first call completes files of a crash that the sink has, from the front on.
        """
        if self._window.restoring and not self._collected:
            self._collected = True  # one try: a sink that is away would delay the commands
            self._find_restored()
        self._take_answers()
        self._save_if_due()

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
        self._wait_for_answers()
        self._take_answers()
        if not self.checkpoint.saved:
            self._save_now()

    def _wait_for_answers(self) -> None:
        wait([file.future for file in self._window.files if file.future is not None], FINISH_S)

    def close(self) -> None:
        """Complete the files in flight, and detach from all rings. The caller closes checkpoint and sink."""
        self._delivery.close()
        self.partitions.close()

    # ---- begin ----

    def _begin(self) -> None:
        note_streams(self.settings, self.checkpoint)
        if isinstance(self._sink, Decoding):
            self._sink.remember(self.checkpoint.schemas)
            self.checkpoint.use_schema(self._delivery.schema, self._sink.evolve(self.checkpoint.columns))
        self._compare(every_day=self._is_overtaken())
        self._begun = True

    def _begin_again(self) -> bool:
        """Begin again after a failure of the sink. True if another bridge was there: no file is in flight."""
        corrected = False
        if self._is_overtaken():
            self._wait_for_answers()  # the number of a file is given back unless the sink has it
            corrected = self._compare(every_day=True)
        self._stale = False
        return corrected

    def _is_overtaken(self) -> bool:
        """Begin at the sink. True if another bridge may have put files since the last comparison."""
        turn = self._sink.begin(self.settings.edge_id)
        if turn is None:
            return False
        self._turn, known = turn.own, self.checkpoint.turn
        if not known or known not in turn:
            return True
        self.checkpoint.compared_in(turn.own)  # no other bridge had a turn between these two
        return False

    def _compare(self, *, every_day: bool) -> bool:
        """Correct the checkpoint by the names in the sink. True if it was corrected."""
        sink, checkpoint = self._sink, self.checkpoint
        corrected = not isinstance(sink, RecordSink) and reconcile(
            sink, checkpoint, self._first_offset_of, self.installation.owns, every_day=every_day
        )
        checkpoint.compared_in(self._turn)
        if corrected:
            self._window.clear()
            for name in self.partitions.sources:
                self.partitions.forget(name)
        for cursor in checkpoint.cursors.values():
            self._report_all(cursor)
        return corrected

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

    # ---- sending ----

    def _send(self, files: Sequence[InFlightFile]) -> bool:
        """Send these files. True if there were any. Raises SinkError, SourceError."""
        if self._stale and files and self._begin_again():
            return True
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
                self._window.probing = self._window.failed = True
                raise
            file.future.add_done_callback(lambda _: self._on_answer())
        return any(file.future is not None for file in files)

    def _read_again(self, file: InFlightFile) -> bool:
        """Read the records of a file that a crash has interrupted. False: it was resolved without them.

        Raises SourceError: the disk cannot read them now.
        """
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
        except OSError as error:  # it may pass
            raise unreadable(error) from error
        except (SourceError, LogError, RingError) as error:
            log.error("drained file not read again drain_seq=%d reason=%s", intent.drain_seq, error)
            return None

    def _take_answers(self) -> bool:
        """Take the answers of the sink. True if it has taken a file. Raises SinkError."""
        failure = self._window.take_answers(self.clock.monotonic(), self._acknowledged)
        progress = False
        if failure is not None:  # whatever the result of the others
            self.totals.retries += 1
            self._stale = True
            if self._resend is not None and not self._window.rewinding:
                self._resend.failed()
            self._window.rewinding = not self._delivery.uses_intents
        for file in self._window.finished():
            self._reject(file)
            self.checkpoint.finish()
            self._count(file)
            if self._resend is not None:
                self._resend.acknowledged(file)
            cursor = self.checkpoint.cursors[file.name]
            self._report(cursor, (*file.intent.lost, *cursor.owed))
            self.next_files.recycle(file)
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
            self.next_files.scheduler.measured(file.shipment.length, file.took_s)
            self.times.add(int(self.clock.age_s(file.shipment.batch.first_timestamp_ns) * 1e9))

    def _count(self, file: InFlightFile) -> None:
        intent = file.intent
        lost = sum(last - first + 1 for *_, first, last in (*intent.lost, *intent.earlier_lost))
        self.totals.files += 1
        self.totals.records += intent.last_offset - intent.first_offset + 1
        self.totals.lost_records += lost
        self.totals.bytes += file.shipment.length if file.shipment else 0
        self.totals.rescued_records += file.shipment.rescued if file.shipment else 0
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
        if self._on_progress is not None:
            name = RingName(cursor.stream, cursor.partition)
            self._on_progress(name.ring, ring_epoch(cursor.epoch), cursor.accounted_offset, lost)

    def _save_if_due(self) -> bool:
        """Save the checkpoint if it is time to. True if that made room under the resend limit."""
        now = self.clock.monotonic()
        if self.checkpoint.saved:
            return False
        due = self._resend is not None and self._resend.is_due()
        if self._window.files and now - self._saved_at < SAVE_S and not due:
            return False  # the next files are written down soon, and this progress with them
        self._save_now()
        self._saved_at = now
        return self._resend is not None

    def _save_now(self) -> None:
        self.checkpoint.save()
        if self._resend is not None:
            self._resend.saved()
