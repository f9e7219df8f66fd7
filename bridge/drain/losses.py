"""Losses of one partition: records that no file will ever hold, by cause, with the latest ranges.

The checkpoint keeps them, so a restart forgets none: the save that moves the cursor has them too.

    overwritten   the ring was full before the record was drained, and the stream has no log
    retention     the log's retention removed the record before it was drained
    damaged       the record did not verify in the ring, and no log has it
    skipped       an operator (`brim bridge skip`) or `start = "latest"` passed the record over

The first three are lost.  Plain arithmetic; nothing here reads or sends.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bridge.format.drained_file import EarlierRanges
from bridge.format.file_builder import WriteIntent
from bridge.rangeset import subtract, union

__all__ = ["DAMAGED", "OVERWRITTEN", "RANGES_MAX", "RETENTION", "Losses", "PartitionLosses", "records_in"]

OVERWRITTEN, RETENTION, DAMAGED = "overwritten", "retention", "damaged"
RANGES_MAX = 32  # kept per partition and kind, the latest


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses of one partition since its checkpoint was made.  Ranges are (epoch, first, last)."""

    lost_by: Mapping[str, int] = field(default_factory=dict)  # records by cause
    skipped_records: int = 0
    lost: EarlierRanges = ()
    skipped: EarlierRanges = ()
    lost_ranges: int = 0  # number of all ranges, including those that are no longer kept
    skipped_ranges: int = 0

    @property
    def lost_records(self) -> int:
        """Records of all causes, without those that were skipped."""
        return sum(self.lost_by.values())

    def after(self, intent: WriteIntent) -> Losses:
        """The losses after the sink has this unit, which may declare losses."""
        if not (intent.lost or intent.skipped or intent.earlier_lost or intent.earlier_skipped):
            return self
        lost = (*intent.earlier_lost, *((intent.epoch, *it) for it in intent.lost))
        skipped = (*intent.earlier_skipped, *((intent.epoch, *it) for it in intent.skipped))
        cause = RETENTION if intent.logged else OVERWRITTEN
        return self.with_lost(lost, cause, intent.damaged).with_skipped(skipped)

    def with_lost(self, ranges: EarlierRanges, cause: str, damaged: EarlierRanges = ()) -> Losses:
        """The losses with these ranges added; `damaged` ranges among them have that cause."""
        fresh = _without(ranges, self.lost)
        broken = records_in(fresh) - records_in(_without(fresh, damaged))
        counts = {cause: records_in(fresh) - broken, DAMAGED: broken}
        by = {it: self.lost_by.get(it, 0) + counts.get(it, 0) for it in {*self.lost_by, *counts}}
        kept, total = _kept(self.lost, self.lost_ranges, fresh)
        shown = {it: count for it, count in sorted(by.items()) if count}
        return dataclasses.replace(self, lost_by=shown, lost=kept, lost_ranges=total)

    def with_skipped(self, ranges: EarlierRanges) -> Losses:
        """The losses with these skipped ranges added."""
        fresh = _without(ranges, self.skipped)
        kept, total = _kept(self.skipped, self.skipped_ranges, fresh)
        records = self.skipped_records + records_in(fresh)
        return dataclasses.replace(self, skipped_records=records, skipped=kept, skipped_ranges=total)

    def pack(self) -> tuple[Any, ...]:
        """Values in their order, for the checkpoint."""
        return dataclasses.astuple(self)


@dataclass(frozen=True, slots=True)
class PartitionLosses:
    """Losses of one partition as `brim bridge status --json` shows them."""

    stream: str
    partition: int
    losses: Losses
    undeclared_records: int  # lost records that no file has declared yet; the next file does

    def as_dict(self) -> dict[str, Any]:
        """Dictionary for JSON."""
        losses = self.losses
        return {
            "stream": self.stream,
            "partition": self.partition,
            "lost_records": losses.lost_records,
            "lost_by": dict(losses.lost_by),
            "skipped_records": losses.skipped_records,
            "undeclared_records": self.undeclared_records,
            "lost": [list(it) for it in losses.lost],
            "lost_ranges": losses.lost_ranges,
            "skipped": [list(it) for it in losses.skipped],
            "skipped_ranges": losses.skipped_ranges,
        }


def records_in(ranges: Iterable[tuple[int, int, int]]) -> int:
    """Number of records in ranges of (epoch, first, last)."""
    return sum(last - first + 1 for _, first, last in ranges)


def _kept(known: EarlierRanges, total: int, fresh: EarlierRanges) -> tuple[EarlierRanges, int]:
    """The latest ranges with neighbours joined, and the number of all ranges."""
    joined = [(epoch, *it) for epoch, its in sorted(_by_epoch((*known, *fresh)).items()) for it in union(its)]
    return tuple(joined[-RANGES_MAX:]), total + len(joined) - len(known)


def _without(ranges: EarlierRanges, taken: EarlierRanges) -> EarlierRanges:
    """The parts of the ranges that are not in `taken`."""
    gone = _by_epoch(taken)
    left: list[tuple[int, int, int]] = []
    for epoch, its in _by_epoch(ranges).items():
        left += ((epoch, *it) for it in subtract(union(its), union(gone.get(epoch, ()))))
    return tuple(left)


def _by_epoch(ranges: EarlierRanges) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {}
    for epoch, first, last in ranges:
        found.setdefault(epoch, []).append((first, last))
    return found
