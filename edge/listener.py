"""The MQTT ports, and the thread that serves them.

Owns the listening sockets, the loop (ringbuf/c/mqtt/loop.c) and its thread; decides nothing.  The thread
alternates between C, where messages move and the GIL is released, and the broker, which answers what C has
left:

    poll (no GIL) -> events -> broker.handle -> calls of other threads -> broker.tick -> poll ...

Only that thread touches the engine, the broker and the writers of the partitions.  Others reach it by call(),
which queues a function, or wake(), which makes C look at durable words and source rings and needs no Python
at all.

A TCP port is bound when listen() returns, so that a busy one is an error before anything else has started.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from edge.access import ListenerPolicy, TransportFacts, anonymous_allowed
from edge.broker import Broker
from edge.engine import Engine, Loop, Peer
from edge.errors import PortTaken
from edge.logs import pairs

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ringbuf import Reader

__all__ = ["Listener"]

log = logging.getLogger(__name__)

BACKLOG = 4_096  # a fleet that comes back at once; the kernel cuts it to net.core.somaxconn
CALLS_MAX = 10_000  # functions of other threads that wait
JOIN_S = 10.0
TRANSPORTS_LOOK = 256  # facts of connections that are kept before the gone are looked for

T = TypeVar("T")


class Listener:
    """Made, told where to listen, started; stopped once."""

    def __init__(self, engine: Engine, broker: Broker) -> None:
        self.broker = broker
        self.addresses: list[tuple[str, int]] = []  # as bound: the port is never 0
        self.on_failure: Callable[[], object] = lambda: None  # called on the thread, when it ends by a bug
        self._engine = engine
        self._loop = Loop(engine)
        self._calls: deque[Callable[[], object]] = deque()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._closed = False
        self._transports_look = TRANSPORTS_LOOK
        broker.call = self.call

    def listen(self, host: str, port: int, *, allow_anonymous: bool | None = None) -> tuple[str, int]:
        """Bind `host` (an address or a name) and accept there; the address as bound, port 0 taking a free
        one.

        Before start().  `allow_anonymous` None: on loopback only.  Raises PortTaken, OSError.
        """
        number = len(self.addresses)
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        server = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            server.bind(address)
            server.listen(BACKLOG)
            bound: tuple[str, int] = server.getsockname()[:2]
            self._loop.listen(server.fileno(), number)
        except OSError as error:
            server.close()
            if error.errno == errno.EADDRINUSE:
                raise PortTaken(
                    f"port {port} of {host} is in use",
                    hint="stop what listens there, or set another port in [[listener]]",
                ) from error
            raise
        server.detach()  # the loop's from now on
        anonymous = anonymous_allowed(bound[0], allow_anonymous)
        self.broker.policies[number] = ListenerPolicy(f"{bound[0]}:{bound[1]}", anonymous)
        self.addresses.append(bound)
        log.info("listening %s", pairs(host=bound[0], port=bound[1], anonymous=anonymous))
        return bound

    def start(self) -> None:
        """Serve, on a thread of its own."""
        assert self._thread is None
        self._thread = threading.Thread(target=self._run, name="brim-mqtt")
        self._thread.start()

    def stop(self) -> None:
        """Accept nobody, end every client, publish their wills, send what can be sent, stop the thread.

        May be called twice, and without start().
        """
        if self._closed:
            return
        self._closed = True
        self._stopping = True
        if self._thread is None:
            self._finish()
        else:
            self._loop.call()
            self._thread.join(JOIN_S)
            if self._thread.is_alive():
                log.error("the MQTT thread does not stop %s", pairs(waited_s=JOIN_S))
                return
        self._run_calls()  # what came too late: sockets that were handed over must not stay open
        self._loop.close()

    # ---- for any thread ----

    def call(self, function: Callable[[], object]) -> None:
        """Run `function` on the broker's thread, soon; what it raises is logged."""
        self._calls.append(function)
        if not self._closed:
            self._loop.call()

    def ask(self, function: Callable[[], T]) -> Future[T]:
        """As call(), with its result."""
        from concurrent.futures import Future

        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function())
            except Exception as error:  # noqa: BLE001 - it is the asker's
                future.set_exception(error)

        self.call(run)
        return future

    def adopt(
        self, client: socket.socket, number: int, peer: Peer, facts: TransportFacts, accepted_s: float
    ) -> None:
        """Let the loop serve `client`, a connected stream socket, as if listener `number` had accepted it.

        `accepted_s`, of time.monotonic(), is when the connect timeout began.  The socket is the loop's from
        now on, also when it is not taken: whoever is at its other end sees it close.
        """
        client.setblocking(False)
        fd = client.detach()
        if self._closed:
            os.close(fd)
        else:
            self.call(lambda: self._adopt(fd, number, peer, facts, accepted_s))

    def _adopt(self, fd: int, number: int, peer: Peer, facts: TransportFacts, accepted_s: float) -> None:
        waited_ms = int((time.monotonic() - accepted_s) * 1000)
        connection = self._loop.adopt(fd, number, peer, waited_ms)
        if not connection:
            return
        transports = self.broker.transports
        if len(transports) >= self._transports_look:  # whose end nobody has told: each is looked at once in
            for known in [it for it in transports if not self._engine.is_open(it)]:  # as many adoptions
                del transports[known]
            self._transports_look = max(TRANSPORTS_LOOK, 2 * len(transports))
        transports[connection] = facts

    def publish(self, topic: str, payload: bytes, qos: int = 0, retain: bool = False) -> bool:
        """Store a message of this process and deliver it.  False: too many calls wait, nothing was done."""
        if len(self._calls) >= CALLS_MAX:
            return False
        self.call(lambda: self.broker.publish(topic, payload, qos, retain))
        return True

    def wake(self) -> None:
        """A sync is done, or a source ring has records."""
        if not self._closed:
            self._loop.wake()

    # ---- source rings: on the broker's thread, or before start() ----

    def add_source(self, reader: Reader) -> int:
        """Route what another process writes.  `reader` is the loop's until remove_source(); verify=True.

        wake() is the caller's to call when there is something to read.
        """
        return self._engine.add_reader(reader)

    def remove_source(self, source: int) -> None:
        """Route it no more.  What clients still wait for of it is dropped, and counted."""
        self._engine.remove_source(source)

    # ---- the thread ----

    def _run(self) -> None:
        try:
            self._serve()
            self._finish()
        except Exception:
            log.exception("the MQTT thread has failed: nobody is served any more")
            self.on_failure()

    def _serve(self) -> None:
        timeout_s = self.broker.tick()
        while not self._stopping:
            if self._loop.poll(int(timeout_s * 1000) + 1):
                self.broker.handle(self._engine.events())
            self._run_calls()
            timeout_s = self.broker.tick()

    def _run_calls(self) -> None:
        for _ in range(len(self._calls)):
            try:
                self._calls.popleft()()
            except Exception:
                log.exception("a call on the MQTT thread failed")

    def _finish(self) -> None:
        self._loop.deafen()
        self._run_calls()
        self._loop.flush()  # what was published before the end goes out to who is still there
        self.broker.stop()
        self._loop.flush()
