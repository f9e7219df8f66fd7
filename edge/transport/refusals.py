"""Refused connections: logs the counts of the C loop.

Owns the counts of the last message. The MQTT loop refuses in C (ringbuf/c/mqtt/accept.c), so no line is
logged for a single connection: one message in 10 s gives the number of refusals, by cause.
"""

from __future__ import annotations

import asyncio
import logging

from edge.engine.engine import CloseCause, Engine, counters_of
from edge.errors import FILES_REMEDY
from edge.log_throttle import LogThrottle
from edge.logging_setup import pairs

log = logging.getLogger(__name__)

LOOK_S = 1.0


class Refusals:
    """Observer of the counters of `engine`. May run on any thread: the counters are plain memory."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine  # keeps the memory of the counters alive
        self._counters = counters_of(engine)
        self._limit = 0
        self._rests = 0
        self._log_limit = LogThrottle()
        self._log_rest = LogThrottle()

    async def watch(self) -> None:
        """Check the counters each second, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.log_refusals()

    def log_refusals(self) -> None:
        """Log the refusals since the last message."""
        counters = self._counters
        refused = int(counters.closed[CloseCause.LIMIT])
        if refused > self._limit and self._log_limit():
            details = pairs(refused=refused - self._limit, connections=int(counters.connections))
            log.warning("connections refused; raise connections_max of [limits] or the listener %s", details)
            self._limit = refused
        rests = int(counters.accept_rests)
        if rests > self._rests and self._log_rest():
            log.warning(
                "accepting paused: no files may be opened; %s %s",
                FILES_REMEDY,
                pairs(times=rests - self._rests),
            )
            self._rests = rests
