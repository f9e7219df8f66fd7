"""What can be saved of a damaged extent: every record that still proves itself.

Used where bytes were on the disk once and are not what they were (bit rot, a lost sector).  A record carries
its own checksum, seeded with the epoch of its ring, and its number: where both fit what must stand there, it
is that record, whatever happened around it.  What the extent's header alone knew, which ring it is, is asked
of the catalogue: a ring id and an epoch that go together are believed; else the ring is the one that makes
the checksum of the extent hold, and if there is none, nothing is saved.

Records with flag UNCHECKED are never saved from a damaged extent: its checksum was all that covered them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from persistence.extents import Row
from persistence.format import ALIGN_BYTES, EXTENT_HEADER_BYTES, CatalogueEntry, extent_checks, unpack_extent
from ringbuf import FLAG_UNCHECKED, RECORD_HEADER_BYTES, scan_records
from ringbuf.record import HEADER as RECORD

__all__ = ["Window", "owner_of", "runs_of", "salvage"]


class Window(NamedTuple):
    """The offsets that records of a ring can have at this place: first <= offset < end."""

    first: int
    end: int


def owner_of(
    seed: int, region: memoryview, catalogue: Mapping[int, CatalogueEntry]
) -> tuple[int, int] | None:
    """The ring id and epoch of the damaged extent that fills `region`, or None."""
    header = unpack_extent(region)
    entry = catalogue.get(header.ring_id)
    if entry is not None and entry.epoch == header.ring_epoch:
        return header.ring_id, header.ring_epoch
    body = region[EXTENT_HEADER_BYTES:]
    for ring_id, known in catalogue.items():
        repaired = header._replace(length=len(body), ring_id=ring_id, ring_epoch=known.epoch)
        if extent_checks(seed, repaired, body):
            return ring_id, known.epoch
    return None


def salvage(region: memoryview, place: int, epoch: int, window: Window) -> list[Row]:
    """The runs of records in the damaged extent that fills `region`, at `place` in its file."""
    header = unpack_extent(region)
    body = region[EXTENT_HEADER_BYTES:]
    rows = []
    for at, length, first_offset, count in runs_of(body, epoch, window):
        where = place + EXTENT_HEADER_BYTES + at
        rows.append(Row(first_offset, count, where, length, header.ring_position + at, whole=False))
    return rows


def runs_of(body: memoryview, epoch: int, window: Window) -> Iterator[tuple[int, int, int, int]]:
    """Runs of good records in `body`: where, bytes, first offset, count.  Their offsets rise, within
    `window`.
    """
    at, first = 0, window.first
    while at < len(body):
        scan = scan_records(body[at:], epoch)
        if scan.count and _fits(scan.first_offset, scan.last_offset, scan.count, Window(first, window.end)):
            if not _unchecked(body, at):
                yield at, scan.good_bytes, scan.first_offset, scan.count
            at += scan.good_bytes
            first = scan.last_offset + 1
        at = _next_candidate(body, at, scan.bad_length, Window(first, window.end), epoch)


def _fits(first_offset: int, last_offset: int, count: int, window: Window) -> bool:
    dense = last_offset - first_offset == count - 1
    return dense and window.first <= first_offset and last_offset < window.end


def _unchecked(body: memoryview, at: int) -> bool:
    return bool(RECORD.unpack_from(body, at)[6] & FLAG_UNCHECKED)


def _next_candidate(body: memoryview, at: int, bad_length: int, window: Window, epoch: int) -> int:
    """Where the next record that verifies begins behind the bad one at `at`; len(body) if there is none.

    The span that the bad record claims is tried first: then no payload is searched for what looks like a
    record.
    """
    if bad_length and _candidate(body, at + bad_length, window, epoch):
        return at + bad_length
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
