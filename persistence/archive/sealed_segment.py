"""A sealed segment as the input of an archive: its records in groups, verified when they are read.

Owns the order of the records (by ring and epoch, then by offset) and the limits of the groups.  Both depend
only on the extent table.  So a group can be read twice, and the results compared.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import NamedTuple

from persistence.archive.layout import GROUP_BYTES
from persistence.archive.records import Run
from persistence.errors import NotArchived
from persistence.files import Files
from persistence.segment.extent_table import ExtentRows
from persistence.segment.format import EXTENT_HEADER_BYTES, segment_name
from persistence.segment.scan import SegmentTable, read_table
from persistence.segment.scan_native import FileBytes
from ringbuf.native import ffi, lib


class GroupSource(NamedTuple):
    """The extents of one row group: first <= row < end of `rows`, the extents of a ring and epoch."""

    ring: str
    epoch: int
    rows: ExtentRows
    first: int
    end: int
    length: int  # bytes of records


class GroupRecords(NamedTuple):
    """The records of a row group: `data` has the runs in order.  It is valid until the next group is read."""

    data: memoryview
    runs: list[Run]


class SegmentSource:
    """The segment of a table, open for reading."""

    def __init__(self, files: Files, handle: int, table: SegmentTable, group_bytes: int) -> None:
        self.header, self.end = table.header, table.end
        self.opening, self.closing = table.opening, dict(table.catalogue)
        self.name = table.name
        self._data = FileBytes(files, handle, table.end)
        self._memory = (
            bytearray()
        )  # of the last group; reused, because filling new memory costs as much as a read
        names = {ring_id: entry.name for ring_id, entry in table.catalogue.items()}
        keys = sorted(key for key, rows in table.rings.items() if len(rows))
        if unknown := [ring_id for ring_id, _ in keys if ring_id not in names]:
            raise NotArchived(f"{table.name} holds records of rings that it does not name: {unknown}")
        if not all(table.rings[key].all_whole for key in keys):
            raise NotArchived(f"{table.name} has extents of which only a part verifies")
        self.groups: list[GroupSource] = []
        for ring_id, epoch in keys:
            self.groups += _groups(names[ring_id], epoch, table.rings[ring_id, epoch], group_bytes)

    @classmethod
    @contextmanager
    def opened(
        cls, files: Files, path: str, base: int, ends_at: int, group_bytes: int = GROUP_BYTES
    ) -> Iterator[SegmentSource]:
        """Open the segment at `base`, which ends at that place.

        Raises NotArchived: it is damaged; FormatError: it has no header; OSError.
        """
        handle = files.open(path)
        try:
            table = read_table(files, handle, segment_name(base), ends_at=ends_at)
            if table.damage:
                raise NotArchived(f"{table.name} is damaged in {len(table.damage)} places and kept as it is")
            yield cls(files, handle, table, group_bytes)
        finally:
            files.close(handle)

    def read(self, group: GroupSource) -> GroupRecords:
        """The records of a group.

        Raises NotArchived: an extent differs from the table; OSError.
        """
        rows, memory_of_rows = group.rows.native()
        if len(self._memory) < group.length:
            self._memory = bytearray(group.length)
        state = ffi.new("rb_bodies *")
        runs = ffi.new("rb_run[]", group.end - group.first)
        state.row, state.row_end, state.capacity, state.run = group.first, group.end, group.length, runs
        state.out = memory = ffi.from_buffer("uint8_t[]", self._memory)
        while state.row < group.end:
            row, place = state.row, group.rows.place(state.row) - EXTENT_HEADER_BYTES
            piece = self._data.at(place, EXTENT_HEADER_BYTES + group.rows.lengths()[row])
            ahead, begin = self._data.data, self._data.place
            result = lib.rb_bodies_copy(
                rows, ffi.from_buffer("uint8_t[]", ahead), len(ahead), begin, self.header.seed, state
            )
            if result != lib.RB_OK or state.row == row or not piece:
                raise NotArchived(f"{self.name} is damaged at {place} and kept as it is")
        del memory_of_rows, memory
        return GroupRecords(
            memoryview(self._memory)[: group.length],
            [Run(run.first_offset, run.count, run.position, run.length) for run in runs[0 : state.runs]],
        )


def _groups(ring: str, epoch: int, rows: ExtentRows, group_bytes: int) -> Iterator[GroupSource]:
    ends = list(accumulate(rows.lengths()))
    first, before = 0, 0
    while first < len(ends):
        end = max(bisect_right(ends, before + group_bytes, first), first + 1)
        yield GroupSource(ring, epoch, rows, first, end, ends[end - 1] - before)
        first, before = end, ends[end - 1]
