"""Sessions: what the broker remembers of a client beyond its connection.

Owns who is known by which client identifier, and for how long somebody who is away stays known.  The queue
and the window of a session are the engine's (ringbuf/c/mqtt/session.c): lists of ring positions, never
payloads.

Invariants: a client identifier has at most one session; no session ends because others come: when the table
of those that outlast their connection is full, or the part of an owner, new ones are refused
(edge.connecting); each session of a client that is away has one deadline, unless it never expires.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from edge.access import ClientFacts
from edge.authors import author_of
from edge.deadlines import Deadlines
from edge.engine import Engine
from edge.mqtt import Will
from edge.owners import key_of
from edge.state.keeper import Keeper

__all__ = ["NEVER_S", "Session", "SessionLimits", "Sessions"]

NEVER_S = 0xFFFF_FFFF  # Session Expiry Interval: it does not [MQTT 5 section 3.1.2.11.2]


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Bounds of one session and of all.  Names as in the configuration file, where there are such."""

    queued_records_max: int = 100_000
    in_flight_max: int = 100  # paho and mosquitto take this many without a word
    drop_newest: bool = False  # a full queue drops its oldest record: the newest reading is what matters
    session_expiry_s: int = 7 * 86_400  # the longest that a client may ask for; NEVER_S: for ever


@dataclass(slots=True, eq=False)
class Session:
    """Subscriptions, filter -> terms (edge.terms), are the router's.  `connection` is 0 while it is away."""

    facts: ClientFacts  # of its latest connection
    handle: int  # the engine's
    expiry_s: int  # from the end of its connection; 0: ends with it
    connection: int = 0
    subscriptions: dict[str, int] = field(default_factory=dict)
    filters_bytes: int = 0  # of them all, as edge.router.filter_bytes() counts
    marked: int = 0  # of them, those that are no-local or have an identifier
    kept: bool = False  # edge.state writes down what happens to it
    ended: bool = False  # it was forgotten; steps that work for it end
    left_ns: int = 0  # while it is away: since when, by the wall clock

    @property
    def client_id(self) -> str:
        """Whose it is."""
        return self.facts.client_id


class Sessions:
    """All sessions, by client identifier and by handle."""

    def __init__(self, engine: Engine, limits: SessionLimits, keeper: Keeper) -> None:
        self.expired = 0  # of clients that stayed away for too long
        self._engine = engine
        self._keeper = keeper
        self._limits = limits
        self._by_client: dict[str, Session] = {}
        self._away: dict[str, Session] = {}  # in the order of leaving
        self._deadlines: Deadlines[str] = Deadlines()

    def __len__(self) -> int:
        return len(self._by_client)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._by_client.values()))

    def all(self) -> Iterator[Session]:
        """All of them without a copy, oldest first; none may come or go meanwhile."""
        return iter(self._by_client.values())

    @property
    def trouble(self) -> str:
        """Why no session that outlasts its connection can be promised now; "": it can."""
        return self._keeper.trouble

    def fits(self, facts: ClientFacts, will: Will | None) -> bool:
        """True if a client of that length can be written down."""
        return self._keeper.fits(facts, will)

    @property
    def away(self) -> int:
        """How many clients are remembered that are not connected."""
        return len(self._away)

    @property
    def next_s(self) -> float:
        """When the next one expires."""
        return self._deadlines.next_s

    def allowed_s(self, wanted_s: int) -> int:
        """The Session Expiry Interval that a client gets that asks for `wanted_s`."""
        return min(wanted_s, self._limits.session_expiry_s)

    def get(self, client_id: str) -> Session | None:
        """The session of a client, if there is one."""
        return self._by_client.get(client_id)

    def open(self, facts: ClientFacts, expiry_s: int) -> Session:
        """A new session; there must be none of that client."""
        client_id, limits = facts.client_id, self._limits
        assert client_id not in self._by_client
        handle = self._engine.session_open(limits.queued_records_max, limits.drop_newest, key_of(facts))
        session = self._by_client[client_id] = Session(facts, handle, expiry_s)
        self._engine.session_author(handle, author_of(facts))
        self._engine.session_lasts(handle, expiry_s > 0)
        self._keeper.opened(session)
        return session

    def resume(self, session: Session, facts: ClientFacts, expiry_s: int) -> None:
        """Its client has come back, perhaps from another address and on other terms."""
        session.facts, session.expiry_s = facts, expiry_s
        self._engine.session_owner(session.handle, key_of(facts))
        self._engine.session_author(session.handle, author_of(facts))
        self._engine.session_lasts(session.handle, expiry_s > 0)

    def came(self, session: Session, connection: int) -> None:
        """Its client is connected."""
        if self._away.pop(session.client_id, None) is not None:
            self._deadlines.cancel(session.client_id)
        session.connection = connection
        self._keeper.came(session)

    def left(self, session: Session, now_s: float) -> None:
        """Its client is away: the session is kept."""
        session.connection = 0
        self._away[session.client_id] = session
        if session.expiry_s != NEVER_S:
            self._deadlines.set(session.client_id, now_s + session.expiry_s)
        self._keeper.left(session)

    def close(self, session: Session) -> None:
        """Forget it, with all that waits for it."""
        self._keeper.closed(session)
        self._engine.session_close(session.handle)
        client_id = session.client_id
        if self._away.pop(client_id, None) is not None:
            self._deadlines.cancel(client_id)
        del self._by_client[client_id]

    def overdue(self, now_s: float) -> list[Session]:
        """Sessions whose clients have been away for too long, longest first."""
        due = [self._by_client[client_id] for client_id in self._deadlines.due(now_s)]
        self.expired += len(due)
        return due
