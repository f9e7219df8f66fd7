"""HTTP server: uvicorn's protocol on one listening socket, with bounds for connections, time and memory.

    connections   CONNECTIONS_MAX, so that no address excludes the others (edge.transport.http_places)
    first byte    REQUEST_S until the head of a request is there, KEEP_ALIVE_S between two requests
    answer        STALL_S until the client has taken all that was written
    handshake     HANDSHAKE_S for TLS

Owns the socket. Uses the protocol of uvicorn without its own loop, which wakes ten times a second for no
reason.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from edge.transport.http_listener import HttpListener
from edge.transport.http_places import HttpConnection
from edge.transport.listen_sockets import http_url

CONNECTIONS_MAX = 128
REQUEST_S = 10.0
KEEP_ALIVE_S = 30
STALL_S = 60.0
HANDSHAKE_S = 5.0
HEAD_MAX_BYTES = 16 << 10
STOP_S = 2.0


class _Protocol(H11Protocol):
    """A connection that ends if its next request does not come in time, or its answer is not taken."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.ended = self.loop.create_future()
        self._deadline: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None  # runs while the transport has output

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override, unused-ignore]
        transport.set_write_buffer_limits(1, 0)  # 0 would stop TLS; pause_writing() while anything waits
        super().connection_made(transport)
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
        self._cancel()
        self._cancel_stall()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self.cycle  # None before the first request
        super().data_received(data)
        if self.cycle is not before:
            self._cancel()  # the head is there; the guard bounds the rest
        elif self._deadline is None and getattr(before, "response_complete", True):
            self._await_request()

    def waits(self) -> bool:
        """True if it has no whole request, or its client does not take the answer."""
        if self._stall is not None or self.cycle is None:
            return True
        return bool(self.cycle.response_complete or self.cycle.more_body)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall = self.loop.call_later(STALL_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_stall()

    def _cancel_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _await_request(self) -> None:
        self._cancel()
        self._deadline = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class HttpServer:
    """Serves an ASGI application on `listener`, a bound socket, which stop() closes. `tls`: https."""

    def __init__(self, app: Any, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        self._listener = listener
        self._tls = tls
        self._config = uvicorn.Config(
            app,
            http=H11Protocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            h11_max_incomplete_event_size=HEAD_MAX_BYTES,
        )

    @property
    def url(self) -> str:
        """URL of the console."""
        return f"{http_url(self._listener, is_secure=self._tls is not None)}/"

    async def start(self) -> None:
        """Start the application, and serve."""
        config = self._config
        config.load()
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # a line for each invalid request
        self._lifespan = config.lifespan_class(config)
        await self._lifespan.startup()
        self._state = ServerState()
        self._served = HttpListener(self._listener, self._serve, CONNECTIONS_MAX, "console")
        self._served.start()

    async def _serve(self, connection: HttpConnection) -> None:
        protocol = _Protocol(self._config, self._state, self._lifespan.state)
        loop = asyncio.get_running_loop()
        handshake_s = None if self._tls is None else HANDSHAKE_S
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, connection.socket, ssl=self._tls, ssl_handshake_timeout=handshake_s
            )
        except (OSError, asyncio.CancelledError):  # no TLS; displaced; or stop()
            connection.socket.close()
            return
        connection.waits = protocol.waits
        try:
            await protocol.ended
        except asyncio.CancelledError:  # displaced; or stop()
            transport.abort()

    async def stop(self) -> None:
        """Close all connections, and stop the application."""
        await self._served.stop()
        if self._state.tasks:  # they end with their connection
            await asyncio.wait(list(self._state.tasks), timeout=STOP_S)
        await self._lifespan.shutdown()
