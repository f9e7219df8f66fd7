"""What time it is, for the drain: a seam, so that a week offline can be tried in a second."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["SYSTEM", "Clock"]


class Clock(Protocol):
    """Two clocks."""

    def monotonic(self) -> float:
        """Seconds since whenever; never goes back."""

    def wall_ns(self) -> int:
        """Ns since 1970, the clock of records' timestamps."""


class _System:
    """The clocks of this machine."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ns(self) -> int:
        return time.time_ns()


SYSTEM: Clock = _System()
