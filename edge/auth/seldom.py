"""When to say again what would else be said a thousand times a second.  Owns the time it was last said."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Seldom"]

AGAIN_S = 10.0


class Seldom:
    """True at most once in AGAIN_S.  Any thread; two at once may both be told True."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_s = -AGAIN_S

    def __call__(self) -> bool:
        """Whether to say it."""
        now_s = self._clock()
        if now_s - self._last_s < AGAIN_S:
            return False
        self._last_s = now_s
        return True
