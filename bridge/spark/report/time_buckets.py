"""Time buckets: amounts in intervals of equal length.

A bucket that nothing was added to is None, not 0: a chart then leaves the time empty.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime

BUCKETS_MAX = 120
DAY_S = 86400
STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, DAY_S)


class TimeBuckets:
    """Intervals from `low_s` to `high_s`, seconds since 1970, at most BUCKETS_MAX and one more."""

    def __init__(self, low_s: float, high_s: float) -> None:
        days = math.ceil((high_s - low_s) / BUCKETS_MAX / DAY_S) * DAY_S
        fitting = (step for step in STEPS_S if (high_s - low_s) / step <= BUCKETS_MAX)
        self.step_s = next(fitting, days)
        self.start_s = low_s // self.step_s * self.step_s
        self.count = int((high_s - self.start_s) // self.step_s) + 1

    def middles(self) -> list[datetime]:
        """The middle of each bucket, UTC."""
        first = self.start_s + self.step_s / 2
        return [datetime.fromtimestamp(first + at * self.step_s, UTC) for at in range(self.count)]

    def empty(self) -> list[float | None]:
        """A value for each bucket, none of them known."""
        return [None] * self.count

    def spread(self, values: list[float | None], first_s: float, last_s: float, amount: float) -> None:
        """Add an amount evenly to the buckets from `first_s` to `last_s`."""
        if last_s <= first_s:  # of one moment, or the clock was set back
            self._add(values, self._at(first_s), amount)
            return
        for at in range(self._at(first_s), self._at(last_s) + 1):
            begin_s = self.start_s + at * self.step_s
            share_s = min(last_s, begin_s + self.step_s) - max(first_s, begin_s)
            if share_s > 0:
                self._add(values, at, amount * share_s / (last_s - first_s))

    def raise_to(self, values: list[float | None], at_s: float, value: float) -> None:
        """Keep the maximum of a bucket."""
        at = self._at(at_s)
        before = values[at]
        values[at] = value if before is None else max(before, value)

    def _at(self, seconds: float) -> int:
        return min(max(int((seconds - self.start_s) // self.step_s), 0), self.count - 1)

    @staticmethod
    def _add(values: list[float | None], at: int, amount: float) -> None:
        values[at] = (values[at] or 0.0) + amount
