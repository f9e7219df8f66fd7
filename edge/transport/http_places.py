"""Places of an HTTP server: connections are bounded in number, and no address excludes the others.

Owns the table of open connections, by address. Never reads or writes a socket; it ends the connection that
makes room for a new one. An address is that of edge.auth.fair_executor.origin(): a network of IPv6 counts as
one, and so does loopback.

    1. A place is free: the connection is admitted.
    2. Otherwise the address with most connections loses one: the oldest one that waits, for its request or
       for a client that takes no answer. If that address has at least two more than the new connection's
       own, and none that waits, it loses its oldest one.
    3. Otherwise the new connection is refused.

So a connection of an address with few of them, such as a health probe, gets a place whatever another address
does, and a client that sends its request at once is not displaced by clients that send none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from socket import socket

from edge.auth.fair_executor import origin
from edge.log_throttle import LogThrottle
from edge.logging_setup import pairs

log = logging.getLogger(__name__)


class HttpConnection:
    """An accepted socket, and the task that serves it."""

    def __init__(self, accepted: socket, host: str) -> None:
        self.socket = accepted
        self.origin = origin(f"[{host}]:0" if ":" in host else f"{host}:0")
        self.task: asyncio.Task[None] | None = None
        # True while there is no whole request, or the client does not take its answer
        self.waits: Callable[[], bool] = lambda: True

    def end(self) -> None:
        """Cancel the task."""
        if self.task is not None:
            self.task.cancel()


class HttpPlaces:
    """Open connections, at most `places_max`. `server`: its name in log lines."""

    def __init__(self, places_max: int, server: str) -> None:
        self._places_max = places_max
        self._server = server
        self._may_log = LogThrottle()
        self._by_origin: dict[str, dict[HttpConnection, None]] = {}  # the oldest first

    def __len__(self) -> int:
        return sum(map(len, self._by_origin.values()))

    def take(self, connection: HttpConnection) -> bool:
        """Give a place to a new connection. False: there is none."""
        if len(self) >= self._places_max and not self._make_room(connection.origin):
            return False
        self._by_origin.setdefault(connection.origin, {})[connection] = None
        return True

    def give(self, connection: HttpConnection) -> None:
        """Free the place of a connection, if it still has it."""
        crowd = self._by_origin.get(connection.origin, {})
        crowd.pop(connection, None)
        if not crowd:
            self._by_origin.pop(connection.origin, None)

    def _make_room(self, source: str) -> bool:
        """True if a connection was ended for one of `source`."""
        sizes = {other: len(crowd) for other, crowd in self._by_origin.items()}
        largest = max(sizes, key=lambda other: (sizes[other], other == source))
        crowd = self._by_origin[largest]
        if self._may_log():
            facts = pairs(address=largest, connections=len(crowd), limit=self._places_max)
            log.warning("%s connections used up %s", self._server, facts)
        displaced = next((connection for connection in crowd if connection.waits()), None)
        if displaced is None and len(crowd) > sizes.get(source, 0) + 1:
            displaced = next(iter(crowd))
        if displaced is None:
            return False
        self.give(displaced)
        displaced.end()
        return True
