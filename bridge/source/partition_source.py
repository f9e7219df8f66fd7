"""Records of one partition: from the ring while they are there, otherwise from the log.

Owns an attachment to the ring and one buffer. The attachment is that of any subscriber: a slot of the cursor
file, memory mapped read-only; it never delays the writer. Never decides what is drained or when, and never
writes.

A ring may be overwritten while it is read. So a range is copied first, then checked whether it still holds,
and only then used. Every checksum is checked before a record leaves this module: here, or by the log that
read the record.

Epochs are those of the lake (bridge/format/installation.py), except in calls of rings and logs. They rise by
their low 32 bits, which are the ring's.

The broker gives a partition a new ring, of a higher epoch, if the old one cannot be continued (a reboot
empties the memory). An attached ring stays readable after its file was replaced: its last records are not
lost.

Invariant: read(epoch, offset) returns records of that epoch from `offset` on. If the first are gone for good,
it returns records from the first that is left. drain/next_files.py (_intent) sees by the
offset which are missing.
"""

from __future__ import annotations

import itertools
import logging
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from bridge.errors import SourceError
from bridge.format.drained_file import EXTENT_HEADER_BYTES, HEADER_BYTES
from bridge.format.lake_epoch import ring_epoch
from bridge.format.record_batch import RecordBatch, RecordRun
from persistence.durable_file import is_unreadable, problem_of
from persistence.read.log_reader import Epoch
from ringbuf import Range, Reader, Ring, bytes_of_records, copied, scan_records
from ringbuf.errors import Corrupt, OffsetGone, Overrun, RingError

log = logging.getLogger(__name__)

GROWTH_BYTES = 2 << 20  # of a buffer: a large page of most machines; unused pages take no memory
BUFFER_MIN_BYTES = 1 << 20  # of a buffer, and of one read of a file that is read again
PIECE_BYTES = 1 << 20  # searched and copied at a time, so that it stays in the caches of a core
RUNS_MAX = 1 << 10  # per file from a ring, approximately: each run costs some lines of Python
RECORD_MIN_BYTES = 32  # a header's
ATTEMPTS = 3  # after so many laps in a row the log is read instead, or the ring at the next step
PASSED_MAX = 1000  # damaged records that are passed over in one step
REMEMBERED_MAX = 16  # ranges of damaged records that are remembered, in live records and backlog


# Drains all records of ring and log again, under names that no file has, so no file can be mistaken for
# another.
ANOTHER_EDGE = (
    "give this edge another edge_id, and its bridge another name: all that the ring and the log hold is then "
    "drained under them; remove nothing"
)


class RecordLog(Protocol):
    """The part of a log that the bridge needs; persistence.LogReader has it in the writing process."""

    def read(self, ring_name: str, epoch: int, offset: int, limit_bytes: int) -> list[Range]:
        """Ranges from `offset` on, or from the first offset behind it that is left; empty: no such record."""

    def epochs(self, ring_name: str) -> list[Epoch]:
        """Epochs of a ring that the log has, in their order."""


class RingName(NamedTuple):
    """Partition of a ring: "stream-3", or "stream@producer" for the ring of a local producer."""

    stream: str
    partition: int

    @classmethod
    def parse(cls, name: str) -> RingName | None:
        """The partition in the name of a ring; None: it is not the name of a partition."""
        if "@" in name:
            return cls(name, 0)
        stream, dash, number = name.rpartition("-")
        return cls(stream, int(number)) if dash and stream and number.isascii() and number.isdigit() else None

    @property
    def ring(self) -> str:
        """The name that was parsed."""
        return self.stream if "@" in self.stream else f"{self.stream}-{self.partition}"

    def belongs_to(self, streams: Sequence[str]) -> bool:
        """True if it belongs to one of these streams, or if no stream is given."""
        return not streams or self.stream.partition("@")[0] in streams


