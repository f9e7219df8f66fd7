"""Who is connected, what is said to them, and the only way in and the only way out.

Owns the accepted connections, and joins them with sessions, routes and wills.  Decides nothing about who may
come, and reads no packets.

Invariants: every accepted client leaves through end(), once; a client is told nothing that is longer than
the packets it takes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from edge.access import ClientFacts
from edge.engine import Engine
from edge.logs import pairs
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
from edge.router import Router
from edge.sessions import Session, Sessions
from edge.state.keeper import Keeper
from edge.wills import Wills

__all__ = ["Client", "Clients", "Watcher", "bytes_of"]

log = logging.getLogger(__name__)

_Spoken: TypeAlias = Auth | ConnAck | Disconnect | SubAck | UnsubAck


@dataclass(slots=True)
class Client:
    """An accepted connection.  All but the first five are of MQTT 5."""

    connection: int
    facts: ClientFacts
    version: Version
    session: Session
    will: Will | None
    packet_max_bytes: int = 0  # the longest that it takes; 0: any
    wants_reasons: bool = True  # Reason Strings, wherever they may stand [MQTT-3.1.2-29]
    asks_reasons: bool = False  # it has said so, and is told which statement it broke
    method: str | None = None  # of enhanced authentication, which it may repeat


class Watcher(Protocol):
    """Is told what clients do.  Called on the broker's thread, after it is done; what it raises is logged."""

    def connected(self, client: ClientFacts) -> None:
        """Its CONNECT was accepted."""

    def disconnected(self, client: ClientFacts) -> None:
        """Its connection has ended; its session may go on."""

    def subscribed(self, client: ClientFacts, topic_filter: str, qos: int) -> None:
        """A subscription was granted, or replaced."""

    def unsubscribed(self, client: ClientFacts, topic_filter: str) -> None:
        """A subscription has ended, by UNSUBSCRIBE."""


class Clients:
    """Those who are connected, by connection."""

    def __init__(
        self,
        engine: Engine,
        sessions: Sessions,
        router: Router,
        wills: Wills,
        keeper: Keeper,
        clock: Callable[[], float],
    ) -> None:
        self.watchers: list[Watcher] = []
        self.most = 0  # connected at once, ever
        self._engine = engine
        self._sessions = sessions
        self._router = router
        self._wills = wills
        self._keeper = keeper
        self._clock = clock
        self._by_connection: dict[int, Client] = {}

    def __len__(self) -> int:
        return len(self._by_connection)

    def __iter__(self) -> Iterator[Client]:
        return iter(list(self._by_connection.values()))

    def __getitem__(self, connection: int) -> Client:
        return self._by_connection[connection]

    def get(self, connection: int) -> Client | None:
        """Who is at the other end, if it was accepted."""
        return self._by_connection.get(connection)

    def refusal_of_will(self, will: Will) -> str:
        """Why there is no memory for one more; "": there is."""
        return self._wills.refusal(will)

    def come(self, client: Client) -> None:
        """It was accepted, and the engine delivers to it."""
        self._sessions.came(client.session, client.connection)
        self._wills.came_back(client.facts.client_id)
        self._by_connection[client.connection] = client
        if client.will is not None:
            self._wills.accepted(client.will)
            self._keeper.will_of(client)
        self.most = max(self.most, len(self._by_connection))
        if self.watchers:
            self.tell(lambda watcher: watcher.connected(client.facts))
        if log.isEnabledFor(logging.DEBUG):  # a fleet that comes back at once should not pay for the words
            log.debug("client connected %s", pairs(client=client.facts.client_id, peer=client.facts.address))

    def say(self, client: Client, packet: Auth | Disconnect | SubAck | UnsubAck) -> None:
        """Send it, without its Reason String if that is not wanted or makes it too long for the client.

        An answer that is too long even so ends the connection: it must not be sent [MQTT-3.1.2-24].
        """
        plain = not client.wants_reasons and not isinstance(packet, Disconnect)
        spoken = _without_reason(packet) if plain else packet
        data = bytes_of(spoken, client.version, client.packet_max_bytes)
        if data is not None:
            if client.session.kept and isinstance(packet, SubAck | UnsubAck):
                self._engine.vow(client.connection)
            self._engine.send(client.connection, data)
        elif not isinstance(packet, Disconnect):
            self.end(client.connection, will=True, reason=ReasonCode.PACKET_TOO_LARGE)

    def end(
        self,
        connection: int,
        *,
        will: bool,
        reason: ReasonCode | None = None,
        words: str | None = None,
        reference: str | None = None,
    ) -> None:
        """The only way out; `will`: it went without DISCONNECT [MQTT-3.1.2-8].

        An MQTT 5 client is told the `reason` first, if there is one: with `words` for people if it asks for
        them, and with a `reference` to another server.
        """
        client = self._by_connection.pop(connection, None)
        if client is not None and reason is not None and client.version == Version.V5:
            told = words if client.asks_reasons else None
            properties = Properties(reason_string=told, server_reference=reference)
            self.say(client, Disconnect(reason, properties))
        self._engine.close(connection)
        if client is None:
            return
        if will and client.will is not None:
            self._wills.left(client.facts, client.will, self._clock())
        elif client.will is not None:
            self._wills.discarded(client.facts, client.will)
        self.left(client.session)
        if self.watchers:
            self.tell(lambda watcher: watcher.disconnected(client.facts))

    def left(self, session: Session) -> None:
        """It has no connection any more; it may end with that."""
        if session.expiry_s == 0:
            self.forget(session)
        else:
            self._sessions.left(session, self._clock())

    def forget(self, session: Session) -> None:
        """The session ends, and with it the delay of its will."""
        self._router.forget(session)
        self._sessions.close(session)
        self._wills.session_ended(session.client_id)

    def tell(self, what: Callable[[Watcher], None]) -> None:
        """Tell who watches."""
        for watcher in self.watchers:
            try:
                what(watcher)
            except Exception:
                log.exception("a watcher of clients has failed")


def _without_reason(packet: _Spoken) -> _Spoken:
    """The same packet, without the properties that only explain."""
    return replace(packet, properties=replace(packet.properties, reason_string=None, user=()))


def bytes_of(packet: _Spoken, version: Version, most: int) -> bytes | None:
    """The packet in at most `most` bytes (0: any), if need be without what only explains; None: too long."""
    data = encode(packet, version)
    if most and len(data) > most:
        data = encode(_without_reason(packet), version)
    return None if most and len(data) > most else data
