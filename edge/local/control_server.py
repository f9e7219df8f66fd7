"""Control server: the broker's end of the control socket, which grants access to rings in shared memory.

Owns the resources granted on each connection of control.sock: permissions of readers to
block a writer, and the names of producers. The end of a connection releases all of them, and frees the reader
slots of a process that died.
Never moves a record: records go through the rings, without this process.

Local peers are untrusted: rpc/server.py bounds them. A peer gets only what its user (SO_PEERCRED) may have.
Reports take time of the thread that serves MQTT clients, so each user except root and the broker's own gets
them one at a time, in a share of the time (edge/pace.py).

Everything here runs on one event loop. Writers belong to another thread: `on_writer_thread` runs a function
there.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

import msgspec
from msgspec import field

from edge.broker.durability import Lost
from edge.broker.retained_admin import PAGE_BYTES, RetainedAdmin
from edge.broker.session_admin import SessionAdmin, SessionListing
from edge.broker.synced_changes import SyncedChanges
from edge.config.directories import control_socket
from edge.config.limits import LoweredSize
from edge.config.public_settings import public_settings, sizes_of_kind
from edge.config.schema import Config, Stream
from edge.errors import EdgeError, Refused
from edge.local.filters import filters_meet
from edge.local.producers import ProducerRing, Producers
from edge.local.protocol import (
    ANSWER_MAX_BYTES,
    PROTOCOL,
    Admit,
    Answer,
    CancelDelayed,
    Cancelled,
    Cleared,
    ClearRetained,
    Delayed,
    DelayedList,
    Disconnect,
    Done,
    Drained,
    LogLines,
    LogPage,
    Overview,
    Produce,
    Reload,
    Reloaded,
    RemoveSession,
    Report,
    Request,
    Retained,
    RetainedList,
    RingAdded,
    RingInfo,
    RingList,
    Rings,
    Save,
    Saved,
    Session,
    SessionDetails,
    SessionList,
    Sessions,
    SettingList,
    Settings,
    Status,
)
from edge.logging_setup import AUDIT, pairs, recent
from edge.mqtt.errors import ProtocolError
from edge.mqtt.topic_filters import check_filter
from edge.pace import PacedWork
from edge.rpc.peers import Peer, Peers
from edge.rpc.protocol import encode
from edge.rpc.server import Server
from edge.streams.streams import Partition, Streams
from edge.user_names import user_name
from ringbuf import Ring

log = logging.getLogger(__name__)
audit = logging.getLogger(AUDIT)

T = TypeVar("T")

SESSIONS_PAGE = 64  # rows of one answer: they are made in one piece, in about 0.5 ms
DELAYED_PAGE, DELAYED_PAYLOAD_MAX = 256, 4 << 10
SYNC_MAX_S, ROOM_MAX_S = 3.0, 1.0  # together less than REPLY_TIMEOUT_S, after which the operator gives up
POLL_S = 0.005
Reports = Status | Overview | Sessions | Session | Retained | Delayed


class DelayedView(Protocol):
    """The part of DelayedMessages (edge.delayed) that operators use."""

    def page(self, after: tuple[int, int], limit: int, payload_max: int, /) -> list[dict[str, Any]]:
        """Messages after (due_ns, id), at most `limit`. Reads files."""

    def cancel(self, message_id: int, /) -> Future[bool]:
        """Remove a message. The result is False if the store does not have it."""


class LocalPeer(Peer, eq=False):
    """One connection, and the resources that it holds."""

    follows: bool = False
    filters: tuple[str, ...] = ()  # of its last `rings` request with `follow`
    admitted: dict[tuple[str, int], Ring] = field(default_factory=dict)
    produces: set[str] = field(default_factory=set)
    sessions: SessionListing = field(default_factory=SessionListing)


class LocalEndpoint(Server[LocalPeer]):
    """Answers on the control socket of `config.runtime_dir` from start() to stop()."""

    when_full = Status  # so that `brim status` is answered while other processes hold every place

    def __init__(
        self,
        config: Config,
        streams: Streams,
        producers: Producers,
        *,
        report: Callable[[], Awaitable[dict[str, Any]]],
        overview: Callable[[], Awaitable[dict[str, Any]]] | None = None,
        on_writer_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
        on_progress: Callable[[str, str, int, int, Lost], object] = lambda *_: None,
        sessions: SessionAdmin | None = None,
        retained: RetainedAdmin | None = None,
        reload: Callable[[], Awaitable[Reloaded]] | None = None,
        save: Callable[[int], Saved] | None = None,
        delayed: DelayedView | None = None,
        changes: SyncedChanges | None = None,
        connections_max: int | None = None,
    ) -> None:
        """Create the server. `on_progress` gets progress of bridges in other processes.

        `connections_max`: instead of local.connections_max, if the process may open fewer files.
        """
        max_connections = connections_max or config.local.connections_max
        peers = Peers(LocalPeer, max_connections, "local.connections_max")
        super().__init__(PROTOCOL, control_socket(config.runtime_dir), peers, mode=0o660)
        self._streams = {stream.name: stream for stream in config.stream}
        self._partitions = {partition.name: partition for partition in streams.all()}
        self._producers = producers
        self._blocking_reader_uids = {*self._peers.privileged, *config.local.blocking_reader_uids}
        self._paces: dict[int, PacedWork] = {}  # by user; without those who wait for nothing
        self._report = report
        self._overview = overview or report
        self._on_writer_thread = on_writer_thread
        self._on_progress = on_progress
        self._sessions = sessions
        self._retained = retained
        self._reload = reload
        self._save = save
        self._delayed = delayed
        self._changes = changes
        self._reads_delayed = asyncio.Lock()  # a silent disk keeps one thread, not one for each request
        self._config = config

    def apply(self, config: Config) -> None:
        """Show another configuration from now on."""
        self._config = config

    async def start(self) -> None:
        """Begin to listen. The runtime directory is locked, so an existing socket file is not in use."""
        await super().start()
        self._producers.on_ring.append(self._announce)

    async def stop(self) -> None:
        """Close every connection and remove the socket; the next broker gets the requests again."""
        if self.listens:
            await super().stop()
            self._producers.on_ring.remove(self._announce)

    # ---- requests ----

    async def answer(self, peer: LocalPeer, request: Request) -> Answer:
        """Answer a request. Raises EdgeError: refused."""
        answer = await self._do(peer, request)
        peer.keeps |= not isinstance(request, Status | Overview)
        return answer

    async def _do(self, peer: LocalPeer, request: Request) -> Answer:
        if peer.uid in self._peers.privileged or not isinstance(request, Reports):
            return await self._answer_to(peer, request)
        pace = self._paces.setdefault(peer.uid, PacedWork())
        return await pace.run(partial(self._answer_to, peer, request))

    async def _answer_to(self, peer: LocalPeer, request: Request) -> Answer:
        match request:
            case Status() | Overview():
                report = self._report if isinstance(request, Status) else self._overview
                return Report(await report())
            case Rings(filters=filters, follow=follow):
                return self._ring_list(peer, tuple(filters), follow=follow)
            case Admit(ring=ring, slot=slot):
                await self._admit(peer, ring, slot)
                return Done()
            case Produce(producer=producer, stream=stream):
                return RingList((self._produce(peer, producer, stream),))
            case Drained():
                return self._drained(peer, request)
            case Sessions(first=first):
                return await self._session_page(peer.sessions, first)
            case Session(client_id=client_id):
                return await self._session_details(client_id)
            case Disconnect() | RemoveSession():
                return await self._end_session(peer, request)
            case Retained() | ClearRetained():
                return await self._of_retained(peer, request)
            case Reload():
                return await self._reload_files(peer)
            case Save(ticket=ticket):
                return await self._save_state(peer, ticket)
            case Settings() | LogLines():
                return self._private(peer, request)
            case Delayed() | CancelDelayed():
                return await self._of_delayed(peer, request)

    def _ring_list(self, peer: LocalPeer, filters: tuple[str, ...], *, follow: bool) -> RingList:
        rings = tuple(self._rings_for(filters))
        if follow:
            peer.follows, peer.filters = True, filters
        return RingList(rings)

    def _rings_for(self, filters: Iterable[str]) -> Iterable[RingInfo]:
        for topic_filter in filters:
            _check_filter(topic_filter)
        for partition in self._partitions.values():
            stream = self._streams[partition.stream]
            if _meet(stream.topics, filters):
                partition.ring.mend()
                yield _ring_info(partition.name, partition.ring, stream, "partition")
        # A producer's topics are not checked, so its ring may hold records of any topic.
        yield from (_producer_info(entry) for entry in self._producers.all() if not entry.ring.is_lost)

    async def _admit(self, peer: LocalPeer, name: str, slot: int) -> None:
        partition = self._partitions.get(name)
        if partition is None:
            hint = "omit this request for the ring of a producer, which waits for all blocking readers"
            raise Refused(f"this broker does not write a ring {name!r}", hint=hint)
        stream = self._streams[partition.stream]
        if stream.when_full == "overwrite":
            hint = f'write when_full = "block" or "reject" in the [[stream]] with name = "{stream.name}"'
            raise Refused(f"stream {stream.name!r} overwrites old records; no reader can block it", hint=hint)
        if peer.uid not in self._blocking_reader_uids:
            hint = f"add {peer.uid} to local.blocking_reader_uids"
            raise Refused(
                f"user {user_name(peer.uid)} may not block the writer of stream {stream.name!r}", hint=hint
            )
        slots = partition.ring.slots()
        blocking = {entry.slot for entry in slots if entry.state == "blocking" and not entry.local}
        taken = any((name, slot) in other.admitted for other in self._peers if other is not peer)
        if slot not in blocking or taken:
            raise Refused(f"slot {slot} of ring {name} has no blocking reader of this process")
        peer.admitted[name, slot] = partition.ring
        await self._on_writer_thread(lambda: partition.ring.admit(slot))

    def _produce(self, peer: LocalPeer, producer: str, stream: str) -> RingInfo:
        name = f"{stream}@{producer}"
        for other in self._peers:
            if name in other.produces and other is not peer:
                hint = "give each producer a name of its own"
                raise Refused(f"producer {producer!r} of stream {stream!r} is process {other.pid}", hint=hint)
        info = _producer_info(self._producers.open(producer, stream, peer.uid))
        if name not in peer.produces:
            log.info("local producer joined %s", pairs(name=name, pid=peer.pid, uid=peer.uid))
        peer.produces.add(name)
        return info

    async def _session_page(self, listing: SessionListing, first: int) -> Answer:
        """One page of sessions: as many as fit into an answer."""
        admin = self._of_clients(self._sessions)
        rows, more = await self._on_writer_thread(lambda: admin.page(listing, first, SESSIONS_PAGE))
        while len(encode(answer := SessionList(tuple(rows), more))) > ANSWER_MAX_BYTES and len(rows) > 1:
            half = len(rows) // 2
            listing.take_back(rows[half:])
            rows, more = rows[:half], True
        return answer

    async def _session_details(self, client_id: str) -> Answer:
        """One session, with as many of its filters as fit into an answer."""
        admin = self._of_clients(self._sessions)
        session = await self._on_writer_thread(lambda: admin.show(client_id))
        if session is None:
            raise _no_session(client_id, "no session")
        filters, shown = session["filters"], len(session["filters"])
        while (
            len(encode(answer := SessionDetails(session, len(filters) - shown))) > ANSWER_MAX_BYTES and shown
        ):
            shown //= 2
            session["filters"] = filters[:shown]
        return answer

    async def _end_session(self, peer: LocalPeer, request: Disconnect | RemoveSession) -> Answer:
        """End the connection of a client, or also its session, and log who requested that."""
        self._check_privileged(peer, "disconnect clients or remove sessions")
        admin, client_id = self._of_clients(self._sessions), request.client_id
        facts = pairs(client=client_id, uid=peer.uid, pid=peer.pid)
        if isinstance(request, Disconnect):  # nothing to sync: a power cut ends the connection, too
            if not await self._on_writer_thread(lambda: admin.disconnect(client_id)):
                raise _no_session(client_id, "no connection")
            audit.info("client disconnected by an operator %s", facts)
            return Done()
        is_removed, lacking = await self._change(lambda: admin.remove(client_id))
        if not is_removed:
            raise _no_session(client_id, "no session")
        audit.info("session removed by an operator %s", facts)
        await _wait_for_sync(lacking)
        return Done()

    async def _of_retained(self, peer: LocalPeer, request: Retained | ClearRetained) -> Answer:
        if isinstance(request, Retained):
            return await self._retained_page(request)
        return await self._clear_retained(peer, request)

    async def _retained_page(self, request: Retained) -> Answer:
        admin = self._of_clients(self._retained)
        _check_filter(request.filter)
        first, payload_max = request.first, min(request.payload_max, PAGE_BYTES)
        rows, after = await self._on_writer_thread(lambda: admin.page(request.filter, first, payload_max))
        return RetainedList(tuple(rows), after)

    async def _clear_retained(self, peer: LocalPeer, request: ClearRetained) -> Answer:
        self._check_privileged(peer, "clear retained messages")
        admin = self._of_clients(self._retained)
        _check_filter(request.filter)
        first, until_s = request.first, time.monotonic() + ROOM_MAX_S
        while True:
            (count, after, refused), lacking = await self._change(lambda: admin.clear(request.filter, first))
            if count or after != first or time.monotonic() > until_s:
                break
            await asyncio.sleep(POLL_S)  # the ring has no room now
        if count:
            facts = pairs(filter=request.filter, count=count, uid=peer.uid, pid=peer.pid)
            audit.info("retained messages cleared by an operator %s", facts)
            await _wait_for_sync(lacking)
        return Cleared(count, after, tuple(refused))

    async def _change(self, change: Callable[[], T]) -> tuple[T, Callable[[], str]]:
        """Make a change on the writer thread; see SyncedChanges.make()."""
        changes = self._of_clients(self._changes)
        made: tuple[T, Callable[[], str]] = await self._on_writer_thread(lambda: changes.make(change))
        return made

    async def _of_delayed(self, peer: LocalPeer, request: Delayed | CancelDelayed) -> Answer:
        if isinstance(request, Delayed):
            return await self._delayed_page(request)
        return await self._cancel_delayed(peer, request)

    async def _delayed_page(self, request: Delayed) -> Answer:
        """One page of delayed messages: as many as fit into an answer."""
        view = self._delayed_view()
        payload_max = min(request.payload_max, DELAYED_PAYLOAD_MAX)
        async with self._reads_delayed:
            rows = await asyncio.to_thread(view.page, request.after, DELAYED_PAGE, payload_max)
        more = len(rows) == DELAYED_PAGE
        while len(encode(answer := DelayedList(tuple(rows), more))) > ANSWER_MAX_BYTES and len(rows) > 1:
            rows, more = rows[: len(rows) // 2], True
        return answer

    async def _cancel_delayed(self, peer: LocalPeer, request: CancelDelayed) -> Answer:
        self._check_privileged(peer, "cancel delayed messages")
        answers = [(number, self._delayed_view().cancel(number)) for number in request.ids]
        done = [(number, await asyncio.wrap_future(answer)) for number, answer in answers]
        ids = tuple(number for number, removed in done if removed)
        facts = pairs(ids=list(ids), uid=peer.uid, pid=peer.pid)
        audit.info("delayed messages cancelled by an operator %s", facts)
        return Cancelled(ids)

    def _delayed_view(self) -> DelayedView:
        if self._delayed is None:
            raise Refused("this broker accepts no delayed messages", hint="write enabled = true in [delayed]")
        return self._delayed

    async def _reload_files(self, peer: LocalPeer) -> Reloaded:
        self._check_privileged(peer, "reload files")
        audit.info("reload requested by an operator %s", pairs(uid=peer.uid, pid=peer.pid))
        return await self._of_clients(self._reload)()

    async def _save_state(self, peer: LocalPeer, ticket: int) -> Saved:
        self._check_privileged(peer, "save the state")
        save = self._of_clients(self._save)
        saved: Saved = await self._on_writer_thread(lambda: save(ticket))
        return saved

    def _private(self, peer: LocalPeer, request: Settings | LogLines) -> Answer:
        if isinstance(request, LogLines):
            self._check_privileged(peer, "read the log lines")
            return _log_page(request.after)
        self._check_privileged(peer, "read the configuration")
        return SettingList(public_settings(self._config), sizes_of_kind(self._config, LoweredSize))

    def _check_privileged(self, peer: LocalPeer, action: str) -> None:
        """Raise Refused unless the peer runs as the broker's own user or root."""
        if peer.uid not in self._peers.privileged:
            raise Refused(f"user {user_name(peer.uid)} may not {action}", hint=f"run as user {user_name()}")

    @staticmethod
    def _of_clients(part: T | None) -> T:
        """A part of a broker that serves MQTT clients. Raises Refused in others."""
        if part is None:
            raise Refused("this broker serves no MQTT clients")
        return part

    def _drained(self, peer: LocalPeer, request: Drained) -> Answer:
        """Apply the progress of a bridge.

        Publishers get acknowledgements by it, so only users who could also write the log may report it.
        """
        if peer.uid not in (os.geteuid(), 0):
            hint = f"run the bridge as user {user_name()}, or with in_broker = true"
            raise Refused(
                f"user {user_name(peer.uid)} may not report the progress of bridge {request.bridge!r}",
                hint=hint,
            )
        self._on_progress(request.bridge, request.ring, request.epoch, request.offset, request.lost)
        return Done()

    def add_streams(self, groups: Iterable[tuple[Stream, list[Partition]]]) -> None:
        """Serve the rings of more streams, and announce them to programs whose filters match their topics."""
        for stream, partitions in groups:
            self._streams[stream.name] = stream
            for partition in partitions:
                self._partitions[partition.name] = partition
                added = RingAdded(_ring_info(partition.name, partition.ring, stream, "partition"))
                for peer in [peer for peer in self._peers if peer.follows]:
                    if _meet(stream.topics, peer.filters):
                        self.send(peer, added)

    def _announce(self, added: ProducerRing) -> None:
        for peer in [peer for peer in self._peers if peer.follows]:
            self.send(peer, RingAdded(_producer_info(added)))

    async def release(self, peer: LocalPeer) -> None:
        """Release the resources of a peer: its blocking readers, and slots of dead processes."""

        def free() -> None:
            for (_, slot), ring in peer.admitted.items():
                ring.evict(slot)
            for partition in self._partitions.values():
                partition.ring.sweep()

        self._paces = {uid: pace for uid, pace in self._paces.items() if not pace.is_free}
        for name in peer.produces:
            log.info("local producer left %s", pairs(name=name, pid=peer.pid))
        if (peer.admitted or peer.follows) and self.listens:
            await self._on_writer_thread(free)


