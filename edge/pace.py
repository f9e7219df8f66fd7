"""Paced work: one piece at a time, and in a share of the time only.

A piece that took t is followed by a pause of REST * t, at most REST_MAX_S. So work that clients cause, such
as status reports, leaves the threads that it uses to others, however often it is requested.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

REST = 9
REST_MAX_S = 0.25

T = TypeVar("T")


class PacedWork:
    """Work of one event loop, in the order of the calls."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._turn = asyncio.Lock()
        self._next_s = clock()

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Result of `work`, which begins after the pieces before it and their pauses."""
        async with self._turn:
            await asyncio.sleep(max(self._next_s - self._clock(), 0.0))
            began_s = self._clock()
            try:
                return await work()
            finally:
                ended_s = self._clock()
                self._next_s = ended_s + min(REST * (ended_s - began_s), REST_MAX_S)

    @property
    def is_free(self) -> bool:
        """True if no piece is under way, waits, or has a pause."""
        return not self._turn.locked() and self._clock() >= self._next_s
