"""Ring source: the records of one ring by offset, from the ring or from the log.

Owns a cursor over the ring, which takes no slot and never blocks a writer. Returns runs of records as
separate bytes, in the form of ring and log. No work per record.

A ring may be overwritten during a read, so a copy counts only if the ring still holds the records afterwards.
The decoder verifies the checksums.
"""

from __future__ import annotations

import errno
import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from edge.logging_setup import pairs
from ringbuf import Range, Ring, bytes_of_records
from ringbuf.errors import Corrupt, OffsetGone, Overrun

if TYPE_CHECKING:
    from persistence.read.log_reader import Epoch

log = logging.getLogger(__name__)

GAP_TRIES = 5  # for records that the log lists but does not return
ATTEMPTS = 3  # if the ring overruns the cursor each time


class ReadableLog(Protocol):
    """The part of a log reader that is used; persistence.LogReader has it."""

    def read(self, ring_name: str, epoch: int, offset: int, limit_bytes: int, /) -> list[Range]:
        """Ranges from `offset` on, or from the first existing one behind it."""

    def epochs(self, ring_name: str, /) -> list[Epoch]:
        """Epochs of a ring in the log, ascending."""

    def seek_time(self, ring_name: str, epoch: int, timestamp_ns: int, /) -> int:
        """Offset of the first record at or after that time, or the end of the epoch."""


@dataclass(frozen=True, slots=True)
class RingRecords:
    """`count` records of one epoch from `offset` on, without a gap. `of_log`: reading them again takes a
    read of the log.
    """

    epoch: int
    offset: int
    count: int
    data: bytes | memoryview
    of_log: bool = False

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return self.offset + self.count


@dataclass(frozen=True, slots=True)
class Overwritten:
    """The ring no longer has the records; `nearest` is its first offset."""

    nearest: int


