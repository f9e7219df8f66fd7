"""MQTT engine for Python: the C engine with its types. loop.py drives its sockets.

Owns the translation between Python and ringbuf/c/mqtt: limits in, counters out, names for the codes. Decides
nothing.

The C side parses, stores, routes and sends. It stops at each decision that is Python's, and leaves an Event.
The broker answers by calling the engine, and the connection continues at the next poll. One thread at a time
may use an engine: the one that polls.

A topic is a small int, valid until topics_recycle() or topics_age() returns its name. A session or connection
is a handle, never 0; calls with the handle of an ended one return False, 0 or None. Route
options have the options of subscriptions in the lower eight bits (edge.engine.subscription_options), the
number of their subscription ids above.
"""

from __future__ import annotations

import os
from array import array
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, cast

from msgspec.structs import asdict

from edge.engine.codes import CloseCause, DropCause, EventKind, Table
from edge.engine.connect_calls import ConnectEngine
from edge.engine.engine_limits import EngineLimits
from edge.engine.journal_calls import JournalEngine
from edge.engine.routing_calls import Match, RoutingEngine
from edge.engine.spill_calls import SpillEngine
from ringbuf import _ringbuf
from ringbuf.native import ffi, lib

if TYPE_CHECKING:
    from ringbuf import Reader, Writer

__all__ = [
    "FULL",
    "NO_TOPIC",
    "OK",
    "OPTION_IDS_SHIFT",
    "TOO_LARGE",
    "CloseCause",
    "DropCause",
    "Engine",
    "EngineLimits",
    "Event",
    "EventKind",
    "Match",
    "SessionStats",
    "Table",
    "counters_of",
    "engine_of",
    "limits_of",
    "listener_of",
    "set_limits",
    "violation_of",
]

_MODULE = "ringbuf._ringbuf"
if lib.mq_install(_MODULE.encode()) != 0:
    raise ImportError(f"{_MODULE}: the type Engine could not be made; rebuild it with `python build.py`")

NO_TOPIC: int = lib.MQ_NO_TOPIC
OPTION_IDS_SHIFT: int = lib.MQ_OPTION_IDS_SHIFT
OK: int = lib.RB_OK
FULL: int = lib.RB_FULL
TOO_LARGE: int = lib.RB_TOO_LARGE

# (kind, connection, detail, data): one decision for Python. `connection` is 0 for events of a producer ring.
Event: TypeAlias = tuple[int, int, int, bytes]


class SessionStats(NamedTuple):
    """Queue and counters of a session. `dropped` is indexed by DropCause."""

    queued: int
    in_flight: int
    delivered: int
    dropped: tuple[int, ...]


