"""Views of the broker for the session journal: the state of sessions, clients and wills that is written down.

Owns the protocols only. edge.broker implements them, so this room imports no class of the broker.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from edge.auth.interfaces import ClientInfo
from edge.mqtt import Will
from edge.session_store.session_filters import SessionFilters


class SessionView(Protocol):
    """State of one session. The journal sets `kept` and `left_ns`."""

    client_info: ClientInfo
    handle: int  # of the engine's session
    expiry_s: int  # counted from the end of the connection; 0: the session ends with it
    connection: int  # 0 while the client is away
    subscriptions: SessionFilters
    # filters of which the client may not have all retained messages; None: no filter
    sends_retained: dict[str, bool] | None
    kept: bool  # True if changes are written to the journal
    left_ns: int  # of the wall clock, when the client went away; 0 while connected


class ClientView(Protocol):
    """State of one connected client."""

    @property
    def client_info(self) -> ClientInfo:
        """Facts of the client."""

    @property
    def will(self) -> Will | None:
        """Its will, None if it has none."""

    @property
    def session(self) -> SessionView:
        """Its session."""


class GroupsView(Protocol):
    """Shared subscriptions."""

    def groups_of_kept(self) -> list[tuple[int, str]]:
        """Queue and filter of each shared subscription with at least one member in the journal."""


class WillsView(Protocol):
    """Wills that wait for their time."""

    def waiting(self) -> list[tuple[ClientInfo, Will, float]]:
        """Waiting wills, each with its client and the time at which it is due."""


class BrokerView(NamedTuple):
    """The parts of the broker whose state is written down."""

    sessions: Iterable[SessionView]
    groups: GroupsView
    wills: WillsView
    clients: Iterable[ClientView]
