"""Micro-batches of a stream: the end of the next batch, within given limits, and the files of a batch.

Owns the progress of a stream: for each edge the last drain_seq that was read. Draining puts its files in that
order. So a batch reads everything up to a drain_seq. A file that appears late, with an older range of
offsets, has a higher number and is read like any other.

The stream waits for a missing number while its file may still be in flight: several files are, and they
arrive in any order. Then the missing number is an error: the file is gone, and its records with it. A stream
never goes back, so it waits as long for numbers before the first file. After that they are history that was
removed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from bridge.errors import FilesMissing
from bridge.spark.landing_zone import StoredFile

Progress = dict[str, int]  # of a stream: edge, and the drain_seq of its last file that was read


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
