"""Limits of repeated log messages: one every 10 s, or a number at once and then a steady rate."""

from __future__ import annotations

import time
from collections.abc import Callable

AGAIN_S = 10.0


class LogThrottle:
    """A limit of one log message. True at most once in AGAIN_S. Any thread; two at once may both get True."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_s = -AGAIN_S

    def __call__(self) -> bool:
        """True if the message is to be logged now."""
        now_s = self._clock()
        if now_s - self._last_s < AGAIN_S:
            return False
        self._last_s = now_s
        return True


class LineBudget:
    """A limit of lines: `burst` of them at once, then `per_s` a second. Counts the lines left out."""

    def __init__(self, burst: int, per_s: float) -> None:
        self._burst, self._per_s = float(burst), per_s
        self._lines, self._last_s = self._burst, 0.0
        self._left_out = 0

    def take(self, now_s: float) -> bool:
        """True if a line may be written now. A clock that is set back adds no lines."""
        earned = max(0.0, now_s - self._last_s) * self._per_s
        self._lines, self._last_s = min(self._burst, self._lines + earned), now_s
        if self._lines < 1.0:
            self._left_out += 1
            return False
        self._lines -= 1.0
        return True

    def left_out(self) -> int:
        """Number of lines left out since the last call."""
        count, self._left_out = self._left_out, 0
        return count
