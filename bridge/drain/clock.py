"""Clocks of the drain: a seam, so that a test can simulate a week offline in seconds."""

from __future__ import annotations

import time
from typing import Protocol


class DrainClock(Protocol):
    """Wall clock, monotonic clock, and the age of records."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment; never goes back."""

    def wall_ns(self) -> int:
        """Nanoseconds since 1970."""

    def age_s(self, timestamp_ns: int) -> float:
        """Seconds since a record got this timestamp; 0 if the timestamp is in the future."""


class _System:
    """The clocks of this machine."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ns(self) -> int:
        return time.time_ns()

    def age_s(self, timestamp_ns: int) -> float:
        return max(time.time_ns() - timestamp_ns, 0) / 1e9


SYSTEM: DrainClock = _System()