class Engine(ConnectEngine, JournalEngine, RoutingEngine, SpillEngine, Protocol):
    """The C type (ringbuf/c/python/py_engine.c). Short calls that keep the GIL; one thread at a time."""

    @property
    def address(self) -> int:
        """Address of the mq_engine; valid while this object lives."""

    @property
    def counters_address(self) -> int:
        """Address of its mq_counters."""

    @property
    def limits_address(self) -> int:
        """Address of its mq_limits."""

    # Rings, by number.  The engine keeps the Writer or Reader alive.

    def add_ring(self, writer: Writer, gate: int, logged: bool, /) -> int:
        """Add a ring for the records of clients. `gate`: event that acknowledgements wait for (MQ_GATE_*).
        `logged`: the log has the records that the ring has overwritten; a session that needs one causes a
        BACKFILL event. Records of a ring with Ring.show_durable(True) are routed and retained when they are
        durable.
        """

    def refuse(self, ring: int, reason: int, /) -> None:
        """Refuse publishers after queue_timeout_ms with `reason`, 128 to 255; 0: accept publishers again."""

    def upstream(self, ring: int, offset: int, /) -> None:
        """Store that all sinks have every record below `offset`, except those reported as lost."""

    def upstream_lost(self, ring: int, first: int, end: int, /) -> None:
        """Store that a sink will never have the records of these offsets; `end` is not included."""

    def add_reader(self, reader: Reader, /) -> int:
        """Add a producer ring, which another process writes: its records are routed as they arrive."""

    def remove_ring(self, ring: int, /) -> None:
        """Remove a ring. Its records that sessions still wait for are dropped, and counted as overrun."""

    def resume_ring(self, ring: int, /) -> None:
        """Answer a PRODUCER_TOPIC event: the topic is in the table now. Otherwise the record is skipped."""

    def read_producers(self) -> None:
        """Read the producer rings at the next step; with a loop, Loop.wake() does that."""

    # Connections.

    def send(self, connection: int, data: bytes, /) -> bool:
        """Append bytes to the output of a connection."""

    def send_after_journal(self, connection: int, data: bytes, /) -> bool:
        """As send(), but if a log syncs the journal, the bytes wait until its present entries are synced."""

    def close(self, connection: int, /) -> bool:
        """Close a connection after one attempt to send its output. No CLOSED event follows."""

    def is_open(self, connection: int, /) -> bool:
        """True if a connection is neither closed nor closing."""

    def pause(self, connection: int, /) -> bool:
        """Called while an event is handled: the connection continues after resume(), not at the next poll."""

    def resume(self, connection: int, /) -> bool:
        """Resume a paused connection."""

    def converse(self, connection: int, /) -> bool:
        """Turn every packet before accept() into an event: CONNECT has arrived and AUTH packets follow."""

    def peer(self, connection: int, /) -> tuple[int, str] | None:
        """Listener and peer address of a connection: `127.0.0.1:50123`; "" for a socket without addresses."""

    def authorize(self, connection: int, topic: int, allowed: bool, /) -> bool:
        """Answer a TOPIC event. The answer holds for this connection until clear_acl_cache()."""

    def publish_rules(self, connection: int, rules: bytes | None, /) -> bool:
        """Decide about the topics of a connection by these rules (edge.auth.packed_rules) until
        clear_acl_cache(), and not by TOPIC events. None: by events. Raises ValueError if they are malformed.
        """

    def drop_publish(self, connection: int, reason: int, /) -> bool:
        """Answer a TOPIC event: drop the PUBLISH and count it. `reason`, 0x80..0xFF, is the reason code for
        an MQTT 5 client; others get a plain acknowledgement. Topic Name Invalid is remembered for the topic
        alias of the PUBLISH.
        """

    def clear_acl_cache(self) -> None:
        """Forget all authorizations, because the rules have changed."""

    def events(self, queued: int = 32, /) -> list[Event]:
        """Events that were not returned before. Of packets, new topics and ended connections the oldest
        `queued` (0 to 32); of all other kinds every event. The next poll or step resumes only the connections
        of these events. Later events are for the next call.
        """

    def state(self) -> dict[str, int | bool]:
        """For a log line: connections by why they are not read, waiting events, flags of the journal."""

    # Connections without a socket: for tests, and for transports outside the loop.

    def open(self, listener: int, /) -> int:
        """A new connection."""

    def feed(self, connection: int, data: bytes, /) -> int:
        """Number of bytes that were taken: none while an event of the connection waits."""

    def pull(self, connection: int, /) -> bytes:
        """Output of the connection, one block at a time."""

    def forget(self, connection: int, /) -> None:
        """Free a closed connection and the rest of its output."""

    def step(self, now_ms: int, now_ns: int, /) -> int:
        """Do the work of a poll without sockets, at that monotonic and wall time. Number of events."""

    # Sessions.

    def session_open(
        self, queue_max: int, drop_newest: bool, owner: bytes, author: bytes, lasts: bool, /
    ) -> int:
        """Open a session with room for `queue_max` waiting records. The rest: see session_client()."""

    def session_client(self, session: int, owner: bytes, author: bytes, lasts: bool, /) -> bool:
        """Charge `owner` for the session and its contents from now on. `author`: of the messages that the
        session retains (edge.broker.retained_authors). `lasts`: it counts as one that outlasts its
        connection.
        """

    def session_filters(self, session: int, size_bytes: int, /) -> bool:
        """Set the bytes that the subscriptions of a session count for."""

    def session_may(self, session: int, table: int, more: int, /) -> bool:
        """True if the owner of the session may take `more` of a Table. A refusal is counted."""

    def session_has_room(self, session: int, table: int, more: int, /) -> bool:
        """As session_may(); a refusal is not counted."""

    def owner_may(self, owner: bytes, table: int, more: int, /) -> bool:
        """As session_may(), by owner. Of Table.CONNECTIONS: for one that counts for its address so far."""

    def owner_may_inherit(self, owner: bytes, table: int, /) -> bool:
        """True if the owner may have one more that another owner of its tenant gives up: the table and the
        tenant have no more afterwards. A refusal is counted.
        """

    def owner_refused(self, table: int, /) -> tuple[bytes, int] | None:
        """The owner that was refused last, and its part of the table; None: none, or it has gone."""

    def owners_top(self, table: int, count: int, /) -> list[tuple[bytes, int]]:
        """Up to 64 owners and their parts of the table, largest first."""

    def tenant_set(self, name: bytes, limits: tuple[int, ...], publish_rate_max: int, /) -> int:
        """Add a tenant, or change its limits (by Table; 0: no limit). Returns its number, from 1 on."""

    def tenants_resolve(self) -> None:
        """Find the tenant of topics and owners whose tenant was not known before; after tenants were added.

        Takes a few milliseconds for a million topics.
        """

    def tenant_use(self, name: bytes, table: int, more: int, /) -> bool:
        """Change the use of a table by a tenant. False: the engine does not have the tenant."""

    def delayed_counted(self) -> None:
        """Tenants have their delayed messages from before the start: their publishers wait until then."""

    def tenant_stats(self, tenant: int, /) -> tuple[tuple[int, ...], tuple[int, ...], int, int]:
        """Use and refusals by Table, PUBLISH packets handled, times a client waited for publish_rate_max."""

    def session_close(self, session: int, /) -> bool:
        """End a session, and close its connection."""

    def session_stats(self, session: int, /) -> tuple[int, int, int, tuple[int, ...]] | None:
        """Queue and counters of a session: the fields of SessionStats."""

    def next_log_position(self, session: int, /) -> tuple[int, int] | None:
        """(ring, position) of the next record of a session, if only the log has it."""

    def restore_records(
        self, session: int, ring: int, wanted: int, position: int, records: bytes | memoryview, /
    ) -> bool:
        """Return records of `ring` from the log, as they were in the ring from `position` on. They were read
        from position `wanted` on: records between there and `position` are lost, and counted as overrun. The
        engine copies what the session needs, some at a time. Bytes with invalid lengths are lost.
        """

    def resume_delivery(self, session: int, /) -> bool:
        """Answer a BACKFILL event, after restore_records(): the delivery of the session continues."""

    # Retained messages: what is saved of them (edge/recovery/retained_store.py), and their authors.

    def begin_retained_save(self, all_topics: bool, /) -> None:
        """Begin with the topics whose retained message has changed since the last save, or with all."""

    def retained_changes(self, bytes_max: int, /) -> tuple[bytes, bytes, bool]:
        """About `bytes_max` bytes of retained records (without payload: cleared), and their authors. Formats
        as in edge/recovery/retained_store.py. True: more records follow.
        """

    def retained_authors(self, first: int, topics_max: int, /) -> tuple[list[tuple[int, bytes]], int | None]:
        """Up to `topics_max` topics with authors of their retained messages, from place `first` of the table
        on. The second value is the place to continue from, None at the end.
        """

    def retained_withhold(self, topic: int, author: bytes, withheld: bool, /) -> bool:
        """Withhold the retained message of the topic from subscribers, or deliver it again. False: the topic
        retains no message of `author`, and nothing has changed.
        """

    # Shared subscriptions. A group is identified by its queue, which is a session without a client.

    def share_open(self, queue_max: int, drop_newest: bool, /) -> int:
        """Open a group without members: a session to route topics to, closed with session_close()."""

    def share_join(self, queue: int, session: int, options: int, identifiers: bytes, /) -> bool:
        """Make `session` a member with these edge.engine.subscription_options, or change the options."""

    def share_leave(self, queue: int, session: int, /) -> None:
        """Assign no more messages to a member; its assigned messages are still sent."""

    # Topics, routes, retained messages.  `topics` is a buffer of uint32, as array("I") is.

    def topic_add(self, name: bytes, ring: int, reserved: bool, session: int, owner: bytes, /) -> int:
        """A new topic, stored in `ring`; NO_TOPIC when the table is full. `reserved`: not for clients. It
        counts for the owner of `session`; 0: for `owner`; b"": for no owner.
        """

    def topic_find(self, name: bytes, /) -> int:
        """The topic, or NO_TOPIC."""

    def topic_name(self, topic: int, /) -> bytes:
        """Name of a topic."""

    def topics_scan(
        self, topic_filter: bytes, first: int, places: int, topics_max: int, /
    ) -> tuple[bytes, int | None]:
        """Up to `topics_max` topics that a valid filter matches, as uint32, from `places` places of the
        table at `first`. The second value is the place to continue at, None at the end.
        """

    def topics(self) -> bytes:
        """All topics, as uint32."""

    def topics_match(self, topic_filter: bytes, branches_max: int, /) -> bytes | None:
        """Topics that a valid filter matches, as uint32, found level by level. None if more than
        `branches_max` branches must be examined: topics_scan() is better then.
        """

    def topics_recycle(self, topics_max: int, /) -> int:
        """Forget up to `topics_max` topics without recent use or retained message. Returns their number.

        Topics of records in producer rings only if there are no others: these records are then dropped.
        """

    def topics_age(self, places: int, /) -> int:
        """Age the next `places` of the table: topics not used since the last time around are forgotten,
        unless they retain a message or a producer ring has a record of them. Returns their number. Each time
        around frees the memory of empty parts.
        """

    def subscription_ids_take(self, identifiers: bytes, /) -> int:
        """Number for these Subscription Identifier properties, for the upper 24 bits of route options. The
        caller holds a reference until subscription_ids_drop(); so does each route and queue entry with that
        number.
        """

    def subscription_ids_drop(self, number: int, /) -> None:
        """Drop the caller's reference."""

    def subscription_ids_of(self, number: int, /) -> bytes:
        """The properties; b"" for 0, and for a number without references."""

    def subscription_ids_count(self) -> int:
        """Number of sets of subscription ids."""

    def routes_set(self, topics: array[int], session: int, options: int, /) -> int:
        """Route each of `topics` to `session` with these options only."""

    def routes_merge(self, topics: array[int], session: int, options: int, /) -> int:
        """Route each of `topics` to `session`, with the higher QoS if a route exists: plain options only."""

    def routes_add(self, topics: array[int], session: int, options: int, /) -> int:
        """Add a further route with these options from each of `topics` to `session`."""

    def routes_drop(self, topics: array[int], session: int, _: int, /) -> int:
        """Remove the routes from `topics` to `session`."""

    def routes_of(self, topic: int, /) -> list[tuple[int, int]]:
        """(session, options) of each route."""

    def routes_clear(self, topic: int, /) -> None:
        """Remove all routes of a topic."""

    def send_retained(
        self, session: int, options: int, topic_filter: bytes, topics: array[int] | bytes | None, /
    ) -> bool:
        """Send `session` the retained messages of `topics`; None: of all topics that the filter matches.
        Replaces a delivery for the same filter. Messages are looked up when there is room to send them.
        """

    def stop_retained(self, session: int, topic_filter: bytes, /) -> None:
        """End the delivery for that filter."""

    def retained_arrived(self, session: int, /) -> bool:
        """True if the client has all retained messages that send_retained() began to send."""

    def topics_retaining(self, topics: array[int] | bytes, /) -> bytes:
        """The given topics that have a retained message."""

    def queue_topics(self, session: int, /) -> bytes:
        """Topic of each waiting record, and of each retained message still to be sent. Not of waiting records
        that are only in the log, or whose topic the table does not have (see queue_names()).
        """

    def topics_denied(self, topics: bytes, rules: bytes, prefix: bytes, /) -> bytes:
        """The given topics that a client may not receive by these rules (edge.auth.packed_rules).

        `prefix`: of the names in its tenant; b"": it has none.
        """

    def queue_purge(self, session: int, topics: array[int], /) -> int:
        """Drop waiting records of `topics`; return their number, counted as denied."""

    def queue_names(self, session: int, /) -> list[bytes]:
        """Topic names of the waiting records in memory whose topic was not known to the table."""

    def queue_resolve_names(self, session: int, denied: bytes, /) -> None:
        """Drop the records of denied names, and give the others the topic of their name.

        `denied`: a byte for each of queue_names(); 1: dropped, and counted as denied.
        """

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
        """Set the retained message without a new record; an empty payload clears it. `flags` FLAG_QOS and
        FLAG_EXPIRY, `properties` as in a record, b"" for none; `timestamp_ns` 0: now; `owner` and `author` as
        in publish().
        """

    def restore_retained(
        self,
        records: memoryview,
        authors: memoryview,
        owners: dict[bytes, bytes],
        at: int,
        authors_at: int,
        /,
    ) -> tuple[int, int]:
        """Restore retained messages from `records` on from place `at`, oldest first. `authors`: those of the
        records, in the same order; formats as in edge/recovery/retained_store.py. `owners`: key of the owner
        of each author. Returns the places of the next record that Python must decide about, or of the end.
        """

    def retained_message(
        self, topic: int, payload_max: int, /
    ) -> tuple[int, int, bytes, int, bytes, bool] | None:
        """Flags, time in ns, properties as in a record, length of the payload, the first `payload_max` bytes
        of it, and True if the message is withheld. None: the topic retains nothing.
        """

    def retained_route(self, topic: int, /) -> int:
        """Queue the retained message of `topic` for its subscribers, as if it had just been published.
        Returns the number of them. A message of retain() is delivered by this, without a record.
        """

    def publish(
        self,
        topic: int,
        payload: bytes,
        flags: int,
        properties: bytes,
        owner: bytes,
        author: bytes,
        publisher: int,
        /,
    ) -> int:
        """Append and route a message of this process: OK, FULL (try again), or another code: dropped and
        counted. `flags` FLAG_QOS, FLAG_RETAIN, FLAG_EXPIRY; `properties` as in a record, b"" for none. A
        retained message counts for `owner` (key of edge.broker.quotas), and has this `author`
        (edge.broker.retained_authors). `publisher`: session that does not get it by No Local; 0: none.
        """


