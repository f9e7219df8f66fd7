"""Cursor: progress of the drain in one partition. Plain arithmetic on offsets; nothing here reads or sends.

    next_offset        the first offset to drain; everything below is in files, declared, or waits to be
    skipped            ranges below next_offset, passed over on purpose, that the next file will declare
    ahead              ranges above next_offset that were drained already, because live records go before
                       the backlog: the last range grows with the partition, the others are left from
                       outages within outages
    owed               lost ranges that the next file will declare
    earlier_...        ranges of the previous epoch that were lost or skipped, and not declared at its end

        skipped[0] next                 ahead[0]          ahead[1]
    ────────┬─────────┬────────────────────┬───────┬─────────┬────────┬─────▶ offsets
    drained │ skipped │      backlog       │drained│ backlog │drained │ live

Invariant: the ranges of `ahead` rise, do not touch, and lie above next_offset. No record of `skipped` or
`owed` is in a file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from bridge.format.drained_file import EarlierRanges
from bridge.format.write_intent import WriteIntent
from bridge.rangeset import subtract, union

Spans: TypeAlias = tuple[tuple[int, int], ...]

AHEAD_MAX = 8  # outages within outages; above this number the backlog is drained in order


@dataclass(frozen=True, slots=True)
class Cursor:
    """Progress of one partition. `previous`: see drained_file.FileFooter; the next file declares it."""

    stream: str
    partition: int
    epoch: int
    epoch_first_offset: int
    next_offset: int
    previous: tuple[int, int] | None = None
    ahead: Spans = ()  # (first, end), the end not included
    owed: Spans = ()  # (first, last), both included, as in footers
    earlier_lost: EarlierRanges = ()
    earlier_skipped: EarlierRanges = ()
    skipped: Spans = ()  # (first, last), both included

    @property
    def accounted_offset(self) -> int:
        """Everything below is in files, or declared in one, or owed."""
        return min([self.next_offset, *(first for first, _ in self.skipped)])

    @property
    def live_offset(self) -> int:
        """First offset of the live records."""
        return self.ahead[-1][1] if self.ahead else self.next_offset

    @property
    def stop_offset(self) -> int | None:
        """End of the backlog, from which on records were drained already; None: the backlog has no end."""
        return self.ahead[0][0] if self.ahead else None

    def after(self, intent: WriteIntent) -> Cursor:
        """The cursor after the sink has this file. It may have been moved since the file was decided."""
        accounted = union((*intent.lost, *intent.skipped, (intent.first_offset, intent.last_offset)))
        cursor = replace(
            self,
            previous=None,
            earlier_lost=tuple(
                lost_range for lost_range in self.earlier_lost if lost_range not in intent.earlier_lost
            ),
            earlier_skipped=tuple(
                skipped_range
                for skipped_range in self.earlier_skipped
                if skipped_range not in intent.earlier_skipped
            ),
        )
        for first, last in accounted:
            cursor = cursor._accounting(first, last + 1)
        return cursor

    def _accounting(self, first: int, end: int) -> Cursor:
        """The cursor when first .. end is in files, or declared."""
        cursor = self._without_declaring(first, end - 1)
        if end <= self.next_offset:  # passed over meanwhile, or known already
            return cursor
        if first <= self.next_offset:
            return cursor.at(end)
        ahead = tuple((a, max(b, end) if a <= first <= b else b) for a, b in self.ahead)
        return replace(cursor, ahead=_merged(ahead))

    def _without_declaring(self, first: int, last: int) -> Cursor:
        """The cursor whose next file does not declare these offsets."""
        declared = [(first, last)]
        owed = tuple(subtract(union(self.owed), declared))
        skipped = tuple(subtract(union(self.skipped), declared))
        return replace(self, owed=owed, skipped=skipped)

    def holding(self, ranges: Iterable[tuple[int, int]]) -> Cursor:
        """The cursor when the sink has these ranges, (first, end). Offsets between them still wait."""
        cursor = replace(self, previous=None)
        for first, end in sorted(ranges):
            if first <= cursor.next_offset:
                cursor = cursor._accounting(first, end)
            else:
                cursor = replace(cursor, ahead=_merged(tuple(sorted((*cursor.ahead, (first, end))))))
        return cursor

    def at(self, offset: int) -> Cursor:
        """The cursor when nothing below `offset` is still to be drained."""
        ahead = self.ahead
        while ahead and offset >= ahead[0][0]:
            offset, ahead = max(offset, ahead[0][1]), ahead[1:]
        return replace(self, next_offset=offset, ahead=ahead)

    def split(self, at: int) -> Cursor:
        """The cursor with live records from `at`, the partition's end; records below become backlog."""
        if at <= self.live_offset or len(self.ahead) >= AHEAD_MAX:
            return self
        return replace(self, ahead=(*self.ahead, (at, at)))

    def lost_until(self, end: int) -> Cursor:
        """The cursor when offsets below `end` are lost. The next file declares them."""
        lost = (self.next_offset, end - 1)
        return replace(self.at(end), owed=(*self.owed, lost)) if lost[1] >= lost[0] else self

    def passed(self, end: int) -> Cursor:
        """The cursor when offsets below `end` are passed over; the next file declares them skipped."""
        drained = [(first, stop - 1) for first, stop in self.ahead if first < stop]
        skipped = subtract(list(_both_ends(self.next_offset, end)), drained)
        return replace(self.at(max(end, self.next_offset)), skipped=(*self.skipped, *skipped))

    def next_epoch(self, epoch: int, first: int, end: int) -> Cursor:
        """The cursor at the first offset of the next epoch.

        The present epoch ends at `end`, and none of its remaining records can be read.
        """
        end = max(end, self.next_offset)
        untouched = end == self.epoch_first_offset
        lost = (*self.owed, *_both_ends(self.next_offset, end))
        return Cursor(
            self.stream,
            self.partition,
            epoch,
            *(first, first),
            previous=self.previous if untouched and self.previous else (self.epoch, end),
            earlier_lost=(*self.earlier_lost, *((self.epoch, *lost_range) for lost_range in lost)),
            earlier_skipped=(
                *self.earlier_skipped,
                *((self.epoch, *skipped_range) for skipped_range in self.skipped),
            ),
        )

    def back(self, first: int) -> Cursor:
        """The cursor that drains again from `first` to its present offset; new records go first."""
        if first >= self.next_offset:
            return self
        begun = (self.next_offset, self.next_offset)
        ahead = self.ahead or (begun,)
        if self.ahead and self.ahead[0][0] > self.next_offset:
            ahead = (begun, *self.ahead)
        again = self._without_declaring(first, self.next_offset - 1)
        return replace(again, next_offset=first, ahead=ahead)


def _both_ends(first: int, end: int) -> Spans:
    return ((first, end - 1),) if end > first else ()


def _merged(ahead: Spans) -> Spans:
    """Ranges as in `ahead`, with touching ranges joined."""
    merged: list[tuple[int, int]] = []
    for first, end in ahead:
        if merged and first <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((first, end))
    return tuple(merged)
