"""Client list: all MQTT clients in pages, sorted and filtered, for many browsers from one copy.

The copy is read page by page, and used for at least KEPT_S and for SHARE times as long as the reading has
taken: the broker gives less than a fiftieth of its time, however many clients there are.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from typing import Any

from edge.local.protocol import SessionList, Sessions
from edge.web.broker_link import BrokerLink

KEPT_S = 4.0
SHARE = 50

Row = dict[str, Any]

SORTS = {
    "client": lambda row: row["client_id"],
    "user": lambda row: row["username"] or "\uffff",
    "tenant": lambda row: row["tenant"] or "\uffff",
    "address": lambda row: row["address"] or "\uffff",
    "since": lambda row: -(row["since_s"] or 0),
    "subscriptions": lambda row: -row["subscriptions"],
    "queued": lambda row: -row["queued"],
    "in_flight": lambda row: -row["in_flight"],
    "delivered": lambda row: -row["delivered"],
    "dropped": lambda row: -sum(row["dropped"].values()),
}
"""Sort keys by the name of the column: numbers downwards, text upwards."""


class ClientList:
    """Rows as those of edge.broker.session_admin."""

    def __init__(self, link: BrokerLink) -> None:
        self._link = link
        self._rows: list[Row] = []
        self._until_s = 0.0
        self._reading = asyncio.Lock()

    async def page(
        self, first: int, count: int, sort: str, text: str, state: str
    ) -> tuple[list[Row], int, int]:
        """Rows from number `first` on, number of rows that match, and number of all clients.

        `text`: part of the identifier, user, address or tenant. `state`: all, connected, away or dropping.
        """
        rows = await self._all()
        chosen = [row for row in rows if _is_chosen(row, text.casefold(), state)]
        key = SORTS[sort]
        shown = heapq.nsmallest(first + count, chosen, key=key)[first:]
        return shown, len(chosen), len(rows)

    def forget(self) -> None:
        """Read the clients again for the next page, after a change by a user."""
        self._until_s = 0.0

    async def _all(self) -> list[Row]:
        async with self._reading:
            if time.monotonic() >= self._until_s:
                began_s = time.monotonic()
                self._rows = await self._read()
                ended_s = time.monotonic()
                self._until_s = ended_s + max(KEPT_S, SHARE * (ended_s - began_s))
            return self._rows

    async def _read(self) -> list[Row]:
        rows: dict[str, Row] = {}
        first, more = 0, True
        while more:
            page = await self._link.request(Sessions(first), SessionList)
            rows.update((row["client_id"], row) for row in page.sessions)
            first, more = first + len(page.sessions), page.more and bool(page.sessions)
        return list(rows.values())


def _is_chosen(row: Row, text: str, state: str) -> bool:
    if state in {"connected", "away"} and row["connected"] != (state == "connected"):
        return False
    if state == "dropping" and not row["dropped"]:
        return False
    return not text or any(
        text in (row[name] or "").casefold() for name in ("client_id", "username", "address", "tenant")
    )
