"""Session administration: shows, disconnects and removes clients at the request of an operator.

All methods run on the broker's thread. Owns nothing; edge.broker.sessions owns the sessions.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from edge.broker.counters import Counters, shortened
from edge.broker.sessions import Session
from edge.engine.subscription_options import subscription_of

if TYPE_CHECKING:
    from edge.broker.dispatcher import Broker

TEXT_MAX = 1_024  # characters of a text, except the client identifier, which other requests need whole
_PROTOCOLS = {3: "3.1", 4: "3.1.1", 5: "5"}


class SessionListing:
    """The state of one reader of pages: clients that no page has shown yet, and the number of rows shown."""

    def __init__(self) -> None:
        self.client_ids: deque[str] = deque()
        self.shown = 0

    def take_back(self, rows: list[dict[str, Any]]) -> None:
        """Show these last rows again, in the next page."""
        self.client_ids.extendleft(row["client_id"] for row in reversed(rows))
        self.shown -= len(rows)


class SessionAdmin:
    """Pages of sessions, one session in detail, and the end of a connection or session."""

    def __init__(self, broker: Broker, stats: Counters) -> None:
        self._broker = broker
        self._stats = stats

    def page(self, listing: SessionListing, first: int, count: int) -> tuple[list[dict[str, Any]], bool]:
        """Rows of `count` sessions from number `first` on, oldest first.

        The second value is True if more sessions follow. A listing has the sessions of its first page's time,
        without those that have ended since; so each of the others is in one page, whatever ends meanwhile.
        """
        if not first or first != listing.shown:
            listing.client_ids = deque(islice(self._broker.sessions.client_ids(), first, None))
            listing.shown = first
        rows: list[dict[str, Any]] = []
        while listing.client_ids and len(rows) < count:
            session = self._broker.sessions.get(listing.client_ids.popleft())
            rows += () if session is None else self._rows(session)
        listing.shown += len(rows)
        return rows, bool(listing.client_ids)

    def show(self, client_id: str) -> dict[str, Any] | None:
        """The row of one session, with its will and subscriptions. None if there is no such session."""
        session = self._broker.sessions.get(client_id)
        if session is None:
            return None
        client = self._broker.clients.get(session.connection)
        will = None
        if client is not None and client.will is not None:
            topic, qos, retain = client.will.topic, client.will.qos, client.will.retain
            will = shortened({"topic": topic, "qos": qos, "retain": retain}, TEXT_MAX)
        (row,) = self._rows(session)
        return row | {
            **shortened({"certificate": session.client_info.certificate}, TEXT_MAX),
            "expiry_s": session.expiry_s,
            "kept": session.kept,
            "will": will,
            "filters": [_subscription_row(*entry) for entry in session.subscriptions.items()],
        }

    def disconnect(self, client_id: str) -> bool:
        """End the connection of a client, and keep its session. False if the client is not connected."""
        return self._broker.disconnect(client_id)

    def remove(self, client_id: str) -> bool:
        """End the session of a client, and its connection. False if there is no such session."""
        if self._broker.sessions.get(client_id) is None:
            return False
        self._broker.disconnect(client_id)
        if (left := self._broker.sessions.get(client_id)) is not None:
            self._broker.clients.forget(left)
        return True

    def _rows(self, session: Session) -> list[dict[str, Any]]:
        """The session's edge.broker.counters.ClientRow, with the facts of its connection."""
        client = self._broker.clients.get(session.connection)
        since_ns = session.left_ns if client is None else client.since_ns
        facts = {
            "protocol": None if client is None else _PROTOCOLS[client.version],
            "keep_alive_s": None if client is None else client.keep_alive_s,
            "since_s": round(since_ns / 1e9, 3) if since_ns else None,  # 0: unknown
        }
        rows = map(asdict, self._stats.clients([session]))
        return [shortened(row, TEXT_MAX, keep="client_id") | facts for row in rows]


def _subscription_row(topic_filter: str, options: int) -> dict[str, Any]:
    subscription, identifier = subscription_of(topic_filter, options)
    row: dict[str, Any] = {"filter": topic_filter, "qos": subscription.qos}
    row |= {name: True for name in ("no_local", "retain_as_published") if getattr(subscription, name)}
    return row | ({"identifier": identifier} if identifier else {})
