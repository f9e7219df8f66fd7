"""What can be saved of a damaged extent: every record that still proves itself, and whose it is.

Used where bytes were on the disk once and are not what they were (bit rot, a lost sector).  A record carries
its own checksum, seeded with the epoch of its ring, and its number: where both fit what must stand there, it
is that record, whatever happened around it.  What only the extent's header knows is which ring it is, and how
far it reaches; two rings may well have the same epoch and the same offsets, so this must be proved, too:

  * the header's ring id and epoch go together in the catalogue, or else the ring is the one that makes the
    checksum of the whole extent hold;
  * the extent fills the damaged region, or its checksum holds when it does: then all of the region is
    searched.
    Else more than one extent is damaged, and only what follows from the first record on, record by record, is
    taken: the next extent's header would break that chain;
  * records that follow each other up to the end of the region are of the ring that misses so many bytes and
    continues with the next offset behind the region, if that is one ring only: their header may be lost.

Records with flag UNCHECKED are never saved from a damaged extent: its checksum was all that covered them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from persistence.extents import Row
from persistence.format import (
    ALIGN_BYTES,
    EXTENT_HEADER_BYTES,
    CatalogueEntry,
    ExtentHeader,
    extent_checks,
    unpack_extent,
)
from ringbuf import FLAG_UNCHECKED, RECORD_HEADER_BYTES, scan_records
from ringbuf.record import HEADER as RECORD

__all__ = ["Absence", "Owner", "Run", "Window", "owner_of", "runs_of", "salvage", "tail_of"]


class Window(NamedTuple):
    """The offsets that records of a ring can have at this place: first <= offset < end."""

    first: int
    end: int


class Owner(NamedTuple):
    """Whose a damaged extent is."""

    ring_id: int
    epoch: int
    length: int  # of its body
    alone: bool  # nothing else is in the damaged region
    position: int  # of its first record, in the ring


class Absence(NamedTuple):
    """Records that are missing of a ring between two extents."""

    ring_id: int
    epoch: int
    window: Window  # their offsets
    begin: int  # their positions in the ring: begin <= position < end
    end: int


class Run(NamedTuple):
    """Good records that follow each other."""

    at: int  # in the bytes searched
    length: int
    first_offset: int
    records: int
    first_timestamp_ns: int
    last_timestamp_ns: int


def owner_of(seed: int, region: memoryview, catalogue: Mapping[int, CatalogueEntry]) -> Owner | None:
    """Whose the extent is that begins the damaged `region`; None if that cannot be told."""
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
    """The runs of records in the damaged extent that begins `region`, at `place` in its file, each with its
    earliest and latest timestamp.
    """
    body = region[EXTENT_HEADER_BYTES : EXTENT_HEADER_BYTES + owner.length]
    rows = []
    for run in runs_of(body, owner.epoch, window, search=owner.alone):
        where, position = place + EXTENT_HEADER_BYTES + run.at, owner.position + run.at
        row = Row(run.first_offset, run.records, where, run.length, position, whole=False)
        times = run.first_timestamp_ns, run.last_timestamp_ns
        rows.append((row, (min(times), max(times))))
    return rows


def runs_of(body: memoryview, epoch: int, window: Window, *, search: bool = True) -> Iterator[Run]:
    """Runs of good records in `body`.  Their offsets rise, within `window`.

    Behind a bad record, the next one is where its length says if that one has the number that must come
    there; else, if `search`, wherever it is found.
    """
    at, first = 0, window.first
    while at < len(body):
        scan = scan_records(body[at:], epoch)
        if scan.count and _fits(scan.first_offset, scan.last_offset, scan.count, Window(first, window.end)):
            if not _unchecked(body, at):
                times = scan.first_timestamp_ns, scan.last_timestamp_ns
                yield Run(at, scan.good_bytes, scan.first_offset, scan.count, *times)
            at += scan.good_bytes
            first = scan.last_offset + 1
        if scan.bad_length and _candidate(body, at + scan.bad_length, Window(first + 1, first + 2), epoch):
            at += scan.bad_length
        elif search:
            at = _found(body, at, Window(first, window.end), epoch)
        else:
            return


def tail_of(region: memoryview, absences: Iterable[Absence]) -> tuple[Absence, Run] | None:
    """Records up to the end of a damaged region, and the ring they are missing in; None: no ring, or several.

    `region` begins at a multiple of ALIGN_BYTES in its file.
    """
    found = [(it, run) for it in absences if (run := _tail(region, it)) is not None]
    return found[0] if len(found) == 1 else None


def _tail(region: memoryview, absence: Absence) -> Run | None:
    at = max(len(region) - (absence.end - absence.begin), 0)
    while at < len(region):
        scan = scan_records(region[at:], absence.epoch)
        if scan.count and at + scan.good_bytes == len(region) and not _unchecked(region, at):
            ends = scan.last_offset + 1 == absence.window.end
            if ends and _fits(scan.first_offset, scan.last_offset, scan.count, absence.window):
                times = scan.first_timestamp_ns, scan.last_timestamp_ns
                return Run(at, scan.good_bytes, scan.first_offset, scan.count, *times)
        at = _found(region, at + max(scan.good_bytes - ALIGN_BYTES, 0), absence.window, absence.epoch)
    return None


def _fits(first_offset: int, last_offset: int, count: int, window: Window) -> bool:
    dense = last_offset - first_offset == count - 1
    return dense and window.first <= first_offset and last_offset < window.end


def _unchecked(body: memoryview, at: int) -> bool:
    return bool(RECORD.unpack_from(body, at)[6] & FLAG_UNCHECKED)


def _found(body: memoryview, at: int, window: Window, epoch: int) -> int:
    """Where the next record that verifies begins behind the bad one at `at`; len(body) if there is none."""
    for place in range(at + ALIGN_BYTES, len(body) - RECORD_HEADER_BYTES + 1, ALIGN_BYTES):
        if _candidate(body, place, window, epoch):
            return place
    return len(body)


def _candidate(body: memoryview, at: int, window: Window, epoch: int) -> bool:
    if at + RECORD_HEADER_BYTES > len(body):
        return False
    length, _, offset, *_ = RECORD.unpack_from(body, at)
    if not RECORD_HEADER_BYTES <= length <= len(body) - at or not window.first <= offset < window.end:
        return False
    span = -(-length // ALIGN_BYTES) * ALIGN_BYTES
    return scan_records(body[at : at + span], epoch).count == 1
