"""The files of a closed day, by their names only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from bridge.drain import closed_day
from bridge.drain.closed_day import ClosedDay, Stored, groups
from bridge.format.file_name import FileName, staged
from bridge.sinks.interface import StoredEntry

EDGE, DAY, KEEP_S, NOW_S = "e", "2026-01-02", 3600, 10_000.0
FRESH_S, OLD_S = NOW_S - 10, NOW_S - KEEP_S
AHEAD_S = NOW_S + 10 * 365 * 86_400  # before the clock was set right


def small(drain_seq: int, first: int, last: int, stream: str = "s") -> FileName:
    return FileName(EDGE, drain_seq, stream, 0, 1, first, last, DAY)


def merged(drain_seq: int, first: int, last: int) -> FileName:
    return replace(small(drain_seq, first, last), merged=True)


class NamesOnly:
    """A store with names and times, and without contents."""

    def __init__(self, *files: tuple[str, float]) -> None:
        self._files = files

    def entries(self, prefix: str) -> Iterator[StoredEntry]:
        yield from (StoredEntry(path, 100, at_s) for path, at_s in self._files if path.startswith(prefix))


def day_of(*files: tuple[str, float]) -> ClosedDay:
    store: Any = NamesOnly(*files)
    return ClosedDay(store, EDGE, DAY, NOW_S, KEEP_S)


def test_files_of_two_streams_are_in_two_groups_though_their_offsets_follow_each_other() -> None:
    names = [small(1, 0, 9, "a"), small(2, 30, 39, "b"), small(3, 10, 19, "a"), small(4, 21, 29, "a")]
    files = [Stored(name, StoredEntry(name.path, 100, OLD_S)) for name in names]
    found = [[file.name.drain_seq for file in group] for group in groups(files) if group]
    assert found == [[1, 3], [4], [2]]


def test_of_two_staged_files_with_the_same_records_one_has_a_twin() -> None:
    day = day_of(*((staged(merged(number, 0, 19).path), OLD_S) for number in (2, 3)))
    assert [day.has_twin(one) for one in day.merged] == [True, False]


@pytest.mark.parametrize(
    ("with_staged", "at_s", "is_due"),
    [(False, FRESH_S, False), (False, OLD_S, True), (True, FRESH_S, True), (False, AHEAD_S, True)],
)
def test_a_merged_file_is_due_after_its_time_or_with_both_names(
    with_staged: bool, at_s: float, is_due: bool
) -> None:
    path = merged(2, 0, 19).path
    day = day_of((path, at_s), *([(staged(path), at_s)] if with_staged else []))
    assert [one.is_due for one in day.merged] == [is_due]


def test_a_pass_notes_the_files_of_a_bounded_number_of_merged_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closed_day, "DUE_MAX", 2)
    names = [
        name
        for n in range(3)
        for begin, seq in [(20 * n, 2 * n + 1)]
        for name in (
            small(seq, begin, begin + 9),
            small(seq + 1, begin + 10, begin + 19),
            merged(seq + 1, begin, begin + 19),
        )
    ]
    day = day_of(*((name.path, OLD_S) for name in names))
    assert day.small(1000, 100, ()) == []
    assert [len(one.replaced) for one in day.merged] == [2, 2, 0]
    assert all(one.waits for one in day.merged)
