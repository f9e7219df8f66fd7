"""Segment information: content and state of a segment, for display and for decisions about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from persistence.segment.footer import Footer
from persistence.segment.scan import DamagedRange, SegmentTable

SEGMENT_COSTS_BYTES = 64 << 10  # smallest size counted for a file: repeated crashes create many small files

SegmentState = Literal["active", "sealed", "flushed", "archived", "lost"]


@dataclass(frozen=True, slots=True)
class RingInfo:
    """Records of one ring and epoch in a segment."""

    name: str  # "" if no catalogue has it
    epoch: int
    first_offset: int
    end_offset: int
    records: int
    first_timestamp_ns: int  # the earliest
    last_timestamp_ns: int  # the latest
    bytes: int = 0  # as in the ring


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One segment.  Timestamps are those of its earliest and latest record, 0 without records."""

    base: int
    bytes: int  # of log; the file may have more room
    file_bytes: int
    # active: the last one; sealed: complete and synced; flushed: with its footer; archived: compressed, and
    # the segment is removed; lost: unreadable, with the cause in `reason`
    state: SegmentState
    first_timestamp_ns: int
    last_timestamp_ns: int
    rings: tuple[RingInfo, ...]
    damage: tuple[DamagedRange, ...]
    indexed: bool = False  # has a valid footer
    reason: str = ""

    @property
    def records(self) -> int:
        """Records of all rings."""
        return sum(ring.records for ring in self.rings)


def rings_of_footer(footer: Footer) -> tuple[RingInfo, ...]:
    """Each ring and epoch in a footer, in the order of names."""
    rings = []
    for (ring_id, epoch), group in footer.groups.items():
        entry = footer.catalogue.get(ring_id)
        name = "" if entry is None else entry.name
        span = group.first_offset, group.end_offset, group.records, group.earliest_ns, group.latest_ns
        rings.append(RingInfo(name, epoch, *span, group.bytes))
    return tuple(sorted(rings, key=lambda ring: (ring.name, ring.epoch)))


def rings_of_table(table: SegmentTable) -> tuple[RingInfo, ...]:
    """Each ring and epoch in a table, in the order of names."""
    rings = []
    for (ring_id, epoch), rows in table.rings.items():
        entry = table.catalogue.get(ring_id)
        if not len(rows):
            continue
        rings.append(
            RingInfo(
                "" if entry is None else entry.name,
                epoch,
                rows.first_offset,
                rows.end_offset,
                rows.records,
                rows.first_timestamp_ns,
                rows.last_timestamp_ns,
                rows.bytes,
            )
        )
    return tuple(sorted(rings, key=lambda ring: (ring.name, ring.epoch)))
