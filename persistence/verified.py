"""Verified reader: runs of records from a segment's file, verified as they are read.

A row has the position of a run.  The checksums of the extent and of each record show if it is still there.
Data that does not verify is left out and reported.  Only reads; knows nothing of segments beyond the given
file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from persistence.errors import FormatError
from persistence.extents import Row
from persistence.files import Files
from persistence.format import EXTENT_HEADER_BYTES, extent_verifies, unpack_extent
from persistence.salvage import Run, Window, runs_of
from persistence.scan import Damage, SegmentTable, read_header
from persistence.walk import read_around
from ringbuf import RECORD_ALIGN, Range, scan_records
from ringbuf.record import HEADER as RECORD

__all__ = ["from_offset", "from_time", "gone", "record_spans", "verified"]


def verified(
    files: Files,
    handle: int,
    table: SegmentTable,
    ring_name: str,
    epoch: int,
    row: Row,
    note: Callable[[list[Damage]], None],
) -> list[Range]:
    """The run of a row in the file's current state, or its intact parts; `note` is called with damage."""
    ahead = EXTENT_HEADER_BYTES if row.whole else 0
    data = memoryview(read_around(files, handle, ahead + row.length, row.place - ahead))
    body = data[ahead:]
    if len(data) == ahead + row.length:
        scan = scan_records(body, epoch)
        found = (scan.first_offset, scan.count, scan.good_bytes)
        same = found == (row.first_offset, row.count, row.length)
        if same and (not row.whole or extent_verifies(table.seed, unpack_extent(data), data)):
            times = scan.first_timestamp_ns, scan.last_timestamp_ns
            return [Range(row.ring_position, epoch, row.first_offset, row.count, *times, body)]
    if gone(files, handle, table):
        return []
    window = Window(row.first_offset, row.first_offset + row.count)
    kept = [_range(body, epoch, row, run) for run in runs_of(body, epoch, window)]
    note([Damage(table.name, row.place - ahead, len(data), ring_name, sum(it.count for it in kept))])
    return kept


def gone(files: Files, handle: int, table: SegmentTable) -> bool:
    """True if the file was reused for another segment."""
    try:
        return read_header(files, handle) != table.header
    except FormatError:
        return False


def _range(body: memoryview, epoch: int, row: Row, run: Run) -> Range:
    times = run.first_timestamp_ns, run.last_timestamp_ns
    view = body[run.at : run.at + run.length]
    return Range(row.ring_position + run.at, epoch, run.first_offset, run.records, *times, view)


def record_spans(view: memoryview) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Begin, span and header fields of each record of a verified run."""
    at = 0
    while at < len(view):
        fields = RECORD.unpack_from(view, at)
        span = -(-fields[0] // RECORD_ALIGN) * RECORD_ALIGN
        yield at, span, fields
        at += span


def from_offset(found: Range, offset: int) -> Range:
    """The part of a run from `offset` on, or the whole run if `offset` is before it."""
    if offset <= found.offset:
        return found
    for at, _, fields in record_spans(found.view):
        if fields[2] == offset:
            return Range(found.position + at, found.epoch, offset, found.offset + found.count - offset,
                         fields[3], found.last_timestamp_ns, found.view[at:])  # fmt: skip
    raise AssertionError(f"offset {offset} is not in {found}")


def from_time(found: Range, timestamp_ns: int) -> int | None:
    """The offset of the first record of that time or later; None if all are earlier."""
    for _, _, fields in record_spans(found.view):
        if fields[3] >= timestamp_ns:
            return fields[2]
    return None
