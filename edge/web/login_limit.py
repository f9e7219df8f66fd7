"""Login limit: bounds failed log-ins by address, and of all addresses together.

A password is a guess with one try at a time: FAILURES of an address in WINDOW_S, and ALL_FAILURES of all. An
address from which a user has logged in has only its own limit, so that guesses of many other addresses do not
lock its users out. The address is that of edge.auth.fair_executor.origin(): a network of IPv6 counts as one.
Owns no passwords.
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
        self._all: deque[float] = deque(maxlen=ALL_FAILURES)
        self._by_origin: OrderedDict[str, deque[float]] = OrderedDict()
        self._known: OrderedDict[str, None] = OrderedDict()  # addresses of users; the latest last

    def wait_s(self, origin: str) -> float:
        """Seconds until the address may try again; 0: now."""
        now_s = self._clock()
        waits = [0.0] if origin in self._known else [_wait(self._all, ALL_FAILURES, now_s)]
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
        """Take back the latest failure of an address, which is that of a user from now on.

        Earlier failures count: a user must not guess the passwords of others between two log-ins.
        """
        for failures in (self._all, self._by_origin.get(origin)):
            if failures:
                failures.pop()
        self._known[origin] = None
        self._known.move_to_end(origin)
        if len(self._known) > ORIGINS_MAX:
            self._known.popitem(last=False)


def _wait(failures: deque[float], count: int, now_s: float) -> float:
    while failures and now_s - failures[0] >= WINDOW_S:
        failures.popleft()
    return WINDOW_S - (now_s - failures[-count]) if len(failures) >= count else 0.0
