"""Counters of the MQTT front end, by cause and by client.

Counts nothing itself: the hot path counts, in C. Reading is plain memory access, without a call. A snapshot
taken while the loop runs may be torn between two counters, never within one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from edge.auth.tenant_names import tenant_of
from edge.broker.sessions import Session
from edge.engine.engine import CloseCause, DropCause, Engine, counters_of

_TOTALS = (
    "bytes_in", "bytes_out", "packets_in", "packets_out", "published", "published_bytes", "from_producers",
    "delivered", "delivered_bytes", "redelivered", "retained_refused", "connections_opened", "full_waits",
    "rate_waits",
    "topics_recycled", "producer_lost", "producer_evictions", "spilled", "spill_refused", "spill_over",
    "restored", "wakeups", "accept_rests", "input_waits", "event_waits",
)  # fmt: skip
_GAUGES = (
    "connections", "sessions", "topics", "topics_bytes", "retained",
    "retained_bytes", "queues_bytes", "spilled_records",
    "spilled_bytes", "spill_file_bytes", "spill_errno", "unfinished_bytes", "acks_waiting", "blocked",
    "sessions_kept", "filter_bytes",
)  # fmt: skip


class ClientRow(Struct, frozen=True):
    """One client for status reports: its deliveries, its queue and its losses by cause."""

    client_id: str
    connected: bool
    address: str  # of the latest connection
    transport: str
    username: str | None  # the user name of CONNECT, even if not verified
    tenant: str | None
    subscriptions: int
    queued: int
    in_flight: int
    delivered: int
    dropped: dict[str, int]


def shortened(row: dict[str, Any], text_max: int, keep: str = "") -> dict[str, Any]:
    """The row with texts of at most `text_max` characters, except the one named `keep`: clients choose texts
    of up to 64 KiB, and an answer of the control socket has 128 KiB.
    """
    return {
        name: f"{value[:text_max]}…"
        if isinstance(value, str) and len(value) > text_max and name != keep
        else value
        for name, value in row.items()
    }


class Counters:
    """Reader of the engine's counters."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine  # keeps the memory of the counters alive
        self._counters = counters_of(engine)

    def totals(self) -> dict[str, int]:
        """Totals since the broker started."""
        return {name: getattr(self._counters, name) for name in _TOTALS}

    @property
    def delivery(self) -> Any:
        """Age of records at their delivery, a sample: an mq_times."""
        return self._counters.delivery

    def gauges(self) -> dict[str, int]:
        """Current values."""
        return {name: getattr(self._counters, name) for name in _GAUGES}

    def dropped(self) -> dict[str, int]:
        """Lost messages and deliveries by cause: every cause, zeros too."""
        return {cause.words: self._counters.dropped[cause] for cause in DropCause}

    def closed(self) -> dict[str, int]:
        """Ended connections by cause, including those that ended during the handshake."""
        return {cause.words: self._counters.closed[cause] for cause in CloseCause}

    def snapshot(self) -> dict[str, Any]:
        """All counters, for `brim status --json`."""
        return {**self.totals(), **self.gauges(), "dropped": self.dropped(), "closed": self.closed()}

    def clients(self, sessions: Iterable[Session]) -> list[ClientRow]:
        """A row for each session. On the broker's thread only."""
        rows = []
        for session in sessions:
            session_stats = self._engine.session_stats(session.handle)
            if session_stats is None:
                continue
            queued, in_flight, delivered, dropped = session_stats
            lost = (
                {cause.words: dropped[cause] for cause in DropCause if dropped[cause]} if any(dropped) else {}
            )
            rows.append(
                ClientRow(
                    session.client_id,
                    session.connection != 0,
                    session.client_info.address,
                    session.client_info.transport,
                    session.client_info.username,
                    tenant_of(session.client_info.prefix) or None,
                    len(session.subscriptions),
                    queued,
                    in_flight,
                    delivered,
                    lost,
                )
            )
        return rows