def _follows(epoch: int, before: int) -> bool:
    """True if an epoch can follow another one: it is of another life, or higher."""
    known, epoch_number = ring_epoch(before), ring_epoch(epoch)
    return epoch - epoch_number != before - known or epoch_number > known


def unreadable(error: OSError) -> SourceError:
    """Error for records that cannot be read now. The cause may pass, so nothing is declared lost."""
    if error.filename and is_unreadable(error):
        hint = "repair the disk; to give up the records of that file, move it to another directory"
        return SourceError(problem_of(error), hint=hint)
    return SourceError(problem_of(error))


def find_rings(runtime_dir: Path, streams: Sequence[str]) -> dict[RingName, Path]:
    """The rings in the runtime directory, by partition, each as its path without suffix."""
    try:
        files = sorted(runtime_dir.glob("*.ring"))
    except OSError:
        return {}
    named = ((RingName.parse(file.name.removesuffix(".ring")), file.with_suffix("")) for file in files)
    return {name: path for name, path in named if name is not None and name.belongs_to(streams)}


class RecordBuffer:
    """Memory for one file, reused for the next: the result of take() is then invalid.

    Whole pages, large ones for long buffers: a disk takes writes from them that bypass the page cache.
    """

    def __init__(self) -> None:
        self.memory = _pages(BUFFER_MIN_BYTES)

    def take(self, ranges: Iterable[Range], about_bytes: int = 0) -> tuple[RecordRun, ...]:
        """Copies of the ranges, with verified neighbours joined, placed as RecordBatch.room describes.

        Each range is copied before the next is requested. Together they have `about_bytes` bytes.
        """
        runs: list[tuple[int, int, bool]] = []
        end = HEADER_BYTES
        for part in ranges:
            unchecked = RecordRun.of(part.view).unchecked
            if runs and not unchecked and not runs[-1][2]:
                begin = runs.pop()[0]
            else:
                begin = end = end + EXTENT_HEADER_BYTES
            self._make_room(end, len(part.view), about_bytes)
            copied(self.memory[end : end + len(part.view)], part.view)
            end += len(part.view)
            runs.append((begin, end, unchecked))
        return tuple(RecordRun(self.memory[begin:end], unchecked) for begin, end, unchecked in runs)

    def _make_room(self, end: int, length: int, about_bytes: int) -> None:
        if end + length > len(self.memory):
            before = self.memory[:end]
            self.memory = _pages(max(end + length, HEADER_BYTES + EXTENT_HEADER_BYTES + about_bytes))
            copied(self.memory, before)


