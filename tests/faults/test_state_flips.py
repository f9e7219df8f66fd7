"""Damaged state files of every kind, one each; `./dev simulate state-flips` tries a thousand."""

from collections.abc import Iterator

import pytest

import edge.streams.ring_files
import ringbuf.ring
from ringbuf.check import Check
from tests.support.damaged_state import KINDS, DamagedState
from tests.support.directories import memory_directory


@pytest.fixture(scope="module")
def state() -> Iterator[DamagedState]:
    with memory_directory() as directory:
        yield DamagedState(directory, "killed")


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_costs_at_most_what_was_hit_and_no_start(state: DamagedState, kind: str) -> None:
    assert state.try_one(kind, "default").wrong == []


def test_damage_of_an_archive_that_costs_only_records_of_the_log_is_reported(state: DamagedState) -> None:
    """No queue of a session lacks a message, so no counter of the broker shows the loss."""
    case = state.try_one("archives", "7121 3")
    assert (case.lost > 0, case.wrong, case.seen.lost) == (True, [], {})
    assert any("log damage found archive=" in line for line in case.seen.lines)


def test_records_that_are_not_verified_would_be_found_out(
    state: DamagedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ringbuf.ring, "checked", lambda *_: Check(0, 0, [], [], ()))
    wrong = (it for number in range(50) for it in state.try_one("ring", f"trusting {number}").wrong)
    assert next(wrong)


def test_records_that_are_not_restored_from_the_log_would_be_missed(
    state: DamagedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge.streams.ring_files, "_restore", lambda *_: False)
    wrong = (it for number in range(50) for it in state.try_one("ring", f"careless {number}").wrong)
    assert "that were not hit" in next(wrong)
