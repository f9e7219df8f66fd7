"""Window: what one group has of one partition: handed out, acknowledged, to come again.  No I/O, no clock.

Offsets only.  Everything below `floor` is done; `done` has what is done above it; from `next` on nothing has
been handed out yet.  A record that no filter of the group matches is passed over: done, and in no member's
acknowledgement.  What lies between and is not done is in spans, each in one of three states:

    in flight    a member has it until due_s; then it comes again
    waiting      for due_s, and then for somebody to ask
    dead         handed out in vain tries_max times: to be put aside, and then done

Invariants: spans do not overlap, rise, and cover each offset of [floor, next) that is not done; next - floor
is at most records_max, and the spans are at most spans_max.

Two rules of order.  `ordered` (one member has the partition): what comes again takes everything behind it
along, so nothing overtakes it but what is done already; while it may not come yet, nothing does.  Otherwise
(a queue) what comes again comes when it is due, and new records do not wait for it.

The last try of a record is made with that record alone, so that one that kills who takes it does not take
others with it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from pyroaring import BitMap64

from edge.consumers.ack_history import REMEMBERED, AckHistory
from edge.consumers.offset_sets import first_absent, next_present, range_set, runs_of_set

__all__ = ["Counts", "Offer", "Rules", "Span", "TooManyRuns", "Tried", "Verdict", "Window"]

NEVER = float("inf")
CAUSE_CHARACTERS = 200  # of what is remembered
REFUSED_RUNS_MAX = 65_536  # that one verdict lists

Run = tuple[int, int]  # offset, count


@dataclass(frozen=True, slots=True)
class Rules:
    """Of a window.  Names as in the configuration file."""

    ordered: bool
    lease_s: float = 30.0  # how long a member has a record before it comes again
    tries_max: int = 5  # then it is dead; 0: never
    backoff_s: float = 0.1  # before the second try; doubled each time, up to
    backoff_max_s: float = 60.0
    records_max: int = 1_000_000  # between the floor and what is handed out next
    spans_max: int = 4_096


@dataclass(slots=True)
class Span:
    """Records first .. end - 1, but for those that are done."""

    first: int
    end: int
    tries: int  # in vain, so far
    due_s: float
    member: str | None = None  # who has it in flight
    cause: str = ""  # of the last try that was in vain
    dead: bool = False


class Tried(NamedTuple):
    """Records first .. end - 1, but for those that are done, were handed out in vain so often."""

    first: int
    end: int
    tries: int
    cause: str


class Offer(NamedTuple):
    """What may be handed out: records from `first` on, up to `end` if that is given, `limit` of them."""

    first: int
    end: int | None  # None: they are new; as many as there are
    limit: int
    tries: int


class Verdict(NamedTuple):
    """The answer to a member about records: how many count, and exactly those that do not."""

    accepted: int
    refused: int
    refused_runs: tuple[Run, ...]


class TooManyRuns(Exception):
    """A verdict would list more than REFUSED_RUNS_MAX runs; nothing has changed."""


@dataclass(slots=True)
class Counts:
    """What happened, in records."""

    delivered: int = 0  # each time counts
    redelivered: int = 0  # of them, not for the first time
    acked: int = 0
    refused: int = 0  # acknowledgements of what the member does not have (any more)
    expired: int = 0  # not acknowledged in time
    returned: int = 0  # given back by who had them
    dead: int = 0  # put aside
    lost: int = 0  # gone from memory and log before they were handed out
    passed: int = 0  # matched no filter of the group


class Window:
    """One group's view of one partition.  Times are seconds of a clock that never goes back.

    It goes on where an earlier one was: with what that had `done`, and had `tried` in vain.
    """

    def __init__(
        self, floor: int, rules: Rules, done: BitMap64 | None = None, tried: Iterable[Tried] = ()
    ) -> None:
        self.floor = floor
        self.next = floor
        self.done = BitMap64()
        self._fresh = BitMap64()  # done since take_changes()
        self._history = AckHistory(max(floor - REMEMBERED, 0))
        self.counts = Counts()
        self._rules = rules
        self._spans: list[Span] = []
        self._next_due_s: float | None = NEVER  # None: to be worked out
        self._idle_until_s = 0.0  # before it, nothing that waits is due; 0: look
        self._failed = False  # something was tried in vain since take_tried()
        if done:
            self.done |= done
            self.done.remove_range(0, floor)
        again = sorted(it for it in tried if it.end > floor)
        self.next = max(floor, self.done.max() + 1 if self.done else 0, *(it.end for it in again))
        if self.next > floor:
            self._spans = self._come_again(again)
            self._trim()

    # ---- looking ----

    @property
    def spans(self) -> tuple[Span, ...]:
        """A copy of the list, not of the spans."""
        return tuple(self._spans)

    def in_flight(self, member: str | None = None) -> int:
        """Records that `member` has, or that anybody has."""
        return sum(
            self._open(it.first, it.end)
            for it in self._spans
            if it.member is not None and member in {None, it.member}
        )

    def in_flight_by_member(self) -> Counter[str]:
        """Records that each member has."""
        found: Counter[str] = Counter()
        for it in self._spans:
            if it.member is not None:
                found[it.member] += self._open(it.first, it.end)
        return found

    def has_in_flight(self, member: str) -> bool:
        """Whether `member` has any."""
        return any(it.member == member for it in self._spans)

    def undone(self, end: int) -> int:
        """How many records below `end` (where the partition ends) are not done: the lag."""
        return max(end - self.floor - self.done.range_cardinality(self.floor, max(end, self.floor)), 0)

    def missing(self, first: int, end: int) -> list[tuple[int, int]]:
        """(offset, count) of each run of [first, end) that is not done."""
        runs = []
        at = first_absent(self.done, first, end)
        while at < end:
            stop = min(next_present(self.done, at), end)
            runs.append((at, stop - at))
            at = first_absent(self.done, stop, end)
        return runs

    def done_of(self, first: int, end: int) -> BitMap64:
        """Which of first .. end - 1 are done."""
        return (self.done & range_set(first, end)) | range_set(first, min(max(self.floor, first), end))

    def next_due_s(self) -> float:
        """When expire() has something to do."""
        if self._next_due_s is None:
            self._next_due_s = min((it.due_s for it in self._spans if it.member is not None), default=NEVER)
        return self._next_due_s

    def waits_until_s(self, now_s: float) -> float:
        """When what waits becomes due; infinite when nothing does, or it is due already."""
        return min((it.due_s for it in self._spans if _waits(it) and it.due_s > now_s), default=NEVER)

    # ---- handing out ----

    def offer(self, now_s: float) -> Offer | None:
        """What may be handed out now.  None: nothing, until acknowledgements or time change that."""
        span = self._due(now_s)
        if span is not None:
            last = bool(self._rules.tries_max) and span.tries == self._rules.tries_max - 1 and span.tries > 0
            return Offer(span.first, span.end, 1 if last else span.end - span.first, span.tries)
        room = self._rules.records_max - (self.next - self.floor)
        if room <= 0 or len(self._spans) >= self._rules.spans_max:
            return None
        if self._rules.ordered and any(map(_waits, self._spans)):
            return None
        return Offer(self.next, None, room, 0)

    def deliver(self, first: int, end: int, member: str, now_s: float, passed: BitMap64 | None = None) -> int:
        """`member` has the records first .. end - 1 of an offer from now on, but for those that are done, and
        those in `passed`, which no filter matches: how many.
        """
        assert first < end
        due_s = now_s + self._rules.lease_s
        again = first != self.next
        if not again:
            self._spans.append(Span(first, end, 0, due_s, member))
            self.next = end
        else:
            index = self._find(first)
            span = self._spans[index]
            assert _waits(span)
            assert span.first == first
            assert end <= span.end
            taken = Span(first, end, span.tries, due_s, member, span.cause)
            rest = [Span(end, span.end, span.tries, span.due_s, None, span.cause)] if end < span.end else []
            self._spans[index : index + 1] = [taken, *rest]
        if passed:
            self._pass_over(passed)
        count = self._open(first, end)
        if again or passed:
            self._trim()
        self._changed()
        self.counts.delivered += count
        self.counts.redelivered += count if again else 0
        return count

    def _pass_over(self, offsets: BitMap64) -> None:
        passed = offsets - self.done
        self.counts.passed += len(passed)
        self._history.passed |= passed
        self.done |= passed
        self._fresh |= passed

    def skip(self, first: int, end: int) -> None:
        """Records first .. end - 1 are gone for good: nobody will see them."""
        if first == self.next:
            self._spans.append(Span(first, end, 0, 0.0))
            self.next = end
        lost = self._open(first, end)
        self._finish(first, end)
        self.counts.lost += lost

    # ---- what becomes of it ----

    def ack(
        self, runs: Iterable[Run], member: str, *, author: str = "", whoever_did: bool = False
    ) -> Verdict:
        """The records of each run are done, says `member`.  Accepted are those that it has, those that wait
        to come again, and those that it did before; `author` is its name in that history.

        Refused: another member has or did them, they are dead letters, or were never handed out.  With
        `whoever_did` records that are done are not refused.  Runs must be disjoint and rising, and may run
        over records that were passed over.  Raises TooManyRuns.
        """
        asked, outside = self._known_part(runs)
        mine = self._spans_of(asked, lambda it: it.member in {None, member} and not it.dead)
        author = author or member
        accepted = mine | (self._history.of(author) & asked)
        refused = asked - accepted - self._history.passed
        if whoever_did:
            refused -= self.done
            refused.remove_range(0, self.floor)
        verdict = _verdict(accepted, refused, outside)
        self.counts.acked += len(mine)
        self.counts.refused += verdict.refused
        self.done |= mine
        self._fresh |= mine
        self._history.add(author, mine)
        self._trim()
        return verdict

    def held(self, runs: Iterable[Run], member: str) -> Verdict:
        """Which of these records `member` has: those it may give back.  Raises TooManyRuns."""
        asked, outside = self._known_part(runs)
        held = self._spans_of(asked, lambda it: it.member == member)
        return _verdict(held, asked - held - self._history.passed, outside)

    def _known_part(self, runs: Iterable[Run]) -> tuple[BitMap64, list[Run]]:
        """Offsets of these runs of which something is known, and the runs outside of that."""
        asked, outside, low = BitMap64(), [], min(self._history.first, self.next)
        for offset, count in runs:
            end = offset + count
            first, stop = max(offset, low), min(end, self.next)
            if offset < low:
                outside.append((offset, min(end, low) - offset))
            if first < stop:
                asked.add_range(first, stop)
            if end > self.next:
                outside.append((max(offset, self.next), end - max(offset, self.next)))
        return asked, outside

    def _spans_of(self, asked: BitMap64, is_meant: Callable[[Span], bool]) -> BitMap64:
        """Offsets that are asked for, in spans that are meant, and not done."""
        found = BitMap64()
        if asked and asked.max() >= self.floor:
            for it in self._between(max(asked.min(), self.floor), asked.max() + 1):
                if is_meant(it):
                    found.add_range(it.first, it.end)
            found &= asked
            found -= self.done
        return found

    def give_back(
        self,
        runs: Iterable[tuple[int, int]],
        member: str,
        now_s: float,
        delay_s: float | None,
        cause: str = "",
        *,
        counts: bool = True,
    ) -> int:
        """`member` does not want the records of each run (offset, count): how many come again, after
        `delay_s`, or, None, after a time that grows with each try.

        `counts`: as a try in vain.  Ordered, everything behind them comes again as well.
        """
        returned, lowest = 0, NEVER
        for offset, count in runs:
            first, end = max(offset, self.floor), min(offset + count, self.next)
            for it in [it for it in self._between(first, end) if it.member == member] if first < end else ():
                a, b = max(first, it.first), min(end, it.end)
                if not self._open(a, b):
                    continue  # done before: nothing comes again, and nothing behind it either
                if len(self._spans) + 2 > self._rules.spans_max:
                    a, b = it.first, it.end  # no room for pieces: all of it
                returned += self._open(a, b)
                lowest = min(lowest, a)
                self._fail(self._split(it, a, b), now_s, cause, counts=counts, delay_s=delay_s)
        if lowest < NEVER and self._rules.ordered:
            self._rewind(int(lowest))
        self.counts.returned += returned
        self._settle()
        return returned

    def drop_member(self, member: str, now_s: float, cause: str, *, counts: bool) -> None:
        """`member` has left, or died (which counts as a try): what it had comes again, at once."""
        lowest = NEVER
        for it in self._spans:
            if it.member == member:
                lowest = min(lowest, it.first)
                self._fail(it, now_s, cause, counts=counts, delay_s=0.0)
        if lowest < NEVER and self._rules.ordered:
            self._rewind(int(lowest))
        self._settle()

    def expire(self, now_s: float) -> int:
        """Takes back what was not acknowledged in time: how many records."""
        if self.next_due_s() > now_s:
            return 0
        expired, lowest = 0, NEVER
        for it in self._spans:
            if it.member is not None and it.due_s <= now_s:
                expired += self._open(it.first, it.end)
                lowest = min(lowest, it.first)
                self._fail(it, now_s, "not acknowledged in time", counts=True, delay_s=None)
        if lowest < NEVER and self._rules.ordered:
            self._rewind(int(lowest))
        self.counts.expired += expired
        self._settle()
        return expired

    def extend(self, member: str, now_s: float) -> None:
        """`member` is still at work on all it has: its leases begin anew."""
        for it in self._spans:
            if it.member == member:
                it.due_s = now_s + self._rules.lease_s
        self._changed()

    def take_changes(self) -> BitMap64 | None:
        """What is done above the floor that was not when this was asked before; None: nothing is, at all."""
        if not self._fresh:
            return None
        fresh, self._fresh = self._fresh, BitMap64()
        fresh.remove_range(0, self.floor)
        return fresh

    @property
    def tried(self) -> list[Tried]:
        """What was handed out in vain and is not done."""
        return [Tried(it.first, it.end, it.tries, it.cause) for it in self._spans if it.tries]

    def take_tried(self) -> list[Tried] | None:
        """`tried`, if more was in vain since this was asked before; else None."""
        if not self._failed:
            return None
        self._failed = False
        return self.tried

    def dead(self) -> list[Span]:
        """What has been tried often enough."""
        return [it for it in self._spans if it.dead]

    def bury(self, first: int, end: int) -> None:
        """The dead records first .. end - 1 have been put aside."""
        self.counts.dead += self._open(first, end)
        self._finish(first, end)

    # ---- inside ----

    def _due(self, now_s: float) -> Span | None:
        """What waits and may be handed out: the first such span."""
        if self._rules.ordered:
            span = next((it for it in self._spans if _waits(it)), None)
            return span if span is not None and span.due_s <= now_s else None
        if now_s < self._idle_until_s:
            return None
        span = next((it for it in self._spans if _waits(it) and it.due_s <= now_s), None)
        if span is None:
            self._idle_until_s = self.waits_until_s(now_s)
        return span

    def _fail(self, it: Span, now_s: float, cause: str, *, counts: bool, delay_s: float | None) -> None:
        """Lets a span wait again, or declares it dead.  `delay_s` None: as the number of tries says."""
        rules = self._rules
        it.member, it.cause = None, cause[:CAUSE_CHARACTERS] or it.cause
        it.tries += counts
        self._failed |= counts
        it.dead = self._is_dead(it.tries)
        backoff_s = min(rules.backoff_s * 2.0 ** min(max(it.tries - 1, 0), 60), rules.backoff_max_s)
        it.due_s = now_s + (backoff_s if delay_s is None else delay_s)

    def _is_dead(self, tries: int) -> bool:
        return 0 < self._rules.tries_max <= tries

    def _come_again(self, tried: Iterable[Tried]) -> list[Span]:
        """Spans over all from the floor to `next`: at once, those that were tried with their tries."""
        spans, at = [], self.floor
        for first, end, tries, cause in tried:
            if at < first:
                spans.append(Span(at, first, 0, 0.0))
            if max(at, first) < end:
                spans.append(Span(max(at, first), end, tries, 0.0, None, cause, self._is_dead(tries)))
            at = max(at, end)
        return [*spans, Span(at, self.next, 0, 0.0)] if at < self.next else spans

    def _rewind(self, first: int) -> None:
        """What is in flight behind `first` comes again after it, which is no try in vain."""
        for it in self._spans:
            if it.first >= first and it.member is not None:
                it.member, it.due_s = None, 0.0

    def _finish(self, first: int, end: int) -> None:
        self.done.add_range(first, end)
        self._fresh.add_range(first, end)
        self._trim()

    def _split(self, it: Span, a: int, b: int) -> Span:
        """Makes a .. b a span of its own, of `it`, which holds it."""
        index = self._find(it.first)
        middle = replace(it, first=a, end=b)
        before = [replace(it, end=a)] if it.first < a else []
        behind = [replace(it, first=b)] if b < it.end else []
        self._spans[index : index + 1] = [*before, middle, *behind]
        return middle

    def _settle(self) -> None:
        """Joins neighbours that wait alike, so that pieces do not add up."""
        self._trim()
        joined: list[Span] = []
        for it in self._spans:
            before = joined[-1] if joined else None
            if (
                before is not None
                and _waits(before)
                and _waits(it)
                and (before.tries, before.due_s, before.cause) == (it.tries, it.due_s, it.cause)
                and first_absent(self.done, before.end, it.first) == it.first  # nothing open between them
            ):
                before.end = it.end
            else:
                joined.append(it)
        self._spans = joined

    def _trim(self) -> None:
        """Drops what is done from the ends of the spans, and raises the floor."""
        kept = []
        for it in self._spans:
            it.first = first_absent(self.done, it.first, it.end)
            if it.first < it.end:
                kept.append(it)
        self._spans = kept
        self.floor = kept[0].first if kept else self.next
        self.done.remove_range(0, self.floor)
        self._history.forget_below(self.floor - REMEMBERED)
        self._changed()

    def _changed(self) -> None:
        self._next_due_s = None
        self._idle_until_s = 0.0

    def _open(self, first: int, end: int) -> int:
        """Records of [first, end), at or above the floor, that are not done."""
        first = max(first, self.floor)
        return end - first - self.done.range_cardinality(first, end) if first < end else 0

    def _find(self, offset: int) -> int:
        """The index of the span that holds `offset`."""
        return bisect_right(self._spans, offset, key=lambda it: it.first) - 1

    def _between(self, first: int, end: int) -> list[Span]:
        begin = max(self._find(first), 0)
        stop = bisect_right(self._spans, end - 1, key=lambda it: it.first)
        return [it for it in self._spans[begin:stop] if it.end > first]


def _waits(it: Span) -> bool:
    return it.member is None and not it.dead


def _verdict(accepted: BitMap64, refused: BitMap64, outside: list[Run]) -> Verdict:
    runs = sorted([*islice(runs_of_set(refused), REFUSED_RUNS_MAX + 1), *outside])
    if len(runs) > REFUSED_RUNS_MAX:
        raise TooManyRuns
    return Verdict(len(accepted), len(refused) + sum(count for _, count in outside), tuple(runs))
