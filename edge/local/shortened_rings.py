"""Shortened ring files: repairs and reports files of local rings that a process of another user has
truncated.

Owns the counts of the last messages. The guard of the mapped memory (ringbuf/c/ring/sigbus_guard.c) keeps the
broker alive. This module logs such events, and repairs a truncated file that no guard has noticed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from edge.local.producers import Producers
from edge.log_throttle import LogThrottle
from edge.logging_setup import pairs
from edge.streams.streams import Streams
from ringbuf import Ring

log = logging.getLogger(__name__)

LOOK_S = 1.0
REMEDY = "give the group of runtime_dir to trusted programs only"


class ShortenedFiles:
    """Observer of the rings of `streams` and `producers`. For the event loop."""

    def __init__(self, streams: Streams, producers: Producers) -> None:
        self._streams, self._producers = streams, producers
        self._faults: dict[str, int] = {}
        self._limit = LogThrottle()

    async def watch(self) -> None:
        """Check the rings each second, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.repair()

    def repair(self) -> None:
        """Repair the files, and log new faults."""
        for name, ring in self._rings():
            faults = ring.mend()
            if faults > self._faults.get(name, 0) and self._limit():
                self._faults[name] = faults
                outcome = "producer ring closed" if ring.is_lost else "cursor file restored"
                details = pairs(name=name, times=faults)
                log.warning("%s: another process had shortened it; %s %s", outcome, REMEDY, details)

    def _rings(self) -> Iterator[tuple[str, Ring]]:
        yield from ((entry.name, entry.ring) for entry in self._streams.all())
        yield from ((entry.name, entry.ring) for entry in self._producers.all())
