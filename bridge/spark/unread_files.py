"""Unread files of a landing zone: the files behind the committed offset of a stream.

Owns the names of these files, and per partition and epoch the ranges of offsets in all files that the stream
has read. Opens only unread merged files, for their footers: one up to the committed offset is passed over by
its name. Memory is proportional to the unread files, not to the history.

A refresh lists only the directories of days that may have a new file:

    local, hdfs     a directory whose modification time differs from that of the last listing, or is so young
                    that a later change may have the same time
    object stores   the newest day of an edge that has a file, the day before it, and later days. A clock that
                    was set back puts a file under an earlier day: all days are listed at most every
                    WHOLE_MIN_S seconds, for at most a twentieth of the time

A file with a drain_seq up to the committed offset is passed over by its name alone: the stream never goes
back.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from typing import NamedTuple, TypeAlias

from bridge.format.file_name import FileName, published
from bridge.rangeset import Ranges
from bridge.spark.landing_zone import DayDirectory, Landing, StoredFile, better, parts_of, unique
from bridge.spark.micro_batch import Progress
from bridge.spark.task_planning import PartitionKey, join_range

SAME_TIME_NS = 2_000_000_000  # a change so soon after another may leave the time of a directory the same
WHOLE_MIN_S = 60.0
WHOLE_SHARE = 20  # the time between two listings of all days, in durations of one


_Names: TypeAlias = dict[FileName, StoredFile]  # by the name without the day


class _Listed(NamedTuple):
    """One directory at its last listing."""

    modified_ns: int | None  # None: the store has no such time
    began_ns: int  # wall clock
    files: _Names  # unread


class UnreadFiles:
    """Files that a stream has not read. Not thread-safe."""

    def __init__(self, landing: Landing, edges: Sequence[str]) -> None:
        self._landing = landing
        self._patterns = edges
        self._days: dict[str, _Listed] = {}
        self._newest: dict[str, str] = {}  # edge: newest day with a file
        self._whole_due_s = 0.0
        self.read_to: Progress = {}
        self.read_ranges: dict[PartitionKey, Ranges] = {}
        self.edges: set[str] = set()  # with a file, read or unread
        self.streams: set[str] = set()

    def refresh(self, *, whole: bool = False) -> None:
        """List the directories that may have changed; `whole`: all. Raises as Landing.files() does."""
        began_s, began_ns = time.monotonic(), time.time_ns()
        days = self._landing.days(self._patterns)  # before the files: a change between the two is seen later
        whole = whole or not self._days or began_s >= self._whole_due_s
        if whole:
            files_by_day = self._all_files()
            duration_s = time.monotonic() - began_s
            self._whole_due_s = began_s + max(WHOLE_MIN_S, WHOLE_SHARE * duration_s)
        else:
            changed_days = [day for day in days if self._may_differ(day)]
            files_by_day = {day.path: self._files_of(day) for day in changed_days}
        kept = set() if whole else self._days.keys() - files_by_day.keys()
        self._days = {
            day.path: self._days[day.path]
            if day.path in kept
            else _Listed(day.modified_ns, began_ns, files_by_day.get(day.path, {}))
            for day in days
        }

    def files(self) -> list[StoredFile]:
        """The unread files, sorted, in place of merged files those that they replace.

        A file that is present under two days is returned once.
        """
        for listed in self._days.values():
            merged = [name for name in listed.files if name.merged]
            wholes = self._landing.with_footers([listed.files[name] for name in merged])  # may raise OSError
            for name in merged:
                del listed.files[name]
            for file in wholes:
                self._keep_unread(parts_of(file), listed.files)
        return unique(stored for listed in self._days.values() for stored in listed.files.values())

    def latest(self) -> Progress:
        """The highest drain_seq of each edge, read or unread."""
        latest = dict(self.read_to)
        for listed in self._days.values():
            for name in listed.files:
                latest[name.edge] = max(latest.get(name.edge, 0), name.drain_seq)
        return dict(sorted(latest.items()))

    def mark_read(self, end: Mapping[str, int]) -> None:
        """Keep only the ranges of files up to `end`, which the stream never reads again."""
        read: list[StoredFile] = []
        for listed in self._days.values():
            names = [name for name in listed.files if name.drain_seq <= end.get(name.edge, 0)]
            read += map(listed.files.pop, names)
        for file in sorted(read):
            join_range(self.read_ranges, file.name)
        for edge, number in end.items():
            self.read_to[edge] = max(number, self.read_to.get(edge, 0))

    def _may_differ(self, day: DayDirectory) -> bool:
        """True if the directory may have other files than at its last listing."""
        last = self._days.get(day.path)
        if last is None:
            return True
        if day.modified_ns is None or last.modified_ns is None:
            return day.name >= _day_before(self._newest.get(day.edge, ""))
        return day.modified_ns != last.modified_ns or last.began_ns - day.modified_ns < SAME_TIME_NS

    def _all_files(self) -> dict[str, _Names]:
        """Unread files of all days, by directory."""
        names_by_path: dict[str, _Names] = defaultdict(dict)
        for file in self._landing.names(self._patterns):
            self._note(file.name)
            if file.name.drain_seq > self.read_to.get(file.name.edge, 0):
                names_by_path[_day_path(file.path)][replace(file.name, day="")] = file
        return names_by_path

    def _files_of(self, day: DayDirectory) -> _Names:
        """Unread files of one day."""
        known: dict[str, list[StoredFile]] = defaultdict(list)
        if day.path in self._days:
            for file in self._days[day.path].files.values():
                known[file.path].append(file)
        files: _Names = {}
        for file in self._landing.files_of(day, behind=self.read_to.get(day.edge, 0), known=known):
            self._note(file.name)
            key = replace(file.name, day="")
            files[key] = better(files.get(key, file), file)
        return files

    def _keep_unread(self, parts: Iterable[StoredFile], files: _Names) -> None:
        """Add the unread parts of a merged file to the files of its day."""
        for part in parts:
            if part.name.drain_seq <= self.read_to.get(part.name.edge, 0):
                join_range(self.read_ranges, part.name)
            else:
                key = replace(part.name, day="")
                files[key] = better(files.get(key, part), part)

    def _note(self, name: FileName) -> None:
        self.edges.add(name.edge)
        self.streams.add(name.stream)
        self._newest[name.edge] = max(self._newest.get(name.edge, ""), name.day)


def _day_path(path: str) -> str:
    """Path of the directory of the day with that file."""
    return published(path).rpartition("/")[0]


def _day_before(name: str) -> str:
    """The day before an ISO date; "" for "", which is below every day."""
    if not name:
        return ""
    return (date.fromisoformat(name) - timedelta(days=1)).isoformat()
