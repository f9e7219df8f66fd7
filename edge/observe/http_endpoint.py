"""HTTP endpoint for metrics and health: GET /metrics, /healthz and /readyz, a minimal HTTP/1.1.

Serves one listening socket on the broker's event loop, off by default. Pages change nothing. A connection,
its TLS handshake included, is bounded in bytes and time, and every answer closes its connection. Connections
are bounded in number so that no address excludes the others (edge.transport.http_places), and the work for
them in time (http_pages.py).

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
from edge.transport.http_listener import HttpListener
from edge.transport.http_places import HttpConnection
from edge.transport.listen_sockets import http_url

log = logging.getLogger(__name__)

REQUEST_MAX_BYTES = 8192
REQUEST_S = 5.0  # for the handshake and the request, and again for the answer
OPEN_MAX = METRICS
LINGER_S = 1.0  # for clients that still send: closing a socket with unread input would discard the answer
LINGER_MAX_BYTES = 1 << 20

_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found",
            405: "Method Not Allowed", 500: "Internal Server Error", 503: "Service Unavailable"}  # fmt: skip
_TEXT = "text/plain; charset=utf-8"


class Answer(NamedTuple):
    """Answer of a page."""

    status: int
    body: bytes
    kind: str = _TEXT


_NO_REQUEST = Answer(400, b"no whole request\n")

# A page gets True if the request may see everything; None: the request must have the token.
Page = Callable[[bool], Awaitable[Answer | None]]


class HttpEndpoint:
    """Serves `pages`, by path, at `listener`, a bound socket, from start() to stop(), which closes it.

    `tls`: with it clients use https. A handshake that requires a client certificate stands for the token.
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
        self._listener = listener
        self._names = HostNames(listener.getsockname()[0])
        self._may_log = LogThrottle()
        self._pages = pages
        self._token = token
        self._tls = tls
        self._is_mutual = tls is not None and tls.verify_mode is ssl.CERT_REQUIRED
        self._served = HttpListener(listener, self._serve, connections_max, "metrics")

    async def start(self) -> None:
        """Serve."""
        self._served.start()
        log.info("metrics %s", pairs(at=self.url))

    @property
    def url(self) -> str:
        """URL of the metrics."""
        return f"{http_url(self._listener, is_secure=self._tls is not None)}/metrics"

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return self._served.connections

    async def stop(self) -> None:
        """Stop serving, and end requests under way."""
        await self._served.stop()

    async def _serve(self, connection: HttpConnection) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=REQUEST_MAX_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        deadline_s = loop.time() + REQUEST_S
        handshake_s = None if self._tls is None else REQUEST_S
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, connection.socket, ssl=self._tls, ssl_handshake_timeout=handshake_s
            )
        except (OSError, asyncio.CancelledError):  # no TLS, or no valid certificate; displaced; or stop()
            connection.socket.close()
            return
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        # the client has closed, or does not read; displaced; or stop()
        with suppress(OSError, TimeoutError, asyncio.CancelledError):
            request = await _request(reader, deadline_s)
            connection.waits = lambda: False
            answer = _NO_REQUEST if request is None else await self._answer(request)
            connection.waits = lambda: True  # for a client that does not read, or does not close
            await _send(reader, writer, answer)
        transport.abort()

    async def _answer(self, request: str) -> Answer:
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


async def _request(reader: asyncio.StreamReader, deadline_s: float) -> str | None:
    """The request, up to the end of its head. None: it is too long, or too slow."""
    try:
        async with asyncio.timeout_at(deadline_s):
            return (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
        return None


async def _send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer) -> None:
    """Write the answer, and close the connection. Raises OSError, TimeoutError."""
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
