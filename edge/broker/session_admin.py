"""Session administration: lists and removes sessions at the request of an operator.

All methods run on the broker's thread. Owns nothing; edge.broker.sessions owns the sessions.
"""

from __future__ import annotations

import dataclasses
import logging
from itertools import islice
from typing import TYPE_CHECKING, Any

from edge.broker.counters import Counters
from edge.logging_setup import pairs

if TYPE_CHECKING:
    from edge.broker.dispatcher import Broker

__all__ = ["SessionAdmin"]

log = logging.getLogger(__name__)


class SessionAdmin:
    """Pages of sessions, and removal of one session."""

    def __init__(self, broker: Broker, stats: Counters) -> None:
        self._broker = broker
        self._stats = stats

    def page(self, first: int, count: int) -> tuple[list[dict[str, Any]], bool]:
        """Rows (edge.broker.counters.ClientRow) of `count` sessions from number `first` on, oldest first.

        The second value is True if more sessions follow.
        """
        sessions = list(islice(self._broker.sessions.all(), first, first + count + 1))
        rows = [dataclasses.asdict(row) for row in self._stats.clients(sessions[:count])]
        return rows, len(sessions) > count

    def remove(self, client_id: str) -> bool:
        """End the session of a client, and its connection. False if there is no such session."""
        session = self._broker.sessions.get(client_id)
        if session is None:
            return False
        self._broker.disconnect(client_id)
        if (left := self._broker.sessions.get(client_id)) is not None:
            self._broker.clients.forget(left)
        log.info("session removed %s", pairs(client=client_id))
        return True
