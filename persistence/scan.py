"""From the bytes of a segment to its extent table: what is whole, what is damaged, where the log ends.

Owns the decision that recovery rests on (format.py, "Proof"): a place that does not verify is bit rot when a
valid extent behind it, or the name of a later segment, proves that it once was on the disk; else it is where
the log ends.  Reads only; cutting and keeping aside is recovery.py's.

Invariants: a row is entered only for records that verify; rows of a ring and epoch have rising offsets;
nothing at or behind the end of the table is in it.  The walk believes no length before the checksum it is
covered by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from persistence.errors import FormatError
from persistence.extents import ExtentRows, Row
from persistence.files import Files
from persistence.format import (
    ALIGN_BYTES,
    CATALOGUE_RING_ID,
    EXTENT_HEADER_BYTES,
    HEADER_PAGE_BYTES,
    CatalogueEntry,
    ExtentHeader,
    SegmentHeader,
    extent_headers,
    extent_verifies,
    unpack_catalogue,
    unpack_extent,
)
from persistence.salvage import Window, owner_of, salvage
from ringbuf import Scan, scan_records

__all__ = ["Damage", "SegmentTable", "follow_table", "open_table", "read_around", "read_header", "read_table"]

READ_AHEAD_BYTES = 1 << 20
_PAGE_BYTES = 4096
_SECTOR_BYTES = 512
_ZEROS = bytes(_PAGE_BYTES)
_OFFSET_END = 2**64


class Damage(NamedTuple):
    """A place below the proof that is not what was written there."""

    segment: str
    place: int
    length: int
    ring_name: str  # "" if not even that can be said
    kept: int  # records of it that prove themselves and stay readable


@dataclass
class SegmentTable:
    """What is in one segment, up to `end`."""

    name: str
    header: SegmentHeader
    rings: dict[tuple[int, int], ExtentRows] = field(default_factory=dict)  # by ring id and epoch
    opening: dict[int, CatalogueEntry] = field(default_factory=dict)  # the first catalogue
    catalogue: dict[int, CatalogueEntry] = field(default_factory=dict)  # what stands at `end`
    damage: list[Damage] = field(default_factory=list)
    seed: int = field(init=False)
    first_is_whole: bool = False  # `opening` is what the segment begins with
    end: int = HEADER_PAGE_BYTES  # place in the file
    proven: int = 0  # log position below which all was once on the disk

    def __post_init__(self) -> None:
        self.seed = self.header.seed

    def rows(self, ring_id: int, epoch: int) -> ExtentRows:
        """The rows of that ring and epoch, made when missing."""
        key = (ring_id, epoch)
        rows = self.rings.get(key)
        if rows is None:
            rows = self.rings[key] = ExtentRows()
        return rows

    def add(
        self,
        ring_id: int,
        epoch: int,
        row: Row,
        times: tuple[int, int],
        known: Mapping[int, CatalogueEntry],
    ) -> None:
        """Enters a run with the span of its timestamps, and moves what the catalogue says comes next; `known`
        helps out where its own is lost.
        """
        self.rows(ring_id, epoch).append(row, *times)
        entry = self.catalogue.get(ring_id) or known.get(ring_id)
        if entry is not None:
            self.catalogue[ring_id] = CatalogueEntry(entry.name, epoch, row.first_offset + row.count)

    def announce(self, entries: dict[int, CatalogueEntry]) -> None:
        """Enters a catalogue."""
        if not self.opening:
            self.opening = dict(entries)
        self.catalogue.update(entries)


class _Found(NamedTuple):
    """A valid extent."""

    place: int
    header: ExtentHeader
    scan: Scan | None  # None for a catalogue
    entries: dict[int, CatalogueEntry] | None  # of a catalogue

    @property
    def end(self) -> int:
        return self.place + EXTENT_HEADER_BYTES + self.header.length


class _Gap(NamedTuple):
    """Bytes between valid extents, or behind the last one."""

    place: int
    end: int


class _Bytes:
    """The bytes of a file, read ahead: most extents are far shorter than a read should be."""

    def __init__(self, files: Files, handle: int, end: int) -> None:
        self._files, self._handle = files, handle
        self.end = end
        self._place = 0
        self._data = memoryview(b"")

    def at(self, place: int, length: int) -> memoryview:
        """Up to `length` bytes there; fewer only at the end."""
        length = min(length, self.end - place)
        if length <= 0:
            return memoryview(b"")
        if place < self._place or place + length > self._place + len(self._data):
            wanted = min(max(length, READ_AHEAD_BYTES), self.end - place)
            self._data = memoryview(read_around(self._files, self._handle, wanted, place))
            self._place = place
        begin = place - self._place
        return self._data[begin : begin + length]


def read_around(files: Files, handle: int, length: int, place: int) -> bytes:
    """The bytes there, with zeros where the disk does not give them: they are then damage like any other."""
    try:
        return files.read(handle, length, place)
    except OSError:
        data = bytearray()
        for at in range(place, place + length, _SECTOR_BYTES):
            wanted = min(_SECTOR_BYTES, place + length - at)
            try:
                data += files.read(handle, wanted, at)
            except OSError:
                data += bytes(wanted)
        return bytes(data)


def read_header(files: Files, handle: int) -> SegmentHeader:
    """The header of a segment.  Raises FormatError."""
    return SegmentHeader.unpack(files.read(handle, HEADER_PAGE_BYTES, 0))


def open_table(files: Files, handle: int, name: str) -> SegmentTable:
    """The header and the first catalogue alone.  Raises FormatError when the header is lost."""
    header = read_header(files, handle)
    table = SegmentTable(name, header, proven=header.base_position)
    found = _extent_at(_Bytes(files, handle, files.size(handle)), table.seed, HEADER_PAGE_BYTES)
    if found is not None and found.entries is not None:
        table.announce(found.entries)
        table.first_is_whole = True
    return table


def read_table(
    files: Files,
    handle: int,
    name: str,
    *,
    ends_at: int | None = None,
    known: Mapping[int, CatalogueEntry] | None = None,
) -> SegmentTable:
    """The whole segment.

    `ends_at` is where it ends, if a later segment says so; it is then proven up to there.  Without, it is the
    last segment, and ends at the first place that does not verify and is not proven.  `known` is what earlier
    and later catalogues say, for a segment whose own are damaged.  Raises FormatError when the header is
    lost.
    """
    header = read_header(files, handle)
    size = files.size(handle)
    data = _Bytes(files, handle, size if ends_at is None else min(ends_at, size))
    table = SegmentTable(name, header)
    table.proven = header.base_position + (HEADER_PAGE_BYTES if ends_at is None else ends_at)
    place = _enter_chain(table, data, known or {})
    found, gaps = _walk(data, table.seed, header.base_position, place)
    table.proven = max([table.proven, *(it.header.durable_position for it in found)])
    table.end = _end(place, found, gaps, table.proven - header.base_position)
    if table.end > data.end:
        gaps.append(_Gap(data.end, table.end))
    _enter_parts(table, data, found, gaps, known or {})
    return table


def follow_table(files: Files, handle: int, table: SegmentTable) -> None:
    """Enters what a living writer has appended and proven since, and no more."""
    data = _Bytes(files, handle, files.size(handle))
    base = table.header.base_position
    found = []
    place = table.end
    while (it := _extent_at(data, table.seed, place)) is not None:
        found.append(it)
        place = it.end
    table.proven = max([table.proven, *(it.header.durable_position for it in found)])
    for it in found:
        if base + it.end <= table.proven:
            _enter(table, data, it, [], {})
            table.end = it.end


def _extent_at(data: _Bytes, seed: int, place: int) -> _Found | None:
    head = data.at(place, EXTENT_HEADER_BYTES)
    if len(head) < EXTENT_HEADER_BYTES:
        return None
    header = unpack_extent(head)
    room = data.end - place - EXTENT_HEADER_BYTES
    if header.length == 0 or header.length % ALIGN_BYTES or header.length > room:
        return None
    extent = data.at(place, EXTENT_HEADER_BYTES + header.length)
    if not extent_verifies(seed, header, extent):
        return None
    body = extent[EXTENT_HEADER_BYTES:]
    if header.ring_id != CATALOGUE_RING_ID:
        return _Found(place, header, scan_records(body, header.ring_epoch), None)
    try:
        return _Found(place, header, None, unpack_catalogue(body))
    except FormatError:
        return None


def _enter_chain(table: SegmentTable, data: _Bytes, known: Mapping[int, CatalogueEntry]) -> int:
    """Enters extents from the first one on, up to the first place that does not verify: that place.

    In an undamaged segment that is all; nothing but the table's rows is kept of it.
    """
    place = HEADER_PAGE_BYTES
    while (it := _extent_at(data, table.seed, place)) is not None:
        table.proven = max(table.proven, it.header.durable_position)
        _enter(table, data, it, [], known)
        place = it.end
    return place


def _walk(data: _Bytes, seed: int, base: int, place: int) -> tuple[list[_Found], list[_Gap]]:
    """All valid extents from `place` on, in their order, and the gaps between them and behind them."""
    found: list[_Found] = []
    gaps: list[_Gap] = []
    while place < data.end:
        it = _extent_at(data, seed, place)
        if it is None:
            it = _search(data, seed, base, place)
            gaps.append(_Gap(place, data.end if it is None else it.place))
            if it is None:
                break
        found.append(it)
        place = it.end
    return found, gaps


def _search(data: _Bytes, seed: int, base: int, place: int) -> _Found | None:
    """The first valid extent behind `place`.

    Its fields are compared before any checksum is: nothing below the segment's base is claimed in it, nothing
    at or beyond the extent itself.  Zeros, and what an earlier life of the file has left, pass that hardly
    ever.
    """
    at = place + ALIGN_BYTES
    while len(page := data.at(at, _PAGE_BYTES)) >= EXTENT_HEADER_BYTES:
        if page != _ZEROS[: len(page)]:
            for index, (length, _, _, _, _, durable) in enumerate(extent_headers(page)):
                candidate = at + index * ALIGN_BYTES
                if length and not length % ALIGN_BYTES and base <= durable <= base + candidate:
                    found = _extent_at(data, seed, candidate)
                    if found is not None:
                        return found
        at += len(page)
    return None


def _end(place: int, found: list[_Found], gaps: list[_Gap], proven: int) -> int:
    """Where a segment ends whose chain breaks at `place`, if all below the place `proven` was on the disk."""
    for gap in gaps:
        if gap.end > proven:
            return max(gap.place, proven)
    return max(found[-1].end if found else place, proven)


def _enter_parts(
    table: SegmentTable,
    data: _Bytes,
    found: list[_Found],
    gaps: list[_Gap],
    known: Mapping[int, CatalogueEntry],
) -> None:
    """Enters what lies behind the chain and below the end, in the order of the file."""
    parts: list[_Found | _Gap] = [*found, *gaps]
    for part in sorted(parts, key=lambda part: part.place):
        if part.place >= table.end:
            break
        if isinstance(part, _Gap):
            _save(table, data, _Gap(part.place, min(part.end, table.end)), found, known)
        else:
            _enter(table, data, part, found, known)


def _enter(
    table: SegmentTable,
    data: _Bytes,
    part: _Found,
    found: list[_Found],
    known: Mapping[int, CatalogueEntry],
) -> None:
    """Enters one valid extent; its records may be damaged all the same, if they were when it was written."""
    scan, header = part.scan, part.header
    if scan is None:
        table.announce(part.entries or {})
        table.first_is_whole |= part.place == HEADER_PAGE_BYTES
        return
    dense = scan.good_bytes == header.length and scan.last_offset - scan.first_offset == scan.count - 1
    if dense and scan.first_offset >= table.rows(header.ring_id, header.ring_epoch).end_offset:
        place = part.place + EXTENT_HEADER_BYTES
        row = Row(scan.first_offset, scan.count, place, header.length, header.ring_position, whole=True)
        table.add(header.ring_id, header.ring_epoch, row, _span(scan), known)
    else:
        _save(table, data, _Gap(part.place, part.end), found, known)


def _span(scan: Scan) -> tuple[int, int]:
    """Earliest and latest timestamp of a run; where the clock was set back within it, at its ends."""
    times = scan.first_timestamp_ns, scan.last_timestamp_ns
    return min(times), max(times)


def _save(
    table: SegmentTable, data: _Bytes, gap: _Gap, found: list[_Found], known: Mapping[int, CatalogueEntry]
) -> None:
    """Enters what can be saved of a damaged place, and the damage."""
    region = data.at(gap.place, gap.end - gap.place)
    rows: list[Row] = []
    name = ""
    catalogue = {**known, **table.catalogue}
    if len(region) > EXTENT_HEADER_BYTES and unpack_extent(region).ring_id != CATALOGUE_RING_ID:
        owner = owner_of(table.seed, region, catalogue)
        if owner is not None:
            name = catalogue[owner.ring_id].name
            window = _window(table, gap, found, owner.ring_id, owner.epoch)
            for row, times in salvage(region, gap.place, owner, window):
                table.add(owner.ring_id, owner.epoch, row, times, known)
                rows.append(row)
    kept = sum(row.count for row in rows)
    table.damage.append(Damage(table.name, gap.place, gap.end - gap.place, name, kept))


def _window(table: SegmentTable, gap: _Gap, found: list[_Found], ring_id: int, epoch: int) -> Window:
    """Offsets that the ring can have in the gap: behind what came before, before what comes after."""
    first = table.rows(ring_id, epoch).end_offset
    entry = table.catalogue.get(ring_id)
    if entry is not None and entry.epoch == epoch:
        first = max(first, entry.next_offset)
    for it in found:
        if it.place >= gap.end and (it.header.ring_id, it.header.ring_epoch) == (ring_id, epoch):
            assert it.scan is not None
            return Window(first, it.scan.first_offset)
    return Window(first, _OFFSET_END)
