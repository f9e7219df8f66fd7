"""Relay of one connection other than plain TCP: moves its bytes in both directions, to and from the C loop.

    client ── TLS ── Relay ── socket pair ── C loop

Owns both ends and closes them. Never reads the bytes.

Invariants: at most CHUNK_BYTES wait in either direction; a side is not read while its bytes
cannot be passed on. The last bytes of one side reach the other before its end is reported. A lost client is
lost for the loop too, which publishes its will.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

from edge.logging_setup import pairs

__all__ = ["CHUNK_BYTES", "RelayConnection"]

log = logging.getLogger(__name__)

CHUNK_BYTES = 65_536
READS = 8  # of one client before others are served: TLS returns 16 KiB at a time
IGNORED_MAX_BYTES = 4 << 20  # of a client that continues to send after the end, above which it is closed
LINGER_S = 2.0  # time for a client to take the last output

_LATER = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
# The client has closed its socket; its last input is still unread.
_CLOSED = (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError)


class RelayConnection:
    """One connection from the end of the handshake to its end. All methods on the loop's thread."""

    __slots__ = (
        "_broker", "_broker_over", "_client", "_client_gone", "_client_lost", "_client_over", "_down",
        "_eof_sent", "_ignored_bytes", "_is_leaving", "_linger", "_loop", "_on_broker_side_closed", "_on_end",
        "_reads", "_stalled", "_stopped_writing", "_up", "_writes",
    )  # fmt: skip

    def __init__(
        self,
        client: socket.socket,
        broker: socket.socket,
        on_broker_side_closed: Callable[[], object],
        on_end: Callable[[], object],
    ) -> None:
        """Create a relay. `on_broker_side_closed` is called when the broker has closed its end, `on_end` when
        both are closed.
        """
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._broker = broker
        self._on_broker_side_closed = on_broker_side_closed
        self._on_end = on_end
        self._up = bytearray()  # to the broker
        self._down = bytearray()  # to the client
        self._client_over = False  # the client has sent its last byte
        self._client_gone = False  # its socket has ended, too
        self._client_lost = False  # no output reaches the client any more
        self._ignored_bytes = 0  # bytes that it sent after the end
        self._broker_over = False
        self._eof_sent = False
        self._stopped_writing = False
        self._stalled = False  # True if TLS must write before it can read
        self._reads: set[socket.socket] = set()
        self._writes: set[socket.socket] = set()
        self._linger: asyncio.TimerHandle | None = None  # set when the broker has closed its end
        self._is_leaving = False  # the listener stops: send the output, wait for no input

    def start(self) -> None:
        """Begin after the handshake."""
        self._turn(self._from_client)

    def leave(self) -> None:
        """Send the rest and end: the listener stops, and the broker has closed its end."""
        self._is_leaving = True
        self._turn(self._from_broker)

    def broker_closed(self) -> None:
        """Begin to part: the broker has closed its end, which a full output to the client would hide."""
        self._begin_linger()
        self._turn()

    def end(self) -> None:
        """Close both ends now. May be called twice."""
        if self._client.fileno() < 0:
            return
        self._want(set(), set())
        if self._linger is not None:
            self._linger.cancel()
        else:
            self._on_broker_side_closed()
        self._on_end()  # while the descriptor is still open
        self._client.close()
        self._broker.close()

    # ---- readiness ----

    def _turn(self, *steps: Callable[[], None]) -> None:
        """Handle one event; an exception ends this connection and no other."""
        if self._client.fileno() < 0:
            return
        try:
            for step in steps:
                step()
            self._to_broker()
            self._to_client()
            self._settle()
        except Exception:
            log.exception("connection failed and was closed %s", pairs(fd=self._client.fileno()))
            self.end()

    def _want(self, reads: set[socket.socket], writes: set[socket.socket]) -> None:
        loop = self._loop
        for side in self._reads - reads:
            loop.remove_reader(side)
        for side in self._writes - writes:
            loop.remove_writer(side)
        for side in reads - self._reads:
            step = self._from_client if side is self._client else self._from_broker
            loop.add_reader(side, self._turn, step)
        for side in writes - self._writes:
            loop.add_writer(side, self._turn, *((self._from_client,) if self._stalled else ()))
        self._reads, self._writes = reads, writes

    def _settle(self) -> None:
        """Act on the state of both sides: last bytes, and the events to wait for next."""
        client, broker = self._client, self._broker
        if self._client_over and not self._up and not self._eof_sent:
            self._eof_sent = True
            with suppress(OSError):
                broker.shutdown(socket.SHUT_WR)
        if self._broker_over and not self._down:
            self._close_output()
            if not self._down and (self._client_gone or self._is_leaving):
                self.end()
                return
        reads, writes = set(), set()
        if not self._client_gone and (not self._up or self._broker_over or self._client_over):
            reads.add(client)
        if not self._broker_over and not self._down:
            reads.add(broker)
        if self._up:
            writes.add(broker)
        if self._down or self._stalled:
            writes.add(client)
        self._want(reads, writes)
        if client in reads and isinstance(client, ssl.SSLSocket) and client.pending():
            self._loop.call_soon(
                self._turn, self._from_client
            )  # TLS has buffered bytes, so the socket is not readable

    # ---- from the client to the broker ----

    def _from_client(self) -> None:
        self._stalled = False
        for _ in range(READS):
            heard = not self._broker_over and not self._client_over
            if self._client_gone or (heard and len(self._up) >= CHUNK_BYTES):
                return
            try:
                data = self._client.recv(CHUNK_BYTES)
            except ssl.SSLWantWriteError:
                self._stalled = True
                return
            except _LATER:
                return
            except OSError:  # reset, or invalid TLS
                self._lose_client()
                return
            if not data:
                self._client_over = self._client_gone = True
                return
            if heard:
                self._up += data
                continue
            self._ignored_bytes += len(data)  # read nevertheless: unread input would reset the connection
            if self._ignored_bytes > IGNORED_MAX_BYTES:
                self._lose_client()

    def _to_broker(self) -> None:
        while self._up and not self._broker_over:
            try:
                del self._up[: self._broker.send(self._up)]
            except _LATER:
                return
            except OSError:  # the broker has closed: its last output is still to be read
                self._up.clear()
                return

    def _lose_client(self) -> None:
        self._client_over = self._client_gone = self._client_lost = True
        self._down.clear()

    # ---- from the broker to the client ----

    def _from_broker(self) -> None:
        if self._broker_over or self._down:
            return
        try:
            data = self._broker.recv(CHUNK_BYTES)
        except _LATER:
            return
        except OSError:
            data = b""
        if not data:
            self._broker_over = True
            self._up.clear()
            self._begin_linger()
        elif not self._client_lost:
            self._down += data

    def _to_client(self) -> None:
        while self._down and not self._client_lost:
            try:
                del self._down[: self._client.send(self._down)]
            except _LATER:
                return
            except _CLOSED:
                self._client_lost = True
            except OSError:
                self._lose_client()
        if self._client_lost:
            self._down.clear()

    def _begin_linger(self) -> None:
        if self._linger is None:
            self._linger = self._loop.call_later(LINGER_S, self.end)
            self._on_broker_side_closed()

    def _close_output(self) -> None:
        """Close the output to the client in each layer, after all output of the broker was sent."""
        if self._stopped_writing:
            return
        self._stopped_writing = True
        if isinstance(self._client, ssl.SSLSocket):
            with suppress(OSError, ValueError):  # a close_notify of the client is not waited for
                self._client.unwrap()
        with suppress(OSError):
            self._client.shutdown(socket.SHUT_WR)
