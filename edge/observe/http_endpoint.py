"""HTTP endpoint for metrics: GET /metrics for a Prometheus server on this machine, a minimal HTTP/1.1.

Serves one listening socket on the broker's event loop, off by default. It serves one page, created for each
request, and changes nothing. A request is read up to the end of its headers, bounded in bytes and time; every
answer closes its connection.

Serves every program that can reach the loopback interface. A request whose Host is not a name of that
interface (host_names.py) is refused: a web page that resolves its own name to 127.0.0.1 could otherwise read
the numbers in a browser.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from socket import socket

from edge.log_throttle import LogThrottle
from edge.logging_setup import pairs
from edge.observe.prometheus import CONTENT_TYPE
from edge.transport.descriptors import METRICS
from edge.transport.host_names import HostNames, host_of

__all__ = ["MetricsEndpoint"]

log = logging.getLogger(__name__)

REQUEST_MAX_BYTES = 8192
REQUEST_S = 5.0
AT_ONCE_MAX = 8  # a page reads every session
OPEN_MAX = METRICS  # further connections are closed without reading
LINGER_S = 1.0  # for clients that still send: closing a socket with unread input would discard the answer
LINGER_MAX_BYTES = 1 << 20

_REASONS = {200: "OK", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
            500: "Internal Server Error", 503: "Service Unavailable"}  # fmt: skip


class MetricsEndpoint:
    """Serves the result of `page` at `listener`, a bound socket, from start() to stop(), which closes it."""

    def __init__(
        self, listener: socket, page: Callable[[], Awaitable[str]], connections_max: int = OPEN_MAX
    ) -> None:
        self._connections_max = connections_max
        self._listener = listener
        self._names = HostNames(listener.getsockname()[0])
        self._may_log = LogThrottle()
        self._page = page
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Serve."""
        self._server = await asyncio.start_server(self._accept, sock=self._listener, limit=REQUEST_MAX_BYTES)
        log.info("metrics %s", pairs(at=self.url))

    @property
    def url(self) -> str:
        """URL of the page."""
        host, port, *_ = self._listener.getsockname()
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"

    async def stop(self) -> None:
        """Stop serving, and end requests under way."""
        if self._server is not None:
            self._server.close()
            for task in self._serving:
                task.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)
            await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            if len(self._serving) > self._connections_max:
                raise ConnectionError("too many")
            status, body = await self._answer(reader)
            kind = CONTENT_TYPE if status == 200 else "text/plain; charset=utf-8"
            head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\n"
            head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode() + body)
            async with asyncio.timeout(REQUEST_S):
                await writer.drain()
            writer.write_eof()
            await _let_finish(reader)
        # the client has closed, or does not read; or stop()
        except (OSError, TimeoutError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._serving.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        try:
            async with asyncio.timeout(REQUEST_S):
                request = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            return 400, b"no whole request\n"
        if len(self._serving) > AT_ONCE_MAX:
            return 503, b"too many requests at once\n"
        line, *headers = request.split("\r\n")
        method, _, rest = line.partition(" ")
        target = rest.partition(" ")[0].partition("?")[0]
        hosts = _header(headers, "host")
        if len(hosts) > 1 or not all(self._names.accept(host_of(host)) for host in hosts):
            return 403, b"Host not allowed; use the listen address or localhost\n"
        if method != "GET":
            return 405, b"GET, and nothing else\n"
        if target != "/metrics":
            return 404, b"not found; use /metrics\n"
        try:
            return 200, (await self._page()).encode()
        except Exception:
            if self._may_log():
                log.exception("metrics page failed")
            return 500, b"see the broker's log\n"


async def _let_finish(reader: asyncio.StreamReader) -> None:
    """Read and ignore further input of a client, up to its end."""
    left = LINGER_MAX_BYTES
    async with asyncio.timeout(LINGER_S):
        while left > 0 and (data := await reader.read(REQUEST_MAX_BYTES)):
            left -= len(data)


def _header(headers: list[str], name: str) -> list[str]:
    """Values of all headers with that name."""
    split = (line.partition(":") for line in headers)
    return [value.strip() for key, _, value in split if key.strip().lower() == name]
