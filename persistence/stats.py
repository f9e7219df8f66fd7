"""What the log has done and how it fares: numbers for `brim status`, and the state that tells why it does not
write.

Plain numbers, written by the log thread alone; readers in other threads see each of them whole, if not all of
one moment.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

__all__ = ["Histogram", "LogState", "LogStats"]


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

    def as_dict(self) -> dict[str, float]:
        """Count, mean and bounds, in µs."""
        mean_us = self.total_ns / self.count / 1000 if self.count else 0.0
        return {
            "count": self.count,
            "mean_us": round(mean_us, 1),
            "p50_below_us": self.quantile_us(0.5),
            "p99_below_us": self.quantile_us(0.99),
            "max_us": self.max_ns // 1000,
        }


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

    def as_dict(self) -> dict[str, object]:
        """For people and for --json."""
        numbers: dict[str, object] = {key: value for key, value in vars(self).items() if key != "fsync"}
        numbers["bytes_per_sync"] = self.synced_bytes // self.syncs if self.syncs else 0
        numbers["fsync"] = self.fsync.as_dict()
        return numbers


@dataclass
class LogState:
    """Whether the log takes records.  While it does not, nothing is acknowledged, and rings fill up."""

    read_only: bool = False
    reason: str = ""  # "disk full", ...: of the last failure, "" while all is well
    failures: int = 0  # since the last success
    since_ns: int = 0  # wall clock, when the first of them came
    unsynced_bytes: int = 0  # durable lag: read from rings, and not yet on the disk

    def failed(self, reason: str, *, read_only: bool) -> None:
        """Notes a failure."""
        if not self.failures:
            self.since_ns = time.time_ns()
        self.failures += 1
        self.reason = reason
        self.read_only = read_only

    def works(self) -> None:
        """Notes a success."""
        self.failures, self.reason, self.read_only, self.since_ns = 0, "", False, 0

    def as_dict(self) -> dict[str, object]:
        """For people and for --json."""
        return dict(vars(self))