def engine_of(limits: EngineLimits | None = None) -> Engine:
    """Create an engine."""
    struct = ffi.new("mq_limits *", asdict(limits or EngineLimits()))
    return cast(Engine, cast(Any, _ringbuf).Engine(bytes(ffi.buffer(struct)), os.urandom(16)))


def counters_of(engine: Engine) -> Any:
    """Live view of the engine's mq_counters: reading a field makes no call."""
    return ffi.cast("mq_counters *", engine.counters_address)


def listener_of(engine: Engine, number: int) -> Any:
    """Live view of an mq_listener, 0 to 15: counts, and limits (0: the engine's), set before it accepts."""
    return lib.mq_engine_listener(ffi.cast("mq_engine *", engine.address), number)


def limits_of(engine: Engine) -> Any:
    """Live view of the engine's mq_limits."""
    return ffi.cast("mq_limits *", engine.limits_address)


def set_limits(engine: Engine, limits: EngineLimits) -> None:
    """Use other limits from now on. Memory that exceeds a lower limit stays in use; only new use is refused.

    in_flight_max_bytes and spill_max_bytes must not change.
    """
    limits_of(engine)[0] = ffi.new("mq_limits *", asdict(limits))[0]


def violation_of(engine: Engine) -> Any:
    """Live view of the engine's mq_violation."""
    return lib.mq_engine_violation(ffi.cast("mq_engine *", engine.address))
