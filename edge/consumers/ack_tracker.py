"""Ack tracker: the state of one partition in one group: delivered, acknowledged, waiting. No I/O, no clock.

Offsets only. Everything below `floor` is done; `done` has the offsets done above it; from `next` on nothing
was delivered yet. A record that no filter of the group matches is passed over: done, but acknowledged by no
member. The offsets between that are not done are in spans, each in one of three states:

    in flight    a member has it until due_s; then it waits again
    waiting      until due_s, and then for a member's fetch
    dead         delivered tries_max times without acknowledgement: to become a dead letter, and then done

Invariants: spans do not overlap, are ascending, and cover each offset of [floor, next) that is not done. next
- floor is at most records_max, and the number of spans at most spans_max.

Order. In `ordered` groups (one member has the partition) a repeated record brings back everything behind it,
so that only records that are done already overtake it; while it must wait, nothing is delivered. In a queue a
repeated record comes when it is due, and new records do not wait for it.

The last try of a record delivers only that record, so that a record that kills its consumer does not affect
others.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from pyroaring import BitMap64

from edge.consumers.ack_history import REMEMBERED, AckHistory
from edge.consumers.offset_sets import first_absent, next_present, range_set, runs_of_set

NEVER = float("inf")
CAUSE_CHARACTERS = 200  # of a stored cause
REFUSED_RUNS_MAX = 65_536  # listed in one verdict

Run = tuple[int, int]  # offset, count


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules of an ack tracker. Names as in the configuration file."""

    ordered: bool
    lease_s: float = 30.0  # time until a delivered record waits again
    tries_max: int = 5  # then it is dead; 0: never
    backoff_s: float = 0.1  # before the second try; doubled each time
    backoff_max_s: float = 60.0
    records_max: int = 1_000_000  # between the floor and the next new record
    spans_max: int = 4_096


@dataclass(slots=True)
class Span:
    """Records first .. end - 1, without those that are done."""

    first: int
    end: int
    tries: int  # failed ones so far
    due_s: float
    member: str | None = None  # member that has it in flight
    cause: str = ""  # cause of the last failed try
    dead: bool = False


class Tried(NamedTuple):
    """Failed tries of the records first .. end - 1, without those that are done."""

    first: int
    end: int
    tries: int
    cause: str


class Offer(NamedTuple):
    """Records that may be delivered: from `first` on, up to `end` if set, at most `limit`."""

    first: int
    end: int | None  # None: new records, as many as there are
    limit: int
    tries: int


class Verdict(NamedTuple):
    """Result of a request about records: the number accepted, and the exact refused runs."""

    accepted: int
    refused: int
    refused_runs: tuple[Run, ...]


class TooManyRuns(Exception):
    """A verdict would list more than REFUSED_RUNS_MAX runs; nothing has changed."""


@dataclass(slots=True)
class Counts:
    """Counters, in records."""

    delivered: int = 0  # each delivery counts
    redelivered: int = 0  # those of them after the first delivery
    acked: int = 0
    refused: int = 0  # acknowledgements of records that the member does not have (any more)
    expired: int = 0  # not acknowledged in time
    returned: int = 0  # given back by their member
    dead: int = 0  # became dead letters
    lost: int = 0  # gone from memory and log before their delivery
    passed: int = 0  # matched no filter of the group


