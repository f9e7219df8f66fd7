"""Processor priority of background work: other threads come first, interrupt it at once, and get pauses.

A low priority does not suffice. Linux lets a thread, whatever its nice value, run for its slice before it
looks at a thread that wakes up on the same processor: up to 4 ms, in which a broker serves thousands of
messages. Since Linux 6.12 a thread may have a slice of its own, and a thread with a shorter one interrupts it
at once. The slice changes no shares: background work gets all of an idle processor, and the share of its nice
value of a busy one. SCHED_IDLE has the same effect on threads that wake up, but gets no time on a processor
that is never idle.

Each interruption costs the other thread time, because the caches have data of the background work. Pauses
make interruptions rare. Threads of the background work interrupt each other too, less often than ALLOWED_S.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
from contextlib import suppress

LOWEST = 19
SLICE_NS = 100_000_000  # the longest that Linux takes; the default on two processors is 1.4 ms
SCHED_SETATTR = {"x86_64": 314, "aarch64": 274, "armv7l": 380}
ALLOWED_S = 2_000  # interruptions in a second of processor time; a busy broker makes 15,000
CREDIT_MAX = 200
PAUSE_S = 0.000_5  # for each further interruption
PAUSE_MAX_S = 1.0
_ATTRIBUTES = struct.Struct("IIQiIQQQ")  # struct sched_attr: size, policy, flags, nice, -, slice, -, -


def lower_priority(niceness: int) -> None:
    """Give the calling thread this nice value or its present higher one, and the longest slice.

    Threads and processes that it starts have them too. A system that refuses, or an older Linux, leaves what
    it permits.
    """
    niceness = max(niceness, os.getpriority(os.PRIO_PROCESS, 0))
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
    number = SCHED_SETATTR.get(platform.machine())
    if number is not None:
        attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_BATCH, 0, niceness, 0, SLICE_NS, 0, 0)
        ctypes.CDLL(None).syscall(number, 0, attributes, 0)


class Pauses:
    """Pauses of one thread of the lowest priority, by the interruptions of all threads of the process.

    A thread of another priority makes none.
    """

    def __init__(self) -> None:
        self._comes_last = os.getpriority(os.PRIO_PROCESS, 0) >= LOWEST
        self._interruptions, self._used_s = _interruptions()
        self._excess = 0.0  # below 0: interruptions that are still allowed

    def due_s(self) -> float:
        """Length of the pause for the interruptions since the last call."""
        interruptions, used_s = _interruptions()
        more = interruptions - self._interruptions - ALLOWED_S * (used_s - self._used_s)
        self._interruptions, self._used_s = interruptions, used_s
        self._excess = max(self._excess + more, -CREDIT_MAX)
        if not self._comes_last or self._excess <= 0:
            return 0.0
        excess, self._excess = self._excess, 0.0
        return min(excess * PAUSE_S, PAUSE_MAX_S)


def _interruptions() -> tuple[int, float]:
    """Number of times that a thread of this process had to leave a processor, and its processor seconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_nivcsw, usage.ru_utime + usage.ru_stime
