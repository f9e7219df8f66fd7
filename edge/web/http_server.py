"""HTTP server: uvicorn's protocol on one listening socket, with bounds for connections, time and memory.

    connections   CONNECTIONS_MAX together, OF_ADDRESS_MAX of one address of another machine
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
from collections import Counter
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from edge.config.listener import is_loopback
from edge.log_throttle import LogThrottle
from edge.logging_setup import pairs
from edge.transport.listen_sockets import http_url

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 128
OF_ADDRESS_MAX = 32
REQUEST_S = 10.0
KEEP_ALIVE_S = 30
STALL_S = 60.0
HANDSHAKE_S = 5.0
HEAD_MAX_BYTES = 16 << 10
STOP_S = 2.0


class _ConnectionPlaces:
    """Connections in use, together and by address."""

    def __init__(self) -> None:
        self.addresses: Counter[str] = Counter()
        self.may_log = LogThrottle()

    def take(self, address: str) -> bool:
        """Take a place. Returns False if all places are taken."""
        own_max = CONNECTIONS_MAX if is_loopback(address) else OF_ADDRESS_MAX
        if self.addresses.total() >= CONNECTIONS_MAX or self.addresses[address] >= own_max:
            if self.may_log():
                log.warning("console connection refused %s", pairs(address=address, limit=own_max))
            return False
        self.addresses[address] += 1
        return True

    def give(self, address: str) -> None:
        """Give a place back."""
        self.addresses[address] -= 1
        if not self.addresses[address]:
            del self.addresses[address]


class _Protocol(H11Protocol):
    """A connection that ends if its next request does not come in time, or its answer is not taken."""

    def __init__(self, places: _ConnectionPlaces, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._places = places
        self._address: str | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None  # runs while the transport has output

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override, unused-ignore]
        peer = transport.get_extra_info("peername") or ("", 0)
        if not self._places.take(peer[0]):
            transport.abort()
            return
        self._address = peer[0]
        transport.set_write_buffer_limits(1, 0)  # 0 would stop TLS; pause_writing() while anything waits
        super().connection_made(transport)
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._address is None:
            return
        self._places.give(self._address)
        self._cancel()
        self._cancel_stall()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._address is None:
            return
        before = self.cycle  # None before the first request
        super().data_received(data)
        if self.cycle is not before:
            self._cancel()  # the head is there; the guard bounds the rest
        elif self._deadline is None and getattr(before, "response_complete", True):
            self._await_request()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall = self.loop.call_later(STALL_S, self._expire)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_stall()

    def _cancel_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _await_request(self) -> None:
        self._cancel()
        self._deadline = self.loop.call_later(REQUEST_S, self._expire)

    def _expire(self) -> None:
        self.transport.abort()

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
        config, state, places = self._config, ServerState(), _ConnectionPlaces()
        config.load()
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # a line for each invalid request
        self._lifespan = config.lifespan_class(config)
        await self._lifespan.startup()
        self._state = state
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Protocol(places, config=config, server_state=state, app_state=self._lifespan.state),
            sock=self._listener,
            ssl=self._tls,
            ssl_handshake_timeout=None if self._tls is None else HANDSHAKE_S,
        )

    async def stop(self) -> None:
        """Close all connections, and stop the application."""
        self._server.close()
        for connection in list(self._state.connections):
            connection.transport.abort()
        if self._state.tasks:  # they end with their connection
            await asyncio.wait(list(self._state.tasks), timeout=STOP_S)
        await self._lifespan.shutdown()
