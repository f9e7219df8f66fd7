"""Unread files of a stream: what is listed again, what is forgotten, and what is found nevertheless."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="needs the spark extra: pip install 'brim[spark]'")

from bridge.format.file_name import FileName
from bridge.spark import landing_zone, unread_files
from bridge.spark.landing_zone import DayDirectory, Landing, StoredFile
from bridge.spark.task_planning import tasks_of
from bridge.spark.unread_files import UnreadFiles

LONG_AGO_S = 1_000_000_000


def put(root: Path, seq: int, day: str = "2026-01-02", *, edge: str = "a", first: int | None = None) -> None:
    """An empty file with the name of a drained one: planning reads names only."""
    first = 10 * seq if first is None else first
    path = root / FileName(edge, seq, "default", 0, 7, first, first + 9, day).path
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.touch()


def age(root: Path) -> None:
    """Make the time of each directory an old one, which a new file changes."""
    for number, path in enumerate(sorted(root.glob("edge=*/dt=*"))):
        os.utime(path, (LONG_AGO_S, LONG_AGO_S + number))


def numbers(files: list[StoredFile]) -> list[int]:
    return [file.name.drain_seq for file in files]


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the days whose directories were listed one by one."""
    names: list[str] = []
    whole = Landing.files_of

    def counted(self: Landing, day: DayDirectory, **arguments: Any) -> Iterator[StoredFile]:
        names.append(day.name)
        return whole(self, day, **arguments)

    monkeypatch.setattr(Landing, "files_of", counted)
    return names


def test_merged_files_stay_unread_if_their_footers_cannot_be_read_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged = tmp_path / FileName("a", 9, "default", 0, 7, 10, 99, "2026-01-02", merged=True).path
    merged.parent.mkdir(parents=True)
    merged.touch()
    unread = UnreadFiles(Landing(str(tmp_path)), [])
    unread.refresh()

    def fails(*_: object) -> None:
        raise OSError("the store is away")

    with monkeypatch.context() as away:
        away.setattr(Landing, "with_footers", fails)
        with pytest.raises(OSError, match="the store is away"):
            unread.files()
    assert numbers(unread.files()) == [9]


def test_only_days_with_a_change_are_listed_again(tmp_path: Path, listings: list[str]) -> None:
    for seq, day in enumerate(("2026-01-01", "2026-01-02", "2026-01-03"), 1):
        put(tmp_path, seq, day)
    age(tmp_path)
    unread = UnreadFiles(Landing(str(tmp_path)), [])
    unread.refresh()
    unread.refresh()
    assert numbers(unread.files()) == [1, 2, 3]
    assert listings == []
    put(tmp_path, 4, "2026-01-02")  # the clock of the edge was set back
    unread.refresh()
    assert numbers(unread.files()) == [1, 2, 3, 4]
    assert listings == ["2026-01-02"]


def test_a_second_file_within_the_time_step_of_a_directory_is_found(tmp_path: Path) -> None:
    put(tmp_path, 1)
    unread = UnreadFiles(Landing(str(tmp_path)), [])
    unread.refresh()
    (day,) = tmp_path.glob("edge=*/dt=*")
    times = day.stat()
    put(tmp_path, 2)
    os.utime(day, ns=(times.st_atime_ns, times.st_mtime_ns))
    unread.refresh()
    assert numbers(unread.files()) == [1, 2]


def test_removed_files_are_forgotten(tmp_path: Path) -> None:
    put(tmp_path, 1)
    put(tmp_path, 2, "2026-01-03")
    unread = UnreadFiles(Landing(str(tmp_path)), [])
    unread.refresh()
    for path in tmp_path.glob("edge=*/dt=2026-01-02"):
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    unread.refresh()
    assert numbers(unread.files()) == [2]


def test_read_files_leave_only_their_ranges(tmp_path: Path) -> None:
    for seq in (1, 2, 3):
        put(tmp_path, seq)
    unread = UnreadFiles(Landing(str(tmp_path)), [])
    unread.refresh()
    unread.mark_read({"a": 3})
    put(tmp_path, 4, first=35)  # 35 to 39 are in file 3
    unread.refresh()
    assert numbers(unread.files()) == [4]
    assert unread.latest() == {"a": 4}
    assert unread.read_ranges == {("a", "default", 0, 7): [(10, 39)]}
    (task,) = tasks_of(unread.files(), unread.files(), unread.read_ranges)
    assert task.ranges == ((40, 44),)


def test_a_store_without_times_lists_the_newest_days_and_now_and_then_all(
    tmp_path: Path, listings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landing_zone, "TIMED_DIRECTORIES", ())
    for seq, day in enumerate(("2026-01-01", "2026-01-02", "2026-01-03"), 1):
        put(tmp_path, seq, day)
    unread = UnreadFiles(Landing(str(tmp_path)), [])
    unread.refresh()
    put(tmp_path, 4, "2026-01-01")
    put(tmp_path, 5, "2026-01-04")
    unread.refresh()
    assert numbers(unread.files()) == [1, 2, 3, 5]
    assert sorted(listings) == ["2026-01-02", "2026-01-03", "2026-01-04"]
    unread.refresh(whole=True)
    assert numbers(unread.files()) == [1, 2, 3, 4, 5]
    put(tmp_path, 6, "2026-01-01")
    monkeypatch.setattr(unread_files, "WHOLE_MIN_S", 0.0)
    monkeypatch.setattr(unread_files, "WHOLE_SHARE", 0)
    unread.refresh(whole=True)  # sets the time of the next one
    put(tmp_path, 7, "2026-01-01")
    unread.refresh()
    assert numbers(unread.files()) == [1, 2, 3, 4, 5, 6, 7]


DAYS = st.sampled_from(("2026-01-01", "2026-01-02", "2026-01-03", "2026-02-01"))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("ab"), st.integers(1, 30), DAYS),
        st.tuples(st.just("read"), st.sampled_from("ab"), st.integers(0, 30), DAYS),
        st.tuples(st.just("age"), st.just("a"), st.just(0), DAYS),
    ),
    max_size=20,
)


@settings(max_examples=40)
@given(STEPS)
def test_the_unread_files_are_those_of_a_whole_listing(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, int, str]]
) -> None:
    root = tmp_path_factory.mktemp("lake")
    landing = Landing(str(root))
    unread = UnreadFiles(landing, [])
    for what, edge, number, day in steps:
        if what == "put":
            put(root, number, day, edge=edge)
        elif what == "age":
            age(root)
        unread.refresh()
        if what == "read":
            unread.mark_read({edge: number})
        expected = [
            file for file in landing.files() if file.name.drain_seq > unread.read_to.get(file.name.edge, 0)
        ]
        assert unread.files() == expected
