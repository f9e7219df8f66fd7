"""The MQTT hot path, as Python sees it: the C engine with its types, and the loop that drives its sockets.

Owns the translation between Python and ringbuf/c/mqtt: limits in, counters out, names for the codes.  Decides
nothing.

The C side parses, stores, routes and sends.  It stops at whatever it may not decide and leaves an Event; the
broker answers by calling the engine, and the connection goes on at the next poll.  One thread at a time may
use an engine: the one that polls.

A topic is a small int, valid until topics_recycle() or topics_age() returns its name.  A session or
connection is a handle, never 0, that knows when it is stale: calls about one that is gone return False, 0 or
None.  A tag says what is known of a route: options in its lower eight bits (edge.terms), the number of a
grant above.
"""

from __future__ import annotations

import os
import secrets
from array import array
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, cast

from edge.engine_codes import CloseCause, DropCause, EventKind, Table
from edge.engine_limits import EngineLimits
from edge.spill_engine import SpillEngine
from ringbuf import _ringbuf
from ringbuf.core import ffi, lib

if TYPE_CHECKING:
    from ringbuf import Reader, Writer

__all__ = [
    "FULL",
    "GATE_DURABLE",
    "GATE_NONE",
    "GATE_UPSTREAM",
    "NO_TOPIC",
    "OK",
    "TAG_GRANT_SHIFT",
    "CloseCause",
    "DropCause",
    "Engine",
    "EngineLimits",
    "Event",
    "EventKind",
    "Loop",
    "Peer",
    "SessionFacts",
    "Table",
    "counters_of",
    "engine_of",
    "limits_of",
    "listener_full",
    "listener_of",
]

_MODULE = "ringbuf._ringbuf"
if lib.mq_install(_MODULE.encode()) != 0:
    raise ImportError(f"{_MODULE}: the type Engine could not be made; rebuild it with `python build.py`")

NO_TOPIC: int = lib.MQ_NO_TOPIC
GATE_NONE: int = lib.MQ_GATE_NONE
GATE_DURABLE: int = lib.MQ_GATE_DURABLE
GATE_UPSTREAM: int = lib.MQ_GATE_UPSTREAM
TAG_GRANT_SHIFT: int = lib.MQ_TAG_GRANT_SHIFT
OK: int = lib.RB_OK
FULL: int = lib.RB_FULL


# (kind, connection, detail, data): one thing for Python to decide.  `connection` is 0 for those of a source
# ring.
Event: TypeAlias = tuple[int, int, int, bytes]

# (listener, address family, 16 bytes of which the family tells how many count, port)
Peer: TypeAlias = tuple[int, int, bytes, int]


class SessionFacts(NamedTuple):
    """What the hot path knows of a session.  `dropped` is indexed by DropCause."""

    queued: int
    in_flight: int
    delivered: int
    dropped: tuple[int, ...]


