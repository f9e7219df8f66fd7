"""Acknowledgements with many runs: exact verdicts, and few steps for each run."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from edge.consumers.ack_history import REMEMBERED
from edge.consumers.ack_tracker import AckTracker, Rules
from edge.consumers.coordinator import disjoint
from edge.consumers.offset_sets import runs_of_set
from edge.consumers.protocol import RUNS_MAX

FIRST, LAST = 2 << 20, (2 << 20) + 40  # records that a member has
LOW = FIRST - REMEMBERED  # nothing is known of records below
AT_LOW, AT_RECORDS = st.integers(LOW - 99, LOW + 9), st.integers(FIRST - 9, LAST + 9)


def offsets_of(runs: Iterable[tuple[int, int]]) -> set[int]:
    return {offset + i for offset, count in runs for i in range(count)}


def _calls(function: Any) -> tuple[int, Any]:
    """Number of calls of Python functions that `function` makes, and its result."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        result = function()
    finally:
        sys.setprofile(None)
    return calls, result


@pytest.mark.parametrize("owner", ["ann", "bob"])
def test_an_ack_with_the_most_runs_takes_few_steps_for_each_run(owner: str) -> None:
    tracker = AckTracker(0, Rules(ordered=False))
    tracker.deliver(0, 2 * RUNS_MAX, owner, 0.0)
    runs = [(2 * number, 1) for number in range(RUNS_MAX)]
    calls, verdict = _calls(lambda: tracker.ack(runs, "ann"))
    assert verdict == ((RUNS_MAX, 0, ()) if owner == "ann" else (0, RUNS_MAX, tuple(runs)))
    assert calls < 2 * RUNS_MAX


@given(st.sets(st.integers(0, 300)), st.integers(0, 1 << 62))
def test_the_runs_of_a_set_are_its_offsets(numbers: set[int], first: int) -> None:
    offsets = {first + number for number in numbers}
    runs = list(runs_of_set(BitMap64(offsets)))
    assert offsets_of(runs) == offsets
    assert runs == disjoint(runs)  # ascending, and none touches the next one


@given(st.lists(st.tuples(st.one_of(AT_LOW, AT_RECORDS), st.integers(1, 60)), max_size=8), st.booleans())
def test_runs_that_reach_beyond_the_known_records_are_refused_exactly_there(runs, accept_done) -> None:
    """`accept_done`: all records below those that the member has are done, down to the history."""
    tracker = AckTracker(FIRST, Rules(ordered=False))
    tracker.deliver(FIRST, LAST, "ann", 0.0)
    requested = offsets_of(runs)
    known, outside = tracker._known_part(disjoint(runs))
    assert set(known) == {offset for offset in requested if LOW <= offset < LAST}
    assert offsets_of(outside) == requested - set(known)
    had = {offset for offset in requested if FIRST <= offset < LAST}
    verdict = tracker.ack(disjoint(runs), "ann", accept_done=accept_done)
    assert verdict.accepted == len(had)
    refused = requested - (set(known) if accept_done else had)
    assert offsets_of(verdict.refused_runs) == refused
    assert verdict.refused == len(refused)
