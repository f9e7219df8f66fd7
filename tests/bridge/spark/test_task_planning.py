"""Which files a batch reads, in which tasks; and the arithmetic of ranges below it: names, no Spark."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="needs the spark extra: pip install 'brim[spark]'")

from bridge import rangeset
from bridge.errors import FilesMissing
from bridge.format.file_name import FileName
from bridge.spark.landing_zone import StoredFile
from bridge.spark.task_planning import advance, between, pack, tasks_of

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


def stored(
    seq: int,
    first: int,
    last: int,
    *,
    edge: str = "a",
    length: int = 100,
    partition: int = 0,
    age_s: float = 0,
) -> StoredFile:
    name = FileName(edge, seq, "default", partition, 7, first, last, "2023-11-14")
    return StoredFile(name, f"/lake/{name.path}", length, 1000 - age_s)


def ten(edge: str = "a") -> list[StoredFile]:
    return [stored(seq, 10 * seq, 10 * seq + 9, edge=edge) for seq in range(1, 11)]


def test_a_batch_without_limits_goes_to_the_end_of_every_edge() -> None:
    assert advance({}, [*ten("a"), *ten("b")]) == {"a": 10, "b": 10}
    assert advance({"a": 10}, ten("a")) == {"a": 10}
    assert advance({"gone": 4}, []) == {"gone": 4}


def test_limits_are_kept_edges_take_turns_and_one_file_always_goes() -> None:
    files = [*ten("a"), *ten("b")]
    assert advance({}, files, files_max=5) == {"a": 3, "b": 2}
    assert advance({"a": 9}, files, files_max=3) == {"a": 10, "b": 2}
    assert advance({}, files, bytes_max=350) == {"a": 2, "b": 1}
    assert advance({}, files, bytes_max=1) == {"a": 1, "b": 0}
    progress: dict[str, int] = {}
    seen = []
    while (after := advance(progress, files, files_max=3)) != progress:
        seen += between(progress, after, files, dense=True)
        progress = after
    assert sorted(seen) == sorted(files)


def test_history_that_was_removed_is_not_waited_for() -> None:
    files = ten()[4:]
    assert advance({}, files, files_max=2, younger_than_s=0) == {"a": 6}
    assert [file.name.drain_seq for file in between({}, {"a": 6}, files, dense=True)] == [5, 6]


def test_a_stream_waits_for_the_first_numbers_of_an_edge_as_for_any_other() -> None:
    """The first files are put at once, and the second may be there before the first."""
    late, rest = ten()[0], ten()[1:]
    assert advance({}, [*rest, *ten("b")], younger_than_s=900, stream=True) == {"b": 10}
    assert advance({}, [late, *rest], younger_than_s=900, stream=True) == {"a": 10}
    assert advance({"a": 3}, ten()[3:], younger_than_s=900, stream=True) == {"a": 10}
    removed = [replace(file, modified_s=100) for file in rest]
    assert advance({}, removed, younger_than_s=900, stream=True) == {"a": 10}


def test_a_missing_number_is_waited_for_while_what_is_behind_it_is_young() -> None:
    files = [file for file in ten() if file.name.drain_seq != 4]
    assert advance({}, files, younger_than_s=900) == {"a": 3}
    assert advance({"a": 3}, files, younger_than_s=900) == {"a": 3}
    files = [replace(file, modified_s=100) for file in files]
    with pytest.raises(FilesMissing, match="drain_seq 4 is missing") as caught:
        advance({}, files, younger_than_s=900)
    assert (caught.value.edge, caught.value.drain_seqs) == ("a", (4,))
    assert advance({}, files) == {"a": 10}


def test_a_batch_is_planned_again_from_its_offsets_or_says_what_is_missing() -> None:
    files = ten()
    assert [file.name.drain_seq for file in between({"a": 2}, {"a": 5}, files, dense=True)] == [3, 4, 5]
    assert between({"a": 5}, {"a": 5}, files, dense=True) == []
    left = [file for file in files if file.name.drain_seq not in {4, 5}]
    with pytest.raises(FilesMissing, match=r"4 to 5 \(2 files\)"):
        between({"a": 2}, {"a": 7}, left, dense=True)
    assert [file.name.drain_seq for file in between({"a": 2}, {"a": 7}, left, dense=False)] == [3, 6, 7]
    with pytest.raises(FilesMissing, match="edge a"):
        between({"a": 2}, {"a": 7}, [], dense=True)


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