async def _wait_for_sync(lacking: Callable[[], str]) -> None:
    """Wait until a power cut cannot undo a change. Raises EdgeError: it is not synced in time."""
    until_s = time.monotonic() + SYNC_MAX_S
    while reason := lacking():
        if time.monotonic() > until_s:
            text = f"the change is made, but a power cut now may undo it: {reason}"
            raise EdgeError(text, hint="check the disk; after a power cut, look if the change is still there")
        await asyncio.sleep(POLL_S)


def _meet(topics: Iterable[str], filters: Iterable[str]) -> bool:
    return any(filters_meet(mine, theirs) for mine in topics for theirs in filters)


def _check_filter(topic_filter: str) -> None:
    try:
        check_filter(topic_filter)
    except ProtocolError as error:
        raise Refused(error.detail) from error


def _log_page(after: int) -> LogPage:
    """Lines after a number: as many as fit into an answer."""
    lines, last, skipped = recent().since(after)
    shown = len(lines)
    while len(encode(page := LogPage(tuple(lines[:shown]), last, skipped))) > ANSWER_MAX_BYTES and shown > 1:
        shown //= 2
        last = lines[shown - 1]["number"]
    return msgspec.structs.replace(page, more=shown < len(lines))


def _no_session(client_id: str, missing: str) -> Refused:
    return Refused(f"client {client_id!r} has {missing}", hint="`brim clients` lists them")


def _ring_info(name: str, ring: Ring, stream: Stream, kind: Literal["partition", "producer"]) -> RingInfo:
    policy = (stream.when_full, stream.queue_timeout_ms)
    return RingInfo(name, str(ring.path), ring.epoch, stream.name, kind, *policy)


def _producer_info(producer: ProducerRing) -> RingInfo:
    return _ring_info(producer.name, producer.ring, producer.stream, "producer")
