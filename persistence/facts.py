"""What a segment holds, for people and for those who decide what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from persistence.scan import Damage, SegmentTable

__all__ = ["RingFacts", "SegmentFacts", "SegmentState", "ring_facts"]

SegmentState = Literal["active", "sealed", "flushed", "archived", "lost"]


@dataclass(frozen=True, slots=True)
class RingFacts:
    """What a segment holds of one ring and epoch."""

    name: str  # "" if no catalogue says it
    epoch: int
    first_offset: int
    end_offset: int
    records: int
    first_timestamp_ns: int  # the earliest
    last_timestamp_ns: int  # the latest
    bytes: int = 0  # as they stood in the ring


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """One segment.  Timestamps are the earliest and latest of all its records, 0 when it has none."""

    base: int
    bytes: int  # of log; the file may have more room
    file_bytes: int
    # active: the last one; sealed: whole, and synced; flushed: its footer, too; archived: compressed, and
    # the segment has gone; lost: nothing in it can be told, `reason` says why
    state: SegmentState
    first_timestamp_ns: int
    last_timestamp_ns: int
    rings: tuple[RingFacts, ...]
    damage: tuple[Damage, ...]
    indexed: bool = False  # has a footer that is right
    reason: str = ""

    @property
    def records(self) -> int:
        """Of all rings together."""
        return sum(it.records for it in self.rings)


def ring_facts(table: SegmentTable) -> tuple[RingFacts, ...]:
    """What a table says of each ring and epoch, in the order of names."""
    found = []
    for (ring_id, epoch), rows in table.rings.items():
        entry = table.catalogue.get(ring_id)
        if not len(rows):
            continue
        found.append(
            RingFacts(
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
    return tuple(sorted(found, key=lambda it: (it.name, it.epoch)))
