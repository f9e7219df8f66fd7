"""Windows against a model that keeps a state for every single record, over any order of events."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pyroaring import BitMap64

from edge.consumers.ack_tracker import AckTracker, Rules
from edge.consumers.coordinator import disjoint
from tests.support.examples import examples

MEMBERS = st.sampled_from(["ann", "bob", "cy"])
NOBODY = "-"
RUNS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 8)), min_size=1, max_size=4)


def offsets_of(runs: Iterable[tuple[int, int]]) -> list[int]:
    return sorted({i for at, count in runs for i in range(at, at + count)})


@dataclass
class Fate:
    """Of one record: done (by member), dead, with somebody (member), or waiting."""

    state: str
    member: str = ""
    due_s: float = 0.0
    tries: int = 0

    @property
    def passed(self) -> bool:
        """No filter matched it."""
        return self.state == "done" and self.member == NOBODY


class WindowMachine(RuleBasedStateMachine):
    ordered = True

    def __init__(self) -> None:
        super().__init__()
        self.limits = Rules(
            self.ordered, lease_s=10.0, tries_max=3, backoff_s=1.0, backoff_max_s=4.0, records_max=30
        )
        self.tracker = AckTracker(0, self.limits)
        self.model: list[Fate] = []
        self.now_s = 100.0

    # ---- what the model says ----

    def floor(self) -> int:
        return next((i for i, it in enumerate(self.model) if it.state != "done"), len(self.model))

    def fail(self, it: Fate, delay_s: float | None, *, counts: bool) -> None:
        it.tries += counts
        it.state = "dead" if it.tries >= self.limits.tries_max else "waiting"
        backoff_s = min(1.0 * 2 ** max(it.tries - 1, 0), 4.0)
        it.due_s = self.now_s + (backoff_s if delay_s is None else delay_s)

    def rewind(self, failed: list[int]) -> None:
        for it in self.model[min(failed) :] if self.ordered and failed else ():
            if it.state == "flight":
                it.state, it.due_s = "waiting", 0.0

    def waiting(self) -> list[int]:
        return [i for i, it in enumerate(self.model) if it.state == "waiting"]

    def may_come(self) -> int | None:
        """The offset that is to be handed out next."""
        waiting = self.waiting()
        due = [i for i in waiting if self.model[i].due_s <= self.now_s]
        if self.ordered and waiting:
            return waiting[0] if waiting[0] in due else None
        if due:
            return due[0]
        return len(self.model) if len(self.model) - self.floor() < 30 else None

    # ---- what happens ----

    @rule(member=MEMBERS, count=st.integers(1, 7), passed_over=st.sets(st.integers(0, 40)))
    def hand_out(self, member: str, count: int, passed_over: set[int]) -> None:
        offer = self.tracker.offer(self.now_s)
        first = self.may_come()
        assert (offer and offer.first) == first or (offer is None and first is None)
        if offer is None:
            return
        if offer.end is None:
            end = offer.first + min(count, offer.limit)
            self.model += [Fate("waiting") for _ in range(end - offer.first)]
        else:
            assert self.model[offer.first].tries == offer.tries
            if offer.tries and offer.tries >= self.limits.tries_max - 1:
                assert offer.limit == 1, "the last try is made alone"
            end = min(offer.first + min(count, offer.limit), offer.end)
        passed = {i for i in passed_over if offer.first <= i < end}
        given = [i for i in range(offer.first, end) if self.model[i].state == "waiting" and i not in passed]
        for i in passed:
            if self.model[i].state == "waiting":
                self.model[i].state, self.model[i].member = "done", NOBODY
        count = self.tracker.deliver(offer.first, end, member, self.now_s, BitMap64(passed))
        assert count == len(given)
        for i in given:
            it = self.model[i]
            it.state, it.member, it.due_s = "flight", member, self.now_s + 10.0

    @rule(member=MEMBERS, runs=RUNS)
    def acknowledge(self, member: str, runs: list[tuple[int, int]]) -> None:
        accepted, refused = 0, []
        for i in offsets_of(runs):
            it = self.model[i] if i < len(self.model) else Fate("beyond")
            if it.state == "waiting" or (it.state in {"flight", "done"} and it.member == member):
                it.state, it.member = "done", member
                accepted += 1
            elif not it.passed:
                refused.append(i)
        verdict = self.tracker.ack(disjoint(runs), member)
        assert (verdict.accepted, offsets_of(verdict.refused_runs)) == (accepted, refused)
        assert verdict.refused == len(refused)

    @rule(
        member=MEMBERS,
        runs=RUNS,
        delay_s=st.sampled_from([None, 0.0, 5.0]),
        counts=st.booleans(),
    )
    def give_back(
        self, member: str, runs: list[tuple[int, int]], delay_s: float | None, counts: bool
    ) -> None:
        failed = []
        for at, count in runs:
            for i in range(at, min(at + count, len(self.model))):
                it = self.model[i]
                if it.state == "flight" and it.member == member:
                    self.fail(it, delay_s, counts=counts)
                    failed.append(i)
        self.rewind(failed)
        verdict = self.tracker.returnable(disjoint(runs), member)
        kept = {i for i in offsets_of(runs) if i < len(self.model) and self.model[i].passed}
        assert verdict.accepted == len(failed)
        assert offsets_of(verdict.refused_runs) == [i for i in offsets_of(runs) if i not in {*failed, *kept}]
        assert self.tracker.give_back(runs, member, self.now_s, delay_s, counts=counts) == len(failed)

    @rule(seconds=st.sampled_from([0.5, 3.0, 11.0]))
    def time_goes_on(self, seconds: float) -> None:
        self.now_s += seconds
        due = [i for i, it in enumerate(self.model) if it.state == "flight" and it.due_s <= self.now_s]
        for i in due:
            self.fail(self.model[i], None, counts=True)
        self.rewind(due)
        assert self.tracker.next_due_s() <= self.now_s or not due
        assert self.tracker.expire(self.now_s) == len(due)

    @rule(member=MEMBERS, died=st.booleans())
    def member_goes(self, member: str, died: bool) -> None:
        had = [i for i, it in enumerate(self.model) if it.state == "flight" and it.member == member]
        for i in had:
            self.fail(self.model[i], 0.0, counts=died)
        self.rewind(had)
        self.tracker.drop_member(member, self.now_s, "gone", counts=died)

    @precondition(lambda self: any(it.state == "dead" for it in self.model))
    @rule()
    def bury(self) -> None:
        dead = [i for i, it in enumerate(self.model) if it.state == "dead"]
        spans = self.tracker.dead()
        covered = {i for it in spans for i in range(it.first, it.end)}
        assert set(dead) <= covered
        first, end = spans[0].first, spans[0].end
        self.tracker.bury(first, end)
        for i in range(first, end):
            if self.model[i].state != "done":
                self.model[i].state, self.model[i].member = "done", "buried"

    @precondition(lambda self: self.may_come() is not None)
    @rule(count=st.integers(1, 5))
    def records_are_gone(self, count: int) -> None:
        offer = self.tracker.offer(self.now_s)
        assert offer is not None
        end = min(offer.first + count, offer.end or offer.first + count)
        self.tracker.skip(offer.first, end)
        self.model += [Fate("waiting") for _ in range(end - len(self.model))]
        for i in range(offer.first, end):
            if self.model[i].state != "done":
                self.model[i].state, self.model[i].member = "done", "lost"

    @rule(tries_max=st.sampled_from([2, 3, 4]))
    def the_tries_change(self, tries_max: int) -> None:
        self.limits = replace(self.limits, tries_max=tries_max)
        self.tracker.change_rules(self.limits)
        for it in self.model:
            if it.state == "waiting" and it.tries >= tries_max:
                it.state = "dead"

    @rule()
    def it_is_stored_and_loaded(self) -> None:
        """Finished records stay finished in the next life; all others come again, with their attempts."""
        fresh = AckTracker(self.tracker.floor, self.limits, self.tracker.done, self.tracker.tried)
        for it in self.model:
            if it.state != "done":
                it.state, it.due_s = "dead" if it.tries >= self.limits.tries_max else "waiting", 0.0
            it.member = "an earlier life"  # who did what is known in one life only
        while self.model and len(self.model) > fresh.next:
            assert self.model.pop().state == "waiting"
        self.tracker = fresh

    # ---- what always holds ----

    @invariant()
    def the_window_says_what_the_model_says(self) -> None:
        tracker = self.tracker
        assert (tracker.floor, tracker.next) == (self.floor(), len(self.model))
        spans = tracker.spans
        for before, after in itertools.pairwise(spans):
            assert before.end <= after.first
        of = {i: it for it in spans for i in range(it.first, it.end)}
        for i, it in enumerate(self.model):
            if it.state == "done":
                assert i < tracker.floor or i in tracker.done
                continue
            span = of[i]
            assert i not in tracker.done
            state = "dead" if span.dead else "waiting" if span.member is None else "flight"
            assert (state, span.tries) == (it.state, it.tries)
            if state != "dead":
                assert span.due_s == it.due_s
            if state == "flight":
                assert span.member == it.member
        assert tracker.in_flight() == sum(it.state == "flight" for it in self.model)
        open_now = [i for i, it in enumerate(self.model) if it.state != "done"]
        missing = tracker.missing(tracker.floor, tracker.next)
        assert [i for at, n in missing for i in range(at, at + n)] == open_now


class QueueMachine(WindowMachine):
    ordered = False


TestOrderedWindow = WindowMachine.TestCase
TestQueueWindow = QueueMachine.TestCase
TestOrderedWindow.settings = TestQueueWindow.settings = settings(
    max_examples=examples(50), stateful_step_count=40
)


def test_who_gives_back_what_is_done_keeps_what_is_behind_it() -> None:
    tracker = AckTracker(0, Rules(ordered=True))
    tracker.deliver(0, 3, "ann", 100.0)
    assert tracker.ack([(1, 1)], "ann") == (1, 0, ())
    assert tracker.give_back([(1, 1)], "ann", 100.0, None) == 0
    assert tracker.in_flight("ann") == 2
