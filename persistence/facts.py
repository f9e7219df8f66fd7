"""Segment facts: content and state of a segment, for display and for decisions about it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from persistence.footer import Footer
from persistence.scan import Damage, SegmentTable
from persistence.shelf import Shelf, Shelved

__all__ = ["RingFacts", "SegmentFacts", "SegmentState", "facts_of"]

SegmentState = Literal["active", "sealed", "flushed", "archived", "lost"]


@dataclass(frozen=True, slots=True)
class RingFacts:
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
class SegmentFacts:
    """One segment.  Timestamps are those of its earliest and latest record, 0 without records."""

    base: int
    bytes: int  # of log; the file may have more room
    file_bytes: int
    # active: the last one; sealed: complete and synced; flushed: with its footer; archived: compressed, and
    # the segment is removed; lost: unreadable, with the cause in `reason`
    state: SegmentState
    first_timestamp_ns: int
    last_timestamp_ns: int
    rings: tuple[RingFacts, ...]
    damage: tuple[Damage, ...]
    indexed: bool = False  # has a valid footer
    reason: str = ""

    @property
    def records(self) -> int:
        """Records of all rings."""
        return sum(it.records for it in self.rings)


def facts_of(shelf: Shelf, shelved: Shelved) -> SegmentFacts:
    """Facts of a segment: from its footer, or from its table, which is read if it is not in memory."""
    base = shelved.base
    footer = shelf.footer(shelved)
    table = shelf.table(shelved) if footer is None else None
    damage = shelf.damage_of(shelved.name)
    size = 0
    with suppress(FileNotFoundError), shelf.opened(shelved) as handle:
        size = shelf.files.size(handle)
    state: SegmentState
    if footer is not None:
        rings, end, state = footer_facts(footer), footer.end, "flushed"
    elif table is not None:
        state = "active" if shelved is shelf.segments()[-1] else "sealed"
        with shelf.lock:
            rings, end = ring_facts(table), table.end
    else:
        reason = shelved.lost or "it has been removed"
        return SegmentFacts(base, size, size, "lost", 0, 0, (), damage, reason=reason)
    first = min((it.first_timestamp_ns for it in rings), default=0)
    last = max((it.last_timestamp_ns for it in rings), default=0)
    return SegmentFacts(base, end, size, state, first, last, rings, damage, indexed=footer is not None)


def footer_facts(footer: Footer) -> tuple[RingFacts, ...]:
    """Facts of each ring and epoch in a footer, in the order of names."""
    found = []
    for (ring_id, epoch), it in footer.groups.items():
        entry = footer.catalogue.get(ring_id)
        name = "" if entry is None else entry.name
        span = it.first_offset, it.end_offset, it.records, it.earliest_ns, it.latest_ns
        found.append(RingFacts(name, epoch, *span, it.bytes))
    return tuple(sorted(found, key=lambda it: (it.name, it.epoch)))


def ring_facts(table: SegmentTable) -> tuple[RingFacts, ...]:
    """Facts of each ring and epoch in a table, in the order of names."""
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
