"""Extent table: positions of records in a segment, derived from it and never evidence against it.

A row is a run of complete records of one ring and epoch that are contiguous in the file.  Rows of a ring and
epoch are in the order of their offsets and do not overlap.  Gaps exist where damage destroyed records, or
where a catalogue announced one.

A mark follows every MARK_BYTES of records.  It has the offset of its row and the latest timestamp of any
record up to the next mark.  These timestamps never fall, whatever the wall clock did, so that a time is found
by bisection.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ringbuf.native import ffi, lib

MARK_BYTES = 64 << 10  # of a ring's records, between two marks


@dataclass(frozen=True, slots=True)
class Row:
    """One run of records."""

    first_offset: int
    count: int
    place: int  # of the first record, in the file
    length: int  # bytes of records
    ring_position: int  # of the first record, in the ring
    whole: bool  # True: a complete extent, its header 32 bytes before; False: salvaged


class Mark(NamedTuple):
    """An entry of the sparse index by offset and time."""

    offset: int  # of the first record of its row
    place: int  # of that record, in the file
    timestamp_ns: int  # latest timestamp of all records from the first row up to the next mark


class Columns:
    """Memory for rows of one ring and epoch, filled by C: an rb_rows (c/scan/scan_api.h)."""

    ROWS = ("first_offset", "count", "place", "length", "ring_position")
    MARKS = ("mark_offset", "mark_place", "mark_time")

    def __init__(self, rows: int, marks: int) -> None:
        self.rows = rows
        self.pointer = ffi.new("rb_rows *")
        self.pointer.marks_capacity = marks
        self._memory = ffi.new("uint64_t[]", 5 * rows + 3 * marks)  # zeros
        at = self._memory
        for name in self.ROWS:
            setattr(self.pointer, name, at)
            at += rows
        for name in self.MARKS:
            setattr(self.pointer, name, at)
            at += marks

    def set_marks(self, data: bytes, marks: int) -> None:
        """Take marks as {offset, place, timestamp} each, the form of a footer."""
        values = array("Q", data[: 24 * marks])
        for n, name in enumerate(self.MARKS):
            column = array("Q", values[n::3])
            ffi.memmove(getattr(self.pointer, name), column, 8 * marks)
        self.pointer.marks = marks

    def take(self, name: str, count: int) -> Any:
        """The first `count` values of a column, as bytes."""
        return ffi.buffer(getattr(self.pointer, name), 8 * count)


class ExtentRows:
    """The rows of one ring and epoch in one segment: about 40 bytes each, found by bisection."""

    def __init__(self) -> None:
        self._first_offset = array("Q")
        self._count = array("Q")
        self._place = array("Q")
        self._length = array("Q")
        self._ring_position = array("Q")
        self._whole = array("B")
        self._mark_offset = array("Q")
        self._mark_place = array("Q")
        self._mark_time = array("Q")
        self._since_mark = 0  # bytes of records since the last mark
        self.records = 0
        self.first_timestamp_ns = 0  # of the earliest record; 0 without records

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

    def append(self, row: Row, earliest_ns: int, latest_ns: int) -> None:
        """Add the next row and the span of its timestamps; its offsets follow those of the last row."""
        assert row.count > 0
        assert row.first_offset >= self.end_offset
        self._first_offset.append(row.first_offset)
        self._count.append(row.count)
        self._place.append(row.place)
        self._length.append(row.length)
        self._ring_position.append(row.ring_position)
        self._whole.append(row.whole)
        self._mark(row, latest_ns)
        self.first_timestamp_ns = min(earliest_ns, self.first_timestamp_ns) if self.records else earliest_ns
        self.records += row.count

    def columns(self, rows: int, mark_bytes: int) -> Columns:
        """Memory for `rows` more rows and their marks; it already has the last mark."""
        marks = self._mark_place[-1:]
        columns = Columns(rows, len(marks) + rows)
        state = columns.pointer
        state.marks, state.mark_bytes = len(marks), mark_bytes
        state.since_mark = self._since_mark
        state.end_offset, state.records = self.end_offset, self.records
        state.earliest_ns = self.first_timestamp_ns
        for name, values in zip(Columns.MARKS, self._marks(), strict=True):
            if marks:
                getattr(state, name)[0] = values[-1]
        return columns

    def extend(self, columns: Columns) -> None:
        """Take the rows that C filled in the memory of columns()."""
        names = zip(Columns.ROWS, self._rows(), strict=True)
        for name, values in names:
            values.frombytes(columns.take(name, columns.rows))
        self._whole.frombytes(b"\1" * columns.rows)
        for name, values in zip(Columns.MARKS, self._marks(), strict=True):
            del values[-1:]  # the columns have it, perhaps raised
            values.frombytes(columns.take(name, columns.pointer.marks))
        self._since_mark = columns.pointer.since_mark
        self.records = columns.pointer.records
        self.first_timestamp_ns = columns.pointer.earliest_ns

    def native(self) -> tuple[Any, list[Any]]:
        """The columns as an rb_rows (ringbuf/c/scan/scan_api.h), and what must be kept while it is used."""
        pointer = ffi.new("rb_rows *")
        views = [ffi.from_buffer("uint64_t[]", values) for values in self._rows()]
        for name, view in zip(Columns.ROWS, views, strict=True):
            setattr(pointer, name, view)
        return pointer, views

    @property
    def all_whole(self) -> bool:
        """True if each row is a whole extent."""
        return 0 not in self._whole

    def lengths(self) -> Sequence[int]:
        """Bytes of records of each row."""
        return self._length

    def place(self, index: int) -> int:
        """Place of the first record of a row in the file."""
        return self._place[index]

    def packed(self) -> bytes:
        """All rows in compressed form (ringbuf/c/scan/row_codec.c); each must be whole."""
        pointer, views = self.native()
        room = ffi.new("uint8_t[]", lib.RB_PACKED_ROW_MAX_BYTES * max(len(self), 1))
        packed = bytes(ffi.buffer(room, lib.rb_rows_pack(pointer, len(self), room)))
        del views
        return packed

    def _rows(self) -> tuple[array[int], ...]:
        return self._first_offset, self._count, self._place, self._length, self._ring_position

    def _marks(self) -> tuple[array[int], ...]:
        return self._mark_offset, self._mark_place, self._mark_time

    def _mark(self, row: Row, latest_ns: int) -> None:
        latest_ns = max(latest_ns, self.last_timestamp_ns)
        if not self._mark_place or self._since_mark >= MARK_BYTES:
            self._since_mark = 0
            self._mark_offset.append(row.first_offset)
            self._mark_place.append(row.place)
            self._mark_time.append(latest_ns)
        else:
            self._mark_time[-1] = latest_ns
        self._since_mark += row.length

    @property
    def bytes(self) -> int:
        """Total bytes of the records."""
        return sum(self._length)

    @property
    def first_offset(self) -> int:
        """The offset of the first record; 0 without records."""
        return self._first_offset[0] if self._first_offset else 0

    @property
    def end_offset(self) -> int:
        """One more than the offset of the last record; 0 without records."""
        return self._first_offset[-1] + self._count[-1] if self._first_offset else 0

    @property
    def last_timestamp_ns(self) -> int:
        """Timestamp of the latest record; 0 without records."""
        return self._mark_time[-1] if self._mark_time else 0

    def marks(self) -> list[Mark]:
        """The sparse index."""
        columns = zip(self._mark_offset, self._mark_place, self._mark_time, strict=True)
        return [Mark(*mark) for mark in columns]

    def find(self, offset: int) -> int:
        """Index of the row that has `offset`, or of the next row after it, or len(self)."""
        index = bisect_right(self._first_offset, offset)
        if index and offset < self._first_offset[index - 1] + self._count[index - 1]:
            return index - 1
        return index

    def find_place(self, place: int) -> int | None:
        """Index of the row whose bytes include the position `place`, or None."""
        index = bisect_right(self._place, place) - 1
        if index < 0 or place >= self._place[index] + self._length[index]:
            return None
        return index

    def find_time(self, timestamp_ns: int) -> int | None:
        """First offset of the row to search for a record of that time or later; None if all are earlier."""
        index = bisect_left(self._mark_time, timestamp_ns)
        return self._mark_offset[index] if index < len(self._mark_time) else None

    @property
    def end_position(self) -> int:
        """The ring position after the last record; 0 without records."""
        return self._ring_position[-1] + self._length[-1] if self._ring_position else 0

    def offset_at(self, position: int) -> int:
        """First offset of the row that has the ring position, or of the next row after it, or end_offset.

        Positions of an epoch rise with the offsets.
        """
        index = bisect_right(self._ring_position, position)
        if index and position < self._ring_position[index - 1] + self._length[index - 1]:
            index -= 1
        return self._first_offset[index] if index < len(self) else self.end_offset

    def from_offset(self, offset: int, limit_bytes: int) -> list[Row]:
        """Rows from the one that has `offset` on, up to `limit_bytes`; at least one if any exists."""
        rows: list[Row] = []
        total = 0
        for index in range(self.find(offset), len(self)):
            if rows and total >= limit_bytes:
                break
            rows.append(self[index])
            total += self._length[index]
        return rows
