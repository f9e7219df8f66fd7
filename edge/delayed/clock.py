"""Clock of the store: measures delays independently of the wall clock.

Owns the time scale of due times. While the broker runs, the scale follows the boot-time clock, which the
wall clock does not affect, and which continues while the machine sleeps. The store keeps pairs of scale and
wall time. Over a restart the scale advances by the wall time since the last pair, never backwards.

Invariant: a jump of the wall clock while the broker runs makes no message early or late. A jump forwards
while the broker is stopped counts as passed time; a jump backwards counts as zero.
"""

from __future__ import annotations

import time
from collections.abc import Callable

JUMP_MIN_NS = 500_000_000  # a smaller change of wall time minus scale needs no new pair


def _boot_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class StoreClock:
    """The time scale, in ns. Read by one thread."""

    def __init__(
        self,
        saved: tuple[int, int] | None,
        boot_ns: Callable[[], int] = _boot_ns,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Continue from `saved`: scale and wall time of the last pair; None: a new store."""
        self._boot_ns, self._wall_ns = boot_ns, wall_ns
        wall, boot = wall_ns(), boot_ns()
        scale = wall if saved is None else saved[0] + max(0, wall - saved[1])
        self._scale_minus_boot_ns = scale - boot  # constant while the process runs
        self._wall_minus_boot_ns = wall - boot  # at the last reading of both clocks
        self._saved_wall_minus_scale_ns = wall - scale  # at the last pair()

    def now_ns(self) -> int:
        """The present time on the scale."""
        return self._boot_ns() + self._scale_minus_boot_ns

    def pair(self) -> tuple[int, int]:
        """Scale and wall time, to be saved."""
        scale, wall = self.now_ns(), self._wall_ns()
        self._saved_wall_minus_scale_ns = wall - scale
        return scale, wall

    def has_jumped(self) -> bool:
        """True if the wall clock has jumped since the last pair()."""
        return abs(self._wall_ns() - self.now_ns() - self._saved_wall_minus_scale_ns) > JUMP_MIN_NS

    def arrived_ns(self) -> Callable[[int], int]:
        """Function from the wall time of a record to its arrival on the scale. Only for records read now."""
        boot = self._boot_ns()
        wall = self._wall_ns()
        without_jump = min(wall, boot + self._wall_minus_boot_ns)  # forwards, since the last reading
        self._wall_minus_boot_ns = wall - boot
        now = boot + self._scale_minus_boot_ns
        return lambda timestamp_ns: now - max(0, without_jump - timestamp_ns)
