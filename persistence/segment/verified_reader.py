"""Verified reader: runs of records from a segment's file, verified as they are read.

A row has the position of a run.  The checksums of the extent and of each record show if it is still there.
Data that does not verify is left out and reported.  Only reads; knows nothing of segments beyond the given
file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from persistence.errors import FormatError
from persistence.files import Files
from persistence.segment.extent_table import Row
from persistence.segment.format import EXTENT_HEADER_BYTES, extent_verifies, unpack_extent
from persistence.segment.salvage import SalvagedRun, Window, runs_of
from persistence.segment.scan import DamagedRange, SegmentTable, read_header
from ringbuf import Range, scan_records
from ringbuf.record import RecordHeader, span


def verified(
    files: Files,
    handle: int,
    table: SegmentTable,
    ring_name: str,
    epoch: int,
    row: Row,
    add_damage: Callable[[list[DamagedRange]], None],
) -> list[Range]:
    """The run of a row in the file's current state, or its intact parts; calls `add_damage` with damage."""
    ahead = EXTENT_HEADER_BYTES if row.whole else 0
    data = memoryview(files.read(handle, ahead + row.length, row.place - ahead))
    body = data[ahead:]
    if len(data) == ahead + row.length:
        scan = scan_records(body, epoch)
        expected = (scan.first_offset, scan.count, scan.good_bytes)
        same = expected == (row.first_offset, row.count, row.length)
        if same and (not row.whole or extent_verifies(table.seed, unpack_extent(data), data)):
            times = scan.first_timestamp_ns, scan.last_timestamp_ns
            return [Range(row.ring_position, epoch, row.first_offset, row.count, *times, body)]
    if _is_reused(files, handle, table):
        return []
    window = Window(row.first_offset, row.first_offset + row.count)
    ranges = [_range(body, epoch, row, run) for run in runs_of(body, epoch, window)]
    add_damage(
        [
            DamagedRange(
                table.name, row.place - ahead, len(data), ring_name, sum(part.count for part in ranges)
            )
        ]
    )
    return ranges


def _is_reused(files: Files, handle: int, table: SegmentTable) -> bool:
    """True if the file was reused for another segment."""
    try:
        return read_header(files, handle) != table.header
    except FormatError:
        return False


def _range(body: memoryview, epoch: int, row: Row, run: SalvagedRun) -> Range:
    times = run.first_timestamp_ns, run.last_timestamp_ns
    view = body[run.at : run.at + run.length]
    return Range(row.ring_position + run.at, epoch, run.first_offset, run.records, *times, view)


def record_headers(view: memoryview) -> Iterator[tuple[int, RecordHeader]]:
    """Begin and header of each record of a verified run."""
    at = 0
    while at < len(view):
        header = RecordHeader.of(view, at)
        yield at, header
        at += span(header.length)


def from_offset(part: Range, offset: int) -> Range:
    """The part of a run from `offset` on, or the whole run if `offset` is before it."""
    if offset <= part.offset:
        return part
    for at, header in record_headers(part.view):
        if header.offset == offset:
            return Range(part.position + at, part.epoch, offset, part.offset + part.count - offset,
                         header.timestamp_ns, part.last_timestamp_ns, part.view[at:])  # fmt: skip
    raise AssertionError(f"offset {offset} is not in {part}")


def from_time(part: Range, timestamp_ns: int) -> int | None:
    """The offset of the first record of that time or later; None if all are earlier."""
    for _, header in record_headers(part.view):
        if header.timestamp_ns >= timestamp_ns:
            return header.offset
    return None
