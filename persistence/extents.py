"""Where records are in a segment: the extent table, in memory, derived from the segment and never evidence
against it.

A row is a run of whole records of one ring and epoch that lie together in the file.  Rows of a ring and epoch
are in the order of their offsets and do not overlap; there are gaps where damage took records, or where a
catalogue announced one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass

__all__ = ["ExtentRows", "Row"]


@dataclass(frozen=True, slots=True)
class Row:
    """One run of records."""

    first_offset: int
    count: int
    place: int  # of the first record, in the file
    length: int  # bytes of records
    ring_position: int  # of the first record, in the ring
    whole: bool  # all of an extent, whose header is 32 bytes before; else what was saved of a damaged one


class ExtentRows:
    """The rows of one ring and epoch in one segment: some 40 bytes each, found by bisection."""

    def __init__(self) -> None:
        self._first_offset = array("Q")
        self._count = array("Q")
        self._place = array("Q")
        self._length = array("Q")
        self._ring_position = array("Q")
        self._whole = array("B")

    def __len__(self) -> int:
        return len(self._first_offset)

    def __getitem__(self, index: int) -> Row:
        return Row(
            self._first_offset[index],
            self._count[index],
            self._place[index],
            self._length[index],
            self._ring_position[index],
            bool(self._whole[index]),
        )

    def append(self, row: Row) -> None:
        """Takes the next row.  Its offsets lie behind those of the last one."""
        assert row.count > 0
        assert row.first_offset >= self.end_offset
        self._first_offset.append(row.first_offset)
        self._count.append(row.count)
        self._place.append(row.place)
        self._length.append(row.length)
        self._ring_position.append(row.ring_position)
        self._whole.append(row.whole)

    @property
    def first_offset(self) -> int:
        """The offset of the first record; 0 when there is none."""
        return self._first_offset[0] if self._first_offset else 0

    @property
    def end_offset(self) -> int:
        """One more than the offset of the last record; 0 when there is none."""
        return self._first_offset[-1] + self._count[-1] if self._first_offset else 0

    def find(self, offset: int) -> int:
        """The index of the row that holds `offset`, or of the next one behind it, or len(self)."""
        index = bisect_right(self._first_offset, offset)
        if index and offset < self._first_offset[index - 1] + self._count[index - 1]:
            return index - 1
        return index

    @property
    def end_position(self) -> int:
        """The ring position behind the last record; 0 when there is none."""
        return self._ring_position[-1] + self._length[-1] if self._ring_position else 0

    def offset_at(self, position: int) -> int:
        """The first offset of the row that holds the ring position, or of the next one behind it, or
        end_offset.  Positions of an epoch rise with the offsets.
        """
        index = bisect_right(self._ring_position, position)
        if index and position < self._ring_position[index - 1] + self._length[index - 1]:
            index -= 1
        return self._first_offset[index] if index < len(self) else self.end_offset

    def from_offset(self, offset: int, limit_bytes: int) -> list[Row]:
        """Rows from the one that holds `offset` on, at least one if there is one, until they hold
        `limit_bytes`.
        """
        rows: list[Row] = []
        total = 0
        for index in range(self.find(offset), len(self)):
            if rows and total >= limit_bytes:
                break
            rows.append(self[index])
            total += self._length[index]
        return rows
