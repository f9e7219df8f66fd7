"""Connection table: registers accepted clients, sends them control packets, notifies watchers, disconnects.

Owns the accepted connections, and joins them with sessions, routes and wills. Never decides which clients are
accepted, and never reads packets.

Invariants: every accepted client leaves through end(), once. A client never gets a packet longer than its
Maximum Packet Size.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from edge.auth.interfaces import ClientInfo, Watcher
from edge.broker.router import Router
from edge.broker.sessions import Session, Sessions
from edge.broker.wills import Wills
from edge.engine.engine import Engine
from edge.log_throttle import LineBudget
from edge.logging_setup import AUDIT, AUDIT_BURST, AUDIT_PER_S, LoggedPairs, pairs
from edge.mqtt import (
    Auth,
    ConnAck,
    Disconnect,
    Properties,
    ReasonCode,
    SubAck,
    UnsubAck,
    Version,
    Will,
    encode,
)
from edge.session_store.journal_writer import SessionJournal

log = logging.getLogger(__name__)
audit = logging.getLogger(AUDIT)

CONNECTION_LINES = AUDIT_BURST - 10  # of connections at once, and of their ends; later AUDIT_PER_S of each

_SentPacket: TypeAlias = Auth | ConnAck | Disconnect | SubAck | UnsubAck


class ConnectedClient(Struct, gc=False):
    """An accepted connection. The fields from `packet_max_bytes` to `method` are of MQTT 5."""

    connection: int
    client_info: ClientInfo
    version: Version
    session: Session
    will: Will | None
    packet_max_bytes: int = 0  # Maximum Packet Size of the client; 0: no limit
    # True if Reason Strings may be sent in every packet that has them [MQTT-3.1.2-29]
    reason_strings: bool = True
    # CONNECT requested problem information; DISCONNECT then names the broken statement
    problem_information: bool = False
    method: str | None = None  # Authentication Method of CONNECT, which AUTH must repeat
    keep_alive_s: int = 0  # Keep Alive in effect; 0: none
    since_ns: int = field(default_factory=time.time_ns)  # of the wall clock, at the end of CONNECT


class Connections:
    """Connected clients, by connection."""

    def __init__(
        self,
        engine: Engine,
        sessions: Sessions,
        router: Router,
        wills: Wills,
        journal: SessionJournal,
        clock: Callable[[], float],
    ) -> None:
        self.watchers: list[Watcher] = []
        self.clients_max_seen = 0  # highest number of clients connected at once since the start
        self._engine = engine
        self._sessions = sessions
        self._router = router
        self._wills = wills
        self._journal = journal
        self._clock = clock
        self._by_connection: dict[int, ConnectedClient] = {}
        self._connected_lines = LineBudget(CONNECTION_LINES, AUDIT_PER_S)
        self._ended_lines = LineBudget(CONNECTION_LINES, AUDIT_PER_S)

    def __len__(self) -> int:
        return len(self._by_connection)

    def __iter__(self) -> Iterator[ConnectedClient]:
        return iter(list(self._by_connection.values()))

    def __getitem__(self, connection: int) -> ConnectedClient:
        return self._by_connection[connection]

    def get(self, connection: int) -> ConnectedClient | None:
        """The accepted client of a connection; None if there is none."""
        return self._by_connection.get(connection)

    def refusal_of_will(self, client_info: ClientInfo, will: Will, connection: int) -> str:
        """Reason why there is no memory for the will of a client; "" if there is.

        `connection`: the one that the client takes over; 0: none.
        """
        present = self._by_connection.get(connection)
        return self._wills.refusal(client_info, will, present.will if present is not None else None)

    def register(self, client: ConnectedClient) -> None:
        """Register an accepted client, to which the engine now delivers."""
        self._sessions.connected(client.session, client.connection)
        self._wills.reconnected(client.client_info.client_id)
        self._by_connection[client.connection] = client
        if client.will is not None:
            self._wills.accepted(client.client_info, client.will)
            self._journal.will_of(client)
        self.clients_max_seen = max(self.clients_max_seen, len(self._by_connection))
        if self.watchers:
            self.notify_watchers(lambda watcher: watcher.connected(client.client_info))
        self._record("client connected", self._connected_lines, client.client_info)

    def send_packet(self, client: ConnectedClient, packet: Auth | Disconnect | SubAck | UnsubAck) -> None:
        """Send a packet, without its Reason String if the client does not want it or the packet gets too
        long.

        An answer that is too long even so ends the connection, because it must not be sent [MQTT-3.1.2-24].
        """
        plain = not client.reason_strings and not isinstance(packet, Disconnect)
        spoken = _without_reason(packet) if plain else packet
        data = encode_within(spoken, client.version, client.packet_max_bytes)
        if data is not None:
            kept = client.session.kept and isinstance(packet, SubAck | UnsubAck)
            (self._engine.send_after_journal if kept else self._engine.send)(client.connection, data)
        elif not isinstance(packet, Disconnect):
            self.end(client.connection, will=True, reason=ReasonCode.PACKET_TOO_LARGE)

    def end(
        self,
        connection: int,
        *,
        will: bool,
        reason: ReasonCode | None = None,
        reason_string: str | None = None,
        cause: str = "",
    ) -> None:
        """End a connection: the only way out for an accepted client.

        `will`: True if the client left without DISCONNECT, so that its will is published [MQTT-3.1.2-8].
        `reason` is sent to an MQTT 5 client first, in DISCONNECT.
        `reason_string` is the Reason String, sent if the client requested problem information.
        `cause`: text for the audit log, used without a `reason`.
        """
        client = self._by_connection.pop(connection, None)
        if client is not None and reason is not None and client.version == Version.V5:
            reason_string = reason_string if client.problem_information else None
            properties = Properties(reason_string=reason_string)
            self.send_packet(client, Disconnect(reason, properties))
        self._engine.close(connection)
        if client is None:
            return
        if will and client.will is not None:
            self._wills.disconnected(client.client_info, client.will, self._clock())
        elif client.will is not None:
            self._wills.discarded(client.client_info, client.will)
        self.detach(client.session)
        cause = reason.words if reason is not None else cause
        self._record("connection ended", self._ended_lines, client.client_info, cause=cause)
        if self.watchers:
            self.notify_watchers(lambda watcher: watcher.disconnected(client.client_info))

    def detach(self, session: Session) -> None:
        """Detach a session from its connection. A session with expiry 0 ends."""
        if session.expiry_s == 0:
            self.forget(session)
        else:
            self._sessions.disconnected(session, self._clock())

    def unexpired(self, client_id: str) -> Session | None:
        """The session of a client that connects. An expired one ends now, before its turn in tick()."""
        session = self._sessions.get(client_id)
        if session is None or not self._sessions.has_expired(session, self._clock()):
            return session
        self._sessions.expired += 1
        self.forget(session)
        return None

    def forget(self, session: Session) -> None:
        """End a session, and with it the delay of its will."""
        self._router.forget(session)
        self._sessions.close(session)
        self._wills.session_ended(session.client_id)

    def _record(self, event: str, lines: LineBudget, client_info: ClientInfo, **facts: str) -> None:
        """Write to the audit log. Builds no text above the budget: a whole fleet may reconnect at once."""
        if audit.isEnabledFor(logging.INFO) and lines.take(self._clock()):
            more: dict[str, object] = dict(facts)
            if left_out := lines.left_out():
                more["lines_left_out"] = left_out
            details = (audit_facts(client_info), pairs(**more)) if more else (audit_facts(client_info),)
            audit.info(" ".join((event, *("%s" for _ in details))), *details)

    def notify_watchers(self, notify: Callable[[Watcher], None]) -> None:
        """Notify every watcher."""
        for watcher in self.watchers:
            try:
                notify(watcher)
            except Exception:
                log.exception("client event watcher failed")


def _without_reason(packet: _SentPacket) -> _SentPacket:
    """The same packet without Reason String and User Properties."""
    return replace(packet, properties=replace(packet.properties, reason_string=None, user=()))


def audit_facts(client_info: ClientInfo) -> LoggedPairs:
    """Client, user as given and address, for the audit log."""
    user = client_info.username or ""
    return pairs(client=client_info.client_id, user=user, peer=client_info.address)


def encode_within(packet: _SentPacket, version: Version, max_bytes: int) -> bytes | None:
    """Encode a packet into at most `max_bytes` (0: no limit).

    Properties that only explain are left out if necessary. None if the packet is too long even so.
    """
    data = encode(packet, version)
    if max_bytes and len(data) > max_bytes:
        data = encode(_without_reason(packet), version)
    return None if max_bytes and len(data) > max_bytes else data
