"""Rules of plans: the files between two offsets of a stream, and the tasks that read them. No options.

Owns the progress of a stream: for each edge the last drain_seq that was read. Draining puts its files in that
order. So a batch reads everything up to a drain_seq. A file that appears late, with an older range of
offsets, has a higher number and is read like any other.

The stream waits for a missing number while its file may still be in flight: several files are, and they
arrive in any order. Then the missing number is an error: the file is gone, and its records with it. A stream
never goes back, so it waits as long for numbers before the first file. After that they are history that was
removed.

Two files may hold the same records (an edge restored from a backup, a put that succeeded after all). Then the
file with the lower number counts, and the other is read without these records. The check uses only names, so
it costs nothing per record, and each record is read once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from bridge.errors import FilesMissing
from bridge.format.file_name import FileName
from bridge.rangeset import Ranges, subtract, union
from bridge.spark.landing_zone import StoredFile

Progress = dict[str, int]  # of a stream: edge, and the drain_seq of its last file that was read
PartitionKey = tuple[str, str, int, int]  # edge, stream, partition, epoch: the range of validity of offsets

USUAL_TASKS = 8
TASK_MIN_BYTES, TASK_MAX_BYTES = 32 << 20, 128 << 20  # the maximum is that of Spark's own readers


@dataclass(frozen=True, slots=True)
class FileTask:
    """One file to read, and the range of its records; both ends included."""

    path: str
    length: int
    ranges: tuple[tuple[int, int], ...]


def by_edge(files: Iterable[StoredFile]) -> dict[str, dict[int, list[StoredFile]]]:
    """Files by edge and drain_seq, rising. More than one file per number exists only after an error."""
    numbered: dict[str, dict[int, list[StoredFile]]] = defaultdict(dict)
    for file in sorted(files):
        numbered[file.name.edge].setdefault(file.name.drain_seq, []).append(file)
    return numbered


def start_of(start: Mapping[str, int], edge: str, numbers: Iterable[int]) -> int:
    """The number behind which an edge is read: that of the progress, or the one before the first file."""
    return start[edge] if edge in start else min(numbers) - 1


def advance(
    start: Progress,
    files: Sequence[StoredFile],
    *,
    files_max: int | None = None,
    bytes_max: int | None = None,
    younger_than_s: float | None = None,
    stream: bool = False,
) -> Progress:
    """The end of a batch that begins at `start`: at least one file, if one is present; edges take turns.

    It ends before a missing number. With `younger_than_s` (a time, since 1970) a missing number raises
    FilesMissing if the file behind it is older than that. Without it, missing numbers are passed over.
    `stream`: an edge that was never read begins behind number 0, or before its first file if that is older
    than `younger_than_s`.
    """
    end = dict(start)
    queues: list[tuple[str, list[tuple[int, int, int]]]] = []
    for edge, numbered in sorted(by_edge(files).items()):
        position = start_of(start, edge, numbered)
        begun = edge in start or position == 0
        if stream and not begun and _is_young(numbered[position + 1], younger_than_s):
            continue
        queue = []
        for number, stored in sorted(numbered.items()):
            if number <= position:
                continue
            if number != position + 1 and younger_than_s is not None:
                check_age(edge, position + 1, number, stored[0], younger_than_s)
                break
            position = number
            queue.append((number, len(stored), sum(file.length for file in stored)))
        end.setdefault(edge, start_of(start, edge, numbered))
        queues.append((edge, queue[::-1]))
    taken_files = taken_bytes = 0
    while queues:
        for edge, queue in list(queues):
            if not queue:
                queues.remove((edge, queue))
                continue
            number, count, length = queue[-1]
            full = (files_max is not None and taken_files + count > files_max) or (
                bytes_max is not None and taken_bytes + length > bytes_max
            )
            if full and taken_files:
                return _sorted(end)
            queue.pop()
            end[edge] = number
            taken_files, taken_bytes = taken_files + count, taken_bytes + length
    return _sorted(end)


def _sorted(progress: Progress) -> Progress:
    """Keys in order, because Spark compares offsets by their text."""
    return dict(sorted(progress.items()))


def _is_young(stored: Sequence[StoredFile], younger_than_s: float | None) -> bool:
    """True if a number before these files may still be in flight."""
    return younger_than_s is not None and stored[0].modified_s >= younger_than_s


def check_age(edge: str, first: int, behind: int, stored: StoredFile, younger_than_s: float) -> None:
    """Raise FilesMissing if the drain_seqs from `first` on, before `behind`, cannot be in flight any more."""
    if not _is_young([stored], younger_than_s):
        raise missing(edge, range(first, behind))


def missing(edge: str, numbers: Sequence[int]) -> FilesMissing:
    """The error for drain_seqs without a file."""
    which = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]} ({len(numbers)} files)"
    return FilesMissing(
        f"edge {edge}: drain_seq {which} is missing in the landing zone",
        edge=edge,
        drain_seqs=numbers,
        hint="bring the files back, or read on without them with failOnDataLoss=false; "
        "bridge.spark.jobs.gaps says which records they held",
    )


def between(
    start: Mapping[str, int], end: Mapping[str, int], files: Sequence[StoredFile], *, dense: bool
) -> list[StoredFile]:
    """The files behind `start` up to `end`, in order. `dense`: raises FilesMissing if one is missing."""
    chosen_files = []
    for edge, numbered in by_edge(files).items():
        begin = start_of(start, edge, numbered)
        numbers = [number for number in numbered if begin < number <= end.get(edge, 0)]
        if dense and len(numbers) != max(end.get(edge, 0) - begin, 0):
            raise missing(edge, sorted(set(range(begin + 1, end[edge] + 1)) - set(numbers)))
        chosen_files += [file for number in numbers for file in numbered[number]]
    for edge in end if dense else ():
        if end[edge] > start.get(edge, 0) and not any(file.name.edge == edge for file in files):
            raise missing(edge, range(start.get(edge, 0) + 1, end[edge] + 1))
    return sorted(chosen_files)


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
