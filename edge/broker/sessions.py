"""Sessions: the broker's state of each client beyond its connection.

Owns the client identifiers, and how long the session of an absent client is kept. The engine owns the queue
and the in-flight window of a session (ringbuf/c/mqtt/out/inflight.c): lists of ring positions, never
payloads.

A CONNECT with a known client identifier takes the session over: _take_over_session() in connect.py.

Invariants: a client identifier has at most one session. No session ends because others arrive: when the table
of lasting sessions is full, or an owner's share of it, new ones are refused (edge.broker.connect). Each
session of an absent client has one deadline, unless it never expires.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from msgspec import Struct, field

from edge.auth.interfaces import ClientInfo
from edge.broker.quotas import key_of
from edge.broker.retained_authors import author_of
from edge.engine.engine import Engine
from edge.engine.timer_heap import TimerHeap
from edge.mqtt import Will
from edge.session_store.journal_writer import SessionJournal
from edge.session_store.session_filters import SessionFilters

NEVER_S = 0xFFFF_FFFF  # Session Expiry Interval of a session that never expires [MQTT 5 section 3.1.2.11.2]
OVERDUE_MAX = 16  # sessions that expire in one step; each takes up to 0.1 ms, in which no client is served


class SessionLimits(Struct, frozen=True):
    """Bounds of one session and of all. Fields of the configuration file have the same names there."""

    queued_records_max: int = 100_000
    in_flight_max: int = 100  # paho and mosquitto accept this many without a setting
    # by default a full queue drops its oldest record: the newest reading is the most useful
    drop_newest: bool = False
    session_expiry_s: int = 7 * 86_400  # the longest that a client may request; NEVER_S: no limit


class Session(Struct, eq=False, gc=False):
    """State of one client. `subscriptions` maps filter to options (edge.engine.subscription_options) and
    belongs to the router.

    `connection` is 0 while the client is away.
    """

    client_info: ClientInfo  # of the latest connection
    visible_client: ClientInfo  # the same as it sees itself; decides about each topic that it may receive
    handle: int  # of the engine's session
    expiry_s: int  # counted from the end of the connection; 0: the session ends with it
    connection: int = 0
    subscriptions: SessionFilters = field(default_factory=SessionFilters)
    filters_bytes: int = 0  # of all filters, as edge.broker.router.filter_bytes() counts
    not_plain: int = 0  # number of subscriptions that are no-local or have an identifier
    # filters of which the client may not have all retained messages; True: the engine sends them now
    sends_retained: dict[str, bool] | None = None
    kept: bool = False  # True if edge.session_store writes its changes to the journal
    ended: bool = False  # True after the session was forgotten; steps that work for it then end
    left_ns: int = 0  # wall clock time at which the client went away; 0 while connected

    @property
    def client_id(self) -> str:
        """Client identifier of the session."""
        return self.client_info.client_id

    def end_retained(self, topic_filter: str) -> None:
        """Drop the note of a delivery of retained messages, whose subscription has ended."""
        if self.sends_retained is not None:
            self.sends_retained.pop(topic_filter, None)


class Sessions:
    """All sessions, by client identifier and by handle."""

    def __init__(self, engine: Engine, limits: SessionLimits, journal: SessionJournal) -> None:
        self.expired = 0  # sessions that ended because their clients stayed away too long
        self._engine = engine
        self._journal = journal
        self.limits = limits
        self._by_client: dict[str, Session] = {}
        self._away: set[str] = set()  # identifiers of absent clients
        self._deadlines: TimerHeap[str] = TimerHeap()

    def __len__(self) -> int:
        return len(self._by_client)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._by_client.values()))

    def all(self) -> Iterator[Session]:
        """All sessions without a copy, oldest first. None may be added or removed during the iteration."""
        return iter(self._by_client.values())

    def client_ids(self) -> Iterator[str]:
        """Client identifiers of all sessions, in the same order and under the same condition."""
        return iter(self._by_client)

    @property
    def failure(self) -> str:
        """Reason why no lasting session can be promised now; "" if it can."""
        return self._journal.ack_failure

    def fits_journal(self, client_info: ClientInfo, will: Will | None) -> bool:
        """True if a client with such texts fits into the journal."""
        return self._journal.fits(client_info, will)

    @property
    def away(self) -> int:
        """Number of sessions whose client is not connected."""
        return len(self._away)

    @property
    def next_s(self) -> float:
        """Time at which the next session expires, by the broker's clock."""
        return self._deadlines.next_s

    def allowed_s(self, wanted_s: int) -> int:
        """Session Expiry Interval granted to a client that requests `wanted_s`."""
        return min(wanted_s, self.limits.session_expiry_s)

    def get(self, client_id: str) -> Session | None:
        """The session of a client; None if there is none."""
        return self._by_client.get(client_id)

    def open(self, client_info: ClientInfo, expiry_s: int) -> Session:
        """Open a session. The client must not have one."""
        client_id, limits = client_info.client_id, self.limits
        assert client_id not in self._by_client
        owner, author = key_of(client_info), author_of(client_info)
        handle = self._engine.session_open(
            limits.queued_records_max, limits.drop_newest, owner, author, expiry_s > 0
        )
        session = Session(client_info, client_info.visible, handle, expiry_s)
        self._by_client[client_id] = session
        if expiry_s:
            self._journal.opened(session)
        return session

    def opened(self, client_info: ClientInfo, handle: int) -> Session:
        """Record a session that the engine has opened for a client without a tenant.

        It ends with its connection.
        """
        assert client_info.client_id not in self._by_client
        session = self._by_client[client_info.client_id] = Session(client_info, client_info, handle, 0)
        return session

    def resume(self, session: Session, client_info: ClientInfo, expiry_s: int) -> None:
        """Continue a session for a returned client, perhaps from another address and with another expiry."""
        session.client_info, session.visible_client = client_info, client_info.visible
        session.expiry_s = expiry_s
        owner, author = key_of(client_info), author_of(client_info)
        self._engine.session_client(session.handle, owner, author, expiry_s > 0)

    def connected(self, session: Session, connection: int) -> None:
        """Record that the client of a session is connected."""
        self._away.discard(session.client_id)
        self._deadlines.cancel(session.client_id)
        session.connection = connection
        self._journal.connected(session)

    def disconnected(self, session: Session, now_s: float) -> None:
        """Record that the client of a session is away. The session is kept."""
        session.connection = 0
        self._away.add(session.client_id)
        if session.expiry_s != NEVER_S:
            self._deadlines.set(session.client_id, now_s + session.expiry_s)
        self._journal.disconnected(session)

    def close(self, session: Session) -> None:
        """End a session and drop its queue."""
        self._journal.closed(session)
        self._engine.session_close(session.handle)
        client_id = session.client_id
        self._away.discard(client_id)
        self._deadlines.cancel(client_id)
        del self._by_client[client_id]

    def overdue(self, now_s: float) -> list[Session]:
        """The next sessions whose clients have been away too long, at most OVERDUE_MAX. Each call counts them
        as expired.

        A fleet that lost its network together expires together: `next_s` is past until all have ended.
        """
        if now_s < self._deadlines.next_s:
            return []
        due = [self._by_client[client_id] for client_id in islice(self._deadlines.due(now_s), OVERDUE_MAX)]
        self.expired += len(due)
        return due

    def has_expired(self, session: Session, now_s: float) -> bool:
        """True if its client has been away for longer than the expiry."""
        return self._deadlines.is_due(session.client_id, now_s)
