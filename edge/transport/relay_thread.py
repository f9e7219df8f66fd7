"""Relay thread: ends TLS and reads PROXY headers, and passes the bytes after them to the C loop.

Owns the listening sockets of such listeners, the handshakes and the relays. Hands every connection that is
ready for MQTT to the C loop, as a socket. One asyncio loop; no thread per connection, no timer for an idle
one.

Limits. A connection is counted from accept on: here during the handshake and while its last bytes are sent
(mq_listener.outside), in between by the C loop. The connect timeout begins at accept as well; the C loop gets
the part that has passed.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from edge.auth.interfaces import TransportInfo
from edge.config.listener import Listener as Settings
from edge.engine.engine import CloseCause, Engine, Peer, counters_of, listener_full, listener_of
from edge.errors import FILES_REMEDY
from edge.log_throttle import LogThrottle
from edge.logging_setup import pairs
from edge.transport.errors import HandshakeError
from edge.transport.handshake import OpenedConnection, open_connection, source_of
from edge.transport.relay_connection import RelayConnection

if TYPE_CHECKING:
    from edge.transport.tls import Certificates

__all__ = ["Adopt", "Port", "RelayThread"]

log = logging.getLogger(__name__)

ACCEPT_BATCH = 64
REST_S = 1.0  # pause of accepting without free file descriptors
FULL_S = 0.05  # between two checks for a free place
# checks before a new client is refused: the ends of other connections reach two threads with a delay
PLACE_LOOKS = 20
PAIR_BYTES = 65_536  # buffer of the socket pair, each way; the kernel adds its own overhead
LEAVE_S = 1.0  # at the end, for clients to take the last output
JOIN_S = 5.0


class Adopt(Protocol):
    """The type of Listener.adopt()."""

    def __call__(
        self, client: socket.socket, number: int, peer: Peer, facts: TransportInfo, accepted_s: float
    ) -> None:
        """Hand a connected socket to the C loop."""


@dataclass(frozen=True, slots=True)
class Port:
    """A non-blocking listening socket, with the settings for its clients."""

    number: int
    server: socket.socket
    settings: Settings
    certificates: Certificates | None

    @property
    def is_relayed(self) -> bool:
        """True if connections must be unwrapped all the time; otherwise their sockets are handed over."""
        return self.certificates is not None


class RelayThread:
    """The relay thread: create, add ports, start; stop once."""

    def __init__(self, engine: Engine, adopt: Adopt, connect_timeout_s: float) -> None:
        self.on_failure: Callable[[], object] = lambda: None
        self.ports: list[Port] = []
        self._engine = engine
        self._adopt = adopt
        self._connect_timeout_s = connect_timeout_s
        self._counters = counters_of(engine)
        self._listeners: dict[int, Any] = {}
        self._relays: dict[int, RelayConnection] = {}  # by the descriptor of the broker's end
        self._none_left = asyncio.Event()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._hangups: select.epoll | None = None
        self._log_rest = LogThrottle()

    @property
    def count(self) -> int:
        """Number of relays, including those that send their last bytes."""
        return len(self._relays)

    def add(self, port: Port) -> None:
        """Add a port, before start()."""
        self.ports.append(port)
        self._listeners[port.number] = listener_of(self._engine, port.number)

    def start(self) -> None:
        """Accept on a separate thread, if there are ports."""
        if not self.ports:
            return
        self._loop = asyncio.new_event_loop()
        self._hangups = select.epoll()
        self._thread = threading.Thread(target=self._run, name="brim-transports")
        self._thread.start()

    def close_listeners(self) -> None:
        """Stop accepting, and cancel handshakes; connections stay."""
        if self._loop is None or self._thread is None:
            for port in self.ports:
                port.server.close()
            return
        self._ask(self._close_listeners(), JOIN_S)

    def stop(self) -> None:
        """Send the last output, and end the thread; after close_listeners() and the end of the C loop."""
        if self._loop is None or self._thread is None:
            return
        self._ask(self._leave(), LEAVE_S + JOIN_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(JOIN_S)

    def _ask(self, work: Coroutine[Any, Any, None], patience_s: float) -> None:
        assert self._loop is not None
        try:
            asyncio.run_coroutine_threadsafe(work, self._loop).result(patience_s)
        except TimeoutError:
            log.error("relay thread did not answer %s", pairs(in_s=patience_s))

    # ---- the thread ----

    def _run(self) -> None:
        loop = self._loop
        assert loop is not None
        assert self._hangups is not None
        asyncio.set_event_loop(loop)
        loop.add_reader(self._hangups.fileno(), self._broker_closed)
        for port in self.ports:
            loop.add_reader(port.server, self._accept, port)
        try:
            loop.run_forever()
        except Exception:
            log.exception("relay thread failed")
            self.on_failure()
        finally:
            loop.remove_reader(self._hangups.fileno())
            self._hangups.close()
            loop.close()

    async def _close_listeners(self) -> None:
        assert self._loop is not None
        for port in self.ports:
            self._loop.remove_reader(port.server)
            port.server.close()
        waiting = list(self._handshakes)
        for handshake in waiting:
            handshake.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    async def _leave(self) -> None:
        for relay in list(self._relays.values()):
            relay.leave()
        if self._relays:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._none_left.wait(), LEAVE_S)
        for relay in list(self._relays.values()):
            relay.end()

    def _broker_closed(self) -> None:
        assert self._hangups is not None
        for fd, _ in self._hangups.poll(0):
            self._hangups.unregister(fd)
            self._relays[fd].broker_closed()

    # ---- accepting ----

    def _accept(self, port: Port, looks: int = PLACE_LOOKS) -> None:
        """Accept a batch of clients.

        `looks`: without a free place, clients stay in the kernel's queue for that many more checks; then they
        are refused.
        """
        for _ in range(ACCEPT_BATCH):
            if looks and listener_full(self._engine, port.number):
                self._rest(port, FULL_S, looks)
                return
            try:
                client, _ = port.server.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}:
                    self._rest_all(error)
                    return
                continue  # the client closed before it was accepted
            client.setblocking(False)
            if listener_full(self._engine, port.number):
                self._refuse(CloseCause.LIMIT)
                client.close()
                continue
            self._listeners[port.number].outside += 1
            assert self._loop is not None
            handshake = self._loop.create_task(self._handshake(port, client, time.monotonic()))
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)

    def _rest_all(self, error: OSError) -> None:
        if self._log_rest():
            facts = pairs(reason=error.strerror, rest_s=REST_S)
            log.warning("accepting paused; %s %s", FILES_REMEDY, facts)
        for port in self.ports:
            self._rest(port, REST_S)

    def _rest(self, port: Port, seconds: float, looks: int = 0) -> None:
        """Pause accepting; `looks`: of _accept(), if the port waits for a place, otherwise 0."""
        assert self._loop is not None
        if self._loop.remove_reader(port.server):  # otherwise it is paused already
            self._loop.call_later(seconds, self._wake, port, looks)

    def _wake(self, port: Port, looks: int) -> None:
        if port.server.fileno() < 0 or self._loop is None:
            return
        self._loop.add_reader(port.server, self._accept, port)
        if looks:
            self._accept(port, looks - 1)

    def _refuse(self, cause: CloseCause) -> None:
        self._counters.turned_away[cause] += 1

    async def _handshake(self, port: Port, client: socket.socket, accepted_s: float) -> None:
        """Serve a connection from accept to the C loop, or to its end; `outside` has counted it."""
        place = ""
        counted = [self._listeners[port.number]]
        try:
            source = source_of(client)
            place = f"{socket.inet_ntop(source.family, source.address)}:{source.port}"
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(self._connect_timeout_s):
                opened = await open_connection(
                    client,
                    proxied=port.settings.proxy_protocol,
                    certificates=port.certificates,
                )
            if opened.source.family == 0:
                opened.source = source
            counted.pop().outside -= 1  # before the C loop counts it; otherwise it would count twice
            self._opened(port, opened, accepted_s)
        except TimeoutError:
            self._refuse(CloseCause.CONNECT_TIMEOUT)
        except HandshakeError as error:
            self._refuse(CloseCause.PROTOCOL)
            log.info("connection refused %s", pairs(peer=place, listener=port.number, reason=error))
        except ssl.SSLError as error:
            self._refuse(CloseCause.PROTOCOL)
            reason = error.reason or error
            log.info("TLS handshake failed %s", pairs(peer=place, listener=port.number, reason=reason))
        except OSError:
            self._refuse(CloseCause.RESET)
        except Exception:
            log.exception("handshake failed, connection closed %s", pairs(peer=place))
        finally:
            for limits in counted:
                limits.outside -= 1

    def _opened(self, port: Port, opened: OpenedConnection, accepted_s: float) -> None:
        """Hand over a connection that is ready for MQTT."""
        source, settings = opened.source, port.settings
        certificate = opened.certificate
        if certificate is None and settings.certificate_is_user:
            certificate = source.certificate
        facts = TransportInfo(settings.scheme, certificate, opened.certificate_der)
        peer = (port.number, source.family, source.address, source.port)
        if not port.is_relayed:
            self._adopt(opened.socket, port.number, peer, facts, accepted_s)
            return
        try:
            ours, theirs = socket.socketpair()
        except OSError:
            opened.socket.close()
            raise
        for end in (ours, theirs):
            end.setblocking(False)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PAIR_BYTES)
        self._adopt(theirs, port.number, peer, facts, accepted_s)
        fd = ours.fileno()
        relay = RelayConnection(
            opened.socket,
            ours,
            on_broker_side_closed=partial(self._broker_side_closed, port),
            on_end=partial(self._ended, port, fd),
        )
        assert self._hangups is not None
        self._hangups.register(fd, 0)  # only the event that its other end has closed
        self._relays[fd] = relay
        self._none_left.clear()
        relay.start()

    def _broker_side_closed(self, port: Port) -> None:
        self._listeners[port.number].outside += 1

    def _ended(self, port: Port, fd: int) -> None:
        """Remove a relay. `fd` is still open: closing does not remove it from an epoll that a forked child
        shares.
        """
        assert self._hangups is not None
        with suppress(FileNotFoundError):  # already unregistered by _hung_up()
            self._hangups.unregister(fd)
        del self._relays[fd]
        if not self._relays:
            self._none_left.set()
        self._listeners[port.number].outside -= 1
