"""What time it is, for the drain: a seam, so that a week offline can be tried in seconds."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["SYSTEM", "Clock"]


class Clock(Protocol):
    """Two clocks, and the age of records."""

    def monotonic(self) -> float:
        """Seconds since whenever; never goes back."""

    def wall_ns(self) -> int:
        """Since 1970, in ns."""

    def age_s(self, timestamp_ns: int) -> float:
        """Seconds since a record got this timestamp; 0 if that is to come."""


class _System:
    """The clocks of this machine."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ns(self) -> int:
        return time.time_ns()

    def age_s(self, timestamp_ns: int) -> float:
        return max(time.time_ns() - timestamp_ns, 0) / 1e9


SYSTEM: Clock = _System()