class AckTracker:
    """One group's view of one partition. Times are seconds of a clock that never goes back.

    It continues from the stored state of an earlier one: `done`, and `tried` without success.
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
        self._next_due_s: float | None = NEVER  # None: must be computed
        self._idle_until_s = 0.0  # no waiting span is due before; 0: unknown
        self._in_flight: Counter[str] | None = None  # None: must be computed
        self._failed = False  # a try has failed since take_tried()
        if done:
            self.done |= done
            self.done.remove_range(0, floor)
        again = sorted(span for span in tried if span.end > floor)
        self.next = max(floor, self.done.max() + 1 if self.done else 0, *(span.end for span in again))
        if self.next > floor:
            self._spans = self._stored_spans(again)
            self._trim()

    # ---- state ----

    @property
    def spans(self) -> tuple[Span, ...]:
        """A copy of the list, not of the spans."""
        return tuple(self._spans)

    def in_flight(self, member: str | None = None) -> int:
        """Number of records that `member` has; None: all members."""
        counts = self.in_flight_by_member()
        return counts.total() if member is None else counts[member]

    def in_flight_by_member(self) -> Counter[str]:
        """Number of records of each member; do not change it."""
        if self._in_flight is None:
            self._in_flight = Counter()
            for span in self._spans:
                if span.member is not None:
                    self._in_flight[span.member] += self._open(span.first, span.end)
        return self._in_flight

    def has_in_flight(self, member: str) -> bool:
        """True if `member` has any records."""
        return any(span.member == member for span in self._spans)

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
        """The offsets of first .. end - 1 that are done."""
        return (self.done & range_set(first, end)) | range_set(first, min(max(self.floor, first), end))

    def next_due_s(self) -> float:
        """Time at which expire() has work."""
        if self._next_due_s is None:
            self._next_due_s = min(
                (span.due_s for span in self._spans if span.member is not None), default=NEVER
            )
        return self._next_due_s

    def waits_until_s(self, now_s: float) -> float:
        """Time at which the next waiting span becomes due; infinite if none will."""
        return min((span.due_s for span in self._spans if _waits(span) and span.due_s > now_s), default=NEVER)

    # ---- delivery ----

    def offer(self, now_s: float) -> Offer | None:
        """Records that may be delivered now. None: none, until acknowledgements or time change that."""
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
        """Give `member` the records first .. end - 1 of an offer. Returns their number.

        Records that are done, and those in `passed`, which no filter matches, are left out.
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
        """Mark records first .. end - 1 as lost: they no longer exist."""
        if first == self.next:
            self._spans.append(Span(first, end, 0, 0.0))
            self.next = end
        lost = self._open(first, end)
        self._finish(first, end)
        self.counts.lost += lost

    # ---- results ----

    def ack(
        self, runs: Sequence[Run], member: str, *, author: str = "", accept_done: bool = False
    ) -> Verdict:
        """Acknowledge the records of each run for `member`.

        Accepted are records that it has, waiting ones, and those that it did before; `author` is its name in
        that history. Refused are records that another member has or did, dead letters, and those never
        delivered. With `accept_done` records that are done are not refused. Runs must be disjoint and
        ascending, and may include records that were passed over. Raises TooManyRuns.
        """
        requested, outside = self._known_part(runs)
        mine = self._spans_of(requested, lambda span: span.member in {None, member} and not span.dead)
        author = author or member
        accepted = mine | (self._history.of(author) & requested)
        refused = requested - accepted - self._history.passed
        if accept_done:
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

    def returnable(self, runs: Sequence[Run], member: str) -> Verdict:
        """Verdict on the records that `member` has and may give back. Raises TooManyRuns."""
        requested, outside = self._known_part(runs)
        returnable = self._spans_of(requested, lambda span: span.member == member)
        return _verdict(returnable, requested - returnable - self._history.passed, outside)

    def _known_part(self, runs: Sequence[Run]) -> tuple[BitMap64, list[Run]]:
        """Known offsets of these runs, and the runs outside of the known part."""
        low = min(self._history.first, self.next)
        begin = max(bisect_left(runs, (low,)) - 1, 0)  # earlier runs end below `low`
        behind = bisect_left(runs, (self.next,))
        known, outside = list(runs[begin:behind]), [*runs[:begin], *runs[behind:]]
        for index in {0, len(known) - 1} if known else ():  # only these may reach beyond the known part
            offset, count = known[index]
            end = offset + count
            if offset < low:
                outside.append((offset, min(end, low) - offset))
            if end > self.next:
                outside.append((self.next, end - self.next))
            known[index] = max(offset, low), min(end, self.next) - max(offset, low)
        requested = BitMap64()
        for offset, count in known:
            if count > 0:
                requested.add_range(offset, offset + count)
        return requested, outside

    def _spans_of(self, requested: BitMap64, is_meant: Callable[[Span], bool]) -> BitMap64:
        """Requested offsets that are not done, in spans for which `is_meant` returns True."""
        offsets = BitMap64()
        if requested and requested.max() >= self.floor:
            for span in self._between(max(requested.min(), self.floor), requested.max() + 1):
                if is_meant(span):
                    offsets.add_range(span.first, span.end)
            offsets &= requested
            offsets -= self.done
        return offsets

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
        """Give records of each run (offset, count) of `member` back. Returns the number that comes again.

        They come again after `delay_s`, or, None, after a time that grows with each try. `counts`: True for a
        failed try. In ordered groups everything behind them comes again as well. Without room for more spans
        neighbours come again too; then none of them has failed.
        """
        given: list[Span] = []
        for offset, count in runs:
            first, end = max(offset, self.floor), min(offset + count, self.next)
            for span in (
                [span for span in self._between(first, end) if span.member == member] if first < end else ()
            ):
                a, b = max(first, span.first), min(end, span.end)
                if not self._open(a, b):
                    continue  # done before: neither it nor anything behind it comes again
                fails = counts
                if len(self._spans) + 2 > self._rules.spans_max:  # no room for pieces: the whole span
                    fails &= self._open(a, b) == self._open(span.first, span.end)
                    a, b = span.first, span.end
                given.append(self._split(span, a, b))
                self._fail(given[-1], now_s, cause, counts=fails, delay_s=delay_s)
        returned = self._come_again(given)
        self.counts.returned += returned
        return returned

    def drop_member(self, member: str, now_s: float, cause: str, *, counts: bool) -> None:
        """Give back all records of a member that has left, or died (`counts`: a failed try), at once."""
        held = [span for span in self._spans if span.member == member]
        for span in held:
            self._fail(span, now_s, cause, counts=counts, delay_s=0.0)
        self._come_again(held)

    def expire(self, now_s: float) -> int:
        """Take back records that were not acknowledged in time. Returns their number."""
        if self.next_due_s() > now_s:
            return 0
        late = [span for span in self._spans if span.member is not None and span.due_s <= now_s]
        for span in late:
            self._fail(span, now_s, "not acknowledged in time", counts=True, delay_s=None)
        expired = self._come_again(late)
        self.counts.expired += expired
        return expired

    def extend(self, member: str, now_s: float) -> None:
        """Start the leases of all records of `member` again."""
        for span in self._spans:
            if span.member == member:
                span.due_s = now_s + self._rules.lease_s
        self._changed()

    def take_changes(self) -> BitMap64 | None:
        """Offsets above the floor that were done since the last call; None if none were."""
        if not self._fresh:
            return None
        fresh, self._fresh = self._fresh, BitMap64()
        fresh.remove_range(0, self.floor)
        return fresh

    @property
    def tried(self) -> list[Tried]:
        """Failed tries of the records that are not done."""
        return [Tried(span.first, span.end, span.tries, span.cause) for span in self._spans if span.tries]

    def take_tried(self) -> list[Tried] | None:
        """`tried`, if a try has failed since the last call; otherwise None."""
        if not self._failed:
            return None
        self._failed = False
        return self.tried

    def change_rules(self, rules: Rules) -> None:
        """Use these rules from now on. Leases that run keep their end; waiting records may be dead now."""
        self._rules = rules
        for span in self._spans:
            span.dead |= span.member is None and self._is_dead(span.tries)
        self._changed()

    def dead(self) -> list[Span]:
        """Spans that have reached tries_max."""
        return [span for span in self._spans if span.dead]

    def bury(self, first: int, end: int) -> None:
        """Mark records first .. end - 1 as done: their dead letters are stored."""
        self.counts.dead += self._open(first, end)
        self._finish(first, end)

    # ---- internals ----

    def _due(self, now_s: float) -> Span | None:
        """The first waiting span that may be delivered now."""
        if self._rules.ordered:
            span = next((span for span in self._spans if _waits(span)), None)
            return span if span is not None and span.due_s <= now_s else None
        if now_s < self._idle_until_s:
            return None
        span = next((span for span in self._spans if _waits(span) and span.due_s <= now_s), None)
        if span is None:
            self._idle_until_s = self.waits_until_s(now_s)
        return span

    def _fail(self, span: Span, now_s: float, cause: str, *, counts: bool, delay_s: float | None) -> None:
        """Make a span wait again, or declare it dead. `delay_s` None: by the number of tries."""
        rules = self._rules
        span.member, span.cause = None, cause[:CAUSE_CHARACTERS] or span.cause
        span.tries += counts
        self._failed |= counts
        span.dead = self._is_dead(span.tries)
        backoff_s = min(rules.backoff_s * 2.0 ** min(max(span.tries - 1, 0), 60), rules.backoff_max_s)
        span.due_s = now_s + (backoff_s if delay_s is None else delay_s)

    def _is_dead(self, tries: int) -> bool:
        return 0 < self._rules.tries_max <= tries

    def _stored_spans(self, tried: Iterable[Tried]) -> list[Span]:
        """Spans over everything from the floor to `next`, due at once, with the tries of `tried`."""
        spans, at = [], self.floor
        for first, end, tries, cause in tried:
            if at < first:
                spans.append(Span(at, first, 0, 0.0))
            if max(at, first) < end:
                spans.append(Span(max(at, first), end, tries, 0.0, None, cause, self._is_dead(tries)))
            at = max(at, end)
        return [*spans, Span(at, self.next, 0, 0.0)] if at < self.next else spans

    def _come_again(self, failed: list[Span]) -> int:
        """Let the records of failed spans come again, and return their number.

        In ordered groups everything in flight behind them comes again as well; that is not a failed try.
        """
        count = sum(self._open(span.first, span.end) for span in failed)
        if self._rules.ordered and failed:
            lowest = min(span.first for span in failed)
            for span in self._spans:
                if span.first >= lowest and span.member is not None:
                    span.member, span.due_s = None, 0.0
        self._join_spans()
        return count

    def _finish(self, first: int, end: int) -> None:
        self.done.add_range(first, end)
        self._fresh.add_range(first, end)
        self._trim()

    def _split(self, span: Span, a: int, b: int) -> Span:
        """Cut the part a .. b out of `span` as a separate span."""
        index = self._find(span.first)
        middle = replace(span, first=a, end=b)
        before = [replace(span, end=a)] if span.first < a else []
        behind = [replace(span, first=b)] if b < span.end else []
        self._spans[index : index + 1] = [*before, middle, *behind]
        return middle

    def _join_spans(self) -> None:
        """Merge neighbours with equal state, so that the number of spans stays small."""
        self._trim()
        joined: list[Span] = []
        for span in self._spans:
            before = joined[-1] if joined else None
            if (
                before is not None
                and _waits(before)
                and _waits(span)
                and (before.tries, before.due_s, before.cause) == (span.tries, span.due_s, span.cause)
                # every offset between them is done
                and first_absent(self.done, before.end, span.first) == span.first
            ):
                before.end = span.end
            else:
                joined.append(span)
        self._spans = joined

    def _trim(self) -> None:
        """Remove done offsets from the ends of spans, and raise the floor."""
        spans = []
        for span in self._spans:
            span.first = first_absent(self.done, span.first, span.end)
            if span.first < span.end:
                spans.append(span)
        self._spans = spans
        self.floor = spans[0].first if spans else self.next
        self.done.remove_range(0, self.floor)
        self._history.forget_below(self.floor - REMEMBERED)
        self._changed()

    def _changed(self) -> None:
        self._next_due_s = None
        self._idle_until_s = 0.0
        self._in_flight = None

    def _open(self, first: int, end: int) -> int:
        """Number of records of [first, end), at or above the floor, that are not done."""
        first = max(first, self.floor)
        return end - first - self.done.range_cardinality(first, end) if first < end else 0

    def _find(self, offset: int) -> int:
        """Index of the span that holds `offset`."""
        return bisect_right(self._spans, offset, key=lambda span: span.first) - 1

    def _between(self, first: int, end: int) -> list[Span]:
        begin = max(self._find(first), 0)
        stop = bisect_right(self._spans, end - 1, key=lambda span: span.first)
        return [span for span in self._spans[begin:stop] if span.end > first]


def _waits(span: Span) -> bool:
    return span.member is None and not span.dead


def _verdict(accepted: BitMap64, refused: BitMap64, outside: list[Run]) -> Verdict:
    runs = sorted([*islice(runs_of_set(refused), REFUSED_RUNS_MAX + 1), *outside])
    if len(runs) > REFUSED_RUNS_MAX:
        raise TooManyRuns
    return Verdict(len(accepted), len(refused) + sum(count for _, count in outside), tuple(runs))
