"""Losses of one partition: records that no file will ever hold, by cause, with the latest ranges.

The checkpoint keeps them, so a restart forgets none: the save that moves the cursor has them too.

    overwritten   the ring was full before the record was drained, and the stream has no log
    retention     the log's retention removed the record before it was drained
    damaged       the record did not verify in the ring, and no log has it
    skipped       an operator (`brim bridge skip`) or `start = "latest"` passed the record over

The first three are lost.  Plain arithmetic; nothing here reads or sends. next_files.py finds the losses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bridge.format.drained_file import EarlierRanges
from bridge.format.write_intent import WriteIntent
from bridge.rangeset import subtract, union

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
        """The losses after the sink has this file, which may declare losses."""
        if not (intent.lost or intent.skipped or intent.earlier_lost or intent.earlier_skipped):
            return self
        lost = (*intent.earlier_lost, *((intent.epoch, *lost_range) for lost_range in intent.lost))
        skipped = (
            *intent.earlier_skipped,
            *((intent.epoch, *skipped_range) for skipped_range in intent.skipped),
        )
        cause = RETENTION if intent.logged else OVERWRITTEN
        return self.with_lost(lost, cause, intent.damaged).with_skipped(skipped)

    def with_lost(self, ranges: EarlierRanges, cause: str, damaged: EarlierRanges = ()) -> Losses:
        """The losses with these ranges added; `damaged` ranges among them have that cause."""
        fresh = _without(ranges, self.lost)
        broken = records_in(fresh) - records_in(_without(fresh, damaged))
        counts = {cause: records_in(fresh) - broken, DAMAGED: broken}
        by = {cause: self.lost_by.get(cause, 0) + counts.get(cause, 0) for cause in {*self.lost_by, *counts}}
        listed, total = _kept(self.lost, self.lost_ranges, fresh)
        shown = {cause: count for cause, count in sorted(by.items()) if count}
        return dataclasses.replace(self, lost_by=shown, lost=listed, lost_ranges=total)

    def with_skipped(self, ranges: EarlierRanges) -> Losses:
        """The losses with these skipped ranges added."""
        fresh = _without(ranges, self.skipped)
        listed, total = _kept(self.skipped, self.skipped_ranges, fresh)
        records = self.skipped_records + records_in(fresh)
        return dataclasses.replace(self, skipped_records=records, skipped=listed, skipped_ranges=total)

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
            "lost": [list(lost_range) for lost_range in losses.lost],
            "lost_ranges": losses.lost_ranges,
            "skipped": [list(skipped_range) for skipped_range in losses.skipped],
            "skipped_ranges": losses.skipped_ranges,
        }


def records_in(ranges: Iterable[tuple[int, int, int]]) -> int:
    """Number of records in ranges of (epoch, first, last)."""
    return sum(last - first + 1 for _, first, last in ranges)


def _kept(known: EarlierRanges, total: int, fresh: EarlierRanges) -> tuple[EarlierRanges, int]:
    """The latest ranges with neighbours joined, and the number of all ranges."""
    joined = [
        (epoch, *merged_range)
        for epoch, ranges_of_epoch in sorted(_by_epoch((*known, *fresh)).items())
        for merged_range in union(ranges_of_epoch)
    ]
    return tuple(joined[-RANGES_MAX:]), total + len(joined) - len(known)


def _without(ranges: EarlierRanges, taken: EarlierRanges) -> EarlierRanges:
    """The parts of the ranges that are not in `taken`."""
    taken_by_epoch = _by_epoch(taken)
    left: list[tuple[int, int, int]] = []
    for epoch, ranges_of_epoch in _by_epoch(ranges).items():
        left += (
            (epoch, *remaining_range)
            for remaining_range in subtract(union(ranges_of_epoch), union(taken_by_epoch.get(epoch, ())))
        )
    return tuple(left)


def _by_epoch(ranges: EarlierRanges) -> dict[int, list[tuple[int, int]]]:
    by_epoch: dict[int, list[tuple[int, int]]] = {}
    for epoch, first, last in ranges:
        by_epoch.setdefault(epoch, []).append((first, last))
    return by_epoch
