"""Log throttle: limits a repeated log message to one every 10 s.  Owns the time of the last one."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["LogThrottle"]

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
