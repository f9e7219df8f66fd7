"""Records of a row group as they stood in the ring: found by offset or ring position, cut by a limit.

Owns their bytes in memory.  Reads no file, loads no library.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Any, NamedTuple

from ringbuf import RECORD_ALIGN, Range
from ringbuf.record import RecordHeader


class Run(NamedTuple):
    """Records without a gap in their offsets and ring positions."""

    first_offset: int
    records: int
    position: int  # of the first one in the ring
    length: int  # bytes

    def is_continued_at(self, offset: int, position: int) -> bool:
        """True if a record of that offset and position continues the run."""
        return (self.first_offset + self.records, self.position + self.length) == (offset, position)


class Records:
    """Records of one ring and epoch, in order: all of a row group, or those of a topic."""

    def __init__(self, view: memoryview, epoch: int, places: array[int], stretches: Any, count: int) -> None:
        """`places` and `stretches` are rb_joined's (ringbuf/c/archive/archive_api.h)."""
        self.view = view
        self._epoch = epoch
        self._places = places
        self._stretches = stretches
        self._count = count

    @property
    def memory_bytes(self) -> int:
        """Memory that they take."""
        return len(self.view) + self._places.itemsize * len(self._places) + 32 * self._count

    def ranges(self, offset: int, limit_bytes: int) -> list[Range]:
        """Runs of records from `offset` on, or from the next one there is, that fit into `limit_bytes`, at
        least one record.  Empty: there is none.
        """
        ranges: list[Range] = []
        index = bisect_right(
            range(self._count), offset, key=lambda index_tried: self._stretches[index_tried].first_offset
        )
        for at in range(max(index - 1, 0), self._count):
            stretch = self._stretches[at]
            skipped = max(offset - stretch.first_offset, 0)
            if skipped >= stretch.count:
                continue
            taken = self._fitting(stretch.row + skipped, stretch.row + stretch.count, limit_bytes)
            if not taken and ranges:
                break
            ranges.append(self._range(stretch, skipped, max(taken, 1)))
            limit_bytes -= len(ranges[-1].view)
            if skipped + max(taken, 1) < stretch.count:
                break
        return ranges

    def ends_with(self, end: Range) -> bool:
        """True if that is the last run."""
        return self._count > 0 and end.offset + end.count == self._end(self._count - 1)

    def runs(self) -> list[Run]:
        """The runs that they make."""
        runs: list[Run] = []
        for stretch in self._stretches[0 : self._count]:
            last = stretch.row + stretch.count
            length = (self._places[last] - self._places[stretch.row]) * RECORD_ALIGN
            if runs and runs[-1].is_continued_at(stretch.first_offset, stretch.position):
                before = runs.pop()
                runs.append(
                    before._replace(records=before.records + stretch.count, length=before.length + length)
                )
            else:
                runs.append(Run(stretch.first_offset, stretch.count, stretch.position, length))
        return runs

    def _end(self, index: int) -> int:
        return int(self._stretches[index].first_offset + self._stretches[index].count)

    def offset_at(self, position: int) -> int | None:
        """Offset of the record that holds the ring position, or of the next one; None: all lie before."""
        index = bisect_right(
            range(self._count), position, key=lambda index_tried: self._stretches[index_tried].position
        )
        if index:
            stretch = self._stretches[index - 1]
            place = self._places[stretch.row] * RECORD_ALIGN + position - stretch.position
            row = (
                bisect_right(self._places, place // RECORD_ALIGN, stretch.row, stretch.row + stretch.count)
                - 1
            )
            if place < self._places[stretch.row + stretch.count] * RECORD_ALIGN:
                return int(stretch.first_offset + row - stretch.row)
        return int(self._stretches[index].first_offset) if index < self._count else None

    def _fitting(self, first: int, end: int, limit_bytes: int) -> int:
        """Number of rows from `first` on that fit."""
        behind = self._places[first] + max(limit_bytes, 0) // RECORD_ALIGN
        return bisect_right(self._places, behind, first + 1, end + 1) - first - 1

    def _range(self, stretch: Any, skipped: int, count: int) -> Range:
        row = stretch.row + skipped
        first, last, end = (
            self._places[index_of_row] * RECORD_ALIGN for index_of_row in (row, row + count - 1, row + count)
        )
        skipped_bytes = first - self._places[stretch.row] * RECORD_ALIGN
        return Range(
            stretch.position + skipped_bytes,
            self._epoch,
            stretch.first_offset + skipped,
            count,
            RecordHeader.of(self.view, first).timestamp_ns,
            RecordHeader.of(self.view, last).timestamp_ns,
            self.view[first:end],
        )
