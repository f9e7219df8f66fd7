"""Server of a control socket: SOCK_SEQPACKET, one task for each connection, on one event loop.

Owns the socket file and the connections.  Each request of a connection gets one answer, in order.  A subclass
supplies the messages and what they do.

Local peers are untrusted.  A request is bounded, and checked by type.  A peer that sends anything else, or
leaves answers unread until the kernel's buffer is full, is disconnected.  The number of connections is
limited; peers.py chooses the connection to close when all places are taken.  All causes are counted; each is
logged at most once in 10 s.  A mistake in the server fails one request, with a traceback in the log, and the
connection stays.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from abc import ABC, abstractmethod
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from edge.errors import FILES_REMEDY, ControlError, EdgeError
from edge.log_throttle import LogThrottle
from edge.logging_setup import pairs
from edge.rpc.peers import Peer, Peers
from edge.rpc.protocol import Failed, Message, Protocol, encode

log = logging.getLogger(__name__)

BACKLOG: Final = 512
FIRST_REQUEST_S = 5.0  # from accept(); a client sends its request at once
BRIEF_S = 1.0  # the same for a connection that gets one answer only
ACCEPT_RETRY_S = 1.0  # after an error that is not a peer's, such as no free descriptors

P = TypeVar("P", bound=Peer)


class Server(ABC, Generic[P]):
    """Serves the socket `path` from start() to stop(). A subclass answers the requests.

    `counts`: connections, refusals, disconnections by cause. `when_full`: the request that is answered though
    all places are taken.
    """

    when_full: type[Message]

    def __init__(self, protocol: Protocol, path: Path, peers: Peers[P], *, mode: int) -> None:
        """Create the server. `mode`: of the socket's file."""
        self.counts = peers.counts
        self._protocol = protocol
        self._path = path
        self._peers = peers
        self._mode = mode
        self._may_log: defaultdict[str, LogThrottle] = defaultdict(LogThrottle)  # by cause
        self._serving: set[asyncio.Task[None]] = set()
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None

    @abstractmethod
    async def answer(self, peer: P, request: Any) -> Message:
        """Answer a request. Raises EdgeError: refused, and OSError: not now; both become `failed`."""

    async def release(self, peer: P) -> None:
        """Take back the resources of a peer whose connection has ended; by default it has none."""

    @property
    def listens(self) -> bool:
        """True from start() until stop() begins."""
        return self._socket is not None

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._peers)

    async def start(self) -> None:
        """Begin to listen. A lock of the caller proves that an existing socket file is not in use."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._path.unlink(missing_ok=True)
            listening.bind(str(self._path))
            self._path.chmod(self._mode)
            listening.listen(BACKLOG)
        except OSError as error:
            listening.close()
            text = f"{self._path}: cannot listen there: {error.strerror or error}"
            raise EdgeError(text, hint="set runtime_dir to a shorter path of your own") from error
        self._socket = listening
        self._accepting = asyncio.create_task(self._accept(listening))

    async def stop(self) -> None:
        """Close every connection, and remove the socket. May be called twice."""
        listening, self._socket = self._socket, None
        if listening is None:
            return
        tasks = [task for task in (self._accepting, *self._serving) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        listening.close()
        self._path.unlink(missing_ok=True)

    def send(self, peer: P, message: Message) -> bool:
        """Send an answer or notification. False if the peer was disconnected, or has ended."""
        limit = self._protocol.answer_max_bytes
        try:
            data = encode(message)
        except Exception as error:  # noqa: BLE001 (a value that msgpack cannot encode)
            data = encode(self._defect(peer, error))
        if len(data) > limit:
            data = encode(Failed(f"the answer of {len(data)} bytes is above the limit of {limit}"))
        try:
            peer.socket.send(data)
        except BlockingIOError:
            self._cut(peer, "unread", "answers are left unread")
            return False
        except OSError:
            return False
        return True

    # ---- connections ----

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connected, _ = await loop.sock_accept(listening)
            except OSError as error:
                if self._may_log["accept"]():
                    log.warning("control socket cannot accept %s", pairs(path=self._path, reason=error))
                await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            # an answer is one datagram, and the kernel counts its overhead too
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * self._protocol.answer_max_bytes)
            self.counts["connections"] += 1
            if (peer := self._peers.admit(connected)) is not None:
                log.debug("local process connected %s", pairs(pid=peer.pid, uid=peer.uid))
                task = asyncio.create_task(self._serve_briefly(peer) if peer.brief else self._serve(peer))
                self._serving.add(task)
                task.add_done_callback(self._serving.discard)
            # sock_accept() does not yield while connections wait, and would starve requests
            await asyncio.sleep(0)

    async def _serve(self, peer: P) -> None:
        try:
            data = await self._first_request(peer, FIRST_REQUEST_S)
            while data and self.send(peer, await self._answer(peer, data)):
                # sock_recv() does not yield while requests wait, and would starve other peers
                await asyncio.sleep(0)
                data = await self._receive(peer)
        finally:
            self._peers.left(peer)
            peer.socket.close()
            await self.release(peer)
            log.debug("local process gone %s", pairs(pid=peer.pid, uid=peer.uid))

    async def _serve_briefly(self, peer: P) -> None:
        """Answer one request: `when_full` for the server's own user and root, otherwise the limit."""
        try:
            data = await self._first_request(peer, BRIEF_S)
            answer: Message = Failed(peer.brief, f"close some, or raise {self._peers.setting}")
            with suppress(ControlError):
                request = self._protocol.decode_request(data)
                if peer.uid in self._peers.privileged and isinstance(request, self.when_full):
                    answer = await self._answer(peer, data)
            self.send(peer, answer)
        finally:
            self._peers.left(peer)
            peer.socket.close()

    async def _first_request(self, peer: P, patience_s: float) -> bytes:
        """The first request; b"" if there is none in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                return await self._receive(peer)
        self.counts["cut_silent"] += 1
        log.debug("local process cut %s", pairs(pid=peer.pid, uid=peer.uid, reason="it sent no request"))
        return b""

    async def _receive(self, peer: P) -> bytes:
        """The next request; b"" at the end of the connection."""
        limit = self._protocol.request_max_bytes
        try:
            data = await asyncio.get_running_loop().sock_recv(peer.socket, limit + 1)
        except OSError:
            return b""
        peer.used()
        if len(data) <= limit:
            return data
        self._cut(peer, "too_large", f"a request is above the limit of {limit} bytes")
        return b""

    async def _answer(self, peer: P, data: bytes) -> Message:
        try:
            return await self.answer(peer, self._protocol.decode_request(data))
        except ControlError as error:
            self.send(peer, Failed(str(error), error.hint))
            self._cut(peer, "garbage", str(error))
        except EdgeError as error:
            self.counts["refusals"] += 1
            return Failed(str(error), error.hint)
        except OSError as error:  # no descriptor, no memory: the request fails and the connection stays
            self.counts["failures"] += 1
            if self._may_log["request"]():
                log.warning("local request failed %s", pairs(pid=peer.pid, reason=error))
            return Failed(f"the {self._protocol.server} cannot do that now: {error.strerror}", FILES_REMEDY)
        except Exception as error:  # noqa: BLE001
            return self._defect(peer, error)
        return Failed("cut")

    def _defect(self, peer: P, error: Exception) -> Failed:
        """Log a mistake in the server, which made a request fail. Returns the answer to the request."""
        self.counts["defects"] += 1
        if self._may_log["defect"]():
            text = "local request failed, please report this mistake of Brim %s"
            log.error(text, pairs(pid=peer.pid, error=repr(error)), exc_info=error)
        name, server = type(error).__name__, self._protocol.server
        return Failed(f"the {server} failed: {name}: {error}", f"see the log of the {server}")

    def _cut(self, peer: P, cause: str, why: str) -> None:
        """End the connection. _serve() notices that, and releases its resources."""
        self.counts[f"cut_{cause}"] += 1
        if self._may_log[cause]():
            log.warning("local process cut %s", pairs(pid=peer.pid, uid=peer.uid, reason=why))
        peer.shut()
