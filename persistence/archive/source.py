"""A sealed segment as what an archive is made of: its records in windows, verified as they are read.

Owns the order of the records (by ring and epoch, then by offset) and how they are cut into windows: both
follow from the extent table alone, so that they can be read twice, and compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from persistence.archive.layout import WINDOW_BYTES, Run
from persistence.errors import NotArchived
from persistence.extents import ExtentRows, Row
from persistence.files import Files
from persistence.format import EXTENT_HEADER_BYTES, extent_verifies, segment_name, unpack_extent
from persistence.scan import SegmentTable, read_table

__all__ = ["Piece", "SegmentSource", "SourceWindow"]

READ_AHEAD_BYTES = 256 << 10  # extents written one by one are short, and those of one ring often neighbours


@dataclass
class Piece:
    """A run of a window, and the rows of the table that it is made of: first <= row < end."""

    rows: ExtentRows
    ring: int  # index into SegmentSource.rings
    first: int
    end: int
    run: Run


@dataclass
class SourceWindow:
    """What goes into one window."""

    pieces: list[Piece] = field(default_factory=list)
    length: int = 0

    @property
    def runs(self) -> list[Run]:
        """Its runs, in record order."""
        return [piece.run for piece in self.pieces]


class SegmentSource:
    """The segment at `base`, which `ends_at` a place that a later one says, open for reading."""

    def __init__(self, files: Files, handle: int, table: SegmentTable, window_bytes: int) -> None:
        self.table = table
        self._files = files
        self._handle = handle
        self._ahead, self._ahead_place = memoryview(b""), 0
        names = {ring_id: it.name for ring_id, it in table.catalogue.items()}
        keys = sorted(key for key, rows in table.rings.items() if len(rows))
        if unknown := [ring_id for ring_id, _ in keys if ring_id not in names]:
            raise NotArchived(f"{table.name} holds records of rings that it does not name: {unknown}")
        self.rings = [(names[ring_id], epoch) for ring_id, epoch in keys]
        self.windows = list(_windows([table.rings[key] for key in keys], window_bytes))

    @classmethod
    @contextmanager
    def opened(
        cls, files: Files, path: str, base: int, ends_at: int, window_bytes: int = WINDOW_BYTES
    ) -> Iterator[SegmentSource]:
        """Raises NotArchived: it is damaged; FormatError: it has no header; OSError."""
        handle = files.open(path)
        try:
            table = read_table(files, handle, segment_name(base), ends_at=ends_at)
            if table.damage:
                raise NotArchived(f"{table.name} is damaged in {len(table.damage)} places and kept as it is")
            yield cls(files, handle, table, window_bytes)
        finally:
            files.close(handle)

    def epochs(self, window: SourceWindow) -> list[int]:
        """Of each of its runs."""
        return [self.rings[piece.ring][1] for piece in window.pieces]

    def read(self, window: SourceWindow) -> memoryview:
        """Its records, run behind run, in memory of their own.

        Raises NotArchived: an extent is no longer what the table says; OSError.
        """
        data = memoryview(bytearray(window.length))
        at = 0
        for piece in window.pieces:
            for index in range(piece.first, piece.end):
                row = piece.rows[index]
                data[at : at + row.length] = self._body(row)
                at += row.length
        return data

    def _body(self, row: Row) -> memoryview:
        extent = self._bytes(row.place - EXTENT_HEADER_BYTES, EXTENT_HEADER_BYTES + row.length)
        if not row.whole or not extent_verifies(self.table.seed, unpack_extent(extent), extent):
            raise NotArchived(f"{self.table.name} is damaged at {row.place} and kept as it is")
        return extent[EXTENT_HEADER_BYTES:]

    def _bytes(self, place: int, length: int) -> memoryview:
        begin = place - self._ahead_place
        if not 0 <= begin <= len(self._ahead) - length:
            wanted = max(length, READ_AHEAD_BYTES)
            self._ahead = memoryview(self._files.read(self._handle, wanted, place))
            self._ahead_place, begin = place, 0
        extent = self._ahead[begin : begin + length]
        if len(extent) < length:
            raise NotArchived(f"{self.table.name} ends before {place + length}")
        return extent


def _windows(rings: list[ExtentRows], window_bytes: int) -> Iterator[SourceWindow]:
    window = SourceWindow()
    for ring, rows in enumerate(rings):
        for index in range(len(rows)):
            row = rows[index]
            if window.pieces and window.length + row.length > window_bytes:
                yield window
                window = SourceWindow()
            _add(window, ring, rows, index, row)
    if window.pieces:
        yield window


def _add(window: SourceWindow, ring: int, rows: ExtentRows, index: int, row: Row) -> None:
    """Continues the last run of the window, or begins one."""
    window.length += row.length
    if window.pieces and window.pieces[-1].ring == ring:
        last = window.pieces[-1]
        run = last.run
        if (run.first_offset + run.records, run.position + run.length) == (
            row.first_offset,
            row.ring_position,
        ):
            last.end = index + 1
            last.run = run._replace(length=run.length + row.length, records=run.records + row.count)
            return
    run = Run(ring, row.length, row.count, row.first_offset, row.ring_position)
    window.pieces.append(Piece(rows, ring, index, index + 1, run))
