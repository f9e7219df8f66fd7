"""What the log has done and how it fares: numbers for `brim status`, and the state that tells why it does not
write.

Plain numbers, each written by one thread (the log's; ReadStats under the reader's lock); readers in other
threads see each of them whole, if not all of one moment.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

__all__ = ["DiskUsage", "Histogram", "LogState", "LogStats", "ReadStats", "disk_usage"]

_COUNTED = ("records", "record_bytes", "extents", "written_bytes", "synced_bytes", "syncs")
_TIMED = ("fsync", "write", "commit")


class Histogram:
    """Durations by powers of two, from 1 µs to over half a minute."""

    BUCKETS = 26

    def __init__(self) -> None:
        self.counts = [0] * self.BUCKETS  # counts[i]: durations below 2**i µs, and not below the one before
        self.count = 0
        self.total_ns = 0
        self.max_ns = 0

    def add(self, duration_ns: int) -> None:
        """Takes one duration."""
        self.counts[min((duration_ns // 1000).bit_length(), self.BUCKETS - 1)] += 1
        self.count += 1
        self.total_ns += duration_ns
        self.max_ns = max(self.max_ns, duration_ns)

    def plus(self, times: Any) -> Histogram:
        """These, and those that C has counted (an rb_log_times)."""
        both = Histogram()
        both.counts = [mine + its for mine, its in zip(self.counts, times.counts, strict=True)]
        both.count = self.count + times.count
        both.total_ns = self.total_ns + times.total_ns
        both.max_ns = max(self.max_ns, times.max_ns)
        return both

    def quantile_us(self, share: float) -> int:
        """An upper bound, a power of two, for the duration that `share` (0..1) of them stay below; 0: none
        yet.
        """
        wanted, seen = share * self.count, 0
        for index, count in enumerate(self.counts):
            seen += count
            if count and seen >= wanted:
                return 1 << index
        return 0

    def as_dict(self) -> dict[str, object]:
        """Count, mean and bounds, in µs."""
        mean_us = self.total_ns / self.count / 1000 if self.count else 0.0
        return {
            "count": self.count,
            "mean_us": round(mean_us, 1),
            "p50_below_us": self.quantile_us(0.5),
            "p99_below_us": self.quantile_us(0.99),
            "max_us": self.max_ns // 1000,
            "total_us": self.total_ns // 1000,
            "below_us": self.below_us(),
        }

    def below_us(self) -> dict[str, int]:
        """How many took less than so many µs, bound by bound, each with those before it: up to the last that
        adds any.
        """
        found, seen = {}, 0
        for index, count in enumerate(self.counts[:-1]):  # the last one has no bound
            seen += count
            found[str(1 << index)] = seen
            if seen == self.count:
                break
        return found


@dataclass
class LogStats:
    """Counters since the log was opened."""

    records: int = 0
    record_bytes: int = 0  # as they stand in the ring
    extents: int = 0
    written_bytes: int = 0  # with headers and catalogues, and what had to be written again
    synced_bytes: int = 0
    syncs: int = 0
    rewritten_bytes: int = 0  # written again after a failure
    failed_writes: int = 0
    failed_syncs: int = 0
    segments_begun: int = 0
    segments_removed: int = 0  # by retention
    fsync: Histogram = field(default_factory=Histogram)
    write: Histogram = field(default_factory=Histogram)  # handing to the kernel what was queued
    commit: Histogram = field(default_factory=Histogram)  # of a sync's oldest record, from taken to durable

    def plus(self, rounds: Any) -> LogStats:
        """These, and what C has counted (an rb_log)."""
        return replace(
            self,
            **{name: getattr(self, name) + getattr(rounds, name) for name in _COUNTED},
            **{name: getattr(self, name).plus(getattr(rounds, name)) for name in _TIMED},
        )

    def as_dict(self) -> dict[str, object]:
        """For people and for --json."""
        numbers: dict[str, object] = {
            key: it.as_dict() if isinstance(it, Histogram) else it for key, it in vars(self).items()
        }
        numbers["bytes_per_sync"] = self.synced_bytes // self.syncs if self.syncs else 0
        per_byte = self.written_bytes / self.record_bytes if self.record_bytes else 0.0
        numbers["written_per_record_byte"] = round(per_byte, 4)
        return numbers


class LiveStats:
    """LogStats as they stand whenever they are read: those of Python and of C together."""

    def __init__(self, now: Callable[[], LogStats]) -> None:
        self._now = now

    def __getattr__(self, name: str) -> Any:
        return getattr(self._now(), name)


@dataclass
class ReadStats:
    """What was read back, and from where, since the log was opened."""

    log_reads: int = 0
    log_bytes: int = 0
    archive_reads: int = 0
    archive_bytes: int = 0  # of records, as they were before they were compressed

    def as_dict(self) -> dict[str, int]:
        """For people and for --json."""
        return dict(vars(self))


class DiskUsage(NamedTuple):
    """Of a log, and of the file system that it is on, in bytes."""

    used_bytes: int  # that its files take, with the room that is prepared
    free_bytes: int  # that it could still get
    disk_bytes: int


def disk_usage(directory: str | os.PathLike[str]) -> DiskUsage:
    """What the files below `directory` take.  A file that goes meanwhile counts or does not.

    Raises OSError when there is no such directory.
    """
    space = os.statvfs(directory)
    used, folders = 0, [os.fspath(directory)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                    continue
                try:
                    used += entry.stat(follow_symlinks=False).st_blocks * 512
                except FileNotFoundError:
                    continue
    return DiskUsage(used, space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize)


@dataclass
class LogState:
    """Whether the log takes records.  While it does not, nothing is acknowledged, and rings fill up."""

    read_only: bool = False
    reason: str = ""  # "disk full", ...: of the last failure, "" while all is well
    failures: int = 0  # since the last success
    since_ns: int = 0  # wall clock, when the first of them came
    unsynced_bytes: int = 0  # durable lag: read from rings, and not yet on the disk
    on_change: Callable[[], object] | None = None  # called when read_only has changed

    def failed(self, reason: str, *, read_only: bool) -> None:
        """Notes a failure."""
        if not self.failures:
            self.since_ns = time.time_ns()
        self.failures += 1
        self.reason = reason
        self._set(read_only)

    def works(self) -> None:
        """Notes a success."""
        self.failures, self.reason, self.since_ns = 0, "", 0
        self._set(False)

    def _set(self, read_only: bool) -> None:
        changed, self.read_only = self.read_only != read_only, read_only
        if changed and self.on_change is not None:
            self.on_change()

    def as_dict(self) -> dict[str, object]:
        """For people and for --json."""
        return {key: value for key, value in vars(self).items() if key != "on_change"}
