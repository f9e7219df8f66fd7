"""Log statistics for `brim status`, and the log's state with the cause if it does not write.

Plain numbers, each written by one thread (the log's; ReadStats under the reader's lock).  Readers in other
threads get each number intact, but not all of the same moment.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec import Struct, field
from msgspec.structs import asdict, replace

MICROSECOND_NS, MILLISECOND_NS = 1_000, 1_000_000

_COUNTED = (
    "records", "record_bytes", "extents", "written_bytes", "synced_bytes", "syncs", "rewritten_bytes",
    "failed_writes", "failed_syncs",
)  # fmt: skip
_TIMED = ("fsync", "write", "commit")


class LatencyHistogram:
    """Durations in powers of two: from 1 µs to 16 s, or with unit_ns = MILLISECOND_NS from 1 ms to 4 h."""

    BUCKETS = 26

    def __init__(self, unit_ns: int = MICROSECOND_NS) -> None:
        self.unit_ns = unit_ns
        self.counts = [0] * self.BUCKETS  # counts[i]: durations below 2**i units, not below those of i - 1
        self.count = 0
        self.total_ns = 0
        self.max_ns = 0

    def add(self, duration_ns: int) -> None:
        """Add one duration."""
        self.counts[min((duration_ns // self.unit_ns).bit_length(), self.BUCKETS - 1)] += 1
        self.count += 1
        self.total_ns += duration_ns
        self.max_ns = max(self.max_ns, duration_ns)

    def plus(self, times: Any) -> LatencyHistogram:
        """The sum with the counts of C (an rb_log_times)."""
        both = LatencyHistogram(self.unit_ns)
        both.counts = [mine + theirs for mine, theirs in zip(self.counts, times.counts, strict=True)]
        both.count = self.count + times.count
        both.total_ns = self.total_ns + times.total_ns
        both.max_ns = max(self.max_ns, times.max_ns)
        return both

    def quantile_us(self, share: float) -> int:
        """Upper bound in µs, a power of two of units, of the `share` (0..1) of shortest times; 0: none."""
        rank, seen = share * self.count, 0
        for index, count in enumerate(self.counts):
            seen += count
            if count and seen >= rank:
                return self.unit_ns // MICROSECOND_NS << index
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
        """Cumulative counts by upper bound in µs, up to the last bound that adds any."""
        bounds, seen = {}, 0
        for index, count in enumerate(self.counts[:-1]):  # the last one has no bound
            seen += count
            bounds[str(self.unit_ns // MICROSECOND_NS << index)] = seen
            if seen == self.count:
                break
        return bounds


class LogStats(Struct):
    """Counters since the log was opened."""

    records: int = 0
    record_bytes: int = 0  # as in the ring
    extents: int = 0
    written_bytes: int = 0  # with headers, catalogues and repeated writes
    synced_bytes: int = 0
    syncs: int = 0
    rewritten_bytes: int = 0  # written again after a failure
    failed_writes: int = 0
    failed_syncs: int = 0
    segments_begun: int = 0
    segments_removed: int = 0  # by retention
    fsync: LatencyHistogram = field(default_factory=LatencyHistogram)
    write: LatencyHistogram = field(default_factory=LatencyHistogram)  # passing the queue to the kernel
    # from taken to durable, of the oldest record of a sync
    commit: LatencyHistogram = field(default_factory=LatencyHistogram)

    def plus(self, rounds: Any) -> LogStats:
        """The sum with the counters of C (an rb_log)."""
        return replace(
            self,
            **{name: getattr(self, name) + getattr(rounds, name) for name in _COUNTED},
            **{name: getattr(self, name).plus(getattr(rounds, name)) for name in _TIMED},
        )

    def as_dict(self) -> dict[str, object]:
        """The counters for display and for --json."""
        numbers: dict[str, object] = {
            key: value.as_dict() if isinstance(value, LatencyHistogram) else value
            for key, value in asdict(self).items()
        }
        numbers["bytes_per_sync"] = self.synced_bytes // self.syncs if self.syncs else 0
        per_byte = self.written_bytes / self.record_bytes if self.record_bytes else 0.0
        numbers["written_per_record_byte"] = round(per_byte, 4)
        return numbers


class LiveStats:
    """Current LogStats at each read: Python's and C's together."""

    def __init__(self, now: Callable[[], LogStats]) -> None:
        self._now = now

    def __getattr__(self, name: str) -> Any:
        return getattr(self._now(), name)


class ReadStats(Struct):
    """Reads since the log was opened, by source."""

    log_reads: int = 0
    log_bytes: int = 0
    archive_reads: int = 0
    archive_bytes: int = 0  # of records, uncompressed

    def as_dict(self) -> dict[str, int]:
        """The counters for display and for --json."""
        return asdict(self)


class DiskUsage(NamedTuple):
    """Disk space of a log, and of its file system, in bytes."""

    used_bytes: int  # by its files, including prepared ones
    free_bytes: int  # available to it
    disk_bytes: int


def disk_usage(directory: str | os.PathLike[str]) -> DiskUsage:
    """Disk space of the files below `directory`.  A file removed during the call may or may not count.

    Raises OSError if the directory does not exist.
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


class LogState(Struct):
    """State of the log.  While read-only, no record is acknowledged, and rings fill up."""

    read_only: bool = False
    reason: str = ""  # "disk full", ...: cause of the last failure; "" without one
    failures: int = 0  # since the last success
    since_ns: int = 0  # wall-clock time of the first of them
    on_change: Callable[[], object] | None = None  # called when read_only has changed

    def failed(self, reason: str, *, read_only: bool) -> None:
        """Record a failure."""
        if not self.failures:
            self.since_ns = time.time_ns()
        self.failures += 1
        self.reason = reason
        self._set(read_only)

    def recovered(self) -> None:
        """Record a success."""
        self.failures, self.reason, self.since_ns = 0, "", 0
        self._set(False)

    def _set(self, read_only: bool) -> None:
        changed, self.read_only = self.read_only != read_only, read_only
        if changed and self.on_change is not None:
            self.on_change()

    def as_dict(self) -> dict[str, object]:
        """The state for display and for --json."""
        return {key: value for key, value in asdict(self).items() if key != "on_change"}
