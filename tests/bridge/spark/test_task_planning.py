"""Tasks of a query, and the arithmetic of ranges below them: names, no Spark."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="needs the spark extra: pip install 'brim[spark]'")

from bridge import rangeset
from bridge.format.file_name import FileName
from bridge.spark.landing_zone import StoredFile
from bridge.spark.task_planning import pack, tasks_of

ranges_strategy = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=12).map(
    lambda pairs: [(first, first + length) for first, length in pairs]
)


def offsets(ranges: list[tuple[int, int]]) -> set[int]:
    return {offset for first, last in ranges for offset in range(first, last + 1)}


@given(ranges_strategy, ranges_strategy)
def test_ranges_are_sets_of_offsets(one: list[tuple[int, int]], two: list[tuple[int, int]]) -> None:
    for ranges, expected in (
        (rangeset.union(one), offsets(one)),
        (rangeset.subtract(rangeset.union(one), rangeset.union(two)), offsets(one) - offsets(two)),
        (rangeset.overlap(one), {it for it in offsets(one) if sum(a <= it <= b for a, b in one) > 1}),
    ):
        assert offsets(ranges) == expected
        assert rangeset.count(ranges) == len(expected)
        assert ranges == rangeset.union(ranges)


def stored(seq: int, first: int, last: int, *, length: int = 100, partition: int = 0) -> StoredFile:
    name = FileName("a", seq, "default", partition, 7, first, last, "2023-11-14")
    return StoredFile(name, f"/lake/{name.path}", length, 1000)


def test_a_record_that_two_files_hold_is_read_from_the_one_with_the_lower_number() -> None:
    files = [stored(1, 0, 9), stored(2, 10, 29), stored(3, 5, 34), stored(4, 0, 3), stored(5, 35, 40)]
    ranges = {task.path: task.ranges for task in tasks_of(files, files)}
    assert ranges == {
        files[0].path: ((0, 9),),
        files[1].path: ((10, 29),),
        files[2].path: ((30, 34),),
        files[4].path: ((35, 40),),
    }
    assert tasks_of(files[2:3], files)[0].ranges == ((30, 34),)  # also when the others were read long ago
    other = [stored(1, 0, 9), stored(2, 0, 9, partition=1)]
    assert [task.ranges for task in tasks_of(other, other)] == [((0, 9),), ((0, 9),)]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=15))
def test_however_files_overlap_each_record_is_read_once(spans: list[tuple[int, int]]) -> None:
    files = [stored(seq, first, first + length) for seq, (first, length) in enumerate(spans, 1)]
    read = [offset for task in tasks_of(files, files) for offset in sorted(offsets(list(task.ranges)))]
    assert len(read) == len(set(read))
    assert set(read) == offsets([(first, first + length) for first, length in spans])


def test_small_files_are_packed_into_tasks_of_even_length() -> None:
    def packed(lengths: list[int], *given: int) -> list[list[int]]:
        tasks = tasks_of(files := [stored(seq, seq, seq, length=it) for seq, it in enumerate(lengths)], files)
        groups = pack(tasks, *given)
        assert [task for group in groups for task in group] == tasks
        return [[task.length for task in group] for group in groups]

    assert packed([10, 10, 10, 100, 10, 200, 10], 100) == [[10, 10, 10, 100], [10], [200], [10]]
    assert [len(group) for group in packed([10] * 11, 100)] == [5, 6]  # and not 10 and 1
    assert [len(group) for group in packed([100] * 10, 1 << 30, 4)] == [2, 3, 2, 3]
    assert packed([], 100, 4) == []
    assert packed([0, 0], 100) == [[0, 0]]


def test_tasks_are_as_many_as_keep_some_cores_busy_and_no_more() -> None:
    def packed(mib: int) -> int:
        files = [stored(seq, seq, seq, length=8 << 20) for seq in range(mib // 8)]
        return len(pack(tasks_of(files, files)))

    assert [packed(mib) for mib in (8, 32, 64, 128, 640, 1024, 4096)] == [1, 1, 2, 4, 8, 8, 32]
