"""Sessions: what the broker remembers of a client beyond its connection.

Owns who is known by which client identifier, and for how long somebody who is away stays known.  The queue
and the window of a session are the engine's (ringbuf/c/mqtt/session.c): lists of ring positions, never
payloads.

Invariants: a client identifier has at most one session; those away are ordered by when they left, so that
what is to be forgotten first is found without a search; at most `away_max` of them are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from edge.engine import Engine

__all__ = ["Session", "SessionLimits", "Sessions"]


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Bounds of one session and of all.  Names as in the configuration file, where there are such."""

    queued_records_max: int = 100_000
    in_flight_max: int = 100  # paho and mosquitto take this many without a word
    drop_newest: bool = False  # a full queue drops its oldest record: the newest reading is what matters
    sessions_max: int = 10_000  # of clients that are away
    session_expiry_s: int = 7 * 86_400


@dataclass(slots=True, eq=False)
class Session:
    """Subscriptions, filter -> terms (edge.terms), are the router's.  `connection` is 0 while it is away."""

    client_id: str
    handle: int  # the engine's
    identity: str | None  # who opened it: nobody else may take it over
    clean: bool  # ends with its connection
    connection: int = 0
    left_s: float = 0.0
    subscriptions: dict[str, int] = field(default_factory=dict)
    marked: int = 0  # of them, those that are no-local or have an identifier


class Sessions:
    """All sessions, by client identifier and by handle."""

    def __init__(self, engine: Engine, limits: SessionLimits) -> None:
        self._engine = engine
        self._limits = limits
        self._by_client: dict[str, Session] = {}
        self._away: dict[str, Session] = {}  # in the order of leaving

    def __len__(self) -> int:
        return len(self._by_client)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._by_client.values()))

    @property
    def away(self) -> int:
        """How many clients are remembered that are not connected."""
        return len(self._away)

    def get(self, client_id: str) -> Session | None:
        """The session of a client, if there is one."""
        return self._by_client.get(client_id)

    def open(self, client_id: str, identity: str | None, *, clean: bool) -> Session:
        """A new session; there must be none of that client."""
        assert client_id not in self._by_client
        limits = self._limits
        handle = self._engine.session_open(limits.queued_records_max, limits.drop_newest)
        session = self._by_client[client_id] = Session(client_id, handle, identity, clean)
        return session

    def came(self, session: Session, connection: int) -> None:
        """Its client is connected."""
        self._away.pop(session.client_id, None)
        session.connection = connection

    def left(self, session: Session, now_s: float) -> None:
        """Its client is away: the session is kept."""
        session.connection = 0
        session.left_s = now_s
        self._away[session.client_id] = session

    def close(self, session: Session) -> None:
        """Forget it, with all that waits for it."""
        self._engine.session_close(session.handle)
        self._away.pop(session.client_id, None)
        del self._by_client[session.client_id]

    def overdue(self, now_s: float) -> list[Session]:
        """Who has been away for too long, or is one too many: longest away first."""
        surplus = len(self._away) - self._limits.sessions_max
        due: list[Session] = []
        for session in self._away.values():
            if len(due) >= surplus and now_s - session.left_s < self._limits.session_expiry_s:
                break
            due.append(session)
        return due
