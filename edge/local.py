"""Control server: the broker's end of the control socket, which grants access to rings in shared memory.

Owns control.sock, and the resources granted on each connection: gates on the writers' rings, and the names of
producers. The end of a connection releases all of them, and frees the reader slots of a process that died.
Never moves a record: records go through the rings, without this process.

Local peers are untrusted. A request is bounded and checked by type. A peer that sends anything else, or
leaves answers unread until the kernel's buffer is full, is disconnected. The number of connections is
limited. A peer gets only what its user (SO_PEERCRED) may have. local_peers.py chooses the connection to close
when all places are taken.

Everything here runs on one event loop. Writers belong to another thread: `on_writer_thread` runs a function
there.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Literal

from edge.config import Config, Stream
from edge.control import (
    ANSWER_MAX_BYTES,
    REQUEST_MAX_BYTES,
    Answer,
    Done,
    Drained,
    Failed,
    Gate,
    Produce,
    RemoveSession,
    Report,
    Request,
    RingAdded,
    RingFacts,
    RingList,
    Rings,
    SessionList,
    Sessions,
    Status,
    decode_request,
    encode,
)
from edge.descriptors import REMEDY
from edge.directories import control_socket
from edge.errors import ControlError, EdgeError, Refused
from edge.levels import Lost
from edge.local_peers import Peer, Peers
from edge.logs import pairs
from edge.mqtt.errors import ProtocolError
from edge.mqtt.topics import check_filter
from edge.producers import ProducerRing, Producers
from edge.session_admin import SessionAdmin
from edge.streams import Streams
from ringbuf import Ring

__all__ = ["LocalEndpoint", "filters_meet"]

log = logging.getLogger(__name__)

BACKLOG = 64
SEND_BUFFER_BYTES = 2 * ANSWER_MAX_BYTES  # an answer is one datagram, and the kernel counts its overhead too
FIRST_REQUEST_S = 5.0  # from accept(); a client sends its request at once
BRIEF_S = 1.0  # the same for a connection that gets one answer only
SESSIONS_PAGE = 256  # rows of one answer
ACCEPT_RETRY_S = 1.0  # after an error that is not a peer's, such as no free descriptors


class LocalEndpoint:
    """Answers on the control socket of `config.runtime_dir` from start() to stop()."""

    def __init__(
        self,
        config: Config,
        streams: Streams,
        producers: Producers,
        *,
        report: Callable[[], Awaitable[dict[str, Any]]],
        on_writer_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
        moved: Callable[[str, str, int, int, Lost], object] = lambda *_: None,
        sessions: SessionAdmin | None = None,
        connections_max: int | None = None,
    ) -> None:
        """Create the server. `moved` gets progress of bridges in other processes: Upstream.moved().

        `connections_max`: instead of local.connections_max, if the process may open fewer files.
        """
        self.counts: Counter[str] = Counter()  # connections, refusals, and disconnections by cause
        self._path = control_socket(config.runtime_dir)
        self._streams = {stream.name: stream for stream in config.stream}
        self._partitions = {partition.name: partition for partition in streams.all()}
        self._producers = producers
        self._peers = Peers(connections_max or config.local.connections_max, self.counts)
        self._gating_uids = {*self._peers.privileged, *config.local.gating_uids}
        self._report = report
        self._on_writer_thread = on_writer_thread
        self._moved = moved
        self._sessions = sessions
        self._serving: set[asyncio.Task[None]] = set()
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._peers)

    async def start(self) -> None:
        """Begin to listen. The runtime directory is locked, so an existing socket file is not in use."""
        self._path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            listening.bind(str(self._path))
            self._path.chmod(0o660)
            listening.listen(BACKLOG)
        except OSError as error:
            listening.close()
            text = f"{self._path}: cannot listen there: {error.strerror or error}"
            raise EdgeError(text, hint="set runtime_dir to a shorter path of your own") from error
        self._socket = listening
        self._producers.on_ring.append(self._announce)
        self._accepting = asyncio.create_task(self._accept(listening))

    async def stop(self) -> None:
        """Close every connection, and remove the socket. Gates stay: their readers request them from the next
        broker.
        """
        listening, self._socket = self._socket, None
        if listening is None:
            return
        tasks = [task for task in (self._accepting, *self._serving) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._producers.on_ring.remove(self._announce)
        listening.close()
        self._path.unlink(missing_ok=True)

    # ---- connections ----

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connected, _ = await loop.sock_accept(listening)
            except OSError as error:
                log.warning("control socket cannot accept %s", pairs(reason=error))
                await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            self.counts["connections"] += 1
            if (peer := self._peers.admit(connected)) is not None:
                log.debug("local process connected %s", pairs(pid=peer.pid, uid=peer.uid))
                task = asyncio.create_task(self._serve_briefly(peer) if peer.brief else self._serve(peer))
                self._serving.add(task)
                task.add_done_callback(self._serving.discard)
            # sock_accept() does not yield while connections wait, and would starve requests
            await asyncio.sleep(0)

    async def _serve(self, peer: Peer) -> None:
        try:
            data = await self._first_request(peer, FIRST_REQUEST_S)
            while data and self._send(peer, await self._answer(peer, data)):
                data = await self._receive(peer)
        finally:
            self._peers.left(peer)
            peer.socket.close()
            await self._give_back(peer)
            log.debug("local process gone %s", pairs(pid=peer.pid, uid=peer.uid))

    async def _serve_briefly(self, peer: Peer) -> None:
        """Answer one request: a report for the broker's own user and root, otherwise the limit."""
        try:
            data = await self._first_request(peer, BRIEF_S)
            answer: Answer = Failed(peer.brief, "close some, or raise local.connections_max")
            with suppress(ControlError):
                if peer.uid in self._peers.privileged and isinstance(decode_request(data), Status):
                    answer = await self._answer(peer, data)
            self._send(peer, answer)
        finally:
            self._peers.left(peer)
            peer.socket.close()

    async def _first_request(self, peer: Peer, patience_s: float) -> bytes:
        """The first request; b"" if there is none in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                return await self._receive(peer)
        self.counts["cut_silent"] += 1
        log.debug("local process cut %s", pairs(pid=peer.pid, uid=peer.uid, reason="it sent no request"))
        return b""

    async def _receive(self, peer: Peer) -> bytes:
        """The next request; b"" at the end of the connection."""
        try:
            data = await asyncio.get_running_loop().sock_recv(peer.socket, REQUEST_MAX_BYTES + 1)
        except OSError:
            return b""
        peer.asked, peer.since_s = True, time.monotonic()
        if len(data) <= REQUEST_MAX_BYTES:
            return data
        self._cut(peer, "too_large", f"a request is above the limit of {REQUEST_MAX_BYTES} bytes")
        return b""

    def _send(self, peer: Peer, message: Answer | RingAdded) -> bool:
        """Send a message. False if the peer was disconnected, or has ended."""
        data = encode(message)
        if len(data) > ANSWER_MAX_BYTES:
            data = encode(Failed(f"the answer of {len(data)} bytes is above the limit of {ANSWER_MAX_BYTES}"))
        try:
            peer.socket.send(data)
        except BlockingIOError:
            self._cut(peer, "unread", "answers are left unread")
            return False
        except OSError:
            return False
        return True

    def _cut(self, peer: Peer, cause: str, why: str) -> None:
        """End the connection. _serve() notices that, and releases its resources."""
        self.counts[f"cut_{cause}"] += 1
        log.warning("local process cut %s", pairs(pid=peer.pid, uid=peer.uid, reason=why))
        peer.shut()

    # ---- requests ----

    async def _answer(self, peer: Peer, data: bytes) -> Answer:
        try:
            request = decode_request(data)
            answer = await self._do(peer, request)
            peer.keeps |= not isinstance(request, Status)
            return answer
        except ControlError as error:
            self._send(peer, Failed(str(error), error.hint))
            self._cut(peer, "garbage", str(error))
        except EdgeError as error:
            self.counts["refusals"] += 1
            return Failed(str(error), error.hint)
        except OSError as error:  # no descriptor, no memory: the request fails and the connection stays
            self.counts["failures"] += 1
            log.warning("local request failed %s", pairs(pid=peer.pid, reason=error))
            return Failed(f"the broker cannot do that now: {error.strerror}", REMEDY)
        return Failed("cut")

    async def _do(self, peer: Peer, request: Request) -> Answer:
        match request:
            case Status():
                return Report(await self._report())
            case Rings(filters=filters, follow=follow):
                peer.follows = peer.follows or follow
                return RingList(tuple(self._rings_for(filters)))
            case Gate(ring=ring, slot=slot):
                await self._gate(peer, ring, slot)
                return Done()
            case Produce(producer=producer, stream=stream):
                return RingList((self._produce(peer, producer, stream),))
            case Drained():
                return self._drained(peer, request)
            case Sessions(first=first):
                return await self._session_page(first)
            case RemoveSession(client_id=client_id):
                return await self._remove_session(peer, client_id)

    def _rings_for(self, filters: Iterable[str]) -> Iterable[RingFacts]:
        for topic_filter in filters:
            try:
                check_filter(topic_filter)
            except ProtocolError as error:
                raise Refused(error.detail) from error
        for partition in self._partitions.values():
            stream = self._streams[partition.stream]
            if any(filters_meet(mine, theirs) for mine in stream.topics for theirs in filters):
                partition.ring.mend()
                yield _facts(partition.name, partition.ring, stream, "partition")
        # A producer's topics are not checked, so its ring may hold records of any topic.
        yield from (_producer_facts(it) for it in self._producers.all() if not it.ring.is_lost)

    async def _gate(self, peer: Peer, name: str, slot: int) -> None:
        partition = self._partitions.get(name)
        if partition is None:
            hint = "the producer of a ring heeds all that gate, unasked"
            raise Refused(f"this broker does not write a ring {name!r}", hint=hint)
        stream = self._streams[partition.stream]
        if stream.when_full == "overwrite":
            hint = f'write when_full = "block" or "reject" in the [[stream]] with name = "{stream.name}"'
            raise Refused(f"stream {stream.name!r} overwrites, and holds back for nobody", hint=hint)
        if peer.uid not in self._gating_uids:
            hint = f"add {peer.uid} to local.gating_uids"
            raise Refused(f"user {peer.uid} may not hold back stream {stream.name!r}", hint=hint)
        gating = {it.slot for it in partition.ring.slots() if it.state == "gating" and not it.own}
        taken = any((name, slot) in other.gates for other in self._peers if other is not peer)
        if slot not in gating or taken:
            raise Refused(f"slot {slot} of ring {name} has no gating reader of yours")
        peer.gates[name, slot] = partition.ring
        await self._on_writer_thread(lambda: partition.ring.admit(slot))

    def _produce(self, peer: Peer, producer: str, stream: str) -> RingFacts:
        name = f"{stream}@{producer}"
        for other in self._peers:
            if name in other.produces and other is not peer:
                hint = "give each producer a name of its own"
                raise Refused(f"producer {producer!r} of stream {stream!r} is process {other.pid}", hint=hint)
        facts = _producer_facts(self._producers.open(producer, stream, peer.uid))
        if name not in peer.produces:
            log.info("local producer joined %s", pairs(name=name, pid=peer.pid, uid=peer.uid))
        peer.produces.add(name)
        return facts

    async def _session_page(self, first: int) -> Answer:
        """One page of sessions: as many as fit into an answer."""
        admin = self._admin()
        rows, more = await self._on_writer_thread(lambda: admin.page(max(first, 0), SESSIONS_PAGE))
        while len(encode(answer := SessionList(tuple(rows), more))) > ANSWER_MAX_BYTES and len(rows) > 1:
            rows, more = rows[: len(rows) // 2], True
        return answer

    async def _remove_session(self, peer: Peer, client_id: str) -> Answer:
        if peer.uid not in self._peers.privileged:
            hint = f"run as user {os.geteuid()}"
            raise Refused(f"user {peer.uid} may not remove sessions", hint=hint)
        admin = self._admin()
        if not await self._on_writer_thread(lambda: admin.remove(client_id)):
            hint = "`brim sessions ls` lists them"
            raise Refused(f"client {client_id!r} has no session", hint=hint)
        return Done()

    def _admin(self) -> SessionAdmin:
        if self._sessions is None:
            raise Refused("this broker serves no MQTT clients")
        return self._sessions

    def _drained(self, peer: Peer, request: Drained) -> Answer:
        """Apply the progress of a bridge.

        Publishers get acknowledgements by it, so only users who could also write the log may report it.
        """
        if peer.uid not in (os.geteuid(), 0):
            hint = f"run the bridge as user {os.geteuid()}, or with in_broker = true"
            raise Refused(
                f"user {peer.uid} may not say what bridge {request.bridge!r} has drained", hint=hint
            )
        self._moved(request.bridge, request.ring, request.epoch, request.offset, request.lost)
        return Done()

    def _announce(self, added: ProducerRing) -> None:
        for peer in [peer for peer in self._peers if peer.follows]:
            self._send(peer, RingAdded(_producer_facts(added)))

    async def _give_back(self, peer: Peer) -> None:
        """Release the resources of a process: its gates, and reader slots of dead processes in all rings."""

        def free() -> None:
            for (_, slot), ring in peer.gates.items():
                ring.evict(slot)
            for partition in self._partitions.values():
                partition.ring.sweep()

        for name in peer.produces:
            log.info("local producer gone %s", pairs(name=name, pid=peer.pid))
        if (peer.gates or peer.follows) and self._socket is not None:
            await self._on_writer_thread(free)


def filters_meet(one: str, other: str) -> bool:
    """True if some topic matches both filters."""
    for mine, theirs in zip(ones := one.split("/"), others := other.split("/"), strict=False):
        if mine == "#" or theirs == "#":
            return True
        if mine not in {theirs, "+"} and theirs != "+":
            return False
    shorter, longer = sorted((ones, others), key=len)
    return len(shorter) == len(longer) or longer[len(shorter) :] == ["#"]


def _facts(name: str, ring: Ring, stream: Stream, kind: Literal["partition", "producer"]) -> RingFacts:
    policy = (stream.when_full, stream.queue_timeout_ms)
    return RingFacts(name, str(ring.path), ring.epoch, stream.name, kind, *policy)


def _producer_facts(producer: ProducerRing) -> RingFacts:
    return _facts(producer.name, producer.ring, producer.stream, "producer")
