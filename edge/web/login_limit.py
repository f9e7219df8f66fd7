"""Login limit: bounds failed log-ins by address, and of all addresses together.

A password is a guess with one try at a time: FAILURES of an address in WINDOW_S, and ALL_FAILURES of all. The
address is that of edge.auth.fair_executor.origin(): a network of IPv6 counts as one. Owns no passwords.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable

WINDOW_S = 60.0
FAILURES = 10
ALL_FAILURES = 60
ORIGINS_MAX = 1_000


class LoginLimit:
    """Counts of failures."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._all: deque[float] = deque()
        self._by_origin: OrderedDict[str, deque[float]] = OrderedDict()

    def wait_s(self, origin: str) -> float:
        """Seconds until the address may try again; 0: now."""
        now_s = self._clock()
        waits = [_wait(self._all, ALL_FAILURES, now_s)]
        if origin in self._by_origin:
            waits.append(_wait(self._by_origin[origin], FAILURES, now_s))
        return max(waits)

    def failed(self, origin: str) -> None:
        """Count a failure."""
        now_s = self._clock()
        failures = self._by_origin.pop(origin, None) or deque(maxlen=FAILURES)
        if len(self._by_origin) >= ORIGINS_MAX:
            self._by_origin.popitem(last=False)
        self._by_origin[origin] = failures
        failures.append(now_s)
        self._all.append(now_s)

    def succeeded(self, origin: str) -> None:
        """Forget the failures of an address."""
        self._by_origin.pop(origin, None)


def _wait(failures: deque[float], count: int, now_s: float) -> float:
    while failures and now_s - failures[0] >= WINDOW_S:
        failures.popleft()
    return WINDOW_S - (now_s - failures[-count]) if len(failures) >= count else 0.0
