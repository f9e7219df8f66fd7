"""Kept sessions: the state of each, ready for the next snapshot.

A snapshot of 100,000 sessions in one pass held the broker's thread up for 0.4 s. So the state of a session
is copied after it has changed, and a snapshot copies only what has changed lately.

Invariants: at most CHANGED_MAX sessions wait to be copied. A saved session does not change any more: it has
its own filters, or filters that the session copies before it changes them (session_filters.py).
"""

from __future__ import annotations

from edge.session_store.snapshot import KeptSession
from edge.session_store.views import SessionView

CHANGED_MAX = 500  # each takes up to 2 microseconds


class KeptSessions:
    """The sessions that a snapshot contains. All methods run on the broker's thread."""

    def __init__(self) -> None:
        self._saved: dict[int, KeptSession] = {}  # by handle
        self._changed: dict[int, SessionView] = {}  # by handle; not copied since their last change

    def changed(self, session: SessionView) -> None:
        """Record that a session has changed, or is no longer kept."""
        self._changed[session.handle] = session
        if len(self._changed) > CHANGED_MAX:
            self._save(self._changed.pop(next(iter(self._changed))))

    def saved(self) -> list[KeptSession]:
        """All kept sessions as they are now."""
        for session in self._changed.values():
            self._save(session)
        self._changed.clear()
        return list(self._saved.values())

    def _save(self, session: SessionView) -> None:
        if session.kept:
            left_ns = None if session.connection else session.left_ns
            self._saved[session.handle] = KeptSession(
                session_number(session.handle),
                session.client_info,
                session.expiry_s,
                session.subscriptions.lend(),
                left_ns,
                frozenset(session.sends_retained or ()),
            )
        else:
            self._saved.pop(session.handle, None)


def session_number(handle: int) -> int:
    """Number of a session or a group in entries and records."""
    return handle & 0xFFFF_FFFF
