"""Salvage of a damaged extent: records that still verify, and the ring they belong to.

Used for bytes that were on the disk and have changed (bit rot, a lost sector).  A record has its own
checksum, seeded with the epoch of its ring, and its offset.  If both match the expected values, the record is
intact.  Only the extent's header has the ring and the length.  Two rings may have the same epoch and offsets,
so the ring must be proven, too:

  * The header's ring id and epoch match the catalogue, or exactly that ring makes the checksum of the whole
    extent valid.
  * The extent fills the damaged region, or its checksum is valid if it does; then the whole region is
    searched.  Otherwise more than one extent is damaged, and only the chain of records from the first one on
    is taken; the next extent's header would break that chain.
  * Consecutive records up to the end of the region belong to the ring that misses that many bytes and
    continues with the next offset after the region, if only one ring does.  Their header may be lost.

Records with flag UNCHECKED are never salvaged: only the damaged extent's checksum covered them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from persistence.segment.extent_table import Row
from persistence.segment.format import (
    ALIGN_BYTES,
    EXTENT_HEADER_BYTES,
    CatalogueEntry,
    ExtentHeader,
    extent_checks,
    unpack_extent,
)
from ringbuf import FLAG_UNCHECKED, RECORD_HEADER_BYTES, scan_records
from ringbuf.record import RecordHeader, span


class Window(NamedTuple):
    """Possible offsets of a ring's records at this place: first <= offset < end."""

    first: int
    end: int


class Owner(NamedTuple):
    """Ring and bounds of a damaged extent."""

    ring_id: int
    epoch: int
    length: int  # of its body
    alone: bool  # True: it fills the damaged region
    position: int  # of its first record, in the ring


class Absence(NamedTuple):
    """Missing records of a ring between two extents."""

    ring_id: int
    epoch: int
    window: Window  # their offsets
    begin: int  # their positions in the ring: begin <= position < end
    end: int


class SalvagedRun(NamedTuple):
    """Consecutive good records."""

    at: int  # position in the searched bytes
    length: int
    first_offset: int
    records: int
    first_timestamp_ns: int
    last_timestamp_ns: int


def owner_of(seed: int, region: memoryview, catalogue: Mapping[int, CatalogueEntry]) -> Owner | None:
    """Owner of the extent that begins the damaged `region`; None if unknown."""
    header = unpack_extent(region)
    body = region[EXTENT_HEADER_BYTES:]
    entry = catalogue.get(header.ring_id)
    if entry is not None and entry.epoch == header.ring_epoch:
        alone = header.length == len(body) or _fills(seed, header, body)
        length = len(body) if alone else min(header.length, len(body))
        return Owner(header.ring_id, header.ring_epoch, length, alone, header.ring_position)
    for ring_id, known in catalogue.items():
        if _fills(seed, header._replace(ring_id=ring_id, ring_epoch=known.epoch), body):
            return Owner(ring_id, known.epoch, len(body), alone=True, position=header.ring_position)
    return None


def _fills(seed: int, header: ExtentHeader, body: memoryview) -> bool:
    return extent_checks(seed, header._replace(length=len(body)), body)


def salvage(
    region: memoryview, place: int, owner: Owner, window: Window
) -> list[tuple[Row, tuple[int, int]]]:
    """Runs of records in the damaged extent that begins `region`, at `place` in its file.

    Each has its earliest and latest timestamp.
    """
    body = region[EXTENT_HEADER_BYTES : EXTENT_HEADER_BYTES + owner.length]
    rows = []
    for run in runs_of(body, owner.epoch, window, search=owner.alone):
        where, position = place + EXTENT_HEADER_BYTES + run.at, owner.position + run.at
        row = Row(run.first_offset, run.records, where, run.length, position, whole=False)
        times = run.first_timestamp_ns, run.last_timestamp_ns
        rows.append((row, (min(times), max(times))))
    return rows


def runs_of(body: memoryview, epoch: int, window: Window, *, search: bool = True) -> Iterator[SalvagedRun]:
    """Runs of good records in `body`.  Their offsets rise, within `window`.

    After a bad record, the next one is at the distance of its length if the offset there matches; otherwise,
    with `search`, at any place where one is found.
    """
    at, first = 0, window.first
    while at < len(body):
        scan = scan_records(body[at:], epoch)
        if scan.count and _fits(scan.first_offset, scan.last_offset, scan.count, Window(first, window.end)):
            if not _unchecked(body, at):
                times = scan.first_timestamp_ns, scan.last_timestamp_ns
                yield SalvagedRun(at, scan.good_bytes, scan.first_offset, scan.count, *times)
            at += scan.good_bytes
            first = scan.last_offset + 1
        if scan.bad_length and _candidate(body, at + scan.bad_length, Window(first + 1, first + 2), epoch):
            at += scan.bad_length
        elif search:
            at = _found(body, at, Window(first, window.end), epoch)
        else:
            return


def tail_of(region: memoryview, absences: Iterable[Absence]) -> tuple[Absence, SalvagedRun] | None:
    """Records up to the end of a damaged region, and the one ring that misses them, or None."""
    """

    `region` begins at a multiple of ALIGN_BYTES in its file.
    """
    tails = [(absence, run) for absence in absences if (run := _tail(region, absence)) is not None]
    return tails[0] if len(tails) == 1 else None


def _tail(region: memoryview, absence: Absence) -> SalvagedRun | None:
    at = max(len(region) - (absence.end - absence.begin), 0)
    while at < len(region):
        scan = scan_records(region[at:], absence.epoch)
        if scan.count and at + scan.good_bytes == len(region) and not _unchecked(region, at):
            ends = scan.last_offset + 1 == absence.window.end
            if ends and _fits(scan.first_offset, scan.last_offset, scan.count, absence.window):
                times = scan.first_timestamp_ns, scan.last_timestamp_ns
                return SalvagedRun(at, scan.good_bytes, scan.first_offset, scan.count, *times)
        at = _found(region, at + max(scan.good_bytes - ALIGN_BYTES, 0), absence.window, absence.epoch)
    return None


def _fits(first_offset: int, last_offset: int, count: int, window: Window) -> bool:
    dense = last_offset - first_offset == count - 1
    return dense and window.first <= first_offset and last_offset < window.end


def _unchecked(body: memoryview, at: int) -> bool:
    return bool(RecordHeader.of(body, at).flags & FLAG_UNCHECKED)


def _found(body: memoryview, at: int, window: Window, epoch: int) -> int:
    """Position of the next valid record after the bad one at `at`; len(body) if there is none."""
    for place in range(at + ALIGN_BYTES, len(body) - RECORD_HEADER_BYTES + 1, ALIGN_BYTES):
        if _candidate(body, place, window, epoch):
            return place
    return len(body)


def _candidate(body: memoryview, at: int, window: Window, epoch: int) -> bool:
    if at + RECORD_HEADER_BYTES > len(body):
        return False
    header = RecordHeader.of(body, at)
    if not RECORD_HEADER_BYTES <= header.length <= len(body) - at:
        return False
    if not window.first <= header.offset < window.end:
        return False
    return scan_records(body[at : at + span(header.length)], epoch).count == 1
