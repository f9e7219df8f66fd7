"""Next files of a drain: the records of each, the losses that it declares, and its write intent.

Owns the choice: which partition (scheduler.py), which range of offsets, live or backlog, and the step to the
next epoch. Never sends a file, and never waits for the sink: drain.py does.

A partition has one order of its files; only a backlog and its live records are drained in parallel, each in
order. A file of a backlog ends where the live records began (Cursor.stop_offset).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from bridge.drain.checkpoint import Checkpoint
from bridge.drain.clock import DrainClock
from bridge.drain.in_flight import InFlightFile, InFlightWindow
from bridge.drain.partitions import TICK_S, Partitions
from bridge.drain.resend_limit import ResendLimit
from bridge.drain.scheduler import Demand, Scheduler
from bridge.drain.sender import Shipment, SinkDelivery
from bridge.drain.settings import BridgeSettings
from bridge.errors import SourceError
from bridge.format.cursor import Cursor
from bridge.format.installation import Installation
from bridge.format.lake_epoch import EPOCH_BITS, ring_epoch
from bridge.format.record_batch import RecordBatch
from bridge.format.write_intent import WriteIntent
from bridge.rangeset import union
from bridge.source.partition_source import ANOTHER_EDGE, PartitionSource, RecordBuffer, RingName, cut

log = logging.getLogger(__name__)

Lost = Sequence[tuple[int, int]]  # ranges of offsets, both ends included

FULL_WINDOW_S = 60.0  # with a full window: the sink's answer ends the wait, not this time


class NextFiles:
    """Chooses the next files of a drain. Belongs to the thread of the drain."""

    def __init__(
        self,
        settings: BridgeSettings,
        checkpoint: Checkpoint,
        window: InFlightWindow,
        partitions: Partitions,
        installation: Installation,
        delivery: SinkDelivery,
        resend: ResendLimit | None,
        clock: DrainClock,
        on_epoch: Callable[[Cursor], object],
    ) -> None:
        """`on_epoch` is called with the cursor of a partition that has moved to another epoch."""
        self.scheduler = Scheduler(settings)
        self._settings = settings
        self._checkpoint = checkpoint
        self._window = window
        self._partitions = partitions
        self._installation = installation
        self._delivery = delivery
        self._resend = resend
        self._clock = clock
        self._on_epoch = on_epoch
        # Intents are written down in groups: half of the files wait for a place, while the others are put.
        self._files_max = settings.window * (2 if delivery.uses_intents and settings.window > 1 else 1)
        self._buffers: list[RecordBuffer] = []  # not in use by a file

    def recycle(self, file: InFlightFile) -> None:
        """Reuse the memory of a file that the sink has stored."""
        if file.buffer is not None:
            self._buffers.append(file.buffer)

    def decide(self, now: float) -> tuple[list[InFlightFile], float]:
        """Files to begin now, and the seconds until there may be another."""
        decided: list[InFlightFile] = []
        left_out: set[tuple[RingName, bool]] = set()
        moved = False
        window = self._settings.window
        if len(self._window) > window:
            return [], FULL_WINDOW_S  # the next files are written down together
        # One file while the sink has nothing to do; several while it has.
        files_max = min(self._files_max, len(self._window) + (window if self._window.outstanding else 1))
        while len(self._window) < files_max and self._has_room():
            waiting = self._partitions.demands(self._move_to_epoch)
            demands = [demand for demand in waiting if (demand.name, demand.live) not in left_out]
            if not (demands := self._without(demands)):
                break
            demand = self.scheduler.choose(demands, now)
            if isinstance(demand, float):
                return self._begin_files(decided), 0.0 if moved else demand
            with self._partitions.recording_errors(demand.name):
                file = self._next_file(self._partitions.sources[demand.name], demand)
                if isinstance(file, InFlightFile):
                    self._partitions.was_read(demand.name)
                    decided.append(file)
                    self._window.files.append(file)
                    continue
                moved |= file
                if file:
                    continue
            left_out.add((demand.name, demand.live))
        full = len(self._window) >= self._files_max or not self._has_room()
        wait_s = FULL_WINDOW_S if full else TICK_S if left_out else self._settings.scan_interval_ms / 1000
        return self._begin_files(decided), 0.0 if moved else wait_s

    def _has_room(self) -> bool:
        """True if the resend limit leaves room for a file."""
        return self._resend is None or self._resend.has_room(self._settings, self._window.files)

    def _without(self, demands: list[Demand]) -> list[Demand]:
        """The demands without backlog, if a backlog file would take the last place that live records need."""
        backlog = sum(1 for file in self._window.files if file.backlog)
        max_files = max(self._settings.window - 1, 1)
        return [demand for demand in demands if demand.live or backlog < max_files]

    def _begin_files(self, decided: list[InFlightFile]) -> list[InFlightFile]:
        """The files, written down if required. Raises CheckpointError: none was written."""
        if decided:
            try:
                intents = [file.intent for file in decided]
                self._checkpoint.begin(intents, saved=self._delivery.uses_intents)
            except BaseException:
                for file in decided:
                    self._window.files.remove(file)
                raise
        return decided

    def _next_file(self, source: PartitionSource, demand: Demand) -> InFlightFile | bool:
        """A file of this partition; otherwise True if the partition has advanced in another way."""
        buffer = self._buffers.pop() if self._buffers else RecordBuffer()
        file = self._read_file(source, demand, buffer)
        if not isinstance(file, InFlightFile):
            self._buffers.append(buffer)
        return file

    def _read_file(
        self, source: PartitionSource, demand: Demand, buffer: RecordBuffer
    ) -> InFlightFile | bool:
        cursor = self._partitions.cursor_of(source.name)
        assert cursor is not None
        start = cursor.live_offset if demand.live else cursor.next_offset
        batch = source.read(cursor.epoch, start, self.scheduler.limit_bytes(demand), buffer)
        quiet = not any(self._window.of(source.name))
        if batch is None:
            if cursor.ahead:
                ended = source.is_gone or source.moved_on(cursor.epoch)
                return quiet and ended and self._pass(cursor, demand)
            return quiet and self._next_epoch(source, cursor)
        stop = None if demand.live else cursor.stop_offset
        end = batch.first_offset + self._settings.file_records
        if stop is not None:
            if batch.first_offset >= stop:
                return quiet and self._pass(cursor, demand)
            end = min(end, stop)
        batch = cut(batch, end - 1)
        if self._resend is not None:
            part = self._resend.part_of(batch, self._window.files)
            if part is None:
                return False
            batch = part
        if stop is not None:
            self._partitions.backlog_ns[source.name] = batch.last_timestamp_ns
        if quiet and stop is None and self._splits(source, cursor, batch):
            return True
        file = InFlightFile(self._intent(source, cursor, start, batch), buffer, backlog=not demand.live)
        file.shipment = Shipment(file.intent, batch)
        self._delivery.prepare(file.shipment)
        self.scheduler.sent(demand, batch.length)
        if demand.live and (waiting := self._partitions.waiting.get(source.name)):
            waiting.since, waiting.oldest_ns = self._clock.monotonic(), batch.last_timestamp_ns
        return file

    def _pass(self, cursor: Cursor, demand: Demand) -> bool:
        """The backlog is gone: declare it lost, and move the cursor behind the drained range that follows."""
        stop = cursor.stop_offset
        if demand.live or stop is None:
            return False
        self._checkpoint.move(cursor.lost_until(stop))
        return True

    def _splits(self, source: PartitionSource, cursor: Cursor, batch: RecordBatch) -> bool:
        """True if the backlog is old enough that live records are drained in parallel from now on."""
        age_ms = self._clock.age_s(batch.first_timestamp_ns) * 1000
        late = max(self._settings.live_after_ms, 3 * self._settings.linger_ms)
        end = source.end_offset()
        if not self._settings.live_share or age_ms < late or source.moved_on(cursor.epoch) or end is None:
            return False
        split = cursor.split(end) if end > batch.last_offset + 1 else cursor
        if split is not cursor:
            log.info(
                "live records drained in parallel with the backlog stream=%s partition=%d from=%d",
                *source.name,
                end,
            )
            self._checkpoint.move(split)
            self._partitions.waiting.pop(source.name, None)
            self._partitions.backlog_ns[source.name] = batch.first_timestamp_ns
        return split is not cursor

    def _intent(self, source: PartitionSource, cursor: Cursor, start: int, batch: RecordBatch) -> WriteIntent:
        begun = [file.intent for file in self._window.files]
        lost = tuple(union((*cursor.owed, *_range(start, batch.first_offset))))
        return WriteIntent(
            drain_seq=self._checkpoint.number(begun),
            created_ns=self._clock.wall_ns(),
            stream=cursor.stream,
            partition=cursor.partition,
            epoch=cursor.epoch,
            epoch_first_offset=cursor.epoch_first_offset,
            previous=cursor.previous,
            first_offset=batch.first_offset,
            last_offset=batch.last_offset,
            lost=lost,
            skipped=cursor.skipped,
            compressed=self._settings.compress == "zstd",
            earlier_lost=cursor.earlier_lost,
            earlier_skipped=cursor.earlier_skipped,
            installation=self._installation.identity.id if cursor.epoch >> EPOCH_BITS else "",
            payloads=self._delivery.schema[0],
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
        self._checkpoint.move(cursor)
        self._on_epoch(cursor)

    def _next_epoch(self, source: PartitionSource, cursor: Cursor) -> bool:
        """Continue with the next epoch; that of the cursor was read to its end. False: no next epoch."""
        epochs = source.epochs()
        later = epochs
        if self._installation.owns(cursor.epoch):
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


def _range(first: int, end: int) -> tuple[tuple[int, int], ...]:
    return ((first, end - 1),) if end > first else ()
