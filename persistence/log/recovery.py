"""Recovery of a log at a start: it never refuses, and never shows records that a power cut could remove.

The last segment is read completely, unless the log was closed and not written since (clean_shutdown.py).  A
torn tail is copied to quarantine/ and cut off.  Unproven records are then written again in place and synced,
before any of them is shown.  The reason: after a crash of the process only, the kernel may have bytes that
are not on the disk.  After a failed sync it may not even know that.  Damaged places below the proof are
copied to quarantine/ and stay in place; intact records around them stay readable.  Older segments are proven
by the names of later ones, and are read on demand.

A segment without a readable header is left unchanged and skipped.  The limit of open files says nothing about
a segment: then the start fails, instead of a start without that segment's records.

If the disk does not permit the sync of the tail, unproven records are carried: read into memory, written
again to the next segment, and shown after its sync.  The next segment then begins at the proof.

With `changes` False, for a log that is only read, nothing is repaired: unproven records are shown at once.

Every step may be interrupted and repeated: recovery of a recovered log changes nothing.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from persistence.durable_file import TEMPORARY_SUFFIX
from persistence.errors import FormatError, FutureFormat, is_process_limit
from persistence.files import Files, size_of
from persistence.log.preallocate import PREPARED_NAME
from persistence.read.log_reader import LogReader, RingEnd
from persistence.segment import footer
from persistence.segment.clean_shutdown import closed_table
from persistence.segment.format import EXTENT_HEADER_BYTES, CatalogueEntry, base_of_name, segment_name
from persistence.segment.quarantine import copy_to_quarantine
from persistence.segment.salvaging_files import SalvagingFiles
from persistence.segment.scan import DamagedRange, SegmentTable, open_table, read_table
from persistence.segment.writer import Pending
from ringbuf import Range, scan_records

REWRITE_BYTES = 1 << 20  # per write


@dataclass(frozen=True)
class TornTail:
    """Half-written tail of a crash; no one was notified of its records."""

    segment: str
    place: int
    length: int


@dataclass(frozen=True)
class RecoveryReport:
    """Results and actions of a start."""

    rings: dict[str, RingEnd]
    segments: int
    end_position: int
    torn: TornTail | None
    damage: tuple[DamagedRange, ...]
    notes: tuple[str, ...]  # errors of the disk, for display
    duration_ms: float


@dataclass
class Recovered:
    """State of the log after the recovery."""

    reader: LogReader
    catalogue: dict[int, CatalogueEntry] = field(default_factory=dict)
    end_position: int = 0
    generation: int = 1
    closed: SegmentTable | None = None  # of a cleanly closed last segment; without rows: not read
    is_proven: bool = True  # all records are proven by data on the disk
    carried: list[Pending] = field(default_factory=list)
    torn: TornTail | None = None
    damage: list[DamagedRange] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def recover(files: Files, directory: str, *, changes: bool = True) -> Recovered:
    """Repair the log in `directory`.  The caller holds its lock.  Without `changes` only read it.

    Raises OSError only if the directory cannot be listed, or no more files may be opened.
    """
    names = files.listdir(directory)
    bases = sorted(base for base in map(base_of_name, names) if base is not None)
    state = Recovered(LogReader(files, directory))
    if changes:
        _remove_temporaries(files, directory, names, state)
    tables = _last_tables(files, directory, bases, state, changes=changes)
    for base in bases:
        table = tables.get(base)
        if table is not None and table is state.closed:
            state.reader.tables.add_sealed(base, None, ends_at=table.end)
        else:
            state.reader.tables.add_sealed(base, table)
    state.reader.tables.bound()
    for damage in state.damage if changes else ():
        _copy_to_quarantine(files, directory, damage, state)
    state.reader.tables.add_damage(state.damage)
    return state


def _remove_temporaries(files: Files, directory: str, names: Sequence[str], state: Recovered) -> None:
    """Remove unfinished files of the last process; a prepared segment may be reused (log.py)."""
    for name in names:
        if name.endswith(TEMPORARY_SUFFIX) and name != PREPARED_NAME:
            try:
                files.unlink(os.path.join(directory, name))
            except OSError as error:
                state.notes.append(f"{name} could not be removed: {error.strerror}")


def _last_tables(
    files: Files, directory: str, bases: list[int], state: Recovered, *, changes: bool
) -> dict[int, SegmentTable]:
    """Tables of the last segments, from one on whose whole first catalogue covers all before it.

    Without such a segment the last archive names the rings.
    """
    first = len(bases)
    while first > 0:
        first -= 1
        if _first_is_whole(files, directory, bases[first]):
            break
    else:
        state.catalogue = state.reader.archive.last_catalogue()
    tables: dict[int, SegmentTable] = {}
    begins = sorted({*bases, *state.reader.archive.bases()})  # a segment ends where the next one begins
    for index in range(first, len(bases)):
        base, name = bases[index], segment_name(bases[index])
        path = os.path.join(directory, name)
        last = index == len(bases) - 1
        ends_at = None if last else begins[bisect_right(begins, base)] - base
        try:
            table = closed_table(files, directory, base) if last and index == first else None
            if table is not None:
                state.closed = table
            else:
                table = _read(files, path, name, ends_at, state.catalogue)
                if last and changes:
                    table = _repair_last(files, directory, path, table, state)
                    state.is_proven = not _has_behind(table, table.proven)
        except (FormatError, OSError) as error:
            if is_process_limit(error):
                raise
            size = size_of(files, path)
            state.notes.append(f"{name} ({size} bytes) is left alone: {error}")
            if not isinstance(error, FutureFormat):
                state.damage.append(DamagedRange(name, 0, size, "", 0))
            state.end_position = max(state.end_position, base + size)
        else:
            tables[base] = table
            state.catalogue.update(table.catalogue)
            state.damage += table.damage
            state.generation = table.header.generation + 1
            state.end_position = max(state.end_position, base + table.end)
    return tables


def _first_is_whole(files: Files, directory: str, base: int) -> bool:
    name = segment_name(base)
    try:
        handle = files.open(os.path.join(directory, name))
        try:
            return open_table(files, handle, name).first_is_whole
        finally:
            files.close(handle)
    except (FormatError, OSError) as error:
        if is_process_limit(error):
            raise
        return False


def _read(
    files: Files, path: str, name: str, ends_at: int | None, known: Mapping[int, CatalogueEntry]
) -> SegmentTable:
    salvaging = SalvagingFiles(files)
    handle = salvaging.open(path)
    try:
        return read_table(salvaging, handle, name, ends_at=ends_at, known=known)
    finally:
        files.close(handle)


def _repair_last(
    files: Files, directory: str, path: str, table: SegmentTable, state: Recovered
) -> SegmentTable:
    """Cut the last segment at its end, and sync it.  Returns the table of records that may be shown."""
    try:
        handle = files.open(path, create=True)
        try:
            _cut(files, handle, directory, table, state)
            _write_again(files, handle, table)
            files.fdatasync(handle)
        finally:
            files.close(handle)
    except OSError as error:
        state.notes.append(f"{table.name} could not be synced, its tail is written again: {error.strerror}")
        return _carry(files, path, table, state)
    return table


def _cut(files: Files, handle: int, directory: str, table: SegmentTable, state: Recovered) -> None:
    size = files.size(handle)
    if size <= table.end:
        return
    if any(files.read(handle, EXTENT_HEADER_BYTES, table.end)):
        state.torn = TornTail(table.name, table.end, size - table.end)
        damage = DamagedRange(table.name, table.end, size - table.end, "", 0)
        _copy_to_quarantine(files, directory, damage, state)
    elif footer.read(files, handle, table.header, table.end) is not None:
        return  # a backup may have a hard link to this file, with the checksum of all its bytes
    files.ftruncate(handle, table.end)


def _write_again(files: Files, handle: int, table: SegmentTable) -> None:
    """Write unproven bytes again in place.

    If the last process died after a failed sync, the kernel may consider bytes as written that are not on the
    disk: the next sync would skip them.
    """
    place = table.proven - table.header.base_position
    while place < table.end:
        data = files.read(handle, min(REWRITE_BYTES, table.end - place), place)
        place += files.pwritev(handle, [data], place)


def _carry(files: Files, path: str, table: SegmentTable, state: Recovered) -> SegmentTable:
    """Read unproven records into memory."""
    place = table.proven - table.header.base_position
    proven = _read(files, path, table.name, place, state.catalogue)
    handle = files.open(path)
    try:
        damaged_rows = [
            (row, ring_id, epoch, files.read(handle, row.length, row.place))
            for (ring_id, epoch), rows in table.rings.items()
            for row in (rows[index] for index in range(len(rows)))
            if row.place >= place
        ]
    finally:
        files.close(handle)
    news = {ring_id: entry for ring_id, entry in table.catalogue.items() if ring_id not in proven.catalogue}
    if news:
        for row, ring_id, epoch, _ in sorted(damaged_rows, key=lambda item: -item[0].place):
            if ring_id in news:
                news[ring_id] = news[ring_id]._replace(epoch=epoch, next_offset=row.first_offset)
        state.carried.append(Pending.catalogue(news))
    for row, ring_id, epoch, data in sorted(damaged_rows, key=lambda item: item[0].place):
        scan = scan_records(data, epoch)
        times = scan.first_timestamp_ns, scan.last_timestamp_ns
        run = Range(row.ring_position, epoch, row.first_offset, row.count, *times, memoryview(data))
        state.carried.append(Pending.run(ring_id, run))
    return proven


def _has_behind(table: SegmentTable, position: int) -> bool:
    place = position - table.header.base_position
    return any(rows[len(rows) - 1].place >= place for rows in table.rings.values() if len(rows))


def _copy_to_quarantine(files: Files, directory: str, damage: DamagedRange, state: Recovered) -> None:
    if refused := copy_to_quarantine(files, directory, damage):
        state.notes.append(refused)
