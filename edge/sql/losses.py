"""Losses of a query: records that rings, log and archive should have, and that could not be read.

Threads: any.
"""

from __future__ import annotations

import threading

DAMAGE_MAX = 1000  # descriptions that are kept


class QueryLosses:
    """Missing records, as a number, and damaged places, as text."""

    def __init__(self) -> None:
        self.missing = 0
        self._damage: dict[str, None] = {}
        self._lock = threading.Lock()

    @property
    def damage(self) -> tuple[str, ...]:
        """Damaged places, each with its reason."""
        with self._lock:
            return tuple(self._damage)

    def count(self, records: int) -> None:
        """Count missing records."""
        with self._lock:
            self.missing += records

    def note(self, place: str, reason: str) -> None:
        """Note a damaged place. The same text is kept once."""
        with self._lock:
            if len(self._damage) < DAMAGE_MAX:
                self._damage[f"{place}: {reason}"] = None
