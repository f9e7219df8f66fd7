"""Where draining stands in one partition.  Plain arithmetic on offsets; nothing here reads or sends.

    accounted_offset   everything below is in files, or declared lost or skipped in one
    next_offset        the first that is still wanted; from accounted_offset to here is passed over on purpose
    ahead              ranges behind next_offset that have been drained already, because what comes in now
                       goes before what has waited: the last of them grows with the partition, the others are
                       left from outages within outages
    owed               ranges that are lost, which the next unit will declare
    earlier_...        what was owed, or passed over and not declared yet, when the epoch before ended

        accounted   next                 ahead[0]          ahead[1]
    ────────┬─────────┬────────────────────┬───────┬─────────┬────────┬─────▶ offsets
    drained │ skipped │      backlog       │drained│ backlog │drained │ live

Invariant: ahead rises, does not touch, and lies above next_offset.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from bridge.drained import EarlierRanges
from bridge.unit import Intent

__all__ = ["AHEAD_MOST", "Cursor", "joined"]

Spans: TypeAlias = tuple[tuple[int, int], ...]

AHEAD_MOST = 8  # outages within outages; after that what waits is drained in its order


@dataclass(frozen=True, slots=True)
class Cursor:
    """See above.  `previous`: see drained.Footer; it is waiting for the next unit."""

    stream: str
    partition: int
    epoch: int
    epoch_first_offset: int
    accounted_offset: int
    next_offset: int
    previous: tuple[int, int] | None = None
    ahead: Spans = ()  # (first, end), the end not included
    owed: Spans = ()  # (first, last), both included, as in footers
    earlier_lost: EarlierRanges = ()
    earlier_skipped: EarlierRanges = ()

    @property
    def live_offset(self) -> int:
        """From where what comes in now is drained."""
        return self.ahead[-1][1] if self.ahead else self.next_offset

    @property
    def stop_offset(self) -> int | None:
        """Where the backlog ends because it has been drained from there on; None: it has no end."""
        return self.ahead[0][0] if self.ahead else None

    def after(self, intent: Intent) -> Cursor:
        """When the sink has this unit, which may have been decided on before somebody moved the cursor."""
        owed = tuple(it for it in self.owed if not any(a <= it[0] and it[1] <= b for a, b in intent.lost))
        cursor = replace(
            self,
            previous=None,
            owed=owed,
            earlier_lost=tuple(it for it in self.earlier_lost if it not in intent.earlier_lost),
            earlier_skipped=tuple(it for it in self.earlier_skipped if it not in intent.earlier_skipped),
        )
        accounted = (*intent.lost, *intent.skipped, (intent.first_offset, intent.last_offset))
        for first, last in joined(accounted):
            cursor = cursor._accounting(first, last + 1)
        return cursor

    def _accounting(self, first: int, end: int) -> Cursor:
        """When first .. end is in files, or declared."""
        if end <= self.next_offset:  # passed over meanwhile, or known already
            known = (
                max(self.accounted_offset, end) if first <= self.accounted_offset else self.accounted_offset
            )
            return replace(self, accounted_offset=known)
        if first <= self.next_offset:
            return self.at(end)
        ahead = tuple((a, max(b, end) if a <= first <= b else b) for a, b in self.ahead)
        return replace(self, ahead=_merged(ahead))

    def holding(self, ranges: Iterable[tuple[int, int]]) -> Cursor:
        """When the sink turns out to have these, (first, end): what it has not between them waits still."""
        cursor = replace(self, previous=None)
        for first, end in sorted(ranges):
            if first <= cursor.next_offset:
                cursor = cursor._accounting(first, end)
            else:
                cursor = replace(cursor, ahead=_merged(tuple(sorted((*cursor.ahead, (first, end))))))
        return cursor

    def at(self, offset: int) -> Cursor:
        """When everything below `offset` is accounted for."""
        ahead = self.ahead
        while ahead and offset >= ahead[0][0]:
            offset, ahead = max(offset, ahead[0][1]), ahead[1:]
        return replace(self, accounted_offset=offset, next_offset=offset, ahead=ahead)

    def split(self, at: int) -> Cursor:
        """From `at`, the end of the partition, on what comes in is live; what is below waits its turn."""
        if at <= self.live_offset or len(self.ahead) >= AHEAD_MOST:
            return self
        return replace(self, ahead=(*self.ahead, (at, at)))

    def gone(self, end: int) -> Cursor:
        """What is wanted below `end` can never be drained: the next unit declares it."""
        lost = (self.next_offset, end - 1)
        return replace(self.at(end), owed=(*self.owed, lost)) if lost[1] >= lost[0] else self

    def passed(self, end: int) -> Cursor:
        """What is wanted below `end` shall not be drained: the next unit declares it skipped."""
        return replace(self.at(max(end, self.next_offset)), accounted_offset=self.accounted_offset)

    def next_epoch(self, epoch: int, first: int, end: int) -> Cursor:
        """At the begin of an epoch, when of this one nothing more can be read below `end`, where it ends."""
        end = max(end, self.next_offset)
        untouched = end == self.epoch_first_offset
        lost = (*self.owed, *_both_ends(self.next_offset, end))
        skipped = _both_ends(self.accounted_offset, self.next_offset)
        return Cursor(
            self.stream,
            self.partition,
            epoch,
            *(first, first, first),
            previous=self.previous if untouched and self.previous else (self.epoch, end),
            earlier_lost=(*self.earlier_lost, *((self.epoch, *it) for it in lost)),
            earlier_skipped=(*self.earlier_skipped, *((self.epoch, *it) for it in skipped)),
        )

    def back(self, first: int) -> Cursor:
        """Drain again from `first` up to where this partition stands; what comes in meanwhile goes before."""
        if first >= self.next_offset:
            return self
        begun = (self.next_offset, self.next_offset)
        ahead = self.ahead or (begun,)
        if self.ahead and self.ahead[0][0] > self.next_offset:
            ahead = (begun, *self.ahead)
        accounted = min(self.accounted_offset, first)  # what is passed over below stays to be declared
        return replace(self, accounted_offset=accounted, next_offset=first, ahead=ahead)


def _both_ends(first: int, end: int) -> Spans:
    return ((first, end - 1),) if end > first else ()


def _merged(ahead: Spans) -> Spans:
    """Ranges as in `ahead`, those that touch as one."""
    found: list[tuple[int, int]] = []
    for first, end in ahead:
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((first, end))
    return tuple(found)


def joined(ranges: Iterable[tuple[int, int]]) -> Spans:
    """Ranges with both ends included, neighbours as one."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return tuple(found)
