"""Enhanced authentication: the exchange of AUTH packets, at CONNECT and later (MQTT 5 section 4.12).

    client                                server
    CONNECT  method, data       ->
                                <-        AUTH 0x18  method, data       any number up to ROUND_TRIPS_MAX
    AUTH 0x18  method, data     ->
                                <-        CONNACK  method, data         AUTH 0x00 at re-authentication

Owns the exchanges under way; the authenticator owns their content. Before CONNACK the connect timeout bounds
an exchange, and the client may send only AUTH or DISCONNECT. A client that re-authenticates continues to
publish and receive meanwhile; it keeps its identity, or is disconnected.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial

import msgspec

from edge.access import ClientFacts, Conversation, Step
from edge.clients import Client, Clients
from edge.connecting import Connecting
from edge.engine import Engine
from edge.logs import pairs
from edge.mqtt import (
    Auth,
    Connect,
    Disconnect,
    Packet,
    Properties,
    ProtocolError,
    ReasonCode,
    Rule,
    Version,
    encode,
)
from edge.pending import Pending
from edge.permissions import Permissions

__all__ = ["Authenticating"]

log = logging.getLogger(__name__)

ROUND_TRIPS_MAX = 8


@dataclass(slots=True)
class _Exchange:
    connection: int
    facts: ClientFacts
    method: str
    conversation: Conversation
    connect: Connect | None  # None: the client is connected already
    steps: int = 0
    thinking: bool = False  # True while the authenticator works on an answer


class Authenticating:
    """Exchanges of AUTH packets, by connection."""

    def __init__(
        self,
        engine: Engine,
        clients: Clients,
        connecting: Connecting,
        permissions: Permissions,
        pending: Pending,
    ) -> None:
        self._engine = engine
        self._clients = clients
        self._connecting = connecting
        self._permissions = permissions
        self._pending = pending
        self._exchanges: dict[int, _Exchange] = {}

    def __len__(self) -> int:
        return len(self._exchanges)

    def is_under_way(self, connection: int) -> bool:
        """True if CONNECT has arrived and its exchange has not ended."""
        exchange = self._exchanges.get(connection)
        return exchange is not None and exchange.connect is not None

    def connect(self, connection: int, packet: Connect) -> None:
        """Begin the exchange of a CONNECT with an Authentication Method."""
        method = packet.properties.authentication_method
        assert method is not None
        facts = self._connecting.facts(connection, packet)
        if refusal := self._connecting.refusal(facts, packet):
            self._connecting.refuse(connection, packet, facts, *refusal)
            return
        conversation = self._begin(facts, method)
        if conversation is None:
            self._connecting.refuse(connection, packet, facts, ReasonCode.BAD_AUTHENTICATION_METHOD)
            return
        self._engine.converse(connection)
        exchange = _Exchange(connection, facts, method, conversation, packet)
        self._exchanges[connection] = exchange
        self._ask(exchange, packet.properties.authentication_data)

    def before_connack(self, connection: int, packet: Packet) -> None:
        """Handle a packet during the exchange of a CONNECT: only AUTH and DISCONNECT are allowed."""
        if isinstance(packet, Disconnect):
            self._clients.end(connection, will=False)
            self.forget(connection)
            return
        exchange = self._exchanges[connection]
        if not isinstance(packet, Auth):
            name = type(packet).__name__
            raise ProtocolError(Rule.AUTHENTICATION_COMES_FIRST, f"{name} before CONNACK", Version.V5)
        self._continue(exchange, packet)

    def auth(self, client: Client, packet: Auth) -> None:
        """Handle an AUTH of a connected client: re-authentication."""
        if client.method is None or packet.properties.authentication_method != client.method:
            words = "AUTH has the Authentication Method of CONNECT, if that had one"
            raise ProtocolError(Rule.AUTH_METHOD_STAYS, words, Version.V5)
        exchange = self._exchanges.get(client.connection)
        if packet.reason_code != ReasonCode.RE_AUTHENTICATE:
            if exchange is None:
                raise ProtocolError(Rule.AUTH_CODE, "AUTH that goes on with nothing", Version.V5)
            self._continue(exchange, packet)
            return
        if exchange is not None:
            raise ProtocolError(Rule.AUTH_CODE, "AUTH that begins again before its end", Version.V5)
        conversation = self._begin(client.facts, client.method)
        if conversation is None:
            self._clients.end(client.connection, will=True, reason=ReasonCode.BAD_AUTHENTICATION_METHOD)
            return
        exchange = _Exchange(client.connection, client.facts, client.method, conversation, None)
        self._exchanges[client.connection] = exchange
        self._ask(exchange, packet.properties.authentication_data)

    def forget(self, connection: int) -> None:
        """Drop the exchange of a connection that has ended."""
        self._exchanges.pop(connection, None)

    # ---- one step ----

    def _begin(self, facts: ClientFacts, method: str) -> Conversation | None:
        enhanced = self._permissions.enhanced
        return None if enhanced is None or method not in enhanced.methods else enhanced.begin(facts, method)

    def _continue(self, exchange: _Exchange, packet: Auth) -> None:
        if packet.reason_code != ReasonCode.CONTINUE_AUTHENTICATION or exchange.thinking:
            raise ProtocolError(Rule.AUTH_CODE, "AUTH out of turn", Version.V5)
        if packet.properties.authentication_method != exchange.method:
            words = "AUTH has the Authentication Method of CONNECT"
            raise ProtocolError(Rule.AUTH_METHOD_STAYS, words, Version.V5)
        self._ask(exchange, packet.properties.authentication_data)

    def _ask(self, exchange: _Exchange, data: bytes | None) -> None:
        exchange.steps += 1
        refused = Step("refused")
        if exchange.steps > ROUND_TRIPS_MAX:
            self._answer(exchange, [refused])
            return
        exchange.thinking = True
        answer = exchange.conversation.answer(data)
        then = partial(self._answer, exchange)
        self._pending.when(exchange.connection, [answer], refused, then, hold=exchange.connect is not None)

    def _answer(self, exchange: _Exchange, steps: list[Step]) -> None:
        (step,) = steps
        connection, connect = exchange.connection, exchange.connect
        if self._exchanges.get(connection) is not exchange:
            return  # the connection has ended; its number may belong to another client now
        exchange.thinking = False
        if step.verdict == "continue":
            self._say(exchange, ReasonCode.CONTINUE_AUTHENTICATION, step.data)
            return
        self.forget(connection)
        if connect is None:
            self._again(exchange, step)
        elif step.verdict == "accepted":
            facts = msgspec.structs.replace(exchange.facts, identity=step.identity, vouched=True)
            self._connecting.authenticated(connection, connect, facts, step.data)
        else:
            self._connecting.refuse(connection, connect, exchange.facts, ReasonCode.NOT_AUTHORIZED)

    def _again(self, exchange: _Exchange, step: Step) -> None:
        """Finish a re-authentication. The identity of a connected client cannot change."""
        if step.verdict == "accepted" and step.identity == exchange.facts.identity:
            self._say(exchange, ReasonCode.SUCCESS, step.data)
            return
        log.info("client did not authenticate again %s", pairs(client=exchange.facts.client_id))
        self._clients.end(exchange.connection, will=True, reason=ReasonCode.NOT_AUTHORIZED)

    def _say(self, exchange: _Exchange, code: ReasonCode, data: bytes | None) -> None:
        properties = Properties(authentication_method=exchange.method, authentication_data=data)
        packet = Auth(code, properties)
        client = self._clients.get(exchange.connection)
        if client is not None:
            self._clients.say(client, packet)
        else:
            self._engine.send(exchange.connection, encode(packet, Version.V5))
