"""HTTP listener: accepts the connections of one listening socket, and serves each by a task.

Owns the socket, and the places of connections (http_places.py), from start() to stop(). Knows nothing of
HTTP. A connection has its place before its TLS handshake, and gives it back when its task has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from socket import socket
from typing import Any

from edge.log_throttle import LogThrottle
from edge.logging_setup import pairs
from edge.transport.http_places import HttpConnection, HttpPlaces

log = logging.getLogger(__name__)

ACCEPT_AGAIN_S = 0.1  # after an error, such as no free descriptor


class HttpListener:
    """Serves each connection of `listener`, a bound socket, by `serve`, which closes the socket.

    `server`: its name in log lines.
    """

    def __init__(
        self,
        listener: socket,
        serve: Callable[[HttpConnection], Coroutine[Any, Any, None]],
        connections_max: int,
        server: str,
    ) -> None:
        self._listener = listener
        self._serve = serve
        self._server = server
        self._places = HttpPlaces(connections_max, server)
        self._may_log = LogThrottle()
        self._serving: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._places)

    def start(self) -> None:
        """Accept connections, on the running event loop."""
        self._listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())

    async def stop(self) -> None:
        """End all connections, and close the socket."""
        tasks = [task for task in (self._accepting, *self._serving) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, (host, *_) = await loop.sock_accept(self._listener)
            except OSError as error:
                if self._may_log():
                    log.warning("%s connection not accepted %s", self._server, pairs(reason=error.strerror))
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            connection = HttpConnection(accepted, host)
            if self._places.take(connection):
                task = connection.task = loop.create_task(self._serve(connection))
                self._serving.add(task)
                task.add_done_callback(partial(self._ended, connection))
            else:
                accepted.close()
            # sock_accept() does not yield while connections wait, and would starve the rest of the loop
            await asyncio.sleep(0)

    def _ended(self, connection: HttpConnection, task: asyncio.Task[None]) -> None:
        self._serving.discard(task)
        self._places.give(connection)
        if task.cancelled():  # perhaps before it began
            connection.socket.close()
