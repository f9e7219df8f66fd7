"""Micro-batches: their limits, and files that are missing: names, no Spark."""

from dataclasses import replace

import pytest

pytest.importorskip("pyarrow", reason="needs the spark extra: pip install 'brim[spark]'")

from bridge.errors import FilesMissing
from bridge.format.file_name import FileName
from bridge.spark.landing_zone import StoredFile
from bridge.spark.micro_batch import advance, between


def ten(edge: str = "a") -> list[StoredFile]:
    names = (
        FileName(edge, seq, "default", 0, 7, 10 * seq, 10 * seq + 9, "2023-11-14") for seq in range(1, 11)
    )
    return [StoredFile(name, f"/lake/{name.path}", 100, 1000) for name in names]


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