class Engine(SpillEngine, Protocol):
    """The C type (ringbuf/c/mqtt/engine_calls.c).  Short calls that keep the GIL; one thread at a time."""

    @property
    def address(self) -> int:
        """Of the mq_engine; valid while this object lives."""

    @property
    def counters_address(self) -> int:
        """Of its mq_counters."""

    @property
    def limits_address(self) -> int:
        """Of its mq_limits."""

    # Rings.  The engine keeps the Writer or Reader alive.

    def add_ring(self, writer: Writer, gate: int, logged: bool, /) -> int:
        """A source that topics can be stored in.

        `gate`: GATE_*, what acknowledgements wait for; `logged`: what it overwrites is in the log, and
        sessions that still need it leave a COLD event.  A ring that shows what is durable (Ring.show_durable)
        has its records routed and retained when they are.
        """

    def refuse(self, source: int, reason: int, /) -> None:
        """The log of this ring takes no records: once queue_timeout_ms is over, its publishers are refused
        with this reason code; 0: it takes them again.
        """

    def upstream(self, source: int, offset: int, lost_from: int, lost_to: int, /) -> None:
        """The sinks have every record below `offset`, but for the offsets lost_from to lost_to - 1."""

    def add_reader(self, reader: Reader, /) -> int:
        """A source that another process writes: its records are routed as they come."""

    def remove_source(self, source: int, /) -> None:
        """Forget a ring; what sessions still wait for of it is dropped, and counted as overrun."""

    def judge_source(self, source: int, /) -> None:
        """Answers a SOURCE event: the topic is in the table now.  Without it the record is skipped."""

    def wake_sources(self) -> None:
        """Source rings have records; with a loop, Loop.wake() says so."""

    # Connections.

    def attach(
        self,
        connection: int,
        session: int,
        version: int,
        idle_max_ms: int,
        trusted: bool,
        window: int,
        packet_max_bytes: int,
        alias_max: int,
        /,
    ) -> bool:
        """CONNECT was accepted: deliver to it what is the session's.

        Trusted: it may publish anything.  `window`: QoS 1 and 2 messages in flight to it, at least 1;
        `packet_max_bytes`: the longest packet it takes, 0: any; `alias_max`: topic aliases we may use.
        """

    def send(self, connection: int, data: bytes, /) -> bool:
        """Put bytes behind what is waiting to be sent."""

    def vow(self, connection: int, /) -> None:
        """What it is told next rests on the journal as it is then, and waits where that is synced."""

    def close(self, connection: int, /) -> bool:
        """Close it, after one attempt to send what waits.  No CLOSED event follows."""

    def is_open(self, connection: int, /) -> bool:
        """Whether it is neither closed nor closing."""

    def hold(self, connection: int, /) -> bool:
        """Called while its event is handled: it does not go on at the next poll, but after resume()."""

    def resume(self, connection: int, /) -> bool:
        """Let a held connection go on."""

    def converse(self, connection: int, /) -> bool:
        """CONNECT has come and more is wanted first: every packet before attach() becomes an event."""

    def peer(self, connection: int, /) -> Peer | None:
        """Where it comes from."""

    def judge(self, connection: int, topic: int, allowed: bool, /) -> bool:
        """Answers a TOPIC event; remembered for this connection until forget_verdicts()."""

    def skip(self, connection: int, reason: int, /) -> bool:
        """Answers a TOPIC event: drop the PUBLISH and count it.

        `reason`, 0x80..0xFF, is what the acknowledgement of an MQTT 5 client says; others get a plain one.
        Topic Name Invalid is remembered for the topic alias that it came with.
        """

    def forget_verdicts(self) -> None:
        """The rules have changed: judge every client and topic anew."""

    def events(self, queued: int = 32, /) -> list[Event]:
        """Events that were not returned before: of packets, new topics and ended connections the
        oldest `queued` (0 to 32), of all other kinds everything.

        The next poll or step resumes the connections of these events, and of no others: an event that
        something adds meanwhile is returned by the next call.
        """

    def state(self) -> dict[str, int | bool]:
        """Connections by why they are not read, events that wait, flags of the journal: for a log line."""

    # A connection without a socket: for tests, and for transports that others run.

    def open(self, listener: int, /) -> int:
        """A new connection."""

    def feed(self, connection: int, data: bytes, /) -> int:
        """How many bytes were taken; it takes none while an event of it waits."""

    def pull(self, connection: int, /) -> bytes:
        """What is to be sent now, a block at a time."""

    def forget(self, connection: int, /) -> None:
        """Free one that is closed, with what was not pulled."""

    def step(self, now_ms: int, now_ns: int, /) -> int:
        """Number of events.  What a poll does besides sockets, at that monotonic and wall time."""

    # Sessions.

    def session_open(self, queue_max: int, drop_newest: bool, owner: bytes, /) -> int:
        """Room for `queue_max` waiting records; it counts for `owner`, a key of edge.owners."""

    def session_owner(self, session: int, owner: bytes, /) -> bool:
        """Let it count for `owner` from now on, with all that it has."""

    def session_author(self, session: int, author: bytes, /) -> bool:
        """Set who publishes what it retains: edge.authors."""

    def session_lasts(self, session: int, lasts: bool, /) -> bool:
        """Count it among those that outlast their connection, or no longer."""

    def session_filters(self, session: int, size_bytes: int, /) -> bool:
        """Set the bytes that its subscriptions count for."""

    def session_may(self, session: int, table: int, more: int, /) -> bool:
        """True if the owner of the session may take `more` of a Table.  A refusal is counted."""

    def owner_may(self, owner: bytes, table: int, more: int, /) -> bool:
        """The same; of Table.CONNECTIONS: one that is there, and counts for its address so far."""

    def owner_refused(self, table: int, /) -> tuple[bytes, int] | None:
        """The owner that was refused last, and its part of the table; None: there is none, or it is gone."""

    def owners_top(self, table: int, count: int, /) -> list[tuple[bytes, int]]:
        """Up to 64 owners and their parts of the table, largest first."""

    def session_close(self, session: int, /) -> bool:
        """Forget it, and close its connection."""

    def session_facts(self, session: int, /) -> tuple[int, int, int, tuple[int, ...]] | None:
        """Its queue and counters: the fields of SessionFacts."""

    def cold_front(self, session: int, /) -> tuple[int, int] | None:
        """(source, position) of what it gets next, if only the log has that."""

    def thaw(
        self, session: int, source: int, wanted: int, position: int, records: bytes | memoryview, /
    ) -> bool:
        """Gives back records of `source` that the log has, as they stood in the ring from `position` on.

        They were read from position `wanted` on: what the session waits for between there and `position` is
        given up, and counted as overrun.  The engine copies what the session needs, some at a time; bytes
        whose lengths do not hold are given up, too.
        """

    def warm(self, session: int, /) -> bool:
        """Answers a COLD event, after thaw(): its delivery goes on."""

    # What a restart must know (ringbuf/c/mqtt/journal.h), written by edge.state.

    def session_keep(self, session: int, kept: bool, /) -> bool:
        """What happens to it, or to the queue of a group, goes into the journal from now on, or no longer."""

    def journal_open(self, writer: Writer, position: int, vows: bool, in_log_bytes: int, /) -> None:
        """Write it there from then on; `vows`: it is told when synced; so much may be in its log alone."""

    def journal_close(self) -> None:
        """Write nothing any more."""

    def journal_note(self, note: bytes, /) -> bool:
        """Append a note of Python's.  False: no room, or it is too long: only a checkpoint says it."""

    def journal_is_short(self) -> bool:
        """Half of it is in use, and only a checkpoint makes room: the rest is for messages."""

    def journal_end(self, at_once: bool, /) -> int | None:
        """Where it goes on behind a checkpoint of now, before which nobody is told what had not gone into the
        ring.  None: it is not open, or has room soon and asks again, unless it is to be `at_once`.
        """

    def journal_sections(self, first: int, most: int, /) -> tuple[bytes, int | None]:
        """Entries for a checkpoint, about `most` bytes of them, and with what to go on, from 0 to None."""

    def journal_checkpointed(self, position: int, due_bytes: int, /) -> None:
        """What stands before `position` is needed no longer; the next is due after so many bytes."""

    def source_position(self, source: int, /) -> int:
        """Everything below has been routed."""

    def sources_floors(self, first: int, most: int, /) -> tuple[bytes, int | None]:
        """Lowest positions waited for, uint64 by source, of about `most` records; goes on as sections do."""

    def retained_sweep(self, all_there_is: bool, /) -> None:
        """Begin with the topics that retain something else since the last sweep, or anything at all."""

    def retained_changes(self, most: int, /) -> tuple[bytes, bytes, bool]:
        """Records of what they retain now, about `most` bytes, without payload for nothing; authors of them,
        as edge/state/retained_file.py has them; True: there are more.
        """

    def retained_authors(self, first: int, most: int, /) -> tuple[list[tuple[int, bytes]], int | None]:
        """Topics from place `first` of the table on whose retained message has an author, with that, at most
        `most`; the place to go on from, None at the end.
        """

    def retained_withhold(self, topic: int, author: bytes, withheld: bool, /) -> bool:
        """Withhold the retained message of the topic from subscribers, or deliver it again.

        False: the topic retains no message of `author`, and nothing has changed.
        """

    # A restart: before anything is served.

    def add_past(self, logged: bool, /) -> int:
        """A source that stands for a ring, or an epoch, that is no more; `logged`: the log may have of it."""

    def restore_begin(self) -> None:
        """Limits of queues do not hold until restore_end()."""

    def restore_session(self, number: int, session: int, /) -> None:
        """That session is what entries mean by `number` from now on."""

    def restore_source(self, number: int, source: int, end: int, routed: int, /) -> None:
        """That source is what entries mean by `number`.

        What was stored in it ends at position `end`; what is below `routed` was routed before.
        """

    def restore_batch(self, entries: bytes, /) -> bool:
        """Do again what they say.  False: from some place on they cannot be read."""

    def restore_mark(self, number: int, /) -> int:
        """Position below which all was routed, of the source with that number."""

    def restore_route(
        self, source: int, position: int, records: memoryview | None, begin: int, /
    ) -> tuple[int, bytes | None]:
        """Route records from position `begin` on, of those that stand from `position` on.

        None: to the end of a ring of our own.  With the name of a topic: it is not known, call again with the
        position that came with it.
        """

    def restore_settle(self, session: int, /) -> bytes | None:
        """Find topics and identifiers of what was restored for it.  A name: it is not known, call again."""

    def restore_refuse(self) -> None:
        """Do without topics that are not known."""

    def restore_resume(self, source: int, position: int, /) -> None:
        """Of a ring that others write, records below were routed in an earlier life."""

    def restore_end(self) -> int:
        """End the restoring; the number of records that sessions wait for and that no store has."""

    # Shared subscriptions.  A group is known by its queue, which is a session that no client has.

    def share_open(self, queue_max: int, drop_newest: bool, /) -> int:
        """A group without members: a session to route topics to, and to close at last."""

    def share_join(self, queue: int, session: int, options: int, identifiers: bytes, /) -> bool:
        """Make `session` a member on these terms (edge.terms), or change them."""

    def share_leave(self, queue: int, session: int, /) -> None:
        """Give it no more; what waits for it already is sent."""

    # Topics, routes, retained messages.  `topics` is a buffer of uint32, as array("I") is.

    def topic_add(self, name: bytes, source: int, reserved: bool, session: int, /) -> int:
        """A new topic, stored in `source`; NO_TOPIC when the table is full.  Reserved: not for clients.

        It counts for the owner of `session`; 0: for none.
        """

    def topic_find(self, name: bytes, /) -> int:
        """The topic, or NO_TOPIC."""

    def topic_name(self, topic: int, /) -> bytes:
        """Its name."""

    def topics_scan(
        self, topic_filter: bytes, first: int, places: int, most: int, /
    ) -> tuple[bytes, int | None]:
        """Up to `most` topics that a valid filter matches, as uint32, of so many places of the table from
        `first` on; and the place to continue at, None: that was the end.
        """

    def topics(self) -> bytes:
        """All there are, as uint32."""

    def topics_recycle(self, most: int, /) -> list[bytes]:
        """Forgets up to `most` topics that were not used lately and retain nothing; their names."""

    def topics_age(self, places: int, /) -> list[bytes]:
        """Looks at the next `places` of the table, once around it at most, and forgets topics that were not
        used since then and retain nothing; their names.  Each time around frees the memory of empty parts.
        """

    def grant_take(self, identifiers: bytes, /) -> int:
        """The number of these Subscription Identifier properties, for the upper 24 bits of tags.

        It counts for the caller, until grant_drop(), and for each route and queue entry that names it.
        """

    def grant_drop(self, number: int, /) -> None:
        """The caller needs it no longer."""

    def grant_identifiers(self, number: int, /) -> bytes:
        """What grant_take() was given; b"" for 0, and for a grant that nothing names any more."""

    def grants(self) -> int:
        """How many there are."""

    def routes_new(self, topic: int, sessions: array[int], tags: array[int], /) -> None:
        """The routes of a new topic: array("Q") of sessions, array("I") of tags."""

    def routes_set(self, topics: array[int], session: int, tag: int, /) -> int:
        """Route each of `topics` to `session`, with this tag whatever it was."""

    def routes_merge(self, topics: array[int], session: int, tag: int, /) -> int:
        """Route each of `topics` to `session`, with the higher QoS if it is already: plain tags only."""

    def routes_add(self, topics: array[int], session: int, tag: int, /) -> int:
        """Route each of `topics` to `session` once more, with this tag."""

    def routes_drop(self, topics: array[int], session: int, _: int, /) -> int:
        """No longer route any of `topics` to `session`."""

    def routes_of(self, topic: int, /) -> list[tuple[int, int]]:
        """(session, tag) of each route."""

    def routes_clear(self, topic: int, /) -> None:
        """Route it to nobody."""

    def replay_begin(
        self, session: int, tag: int, topic_filter: bytes, topics: array[int] | bytes | None, /
    ) -> bool:
        """Send `session` what `topics` retain now, or None: all topics that the filter matches.

        Replaces a replay of the same filter.  Messages are looked up as there is room to send them.
        """

    def replay_end(self, session: int, topic_filter: bytes, /) -> None:
        """Send no more of what that filter began."""

    def topics_retaining(self, topics: array[int] | bytes, /) -> bytes:
        """Those of them that retain something."""

    def queue_topics(self, session: int, /) -> bytes:
        """The topic of each record that waits, and of what is retained and it is still to be sent.

        NO_TOPIC: its place in the table is another's by now.
        """

    def queue_purge(self, session: int, topics: array[int], /) -> int:
        """Take back what waits of `topics`, NO_TOPIC perhaps among them; how many, counted as denied."""

    def retain(
        self,
        topic: int,
        payload: bytes,
        flags: int,
        properties: bytes,
        timestamp_ns: int,
        owner: bytes,
        author: bytes,
        /,
    ) -> bool:
        """Sets the retained message without a new record; an empty payload clears it.

        `flags` FLAG_QOS and FLAG_EXPIRY, `properties` as in a record, b"" for none; `timestamp_ns` 0: now;
        `owner` and `author` as publish() takes them.
        """

    def retained(self, topic: int, /) -> bytes | None:
        """Payload of the retained message."""

    def retained_route(self, topic: int, /) -> int:
        """Queue the retained message of `topic` for who is subscribed, as if it had just been published.

        How many get it.  What retain() has set becomes news by this, without a record.
        """

    def publish(
        self, topic: int, payload: bytes, flags: int, properties: bytes, owner: bytes, author: bytes, /
    ) -> int:
        """Append a message of this process and route it: OK, FULL (try again), or dropped and counted.

        `flags` FLAG_QOS, FLAG_RETAIN, FLAG_EXPIRY; `properties` as in a record, b"" for none; what it retains
        counts for `owner`, a key of edge.owners, and is of `author`, of edge.authors.
        """


