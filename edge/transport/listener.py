"""MQTT listener: the MQTT ports, and the thread that serves them.

Owns the listening sockets, the loop (ringbuf/c/mqtt/event_loop.c) and its thread; decides nothing. The thread
alternates between C, which moves messages without the GIL, and the broker, which handles the events of C:

    broker.tick, if due -> poll (no GIL) -> events -> broker.handle -> calls of other threads -> ...

Invariant: only that thread uses the engine, the broker and the writers of the partitions. Others use call(),
which queues a function, or wake(), which makes C check durable positions and rings of producers, without
Python.

A port is bound when add() returns, so that a busy port is an error before anything else has
started.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from edge.auth.interfaces import ClientCertificate, ListenerPolicy, anonymous_allowed
from edge.broker.dispatcher import Broker
from edge.config.listener import Listener as Settings
from edge.engine.engine import Engine, listener_of
from edge.engine.loop import Loop
from edge.errors import EdgeError
from edge.logging_setup import AUDIT, pairs
from edge.mqtt import check_name, payload_bytes
from edge.transport.listen_sockets import ListenAddress, bind, remove_socket
from edge.transport.passed_sockets import PassedSockets
from edge.transport.proxy_answers import ProxyAnswers
from edge.transport.upgrade_answers import Upgrades
from edge.transport.violations import Violations

if TYPE_CHECKING:
    from concurrent.futures import Future

    from edge.engine.tls_context import TlsContext
    from edge.transport.tls import Certificates
    from ringbuf import Reader

log = logging.getLogger(__name__)

CALLS_MAX = 10_000  # waiting functions of other threads
JOIN_S = 10.0
EVENTS_S = 0.001  # for events after a poll; the others follow after the next one
EVENTS_AT_A_TIME = 4
TICK_S = 0.001  # between two ticks of the broker: a storm of clients causes more polls than that

T = TypeVar("T")


class Listener:
    """The MQTT ports: create, add listeners, start; stop once."""

    def __init__(self, engine: Engine, broker: Broker) -> None:
        self.broker = broker
        self.addresses: list[ListenAddress] = []  # by listener number
        self.on_failure: Callable[[], object] = lambda: None  # called on the thread, when a defect ends it
        self._engine = engine
        self._loop = Loop(engine)
        self._calls: deque[Callable[[], object]] = deque()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._closed = False
        self._certificates: dict[int, Certificates] = {}  # by listener number
        self._passed = PassedSockets()
        self._upgrades = Upgrades(engine, self._loop)
        self._proxy_answers = ProxyAnswers(engine, self._loop)
        self._violations = Violations(engine)
        broker.call = self.call
        broker.on_upgrade = self._upgrades.answer
        broker.on_proxy = self._proxy_answers.answer
        broker.certificate_of = self._certificate_of

    def listen(self, host: str, port: int, *, allow_anonymous: bool | None = None) -> tuple[str, int]:
        """As add(), for plain TCP. Returns the bound host and port."""
        address = self.add(Settings(host=host, port=port, allow_anonymous=allow_anonymous))
        return address.host, address.port

    def add(self, settings: Settings) -> ListenAddress:
        """Listen as a [[listener]] configures it. Returns the bound address; port 0 takes a free one.

        Must be called before start(). Raises PortTaken, EdgeError (files, Unix sockets), OSError.
        """
        number = len(self.addresses)
        certificates = self._certificates_of(number, settings)
        server, address = bind(settings, self._passed)
        limits = listener_of(self._engine, number)
        limits.is_proxied = settings.proxy_protocol
        if certificates is not None:
            certificates.context.use(self._engine, number)
        for name in ("connections_max", "connect_max_bytes", "packet_max_bytes", "publish_rate_max"):
            setattr(limits, name, getattr(settings, name) or 0)
        limits.is_websocket = settings.transport == "websocket"
        if limits.is_websocket:
            self._upgrades.add(number, settings)
        if settings.certificate_is_user:
            self._proxy_answers.trust(number)
        self._loop.listen(server.detach(), number)  # the socket belongs to the loop from now on
        inside = settings.path is not None and settings.allow_anonymous is None
        anonymous = inside or anonymous_allowed(address.host, settings.allow_anonymous)
        self.broker.policies[number] = ListenerPolicy(
            anonymous,
            settings.scheme,
            settings.certificate_is_user,
            settings.packet_max_bytes,
            settings.redirect_to,
            certificates is not None or settings.proxy_protocol,
            settings.tenant,
        )
        self.addresses.append(address)
        log.info("listening %s", pairs(at=address, anonymous=anonymous))
        return address

    def _certificates_of(self, number: int, settings: Settings) -> Certificates | None:
        if settings.tls is None:
            return None
        from edge.transport.tls import Certificates

        certificates = Certificates(settings.tls)
        _warn_of_refusal(certificates)
        self._certificates[number] = certificates
        return certificates

    def _certificate_of(self, connection: int) -> ClientCertificate | None:
        if self._certificates:
            from edge.engine.tls_context import certificate_of  # imports ssl

            shown = certificate_of(self._engine, connection)
            if shown is not None:
                return ClientCertificate(*shown)
        name = self._proxy_answers.name(connection)
        return None if name is None else ClientCertificate(name)

    def read_certificates(self) -> tuple[dict[int, TlsContext], list[str]]:
        """Read all certificates and keys again, for apply_certificates(). For any thread.

        Returns the contexts by listener number, and the mistakes of the files, which are logged.
        """
        contexts: dict[int, TlsContext] = {}
        failed: list[str] = []
        for number, certificates in self._certificates.items():
            try:
                contexts[number] = certificates.read()
                _warn_of_refusal(certificates)
            except EdgeError as error:
                log.error("certificate not reloaded %s", pairs(reason=error, remedy=error.hint))
                failed.append(f"{certificates.file}: {error}")
        return contexts, failed

    def apply_certificates(self, contexts: Mapping[int, TlsContext]) -> list[str]:
        """Use other contexts for later connections. For any thread. Returns the files of the certificates."""
        for number, context in contexts.items():
            certificates = self._certificates[number]
            replaced, certificates.context = certificates.context, context
            context.use(self._engine, number)
            # The thread may be using the old context now, but not after the call.
            self.call(lambda kept=replaced: None)  # type: ignore[misc]
            logging.getLogger(AUDIT).info("certificate reloaded %s", pairs(file=certificates.file))
        return [str(self._certificates[number].file) for number in contexts]

    def start(self) -> None:
        """Serve on a separate thread."""
        assert self._thread is None
        self._passed.close()
        thread = threading.Thread(target=self._run, name="brim-mqtt")
        thread.start()
        self._thread = thread

    def stop(self) -> None:
        """Stop: accept no more clients, end all connections, publish wills, flush output, end the thread.

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
                log.error("MQTT thread did not stop %s", pairs(waited_s=JOIN_S))
                return
        self._run_calls()
        self._loop.close()
        for address in self.addresses:
            remove_socket(address)

    # ---- for any thread ----

    def call(self, function: Callable[[], object]) -> None:
        """Run `function` on the broker's thread, soon; exceptions are logged."""
        self._calls.append(function)
        if not self._closed:
            self._loop.call()

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """As call(), with a Future of the result."""
        from concurrent.futures import Future

        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():  # the caller has cancelled meanwhile
                return
            try:
                future.set_result(function())
            except Exception as error:  # noqa: BLE001 - reported through the Future
                future.set_exception(error)

        self.call(run)
        return future

    def publish(self, topic: str, payload: bytes, qos: int = 0, retain: bool = False) -> bool:
        """Store and deliver a message of this process. False: too many calls wait, and the message was
        dropped.

        Raises ProtocolError for an invalid topic (wildcards, for example), and TypeError for another payload
        type.
        """
        check_name(topic)
        payload = payload_bytes(payload)
        if len(self._calls) >= CALLS_MAX:
            return False
        self.call(lambda: self.broker.publish(topic, payload, qos, retain))
        return True

    @property
    def wake_descriptor(self) -> int:
        """An eventfd, valid until stop(), whose write has the effect of wake(). To be duplicated later."""
        return self._loop.wake_descriptor

    def wake(self) -> None:
        """Report that a sync has finished, or that a producer's ring has records."""
        if not self._closed:
            self._loop.wake()

    # ---- rings of producers: on the broker's thread, or before start() ----

    def add_producer_ring(self, reader: Reader) -> int:
        """Route the records of another process. The loop uses `reader` until remove_ring(); verify=True.

        The caller must call wake() when there are records to read.
        """
        return self._engine.add_reader(reader)

    def remove_ring(self, ring_number: int) -> None:
        """Stop routing a ring. Its records that clients still wait for are dropped, and counted."""
        self._engine.remove_ring(ring_number)

    # ---- the thread ----

    def _run(self) -> None:
        try:
            self._serve()
            self._finish()
        except Exception:
            with suppress(Exception):  # without memory too, the end must be requested
                log.exception("MQTT thread failed, clients are no longer served")
            self.on_failure()

    def _serve(self) -> None:
        timeout_s, tick_s = 0.0, -math.inf
        while not self._stopping:
            now_s = time.monotonic()
            if now_s >= tick_s:
                self._violations.log_violations()
                timeout_s, tick_s = self.broker.tick(), now_s + TICK_S
            else:
                timeout_s = tick_s - now_s
            if self._loop.poll(int(timeout_s * 1000) + 1):
                self._answer_events()
            if self._calls:
                self._run_calls()

    def _answer_events(self) -> None:
        """Handle events for about EVENTS_S: a storm of connecting clients must not delay messages.

        Answers are sent after EVENTS_AT_A_TIME events: clients continue while others are decided about.
        """
        until_s = time.perf_counter() + EVENTS_S
        while events := self._engine.events(EVENTS_AT_A_TIME):
            self.broker.handle(events)
            self._loop.send()
            if time.perf_counter() >= until_s:
                return

    def _run_calls(self) -> None:
        for _ in range(len(self._calls)):
            try:
                self._calls.popleft()()
            except Exception:
                log.exception("call on the MQTT thread failed")

    def _finish(self) -> None:
        self._loop.close_listeners()
        self._run_calls()
        self._loop.flush()  # delivers the last messages to connected clients
        self.broker.stop()
        self._loop.flush()


def _warn_of_refusal(certificates: Certificates) -> None:
    """Only a warning: an edge whose clock is not set yet must start, and reload, nevertheless."""
    if mistake := certificates.problem():
        log.warning("certificate invalid for clients %s", pairs(file=certificates.file, reason=mistake))
