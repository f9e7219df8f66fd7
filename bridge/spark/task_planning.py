"""Tasks of a query: the records that each task reads, and tasks of about equal size. No options.

Two files may hold the same records (an edge restored from a backup, a put that succeeded after all). Then the
file with the lower number counts, and the other is read without these records. The check uses only names, so
it costs nothing per record, and each record is read once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from bridge.format.file_name import FileName
from bridge.rangeset import Ranges, subtract, union
from bridge.spark.landing_zone import StoredFile

PartitionKey = tuple[str, str, int, int]  # edge, stream, partition, epoch: the range of validity of offsets

USUAL_TASKS = 8
TASK_MIN_BYTES, TASK_MAX_BYTES = 32 << 20, 128 << 20  # the maximum is that of Spark's own readers


@dataclass(frozen=True, slots=True)
class FileTask:
    """One file to read, and the range of its records; both ends included."""

    path: str
    length: int
    ranges: tuple[tuple[int, int], ...]


def tasks_of(
    files: Sequence[StoredFile],
    every: Sequence[StoredFile],
    read_before: Mapping[PartitionKey, Ranges] = MappingProxyType({}),
) -> list[FileTask]:
    """The records to read of each chosen file: those that no file with a lower number has.

    The files with lower numbers are those of `every`, and those whose ranges are `read_before`.
    """
    taken: dict[PartitionKey, Ranges] = {}
    chosen = {(file.path, file.name.first_offset) for file in files}
    lengths: dict[str, int] = {}
    ranges_by_path: dict[str, Ranges] = defaultdict(list)  # of a merged file several
    for file in sorted(every):
        key = partition_key(file.name)
        if key not in taken:
            taken[key] = list(read_before.get(key, ()))
        ranges = subtract([(file.name.first_offset, file.name.last_offset)], taken[key])
        join_range(taken, file.name)
        if (file.path, file.name.first_offset) in chosen and ranges:
            lengths[file.path] = file.length if file.merged is None else file.merged.length
            ranges_by_path[file.path] += ranges
    return [FileTask(path, lengths[path], tuple(union(ranges))) for path, ranges in ranges_by_path.items()]


def partition_key(name: FileName) -> PartitionKey:
    """The range of validity of the offsets in a file."""
    return name.edge, name.stream, name.partition, name.epoch


def join_range(taken: dict[PartitionKey, Ranges], name: FileName) -> None:
    """Add the offsets of a file; cheap if they follow the last ones, as is usual."""
    own = name.first_offset, name.last_offset
    before = taken.setdefault(partition_key(name), [])
    if before and before[-1][1] + 1 == own[0]:
        before[-1] = before[-1][0], own[1]
    else:
        before[:] = union([*before, own])


def clipped(tasks: Iterable[FileTask], first: int, last: int) -> list[FileTask]:
    """The parts of the tasks within first .. last."""
    clipped_tasks = []
    for task in tasks:
        ends = ((max(first, begin), min(last, end)) for begin, end in task.ranges)
        if ranges := tuple((begin, end) for begin, end in ends if begin <= end):
            clipped_tasks.append(FileTask(task.path, task.length, ranges))
    return clipped_tasks


def pack(
    tasks: Sequence[FileTask], task_bytes: int | None = None, at_least: int = 1
) -> list[tuple[FileTask, ...]]:
    """The tasks in their order, packed to about `task_bytes`, or less if there would be fewer than
    `at_least`.

    The bytes are distributed evenly, so that no core has a long task left after the others have ended.
    """
    total = sum(task.length for task in tasks)
    count = max(at_least, -(-total // (task_bytes or _usual_bytes(total))), 1)
    packed: dict[int, list[FileTask]] = defaultdict(list)
    begin = 0
    for task in tasks:
        middle = 2 * begin + task.length
        packed[min(middle * count // max(2 * total, 1), count - 1)].append(task)
        begin += task.length
    return [tuple(files) for files in packed.values()]


def _usual_bytes(total: int) -> int:
    """An eighth, within limits: each task costs about 30 ms of processor time, as much as reading 8 MiB."""
    return min(max(-(-total // USUAL_TASKS), TASK_MIN_BYTES), TASK_MAX_BYTES)
