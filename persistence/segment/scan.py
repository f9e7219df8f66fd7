"""Scan of a segment's bytes for its extent table: intact and damaged parts, and the end of the log.

Owns the decision on which recovery is based (format.py, "Proof").  A place that does not verify is bit rot if
a valid extent after it, or the name of a later segment, proves that it was on the disk; otherwise the log
ends there.  Only reads; recovery.py cuts and copies to quarantine.

Invariants: a row is added only for records that verify; rows of a ring and epoch have rising offsets; the
table has nothing at or after its end.  No length is used before the checksum that covers it was verified.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from persistence.errors import FormatError
from persistence.files import Files
from persistence.segment.extent_table import ExtentRows, Row
from persistence.segment.format import (
    CATALOGUE_RING_ID,
    EXTENT_HEADER_BYTES,
    HEADER_PAGE_BYTES,
    CatalogueEntry,
    SegmentHeader,
    unpack_catalogue,
    unpack_extent,
)
from persistence.segment.salvage import Absence, Owner, SalvagedRun, Window, owner_of, salvage, tail_of
from persistence.segment.scan_native import LOOK, ExtentGroup, FileBytes, Walk

PAGE_BYTES = 4096  # a ring's size is a multiple of it
NEAR_EXTENTS = 1_000  # extents after a damaged region in which its ring may continue

_OFFSET_END = _POSITION_END = 2**64


class DamagedRange(NamedTuple):
    """Place below the proof whose bytes have changed."""

    segment: str
    place: int
    length: int
    ring_name: str  # "" if unknown
    kept: int  # its records that verify and stay readable
    lost: tuple[tuple[int, int], ...] = ()  # offsets, first and end of each gap, if known


@dataclass
class SegmentTable:
    """Content of one segment, up to `end`."""

    name: str
    header: SegmentHeader
    rings: dict[tuple[int, int], ExtentRows] = field(default_factory=dict)  # by ring id and epoch
    opening: dict[int, CatalogueEntry] = field(default_factory=dict)  # the first catalogue
    catalogue: dict[int, CatalogueEntry] = field(default_factory=dict)  # state at `end`
    damage: list[DamagedRange] = field(default_factory=list)
    seed: int = field(init=False)
    first_is_whole: bool = False  # `opening` is the intact first extent
    end: int = HEADER_PAGE_BYTES  # position in the file
    proven: int = 0  # log position below which all was on the disk

    def __post_init__(self) -> None:
        self.seed = self.header.seed

    def rows(self, ring_id: int, epoch: int) -> ExtentRows:
        """The rows of that ring and epoch; created if missing."""
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
        """Add a run with the span of its timestamps, and advance the ring's next offset in the catalogue.

        `known` replaces lost entries of the segment's own catalogue.
        """
        self.rows(ring_id, epoch).append(row, *times)
        self.proceed(ring_id, epoch, row.first_offset + row.count, known)

    def proceed(
        self, ring_id: int, epoch: int, next_offset: int, known: Mapping[int, CatalogueEntry]
    ) -> None:
        """Set the next offset of a ring according to its records."""
        entry = self.catalogue.get(ring_id) or known.get(ring_id)
        if entry is not None:
            self.catalogue[ring_id] = CatalogueEntry(entry.name, epoch, next_offset)

    def announce(self, entries: dict[int, CatalogueEntry]) -> None:
        """Add a catalogue."""
        if not self.opening:
            self.opening = dict(entries)
        self.catalogue.update(entries)


class _Run(NamedTuple):
    """Consecutive whole extents of rings: walk[first:last]."""

    place: int
    end: int
    first: int
    last: int


class _Found(NamedTuple):
    """A valid extent that is a catalogue, or has not only good records."""

    place: int
    end: int
    number: int  # index in the scan
    entries: dict[int, CatalogueEntry] | None  # of a catalogue


class _Gap(NamedTuple):
    """Bytes between valid extents, or after the last one."""

    place: int
    end: int


_Part = _Run | _Found | _Gap


def read_header(files: Files, handle: int) -> SegmentHeader:
    """The header of a segment.  Raises FormatError."""
    return SegmentHeader.unpack(files.read(handle, HEADER_PAGE_BYTES, 0))


def open_table(files: Files, handle: int, name: str) -> SegmentTable:
    """Table with only the header and the first catalogue.  Raises FormatError if the header is lost."""
    header = read_header(files, handle)
    table = SegmentTable(name, header, proven=header.base_position)
    data = FileBytes(files, handle, files.size(handle), EXTENT_HEADER_BYTES)
    head = data.at(HEADER_PAGE_BYTES, EXTENT_HEADER_BYTES)
    if len(head) == EXTENT_HEADER_BYTES and (opening := unpack_extent(head)).ring_id == CATALOGUE_RING_ID:
        data.end = min(data.end, HEADER_PAGE_BYTES + EXTENT_HEADER_BYTES + opening.length)
        for part in _parts(data, Walk(data, table.seed, HEADER_PAGE_BYTES), None):
            if isinstance(part, _Found) and part.entries is not None:
                table.announce(part.entries)
                table.first_is_whole = True
    return table


def read_table(
    files: Files,
    handle: int,
    name: str,
    *,
    ends_at: int | None = None,
    known: Mapping[int, CatalogueEntry] | None = None,
    once: bool = False,
) -> SegmentTable:
    """Table of the whole segment; `once`: leave no pages of it in the cache.

    `ends_at`: its end, if a later segment gives it; the segment is then proven up to there.  Without it, this
    is the last segment; it ends at the first place that neither verifies nor is proven.  `known`: earlier and
    later catalogues, for a segment with damaged ones.  Raises FormatError if the header is lost.
    """
    return walk_table(files, handle, name, ends_at=ends_at, known=known, once=once)[0]


def walk_table(
    files: Files,
    handle: int,
    name: str,
    *,
    ends_at: int | None = None,
    known: Mapping[int, CatalogueEntry] | None = None,
    topics: bool = False,
    once: bool = False,
) -> tuple[SegmentTable, Walk]:
    """As read_table(), together with the scan it was made from."""
    header = read_header(files, handle)
    size = files.size(handle)
    data = FileBytes(files, handle, size if ends_at is None else min(ends_at, size), once=once)
    table = SegmentTable(name, header)
    walk = Walk(data, table.seed, HEADER_PAGE_BYTES, topics=topics)
    parts = list(_parts(data, walk, header.base_position))
    proven = header.base_position + (HEADER_PAGE_BYTES if ends_at is None else ends_at)
    table.proven = max(proven, walk.durable_position)
    table.end = _end(parts, table.proven - header.base_position)
    if table.end > data.end:
        parts.append(_Gap(data.end, table.end))
    _enter_parts(table, data, walk, parts, known or {})
    return table, walk


def follow_table(files: Files, handle: int, table: SegmentTable) -> None:
    """Add only what an active writer has appended and proven since."""
    data = FileBytes(files, handle, files.size(handle))
    base = table.header.base_position
    walk = Walk(data, table.seed, table.end)
    parts = list(_parts(data, walk, None))
    if table.end == HEADER_PAGE_BYTES or any(data.at(_behind(parts, table), EXTENT_HEADER_BYTES)):
        walk = Walk(data, table.seed, table.end)  # it may continue after damage; zeros are an intact end
        parts = list(_parts(data, walk, base))
    table.proven = max(table.proven, walk.durable_position)
    proven = table.proven - base
    for part in parts:
        if isinstance(part, _Run):
            if (last := walk.below(proven, part.first, part.last)) > part.first:
                end = walk.end_of(last - 1)
                _enter_run(table, data, walk, _Run(part.place, end, part.first, last), parts, {})
                table.end = end
            continue
        if part.end > proven:
            break
        if isinstance(part, _Found):
            _enter_found(table, data, walk, part, parts, {})
        else:
            _save(table, data, walk, part, parts, {})
        table.end = part.end


def _behind(parts: Sequence[_Part], table: SegmentTable) -> int:
    return parts[-1].end if parts else table.end


def _parts(data: FileBytes, walk: Walk, base: int | None) -> Iterator[_Part]:
    """All valid extents, and the gaps between and after them; without `base`, up to the first gap."""
    begin = walk.place
    while begin < data.end:
        first = len(walk)
        stop = walk.run()
        last = len(walk) - (stop == LOOK)
        if last > first:
            yield _Run(begin, walk.end_of(last - 1), first, last)
            begin = walk.end_of(last - 1)
        if stop == LOOK and (gap := _look(data, walk, begin)) is not None:
            yield gap
            begin = gap.end
            continue
        if base is None:
            return
        walk.place = begin
        behind = walk.search(base)
        yield _Gap(begin, walk.place if behind else data.end)
        if not behind:
            return
        begin = walk.place


def _look(data: FileBytes, walk: Walk, place: int) -> _Found | None:
    """The last extent of the scan, which is not only records; None for an invalid catalogue."""
    index = len(walk) - 1
    extent = walk[index]
    entries = None
    if extent.ring_id == CATALOGUE_RING_ID:
        try:
            entries = unpack_catalogue(data.at(place + EXTENT_HEADER_BYTES, extent.length))
        except FormatError:
            return None
    return _Found(place, walk.end_of(index), index, entries)


def _end(parts: list[_Part], proven: int) -> int:
    """End of a segment of these parts, if everything below position `proven` was on the disk."""
    end = HEADER_PAGE_BYTES
    for part in parts:
        if not isinstance(part, _Gap):
            end = part.end
        elif part.end > proven:
            return max(part.place, proven)
    return max(end, proven)


def _enter_parts(
    table: SegmentTable,
    data: FileBytes,
    walk: Walk,
    parts: list[_Part],
    known: Mapping[int, CatalogueEntry],
) -> None:
    """Add everything below the end, in file order."""
    for part in parts:
        if part.place >= table.end:
            break
        if isinstance(part, _Run):
            _enter_run(table, data, walk, part, parts, known)
        elif isinstance(part, _Found):
            _enter_found(table, data, walk, part, parts, known)
        else:
            _save(table, data, walk, _Gap(part.place, min(part.end, table.end)), parts, known)


def _enter_run(
    table: SegmentTable,
    data: FileBytes,
    walk: Walk,
    run: _Run,
    parts: list[_Part],
    known: Mapping[int, CatalogueEntry],
) -> None:
    order, groups = walk.groups(run.first, run.last)
    for group in groups:
        rows = table.rows(group.ring_id, group.epoch)
        if walk.gather(run.first, order, group, rows):
            table.proceed(group.ring_id, group.epoch, rows.end_offset, known)
        else:
            _enter_each(table, data, walk, run, order, group, parts, known)


def _enter_each(
    table: SegmentTable,
    data: FileBytes,
    walk: Walk,
    run: _Run,
    order: Any,
    group: ExtentGroup,
    parts: list[_Part],
    known: Mapping[int, CatalogueEntry],
) -> None:
    """Add extents of which some repeat or precede earlier ones."""
    for at in order[group.first : group.first + group.length]:
        extent = walk[run.first + at]
        if extent.first_offset >= table.rows(group.ring_id, group.epoch).end_offset:
            place = extent.place + EXTENT_HEADER_BYTES
            row = Row(
                extent.first_offset, extent.count, place, extent.length, extent.ring_position, whole=True
            )
            table.add(group.ring_id, group.epoch, row, (extent.earliest_ns, extent.latest_ns), known)
        else:
            _save(table, data, walk, _Gap(extent.place, walk.end_of(run.first + at)), parts, known)


def _enter_found(
    table: SegmentTable,
    data: FileBytes,
    walk: Walk,
    part: _Found,
    parts: list[_Part],
    known: Mapping[int, CatalogueEntry],
) -> None:
    if part.entries is None:
        _save(table, data, walk, _Gap(part.place, part.end), parts, known)
    else:
        table.announce(part.entries)
        table.first_is_whole |= part.place == HEADER_PAGE_BYTES


def _save(
    table: SegmentTable,
    data: FileBytes,
    walk: Walk,
    gap: _Gap,
    parts: list[_Part],
    known: Mapping[int, CatalogueEntry],
) -> None:
    """Add the salvaged records of a damaged place, and the damage."""
    region = data.at(gap.place, gap.end - gap.place)
    catalogue = {**known, **table.catalogue}
    near = _near_extents(walk, gap, parts, catalogue)
    rows: list[Row] = []
    window = Window(0, 0)
    owner = _owner(table, region, catalogue, _absences(table, near))
    if owner is not None:
        window = _window(table, walk, gap, parts, owner.ring_id, owner.epoch)
        for row, times in salvage(region, gap.place, owner, window):
            table.add(owner.ring_id, owner.epoch, row, times, known)
            rows.append(row)
    begin = rows[-1].place + rows[-1].length if rows else gap.place
    tail = tail_of(region[begin - gap.place :], _absences(table, near))
    if tail is not None and owner is not None and owner.ring_id != tail[0].ring_id:
        behind = begin + tail[1].at - EXTENT_HEADER_BYTES
        _note(table, _Gap(gap.place, behind), catalogue[owner.ring_id].name, rows, window)
        gap, owner, rows = _Gap(behind, gap.end), None, []
    if tail is not None:
        rows.append(_enter_tail(table, *tail, begin, known))
        window = tail[0].window if owner is None else window
    ring_id = tail[0].ring_id if tail is not None else owner.ring_id if owner is not None else None
    _note(table, gap, "" if ring_id is None else catalogue[ring_id].name, rows, window)


def _enter_tail(
    table: SegmentTable, absence: Absence, run: SalvagedRun, place: int, known: Mapping[int, CatalogueEntry]
) -> Row:
    """Add the records at the end of a damaged region; `place`: file position of the searched bytes."""
    position = absence.end - run.length
    row = Row(run.first_offset, run.records, place + run.at, run.length, position, whole=False)
    times = run.first_timestamp_ns, run.last_timestamp_ns
    table.add(absence.ring_id, absence.epoch, row, (min(times), max(times)), known)
    return row


def _note(table: SegmentTable, gap: _Gap, name: str, rows: Sequence[Row], window: Window) -> None:
    """Record the damage."""
    held, lost = sum(row.count for row in rows), lost_offsets(rows, window)
    table.damage.append(DamagedRange(table.name, gap.place, gap.end - gap.place, name, held, lost))


def _owner(
    table: SegmentTable,
    region: memoryview,
    catalogue: Mapping[int, CatalogueEntry],
    absences: Iterable[Absence],
) -> Owner | None:
    """The owner of the extent that begins the damaged region; None if unknown."""
    if len(region) <= EXTENT_HEADER_BYTES or unpack_extent(region).ring_id == CATALOGUE_RING_ID:
        return None
    owner = owner_of(table.seed, region, catalogue)
    rows = None if owner is None else table.rings.get((owner.ring_id, owner.epoch))
    if owner is None or rows is None or not len(rows):
        return owner
    end = next((absence.end for absence in absences if absence.ring_id == owner.ring_id), _POSITION_END)
    if rows.end_position <= owner.position <= end - owner.length:
        return owner
    return owner._replace(position=rows.end_position)  # the header's position is damaged, too


def _near_extents(
    walk: Walk, gap: _Gap, parts: list[_Part], catalogue: Mapping[int, CatalogueEntry]
) -> list[Any]:
    """The next extent of each ring that continues soon after the gap, in file order."""
    open_rings = {(ring_id, entry.epoch) for ring_id, entry in catalogue.items()}
    near = []
    for place in islice(_behind_gap(walk, gap, parts), NEAR_EXTENTS):
        key = (place.ring_id, place.ring_epoch)
        if place.count and key in open_rings:
            open_rings.remove(key)
            near.append(place)
    return near


def _absences(table: SegmentTable, near: Iterable[Any]) -> Iterator[Absence]:
    """The offsets missing between the records in the table and each of the extents `near`.

    Skips an extent at the first byte of its ring.  The last bytes of a ring may be unused, so the position
    after the missing records is unknown there.
    """
    for extent in near:
        key = (extent.ring_id, extent.ring_epoch)
        rows = table.rings.get(key)
        at_first_byte = extent.ring_position % PAGE_BYTES == 0
        if rows is not None and len(rows) and rows.end_offset < extent.first_offset and not at_first_byte:
            window = Window(rows.end_offset, extent.first_offset)
            yield Absence(*key, window, rows.end_position, extent.ring_position)


def _behind_gap(walk: Walk, gap: _Gap, parts: list[_Part]) -> Iterator[Any]:
    """The valid extents after the gap, in file order."""
    for part in parts:
        if part.place >= gap.end and not isinstance(part, _Gap):
            numbers = range(part.first, part.last) if isinstance(part, _Run) else (part.number,)
            yield from map(walk.__getitem__, numbers)


def lost_offsets(rows: Sequence[Row], window: Window) -> tuple[tuple[int, int], ...]:
    """Gaps of `rows` in a window of offsets; without an end of the window, nothing after the last row."""
    ends = [window.first, *(row.first_offset + row.count for row in rows)]
    begins = [*(row.first_offset for row in rows), window.end]
    gaps = zip(ends, begins, strict=True)
    return tuple((first, end) for first, end in gaps if first < end < _OFFSET_END)


def _window(
    table: SegmentTable, walk: Walk, gap: _Gap, parts: list[_Part], ring_id: int, epoch: int
) -> Window:
    """Possible offsets of the ring in the gap: after the records before it, before the records after it."""
    first = table.rows(ring_id, epoch).end_offset
    entry = table.catalogue.get(ring_id)
    if entry is not None and entry.epoch == epoch:
        first = max(first, entry.next_offset)
    for place in _behind_gap(walk, gap, parts):
        if (place.ring_id, place.ring_epoch) == (ring_id, epoch) and place.count:
            return Window(first, place.first_offset)
    return Window(first, _OFFSET_END)
