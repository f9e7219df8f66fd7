"""Merged files in the plan of a table: whole, where no query needs a part of one.

A plan costs time for each of its files, and a merged file replaces thousands. Its parts are needed only if

    - another file has some of its records: the one with the lower drain_seq counts,
    - the progress of a query begins or ends between their drain_seqs.

Only then a merged file is divided into the files that it replaces. Opens no file.

Invariant: the tasks for the files that divided() and cut() return are those for Landing.files().
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from bridge.format.file_name import FileName
from bridge.spark.landing_zone import StoredFile, parts_of, unique
from bridge.spark.micro_batch import check_age, start_of
from bridge.spark.task_planning import partition_key


def divided(files: Iterable[StoredFile]) -> list[StoredFile]:
    """The files without those that a merged file replaces; merged files that overlap another, in parts."""
    by_key: dict[object, list[StoredFile]] = defaultdict(list)
    for file in files:
        by_key[partition_key(file.name)].append(file)
    return unique(chain.from_iterable(map(_divided, by_key.values())))


def _divided(files: list[StoredFile]) -> Iterator[StoredFile]:
    """As divided(), for the files of one partition and epoch."""
    if not any(map(_is_whole, files)):
        yield from files
        return
    files = _without_replaced(sorted(files, key=lambda file: file.name.first_offset))
    reached = -1  # the highest offset before
    for at, file in enumerate(files):
        name = file.name
        overlaps = name.first_offset <= reached or (
            at + 1 < len(files) and files[at + 1].name.first_offset <= name.last_offset
        )
        yield from parts_of(file) if overlaps else (file,)
        reached = max(reached, name.last_offset)


def _is_whole(file: StoredFile) -> bool:
    return file.merged is not None and file.name == file.merged.name


def _without_replaced(files: Sequence[StoredFile]) -> list[StoredFile]:
    """The files, in the order of first offsets, without those that one of the merged files replaces."""
    wholes = [file for file in files if _is_whole(file)]
    starts = [whole.name.first_offset for whole in wholes]

    def is_replaced(name: FileName) -> bool:
        at = bisect_right(starts, name.first_offset) - 1
        return at >= 0 and not name.merged and _replaces(wholes[at], name)

    return [file for file in files if not is_replaced(file.name)]


def _replaces(whole: StoredFile, name: FileName) -> bool:
    assert whole.merged is not None
    entries = whole.merged.footer.merged
    at = bisect_right(entries, name.first_offset, key=lambda entry: entry[1]) - 1
    same = whole.name.compressed == name.compressed
    return same and entries[at][:3] == (name.drain_seq, name.first_offset, name.last_offset)


def cut(files: Iterable[StoredFile], at: Mapping[str, int]) -> list[StoredFile]:
    """The files; merged files with drain_seqs on both sides of the progress `at`, in parts."""
    return [part for file in files for part in (parts_of(file) if _is_cut(file, at) else (file,))]


def _is_cut(file: StoredFile, at: Mapping[str, int]) -> bool:
    number = at.get(file.name.edge, 0)
    return _is_whole(file) and file.name.drain_seq > number and min(_numbers(file)) <= number


def table_end(
    start: Mapping[str, int], files: Iterable[StoredFile], younger_than_s: float | None
) -> dict[str, int]:
    """The last drain_seq of each edge that a table reads: as advance() without limits."""
    end = dict(start)
    by_edge: dict[str, list[StoredFile]] = defaultdict(list)
    for file in files:
        by_edge[file.name.edge].append(file)
    for edge, stored in sorted(by_edge.items()):
        numbers = sorted(set(chain.from_iterable(map(_numbers, stored))))
        position = start_of(start, edge, numbers)
        numbers = numbers[bisect_right(numbers, position) :]
        dense = bisect_right(range(len(numbers)), position + 1, key=lambda at: numbers[at] - at)
        if younger_than_s is not None and dense < len(numbers):
            behind = numbers[dense]
            parts = chain.from_iterable(parts_of(file) for file in stored if behind in _numbers(file))
            first = min(part for part in parts if part.name.drain_seq == behind)
            check_age(edge, position + dense + 1, behind, first, younger_than_s)
            numbers = numbers[:dense]
        end[edge] = numbers[-1] if numbers else position
    return dict(sorted(end.items()))


def _numbers(file: StoredFile) -> Sequence[int]:
    """The drain_seqs of a file."""
    if file.merged is None or not _is_whole(file):
        return (file.name.drain_seq,)
    return [entry[0] for entry in file.merged.footer.merged]