def engine_of(limits: EngineLimits | None = None) -> Engine:
    """A new engine."""
    struct = ffi.new("mq_limits *", asdict(limits or EngineLimits()))
    made = cast(Any, _ringbuf).Engine(bytes(ffi.buffer(struct)), secrets.token_bytes(16))
    return cast(Engine, made)


def counters_of(engine: Engine) -> Any:
    """A live view of the engine's mq_counters: reading a field makes no call."""
    return ffi.cast("mq_counters *", engine.counters_address)


def listener_of(engine: Engine, number: int) -> Any:
    """A live view of the engine's mq_listener of that number, 0 to 15: its limits, 0 for the engine's, and
    what it counts.  Limits are set before it accepts.
    """
    return lib.mq_engine_listener(ffi.cast("mq_engine *", engine.address), number)


def limits_of(engine: Engine) -> Any:
    """The engine's mq_limits: what it was made with."""
    return ffi.cast("mq_limits *", engine.limits_address)


def listener_full(engine: Engine, number: int) -> bool:
    """Whether that listener, or the engine, has as many connections as it may.  For any thread."""
    return bool(lib.mq_listener_full(ffi.cast("mq_engine *", engine.address), number))


class Loop:
    """The sockets of an engine.  poll() releases the GIL; wake() and call() are for any thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine  # must outlive the loop
        self._loop = lib.mq_loop_open(ffi.cast("mq_engine *", engine.address))
        if self._loop == ffi.NULL:
            raise OSError(ffi.errno, f"the MQTT loop cannot be opened: {os.strerror(ffi.errno)}")
        self._wake_fd: int = lib.mq_loop_wake_fd(self._loop)
        self._call_fd: int = lib.mq_loop_call_fd(self._loop)

    def listen(self, fd: int, number: int) -> None:
        """Accept from `fd`, a non-blocking listening socket that is the loop's from now on."""
        result = lib.mq_loop_listen(self._loop, fd, number)
        if result:
            raise OSError(-result, f"listener {number} cannot be watched: {os.strerror(-result)}")

    def adopt(self, fd: int, number: int, peer: Peer, waited_ms: int = 0) -> int:
        """Serve `fd`, a connected, non-blocking stream socket that is the loop's from now on, as if listener
        `number` had accepted it `waited_ms` ago.

        On the loop's thread.  `peer` is what Engine.peer() tells of it, but for the number.  The connection;
        0: a limit was reached, and the socket is closed.
        """
        _, family, address, port = peer
        padded = address.ljust(16, b"\0")
        handle: int = lib.mq_loop_adopt(self._loop, fd, number, family, padded, port, waited_ms)
        return handle

    def poll(self, timeout_ms: int) -> int:
        """Serve until Python is wanted: number of events.  -1: without a time limit."""
        count: int = lib.mq_loop_poll(self._loop, timeout_ms)
        if count < 0:
            raise OSError(-count, f"the MQTT loop cannot wait: {os.strerror(-count)}")
        return count

    def flush(self) -> None:
        """Send what can be sent at once."""
        lib.mq_loop_flush(self._loop)

    def deafen(self) -> None:
        """Close the listening sockets; connections stay."""
        lib.mq_loop_deafen(self._loop)

    @property
    def wake_descriptor(self) -> int:
        """An eventfd that does what wake() does when it is written.  Until close()."""
        return self._wake_fd

    def wake(self) -> None:
        """Make the loop look at durable words and source rings, without Python."""
        os.eventfd_write(self._wake_fd, 1)

    def call(self) -> None:
        """Make poll() return."""
        os.eventfd_write(self._call_fd, 1)

    def close(self) -> None:
        """Close every socket.  May be called twice."""
        loop, self._loop = self._loop, ffi.NULL
        if loop != ffi.NULL:
            lib.mq_loop_close(loop)