def _pages(length: int) -> memoryview:
    """New memory for at least so many bytes, so that the next file fits, too."""
    pages = mmap.mmap(-1, -(-length // GROWTH_BYTES) * GROWTH_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if length > BUFFER_MIN_BYTES:  # a small broker shall stay small
        with suppress(OSError):  # a kernel without large pages
            pages.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(pages)


class _Damaged(Exception):
    """The first record does not verify."""


def _verified(epoch: int, offset: int, runs: Sequence[RecordRun], buffer: RecordBuffer) -> RecordBatch:
    """The batch in `runs` of `buffer`, cut before the first record that does not verify or is not in
    sequence.

    Raises _Damaged.
    """
    good: list[RecordRun] = []
    expected, stamps = offset, []
    for run in runs:
        scan = scan_records(run.records, ring_epoch(epoch))
        if scan.count == 0 or scan.first_offset != expected or scan.last_offset != expected + scan.count - 1:
            break
        good.append(RecordRun(run.records[: scan.good_bytes], run.unchecked))
        expected += scan.count
        stamps += [scan.first_timestamp_ns, scan.last_timestamp_ns]
        if scan.good_bytes < len(run.records):
            break
    if not good:
        raise _Damaged
    return RecordBatch(epoch, offset, expected - 1, stamps[0], stamps[-1], tuple(good), buffer.memory)


class _AttachedRing:
    """An attached ring."""

    def __init__(self, path: Path, lake_epoch: Callable[[int], int]) -> None:
        file = os.stat(f"{path}.ring")
        self.file = file.st_dev, file.st_ino
        self.ring = Ring.attach(path)
        try:
            self.reader = self.ring.reader(name="bridge", start="oldest")
        except BaseException:
            self.ring.close()
            raise
        self.epoch = lake_epoch(self.ring.epoch)

    def read(self, offset: int, limit_bytes: int, buffer: RecordBuffer) -> RecordBatch | None:
        """Records from `offset` on; None: none yet. Raises OffsetGone, Corrupt, _Damaged."""
        for _ in range(ATTEMPTS):
            if self.reader.offset != offset:
                self.reader.seek(offset)
            try:
                ranges = self.reader.ranges(min(limit_bytes, PIECE_BYTES))
                if not ranges:
                    return None
                runs = buffer.take(self._following(ranges, limit_bytes), limit_bytes)
            except Overrun:
                continue  # the next seek reports what is left
            if self.reader.holds(ranges[0].position):
                return _verified(self.epoch, ranges[0].offset, runs, buffer)
        raise OffsetGone(self.ring.extremes().oldest_offset)

    def _following(self, ranges: Sequence[Range], limit_bytes: int) -> Iterator[Range]:
        """These ranges and the following ones, up to damage, a gap, or an overwritten position."""
        count = 0
        while ranges and limit_bytes > 0 and count < RUNS_MAX:
            yield from ranges
            count += len(ranges)
            limit_bytes -= sum(len(part.view) for part in ranges)
            try:
                ranges = self.reader.ranges(min(limit_bytes, PIECE_BYTES)) if limit_bytes > 0 else []
            except (Corrupt, Overrun):
                return  # the next read reports it, or the caller finds no valid record

    def close(self) -> None:
        """Detach."""
        self.reader.close()
        self.ring.close()


class PartitionSource:
    """Reader of one partition. Belongs to one thread.

    `damaged` is called once for each record of a ring that does not verify. `lake_epoch` converts the epoch
    of a ring into that of the lake.
    """

    def __init__(
        self,
        name: RingName,
        path: Path,
        record_log: RecordLog | None,
        damaged: Callable[[], object] = lambda: None,
        lake_epoch: Callable[[int], int] = lambda epoch: epoch,
    ) -> None:
        self._lake_epoch = lake_epoch
        self.name = name
        self.path = path
        self._record_log = record_log
        self._damaged = damaged
        self._passed: dict[tuple[int, int], int] = {}  # (epoch, first) -> end of records that do not verify
        self._rings: list[_AttachedRing] = []  # by rising epoch; the last is the ring that is being written
        self._left: Sequence[Epoch] = ()  # in the log, of a ring that is gone

    def refresh(self) -> None:
        """Attach the ring at the path, if it is a new one. Raises RingError, OSError."""
        try:
            file = os.stat(f"{self.path}.ring")
        except FileNotFoundError:
            return
        if self._rings and self._rings[-1].file == (file.st_dev, file.st_ino):
            return
        new_ring = _AttachedRing(self.path, self._lake_epoch)
        if any(not _follows(new_ring.epoch, ring.epoch) for ring in self._rings):
            known = self._rings[-1].epoch
            new_ring.close()
            raise SourceError(
                f"{self.path}: a new ring of epoch {ring_epoch(new_ring.epoch)}, after {ring_epoch(known)}",
                hint=ANOTHER_EDGE,
            )
        self._rings.append(new_ring)

    def use_log_only(self) -> None:
        """Read from the log only, because the ring is gone. Raises LogError, OSError."""
        self._left = self._log_epochs()

    def read_to_its_end(self) -> None:
        """Mark all as read: a ring that is gone has no more records that wait."""
        self._left = ()

    def forget_before(self, epoch: int) -> None:
        """Detach rings of earlier epochs: they have been read to their end."""
        while len(self._rings) > 1 and _follows(epoch, self._rings[0].epoch):
            self._rings.pop(0).close()
        there = {ring.epoch for ring in self._rings}
        self._passed = {key: end for key, end in self._passed.items() if key[0] in there}

    def epochs(self) -> list[tuple[int, int]]:
        """(epoch, first offset) of all epochs that can be read, in rising order."""
        first_offsets = {span.epoch: span.first_offset for span in self._log_epochs()}
        first_offsets |= {attached.epoch: attached.ring.first_offset for attached in self._rings}
        return sorted(first_offsets.items(), key=lambda item: ring_epoch(item[0]))

    def _log_epochs(self) -> list[Epoch]:
        """Epochs of which the log has records."""
        spans = self._record_log.epochs(self.path.name) if self._record_log else []
        return [span._replace(epoch=self._lake_epoch(span.epoch)) for span in spans]

    @property
    def is_gone(self) -> bool:
        """True if there is no ring."""
        return not self._rings

    def moved_on(self, epoch: int) -> bool:
        """True if the ring that is being written has another epoch."""
        return bool(self._rings) and self._rings[-1].epoch != epoch

    def reader_at(self, epoch: int, offset: int) -> Reader | None:
        """The cursor in the present ring, set to `offset`, for waiting there; None: not possible."""
        if not self._rings or self._rings[-1].epoch != epoch:
            return None
        reader = self._rings[-1].reader
        try:
            if reader.offset != offset:
                reader.seek(offset)
        except RingError:
            return None
        return reader

    def end_offset(self) -> int | None:
        """Next offset of the ring that is being written."""
        return self._rings[-1].ring.extremes().end_offset if self._rings else None

    def oldest(self) -> tuple[int, int]:
        """Epoch and offset of the oldest record of the ring that is being written; zeros: no record."""
        if not self._rings:
            return 0, 0
        return self._rings[-1].epoch, self._rings[-1].ring.extremes().oldest_offset

    def is_logged(self) -> bool:
        """True if the log has records of it. Raises LogError, OSError."""
        return self._record_log is not None and bool(self._record_log.epochs(self.path.name))

    def damaged_in(self, epoch: int, first: int, last: int) -> list[tuple[int, int]]:
        """Ranges in first .. last of records that did not verify; only the latest that were read."""
        ends = (
            (begin, end - 1) for (passed_epoch, begin), end in self._passed.items() if passed_epoch == epoch
        )
        return [(max(a, first), min(b, last)) for a, b in ends if a <= last and b >= first]

    def readable_from(self, epoch: int, offset: int) -> int:
        """The first offset from `offset` on that the ring or the log has; `offset`: the epoch has no ring.

        Raises LogError, OSError, RingError.
        """
        ring = next((attached.ring for attached in self._rings if attached.epoch == epoch), None)
        oldest = ring.extremes().oldest_offset if ring is not None else offset
        if oldest <= offset or self._record_log is None:
            return max(oldest, offset)
        spans = [span for span in self._log_epochs() if span.epoch == epoch]
        return min([max(span.first_offset, offset) for span in spans if span.end_offset > offset] + [oldest])

    def end_of(self, epoch: int) -> int:
        """The offset behind the last record of an epoch, verified or not; 0: its ring is gone."""
        ends = (attached.ring.extremes().end_offset for attached in self._rings if attached.epoch == epoch)
        return max(ends, default=0)

    def capacity(self) -> tuple[int, int] | None:
        """Bytes of the ring that is being written, and the position of its end; None: no ring."""
        if not self._rings:
            return None
        ring = self._rings[-1].ring
        return ring.capacity_bytes, ring.extremes().end_position

    def backlog(self, epoch: int, offset: int) -> tuple[int, int]:
        """Records and bytes from `offset` of `epoch` up to the end of the ring that is being written.

        Bytes of records that are no longer in the ring are estimated from those that are. A lower epoch
        counts as one record. Of a ring that is gone, the records in the log count, each with the bytes of a
        header.
        """
        if not self._rings:
            later = (span for span in self._left if span.epoch == epoch or _follows(span.epoch, epoch))
            here = ((span, offset if span.epoch == epoch else 0) for span in later)
            left = sum(max(span.end_offset - max(span.first_offset, begin), 0) for span, begin in here)
            return left, left * RECORD_MIN_BYTES
        if self._rings[-1].epoch != epoch:
            return 1, 1
        attached = self._rings[-1]
        ends = attached.ring.extremes()
        if ends.end_offset <= offset:
            # A writer that died within a batch has not announced its last records; they are there
            # nevertheless.
            reader = self.reader_at(epoch, offset)
            return (1, 1) if reader is not None and reader.wait(0) else (0, 0)
        records = ends.end_offset - offset
        if attached.reader.offset == offset and offset >= ends.oldest_offset:
            return records, max(ends.end_position - attached.reader.cursor, 0)
        there = max(ends.end_offset - ends.oldest_offset, 1)
        return records, records * (ends.end_position - ends.oldest_position) // there

    def read(self, epoch: int, offset: int, limit_bytes: int, buffer: RecordBuffer) -> RecordBatch | None:
        """Records of `epoch` from `offset` on, or from the first that is left behind it; None: none now.

        The batch is in `buffer`, and valid until that is reused. Raises SourceError: the ring is damaged, or
        ends before `offset`.
        """
        attached = next((ring for ring in self._rings if ring.epoch == epoch), None)
        for _ in range(ATTEMPTS):
            nearest = self._known_end(epoch, offset)
            if attached is not None and nearest is None:
                try:
                    return attached.read(offset, limit_bytes, buffer)
                except OffsetGone as error:
                    nearest = error.nearest
                except (_Damaged, Corrupt):
                    nearest = self._behind(attached, offset, buffer)
            if nearest is not None and nearest < offset:
                raise SourceError(
                    f"{self.path}: epoch {ring_epoch(epoch)} ends at offset {nearest}, but {offset} was to "
                    "be read next: the checkpoint is not of this broker",
                    hint=ANOTHER_EDGE,
                )
            batch = self._read_log(epoch, offset, limit_bytes, buffer)
            if batch is not None and (nearest is None or batch.first_offset < nearest):
                return batch
            if nearest is None:
                return None
            offset = nearest
        return None

    def _known_end(self, epoch: int, offset: int) -> int | None:
        """Offset behind known damaged records from `offset` on; None: `offset` is not known to be damaged."""
        ends = (
            end
            for (passed_epoch, first), end in self._passed.items()
            if passed_epoch == epoch and first <= offset < end
        )
        return next(ends, None)

    def _behind(self, attached: _AttachedRing, offset: int, buffer: RecordBuffer) -> int:
        """The offset behind records that do not verify, at `offset` and after it.

        They are remembered, because each step meets them at the end of a ring that is being written. Raises
        SourceError: there is no record behind them.
        """
        end = offset
        while end < offset + PASSED_MAX and self._is_damaged(attached, end, buffer):
            try:
                attached.reader.seek(end + 1)
            except (OffsetGone, Corrupt) as worse:
                raise SourceError(
                    f"{self.path}: damaged at offset {end} of epoch {attached.epoch}",
                    hint="its writer is at fault, or the memory: restart that writer with a new ring",
                ) from worse
            end += 1
            self._damaged()
        known = (
            first for (epoch, first), end in self._passed.items() if (epoch, end) == (attached.epoch, offset)
        )
        first = next(known, offset)
        if first == offset:
            log.warning(
                "records with wrong checksums skipped ring=%s epoch=%d from=%d",
                self.path, attached.epoch, offset,
            )  # fmt: skip
        self._passed[attached.epoch, first] = end
        while len(self._passed) > REMEMBERED_MAX:
            del self._passed[next(iter(self._passed))]
        return end

    @staticmethod
    def _is_damaged(attached: _AttachedRing, offset: int, buffer: RecordBuffer) -> bool:
        try:
            attached.read(offset, 1, buffer)
        except (_Damaged, Corrupt):
            return True
        except OffsetGone:
            return False
        return False

    def _read_log(
        self, epoch: int, offset: int, limit_bytes: int, buffer: RecordBuffer
    ) -> RecordBatch | None:
        if self._record_log is None:
            return None
        taken: list[Range] = []
        pieces = self._contiguous(self._record_log, epoch, offset, limit_bytes, taken)
        if not (runs := buffer.take(pieces, limit_bytes)):
            return None
        first, last = taken[0], taken[-1]
        stamps = first.first_timestamp_ns, last.last_timestamp_ns
        return RecordBatch(epoch, first.offset, last.offset + last.count - 1, *stamps, runs, buffer.memory)

    def _contiguous(
        self, record_log: RecordLog, epoch: int, offset: int, limit_bytes: int, taken: list[Range]
    ) -> Iterator[Range]:
        """Ranges of the log from `offset` on, up to a hole. Records behind the hole are the next batch.

        `taken` gets the ranges without their bytes, which may be released before the next are read.
        """
        while limit_bytes > 0:
            ranges = record_log.read(self.path.name, ring_epoch(epoch), offset, min(limit_bytes, PIECE_BYTES))
            if not ranges:
                return
            for part in ranges:
                if taken and part.offset != offset:
                    return
                taken.append(msgspec.structs.replace(part, view=memoryview(b"")))
                offset = part.offset + part.count
                limit_bytes -= len(part.view)
                yield part
            ranges.clear()

    def read_exactly(self, epoch: int, first_offset: int, last_offset: int) -> RecordBatch | None:
        """Read those records again, all of them, into new memory; None: some can no longer be read.

        For a file that a crash has interrupted: only the log may have the first, and only the ring the last.
        """
        batches: list[RecordBatch] = []
        buffer = RecordBuffer()
        offset = first_offset
        while offset <= last_offset:
            batch = self.read(epoch, offset, BUFFER_MIN_BYTES, buffer)
            if batch is None or batch.first_offset != offset:
                return None
            batch = cut(batch, last_offset)
            runs = tuple(RecordRun(memoryview(bytes(run.records)), run.unchecked) for run in batch.runs)
            batches.append(replace(batch, runs=runs))
            offset = batch.last_offset + 1
        first, last = batches[0], batches[-1]
        runs = tuple(_joined([run for batch in batches for run in batch.runs]))
        return replace(
            first, last_offset=last_offset, last_timestamp_ns=last.last_timestamp_ns, runs=runs, room=None
        )

    def close(self) -> None:
        """Detach.  May be called twice."""
        for attached in self._rings:
            attached.close()
        self._rings.clear()


def cut(batch: RecordBatch, last_offset: int) -> RecordBatch:
    """The batch up to `last_offset`, which is in it or behind it."""
    if batch.last_offset <= last_offset:
        return batch
    runs: list[RecordRun] = []
    offset, stamp = batch.first_offset, batch.first_timestamp_ns
    for run in batch.runs:
        count = last_offset + 1 - offset
        end = bytes_of_records(run.records, batch.ring_epoch, offset, count)
        scan = scan_records(run.records[:end], batch.ring_epoch)
        runs.append(RecordRun(run.records[:end], run.unchecked))
        offset, stamp = scan.last_offset + 1, scan.last_timestamp_ns
        if offset > last_offset:
            break
    return replace(batch, last_offset=last_offset, last_timestamp_ns=stamp, runs=tuple(runs))


def _joined(runs: Sequence[RecordRun]) -> Iterator[RecordRun]:
    """The runs, with verified neighbours joined."""
    for unchecked, group in itertools.groupby(runs, key=lambda run: run.unchecked):
        if unchecked:
            yield from group
        else:
            yield RecordRun(memoryview(b"".join(run.records for run in group)), unchecked)
