"""Replay clock: the time up to which records are due in a replay at a factor of their original speed. No I/O.

Readers have one for themselves, and a consumer group has one for all of its members. The clock begins at the
time of a record, and adds `speed` seconds in each second. A change of the speed continues from the time that
was reached.

A replay that has reached the present has nothing to wait for: all records are due, also those with a time in
the future. The present is the wall time at begin() and the time since: a step of the wall clock is not time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

SPEED_MIN, SPEED_MAX = 0.001, 1_000_000
EVERYTHING_NS = (1 << 64) - 1  # no record has a later time


class ReplayClock:
    """Clock of one replay. `now_s` is of time.monotonic(), times of records are in ns since 1970."""

    def __init__(self, speed: float, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self.speed = speed
        self._wall_ns = wall_ns
        self._begun: tuple[float, int, float] | None = None  # now_s, time of records, speed from then on
        self._wall_at_zero_ns = 0  # wall time at now_s = 0

    @property
    def has_begun(self) -> bool:
        """True between begin() and stop()."""
        return self._begun is not None

    def begin(self, now_s: float, first_ns: int) -> None:
        """Begin: a record of the time `first_ns` is due now."""
        self._begun = now_s, first_ns, self.speed
        self._wall_at_zero_ns = self._wall_ns() - int(now_s * 1e9)

    def stop(self) -> None:
        """Stop; begin() starts the clock again."""
        self._begun = None

    def until_ns(self, now_s: float) -> int:
        """Records up to this time are due. The clock has begun."""
        reached_ns = self._reached_ns(now_s)
        return EVERYTHING_NS if reached_ns >= self._wall_at_zero_ns + int(now_s * 1e9) else reached_ns

    def due_s(self, now_s: float, timestamp_ns: int) -> float:
        """Time at which a record of that time is due. The clock has begun."""
        wait_ns = timestamp_ns - self.until_ns(now_s)
        return now_s + max(wait_ns, 0) / 1e9 / self.speed

    def _reached_ns(self, now_s: float) -> int:
        assert self._begun is not None
        begun_s, first_ns, speed = self._begun
        reached_ns = max(first_ns + int((now_s - begun_s) * 1e9 * speed), 0)
        if speed != self.speed:
            self._begun = now_s, reached_ns, self.speed
        return reached_ns
