"""Group replay: the pace of a group whose members together get records at a factor of their original speed.

Owns the clock of the group. The broker delivers a new record when it is due, to the member that may have it.
So the times between records are kept whatever the number of members, and no member knows about the others.
Records that come again are due already. A member that is slow gets all that became due meanwhile.

The clock begins when the first record of each partition is known, at the oldest of them; or, if a partition
is not read, because its owner fetches nothing, PATIENCE_S after the last one was. It stops while the group
has no members, and then begins again at the oldest record that was not delivered.

No I/O.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection

from edge.consumers.group_partition import GroupPartition
from edge.consumers.replay_clock import EVERYTHING_NS, ReplayClock

PATIENCE_S = 2.0
NOTHING_NS = -1  # no record is due: the clock has not begun


class GroupReplay:
    """Pace of one group. Times are of a clock that never goes back, those of records in ns since 1970."""

    def __init__(self, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self._clock = ReplayClock(0.0, wall_ns)
        self._begins_s = math.inf  # time at which the clock begins at the latest

    @property
    def speed(self) -> float:
        """Factor of the original speed; 0: as fast as possible."""
        return self._clock.speed

    @speed.setter
    def speed(self, speed: float) -> None:
        self._clock.speed = speed

    def stop(self) -> None:
        """Stop the clock, because the group has no members."""
        self._clock.stop()
        self._begins_s = math.inf

    def until_ns(self, partitions: Collection[GroupPartition], now_s: float) -> int:
        """Records up to this time are due."""
        if not self.speed:
            self.stop()
            return EVERYTHING_NS
        if not self._clock.has_begun:
            self._begin(partitions, now_s)
        return self._clock.until_ns(now_s) if self._clock.has_begun else NOTHING_NS

    def due_s(self, timestamp_ns: int, now_s: float) -> float:
        """Time at which a record that is not due now becomes due, or may."""
        return self._clock.due_s(now_s, timestamp_ns) if self._clock.has_begun else self._begins_s

    def found(self, now_s: float) -> None:
        """Report that records of a partition were found: the clock waits for those of the others."""
        if not self._clock.has_begun:
            self._begins_s = now_s + PATIENCE_S

    def _begin(self, partitions: Collection[GroupPartition], now_s: float) -> None:
        known = [ns for partition in partitions if (ns := partition.next_ns) is not None]
        complete = all(partition.idle or partition.next_ns is not None for partition in partitions)
        if known and self._begins_s == math.inf:
            self._begins_s = now_s + PATIENCE_S
        if known and (complete or now_s >= self._begins_s):
            self._clock.begin(now_s, min(known))
