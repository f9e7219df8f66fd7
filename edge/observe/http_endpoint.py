"""HTTP endpoint for metrics and health: GET /metrics, /healthz and /readyz, a minimal HTTP/1.1.

Serves one listening socket on the broker's event loop, off by default. Pages are created for each request,
and change nothing. A connection, its TLS handshake included, is bounded in bytes and time, and connections in
number; every answer closes its connection.

Without token and client certificates it serves every program that can reach the loopback interface. A
request whose Host is not a name of that interface (host_names.py) is refused then: a web page that resolves
its own name to 127.0.0.1 could otherwise read the numbers in a browser. With a token, /metrics requires it;
/healthz and /readyz answer other requests without reasons.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from socket import socket
from typing import NamedTuple

from edge.log_throttle import LogThrottle
from edge.logging_setup import pairs
from edge.observe.http_token import TokenFile
from edge.transport.descriptors import METRICS
from edge.transport.host_names import HostNames, host_of
from edge.transport.listen_sockets import http_url

log = logging.getLogger(__name__)

REQUEST_MAX_BYTES = 8192
REQUEST_S = 5.0
AT_ONCE_MAX = 8  # a page reads every session
OPEN_MAX = METRICS  # further connections are closed without reading
LINGER_S = 1.0  # for clients that still send: closing a socket with unread input would discard the answer
LINGER_MAX_BYTES = 1 << 20
ACCEPT_AGAIN_S = 0.1  # after an error, such as no free descriptor

_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found",
            405: "Method Not Allowed", 500: "Internal Server Error", 503: "Service Unavailable"}  # fmt: skip
_TEXT = "text/plain; charset=utf-8"


class Answer(NamedTuple):
    """Answer of a page."""

    status: int
    body: bytes
    kind: str = _TEXT


# A page gets True if the request may see everything; None: the request must have the token.
Page = Callable[[bool], Awaitable[Answer | None]]


class HttpEndpoint:
    """Serves `pages`, by path, at `listener`, a bound socket, from start() to stop(), which closes it.

    `tls`: with it clients use https. `is_mutual`: the handshake has verified the client.
    """

    def __init__(
        self,
        listener: socket,
        pages: Mapping[str, Page],
        connections_max: int = OPEN_MAX,
        *,
        token: TokenFile | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._connections_max = connections_max
        self._listener = listener
        self._names = HostNames(listener.getsockname()[0])
        self._may_log = LogThrottle()
        self._pages = pages
        self._token = token
        self._tls = tls
        self._is_mutual = tls is not None and tls.verify_mode is ssl.CERT_REQUIRED
        self._accepting: asyncio.Task[None] | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Serve."""
        self._listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())
        log.info("metrics %s", pairs(at=self.url))

    @property
    def url(self) -> str:
        """URL of the metrics."""
        return f"{http_url(self._listener, is_secure=self._tls is not None)}/metrics"

    async def stop(self) -> None:
        """Stop serving, and end requests under way."""
        if self._accepting is not None:
            tasks = [self._accepting, *self._serving]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError:
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            if len(self._serving) >= self._connections_max:
                connection.close()
                continue
            task = loop.create_task(self._serve(connection))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

    async def _serve(self, connection: socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=REQUEST_MAX_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        handshake_s = None if self._tls is None else REQUEST_S
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=self._tls, ssl_handshake_timeout=handshake_s
            )
        except (OSError, asyncio.CancelledError):  # no TLS, or no valid certificate; or stop()
            connection.close()
            return
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        # the client has closed, or does not read; or stop()
        with suppress(OSError, TimeoutError, asyncio.CancelledError):
            await self._talk(reader, writer)
        transport.abort()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer = await self._answer(reader)
        head = f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}\r\nContent-Type: {answer.kind}\r\n"
        if answer.status == 401:
            head += 'WWW-Authenticate: Bearer realm="brim"\r\n'
        head += f"Content-Length: {len(answer.body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
        async with asyncio.timeout(REQUEST_S):
            writer.write(head.encode() + answer.body)
            await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()
                await _let_finish(reader)
            else:  # TLS
                writer.close()
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader) -> Answer:
        try:
            async with asyncio.timeout(REQUEST_S):
                request = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            return Answer(400, b"no whole request\n")
        if len(self._serving) > AT_ONCE_MAX:
            return Answer(503, b"too many requests at once\n")
        line, *headers = request.split("\r\n")
        method, _, rest = line.partition(" ")
        target = rest.partition(" ")[0].partition("?")[0]
        if self._token is None and not self._is_mutual and not self._is_host_allowed(headers):
            return Answer(403, b"Host not allowed; use the listen address or localhost\n")
        if method != "GET":
            return Answer(405, b"GET, and nothing else\n")
        if target not in self._pages:
            return Answer(404, f"not found; use {', '.join(self._pages)}\n".encode())
        try:
            allowed = self._token is None or self._token.accepts(_header(headers, "authorization"))
            answer = await self._pages[target](allowed)
            return Answer(401, b"a bearer token is required\n") if answer is None else answer
        except Exception:
            if self._may_log():
                log.exception("page failed %s", pairs(path=target))
            return Answer(500, b"see the broker's log\n")

    def _is_host_allowed(self, headers: list[str]) -> bool:
        hosts = _header(headers, "host")
        return len(hosts) <= 1 and all(self._names.accept(host_of(host)) for host in hosts)


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
