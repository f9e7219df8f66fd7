"""The collector: takes drained files from bridges over ZeroMQ, and puts them where they belong.

Owns a ROUTER socket and who drains which edge.  What is stored, and how a name is kept once, is the business
of a sink for files (bridge/sink.py): a directory, whose every file is synced before it is acknowledged, or an
object store.  Bytes from outside are hostile: a file is looked through, and has the name that it should have,
before it is stored.

One thread reads and answers; a few put.  What bridges may have under way is their credit, and what comes
beyond it is refused, so memory is bounded by bridges times credit.
"""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import zmq

from bridge.collecting import CREDIT_BYTES, HOLD_S, NAMES_MOST, VERSION, pack, unpack
from bridge.drained import TRAILER_BYTES, Name, check_edge, footer_length, parse
from bridge.errors import BridgeError, DrainedFileError, SinkBlocked, SinkConflict
from bridge.sink import UnitSink
from bridge.unit import Unit

__all__ = ["Collector"]

log = logging.getLogger(__name__)

WORKERS = 4
EDGES_MOST = 65_536  # that are drained at once
UNIT_MOST_BYTES = (1 << 30) + (64 << 20)


class Collector:
    """Serves bridges at `endpoint` until stop().

    `store` is the caller's to close.  `secret`: (public, secret) CURVE keys; with them all is encrypted.
    """

    def __init__(
        self,
        store: UnitSink,
        endpoint: str,
        *,
        keys: tuple[bytes, bytes] | None = None,
        clients: str = "",
        credit_bytes: int = CREDIT_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stored = self.stored_bytes = self.refused = 0
        self._store, self._credit_bytes, self._clock = store, credit_bytes, clock
        self._holders: dict[str, tuple[str, float]] = {}  # edge -> who drains it, last heard
        self._under_way: dict[str, int] = {}  # edge -> bytes of files that are being put
        self._forget_at = clock() + HOLD_S
        self._counting = threading.Lock()  # over files under way
        self._answers: queue.SimpleQueue[tuple[bytes, bytes]] = queue.SimpleQueue()
        self._stopping = False
        self._context = zmq.Context()
        self._authenticator = self._guard(clients) if keys and clients else None
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 500)
        self._socket.setsockopt(zmq.MAXMSGSIZE, UNIT_MOST_BYTES)
        if keys:
            self._socket.curve_publickey, self._socket.curve_secretkey = keys
            self._socket.curve_server = True
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self._close_sockets()
            raise BridgeError(f"{endpoint}: {error}", hint="is another collector running there?") from error
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._bell, self._ear = socket.socketpair()
        self._ear.setblocking(False)
        self._bell.setblocking(False)

    def run(self) -> None:
        """Until stop(), which another thread calls.  All sockets are closed then."""
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._ear, zmq.POLLIN)
        with ThreadPoolExecutor(WORKERS, "brim-collect") as workers:
            while not self._stopping:
                for ready, _ in poller.poll(1000):
                    if ready is self._socket:
                        self._take(workers)
                    else:
                        self._ear.recv(4096)
                self._answer()
                self._forget()
        self._answer()
        self._close_sockets()
        self._bell.close()
        self._ear.close()

    def stop(self) -> None:
        """Finish what is under way; from any thread."""
        self._stopping = True
        self._ring()

    def _ring(self) -> None:
        with suppress(BlockingIOError, OSError):  # it rings already, or nobody listens any more
            self._bell.send(b"!")

    def _answer(self) -> None:
        while not self._answers.empty():
            self._socket.send_multipart(self._answers.get())

    def _close_sockets(self) -> None:
        self._socket.close()
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.term()

    def _guard(self, clients: str) -> Any:
        from zmq.auth.thread import ThreadAuthenticator

        authenticator = ThreadAuthenticator(self._context)
        authenticator.start()
        authenticator.configure_curve(domain="*", location=clients)
        return authenticator

    # ---- one message ----

    def _take(self, workers: ThreadPoolExecutor) -> None:
        who, *frames = self._socket.recv_multipart(copy=False)
        identity = bytes(who.buffer)
        head = unpack(frames[0].buffer) if frames else None
        if head is None:
            self._answers.put((identity, _refusal("", "no message of a bridge", final=True)))
            return
        content = frames[1].buffer if len(frames) == 2 else None
        try:
            self._check_holder(head)
            self._admit(str(head["edge"]), 0 if content is None else len(content))
        except BridgeError as error:
            self._refuse(identity, head, error)
            return
        if head["kind"] != "bye":
            workers.submit(self._work, identity, head, content)
        else:
            self._let_go(str(head["edge"]), 0 if content is None else len(content))

    def _check_holder(self, head: dict[str, Any]) -> None:
        """Raises BridgeError unless this machine drains that edge, or nobody does."""
        edge, holder, now = check_edge(str(head.get("edge", ""))), str(head.get("holder", "")), self._clock()
        known, heard = self._holders.get(edge, (holder, now))
        if edge not in self._holders and len(self._holders) >= EDGES_MOST:
            raise BridgeError(
                f"{EDGES_MOST} edges are drained here already",
                hint="give some of them a collector of their own",
            )
        if known != holder and now - heard < HOLD_S:
            raise BridgeError(
                f"the bridge of {known} drains edge {edge}",
                hint=f"stop that one, or give this edge an edge_id of its own; if that one is dead, this one "
                f"takes over in {heard + HOLD_S - now:.0f} s",
            )
        if head["kind"] == "bye":
            self._holders.pop(edge, None)
        else:
            self._holders[edge] = holder, now

    def _forget(self) -> None:
        """Who drained which edge, where it has not been heard of for so long that anybody may."""
        if (now := self._clock()) >= self._forget_at:
            self._forget_at = now + HOLD_S
            heard = {edge: it for edge, it in self._holders.items() if now - it[1] < HOLD_S}
            self._holders = heard

    def _admit(self, edge: str, length: int) -> None:
        """Raises BridgeError: so much more is above the credit of that edge."""
        with self._counting:
            known = self._under_way.get(edge, 0)
            if known and known + length > self._credit_bytes:
                text = f"{known} bytes of edge {edge} are under way, and {length} more are above its credit"
                raise BridgeError(text, hint="wait for the answers to those")
            if length:
                self._under_way[edge] = known + length

    def _let_go(self, edge: str, length: int) -> None:
        with self._counting:
            left = self._under_way.pop(edge, 0) - length
            if left > 0:
                self._under_way[edge] = left

    def _work(self, identity: bytes, head: dict[str, Any], content: memoryview | None) -> None:
        """On a worker."""
        try:
            try:
                answer = self._done(head, content)
            finally:  # before the bridge can know
                self._let_go(str(head["edge"]), 0 if content is None else len(content))
        except Exception as error:  # noqa: BLE001  a bridge that waits must be told
            self._refuse(identity, head, error)
        else:
            self._answers.put((identity, answer))
        self._ring()

    def _done(self, head: dict[str, Any], content: memoryview | None) -> bytes:
        if head["kind"] == "hello":
            return self._welcome(head)
        if head["kind"] == "put" and content is not None:
            return self._put(head, content)
        if head["kind"] == "names":
            return self._names(head)
        raise SinkBlocked(f"no message of a bridge: {head['kind']}", hint="update the older side")

    def _welcome(self, head: dict[str, Any]) -> bytes:
        if head.get("version") != VERSION:
            text = f"version {head.get('version')}, this collector speaks {VERSION}"
            raise SinkBlocked(text, hint="update the older side")
        self._store.begin(str(head["edge"]))
        return pack(kind="welcome", credit_bytes=self._credit_bytes)

    def _put(self, head: dict[str, Any], content: memoryview) -> bytes:
        name = str(head.get("name"))
        unit = checked(name, content)
        if unit.footer.edge != head["edge"]:
            raise SinkBlocked(f"{name} is not of edge {head['edge']}")
        self._store.put(unit)
        self.stored += 1
        self.stored_bytes += len(content)
        return pack(kind="stored", name=name)

    def _names(self, head: dict[str, Any]) -> bytes:
        prefix, after = str(head.get("prefix")), str(head.get("after", ""))
        if not prefix.startswith(f"edge={head['edge']}/") or ".." in prefix:
            raise SinkBlocked(f"{prefix!r} is not below edge={head['edge']}/")
        found = sorted(name for name in self._store.names(prefix) if name > after)
        return pack(kind="names", names=found[:NAMES_MOST], more=len(found) > NAMES_MOST)

    def _refuse(self, identity: bytes, head: dict[str, Any], error: Exception) -> None:
        self.refused += 1
        log.warning("refused kind=%s edge=%s: %s", head.get("kind"), head.get("edge"), error)
        hint = error.hint if isinstance(error, BridgeError) else ""
        text = str(error) if isinstance(error, BridgeError) else repr(error)
        final = isinstance(error, SinkBlocked)
        conflict = isinstance(error, SinkConflict)
        name = str(head.get("name", ""))
        self._answers.put((identity, _refusal(name, text, hint=hint, final=final, conflict=conflict)))
        self._ring()


def checked(name: str, content: memoryview) -> Unit:
    """The unit in `content`, which is whole and called `name`.  Raises SinkBlocked."""
    try:
        file = parse(content, name)
        if not file.body_verifies():
            raise DrainedFileError("the checksum of the body does not hold", name=name)
        if Name.parse(name) != file.name or file.name.path != name:
            raise DrainedFileError(f"it should be called {file.name.path}", name=name)
    except DrainedFileError as error:
        raise SinkBlocked(str(error), hint="the bridge or the way here damages files") from error
    begin = len(content) - TRAILER_BYTES - footer_length(content)
    return Unit(name, (content[:begin], content[begin:]), file.footer, ())


def _refusal(name: str, text: str, **more: Any) -> bytes:
    return pack(kind="refused", name=name, text=text, **more)