class RingSource:
    """One ring. Call read() on one thread. The methods that read the log may be called on another one."""

    is_ended = False  # True: no record follows (ended_rings.py)

    def __init__(self, ring: Ring, log: ReadableLog | None = None) -> None:
        self.name = ring.name
        self.epoch = ring.epoch
        self.ring = ring
        self.log = log
        self._reader = ring.reader(with_slot=False, start="latest")
        self._ends = self._reader.offset, self._reader.offset
        # place that the log does not return, and the number of attempts
        self._gap: tuple[tuple[int, int], int] = ((0, 0), 0)

    def read(
        self, offset: int, limit_bytes: int, count: int | None = None
    ) -> RingRecords | Overwritten | None:
        """Records of the ring's own epoch from `offset` on, at most `count`; None: there are none yet."""
        for _ in range(ATTEMPTS):
            if self._reader.offset != offset:
                try:
                    self._reader.seek(offset)
                except OffsetGone as error:
                    return Overwritten(error.nearest) if error.nearest > offset else None
            try:
                ranges = self._reader.ranges(limit_bytes)
            except Overrun:
                continue
            records = self._copied(ranges, offset)
            if records is not None:
                return None if records.count == 0 else first_records(records, count)
        return Overwritten(self.ring.extremes().oldest_offset)

    def _copied(self, ranges: list[Range], offset: int) -> RingRecords | None:
        """Copy of the ranges; None if they were overwritten meanwhile."""
        data = b"".join([part.view for part in ranges])  # the only copy
        if ranges and not self._reader.holds(ranges[0].position):
            return None
        return RingRecords(self.epoch, offset, sum(part.count for part in ranges), data)

    def read_log(
        self, epoch: int, offset: int, limit_bytes: int, count: int | None = None
    ) -> RingRecords | None:
        """Records of `epoch` in the log, from `offset` on or from the next existing one; None: there are
        none.

        Reads files. Raises OSError.
        """
        found = self.log.read(self.name, epoch, offset, limit_bytes) if self.log is not None else []
        ranges: list[Range] = []
        for range_read in found:
            if ranges and range_read.offset != ranges[-1].offset + ranges[-1].count:
                break  # a hole: the next read returns the records behind it
            ranges.append(range_read)
        if not ranges:
            self._missing(epoch, offset)
            return None
        data = b"".join([part.view for part in ranges])
        return first_records(
            RingRecords(epoch, ranges[0].offset, sum(part.count for part in ranges), data, of_log=True), count
        )

    def _missing(self, epoch: int, offset: int) -> None:
        """Handle an empty result of the log.

        Raises OSError if the log lists records there: only GAP_TRIES times, because damage is permanent.
        """
        known = self.log.epochs(self.name) if self.log is not None else []
        end = max((epoch_info.end_offset for epoch_info in known if epoch_info.epoch == epoch), default=0)
        if end <= offset:
            return
        place, times = self._gap
        self._gap = ((epoch, offset), times + 1 if place == (epoch, offset) else 1)
        if self._gap[1] <= GAP_TRIES:
            raise OSError(
                errno.EIO, f"offset {offset} of epoch {epoch} is missing in the log; the epoch ends at {end}"
            )
        log.error(
            "records of the log not readable, consumers skipped them %s",
            pairs(ring=self.name, epoch=epoch, offset=offset, end=end),
        )

    def epochs(self) -> list[Epoch]:
        """All readable epochs, ascending: those of the log, and the ring's own at the end."""
        from persistence.read.log_reader import Epoch  # imports the log

        logged = self.log.epochs(self.name) if self.log is not None else []
        earlier = [epoch_info for epoch_info in logged if epoch_info.epoch < self.epoch]
        return [*earlier, Epoch(self.epoch, self.ring.first_offset, self.ends()[1])]

    def next_epoch(self, epoch: int) -> Epoch | None:
        """The epoch after that one; None if it is the ring's own or the last known."""
        return next((next_epoch for next_epoch in self.epochs() if next_epoch.epoch > epoch), None)

    def ends(self) -> tuple[int, int]:
        """(oldest offset in the ring, offset of the next record); the last known ones of a damaged ring."""
        with suppress(Corrupt):  # by its writer, which is another process; read() reports it
            extremes = self.ring.extremes()
            self._ends = extremes.oldest_offset, extremes.end_offset
        return self._ends

    def seek_time(self, timestamp_ns: int) -> tuple[int, int]:
        """(epoch, offset) of the first record at or after that time, in ring or log. Reads files of the log.

        Any thread. Raises OSError.
        """
        with self.ring.reader(with_slot=False) as reader:
            reader.seek_time(timestamp_ns)
            offset = reader.offset
        if self.log is None or offset > self.ring.extremes().oldest_offset:
            return self.epoch, offset
        for epoch_info in self.log.epochs(self.name):
            logged_offset = self.log.seek_time(self.name, epoch_info.epoch, timestamp_ns)
            if logged_offset < epoch_info.end_offset:
                return epoch_info.epoch, logged_offset
        return self.epoch, offset

    def close(self) -> None:
        """Close the cursor. May be called twice."""
        if hasattr(self, "_reader"):
            self._reader.close()
            del self._reader


def first_records(records: RingRecords, count: int | None) -> RingRecords:
    """The first `count` records."""
    if count is None or records.count <= count:
        return records
    try:
        length = _bytes_of(records, count)
    except Corrupt:  # the decoder reports it
        return records
    return replace(records, count=count, data=records.data[:length])


def records_behind(records: RingRecords, offset: int) -> RingRecords | None:
    """The records from `offset` on, in the same memory; None if there are none, or one does not verify."""
    count = offset - records.offset
    if count >= records.count:
        return None
    try:
        length = _bytes_of(records, count)
    except Corrupt:
        return None
    return replace(
        records, offset=offset, count=records.count - count, data=memoryview(records.data)[length:]
    )


def _bytes_of(records: RingRecords, count: int) -> int:
    return bytes_of_records(records.data, records.epoch, records.offset, count)
