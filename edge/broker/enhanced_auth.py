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
from functools import partial

import msgspec
from msgspec import Struct

from edge.auth.interfaces import AuthStep, ClientInfo, Conversation
from edge.broker.authorization import Authorization
from edge.broker.connect import ConnectHandler
from edge.broker.connections import ConnectedClient, Connections, audit_facts
from edge.broker.deferred import DeferredDecisions
from edge.engine.engine import Engine
from edge.logging_setup import AUDIT
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

audit = logging.getLogger(AUDIT)

ROUND_TRIPS_MAX = 8


class _AuthExchange(Struct):
    connection: int
    client_info: ClientInfo
    method: str
    conversation: Conversation
    connect: Connect | None  # None: the client is connected already
    steps: int = 0
    awaiting_authenticator: bool = False  # True while the authenticator works on an answer


class EnhancedAuth:
    """Exchanges of AUTH packets, by connection."""

    def __init__(
        self,
        engine: Engine,
        clients: Connections,
        connecting: ConnectHandler,
        permissions: Authorization,
        pending: DeferredDecisions,
    ) -> None:
        self._engine = engine
        self._clients = clients
        self._connecting = connecting
        self._permissions = permissions
        self._pending = pending
        self._exchanges: dict[int, _AuthExchange] = {}

    def __len__(self) -> int:
        return len(self._exchanges)

    def is_under_way(self, connection: int) -> bool:
        """True if CONNECT has arrived and its exchange has not ended."""
        exchange = self._exchanges.get(connection)
        return exchange is not None and exchange.connect is not None

    def connect(self, connection: int, packet: Connect, packet_bytes: int) -> None:
        """Begin the exchange of a CONNECT with an Authentication Method."""
        method = packet.properties.authentication_method
        assert method is not None
        client_info = self._connecting.client_info_of(connection, packet)
        if refusal := self._connecting.refusal(client_info, packet):
            self._connecting.refuse(connection, packet, client_info, *refusal)
            return
        conversation = self._begin(client_info, method)
        if conversation is None:
            self._connecting.refuse(connection, packet, client_info, ReasonCode.BAD_AUTHENTICATION_METHOD)
            return
        if not self._connecting.waiting.take(connection, client_info.address, packet_bytes):
            self._connecting.refuse_busy(connection, packet, client_info)
            return
        self._engine.converse(connection)
        exchange = _AuthExchange(connection, client_info, method, conversation, packet)
        self._exchanges[connection] = exchange
        self._request(exchange, packet.properties.authentication_data)

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

    def auth(self, client: ConnectedClient, packet: Auth) -> None:
        """Handle an AUTH of a connected client: re-authentication."""
        if client.method is None or packet.properties.authentication_method != client.method:
            text = "AUTH has the Authentication Method of CONNECT, if that had one"
            raise ProtocolError(Rule.AUTH_METHOD_STAYS, text, Version.V5)
        exchange = self._exchanges.get(client.connection)
        if packet.reason_code != ReasonCode.RE_AUTHENTICATE:
            if exchange is None:
                raise ProtocolError(Rule.AUTH_CODE, "AUTH without an exchange to continue", Version.V5)
            self._continue(exchange, packet)
            return
        if exchange is not None:
            raise ProtocolError(Rule.AUTH_CODE, "AUTH that begins again before its end", Version.V5)
        conversation = self._begin(client.client_info.visible, client.method)
        if conversation is None:
            self._clients.end(client.connection, will=True, reason=ReasonCode.BAD_AUTHENTICATION_METHOD)
            return
        exchange = _AuthExchange(client.connection, client.client_info, client.method, conversation, None)
        self._exchanges[client.connection] = exchange
        self._request(exchange, packet.properties.authentication_data)

    def forget(self, connection: int) -> None:
        """Drop the exchange of a connection that has ended."""
        if self._exchanges.pop(connection, None) is not None:
            self._connecting.waiting.give(connection)

    # ---- one step ----

    def _begin(self, client_info: ClientInfo, method: str) -> Conversation | None:
        enhanced = self._permissions.enhanced
        return (
            None
            if enhanced is None or method not in enhanced.methods
            else enhanced.begin(client_info, method)
        )

    def _continue(self, exchange: _AuthExchange, packet: Auth) -> None:
        if packet.reason_code != ReasonCode.CONTINUE_AUTHENTICATION or exchange.awaiting_authenticator:
            raise ProtocolError(Rule.AUTH_CODE, "AUTH out of turn", Version.V5)
        if packet.properties.authentication_method != exchange.method:
            text = "AUTH has the Authentication Method of CONNECT"
            raise ProtocolError(Rule.AUTH_METHOD_STAYS, text, Version.V5)
        self._request(exchange, packet.properties.authentication_data)

    def _request(self, exchange: _AuthExchange, data: bytes | None) -> None:
        exchange.steps += 1
        refused = AuthStep("refused")
        if exchange.steps > ROUND_TRIPS_MAX:
            self._apply(exchange, [refused])
            return
        exchange.awaiting_authenticator = True
        answer = exchange.conversation.answer(data)
        then = partial(self._apply, exchange)
        self._pending.then(exchange.connection, [answer], refused, then, pause=exchange.connect is not None)

    def _apply(self, exchange: _AuthExchange, steps: list[AuthStep]) -> None:
        (step,) = steps
        connection, connect = exchange.connection, exchange.connect
        if self._exchanges.get(connection) is not exchange:
            return  # the connection has ended; its number may belong to another client now
        exchange.awaiting_authenticator = False
        if step.verdict == "continue":
            self._send(exchange, ReasonCode.CONTINUE_AUTHENTICATION, step.data)
            return
        self.forget(connection)
        if connect is None:
            self._finish_reauthentication(exchange, step)
        elif step.verdict == "accepted":
            client_info = msgspec.structs.replace(exchange.client_info, identity=step.identity, verified=True)
            self._connecting.authenticated(connection, connect, client_info, step.data)
        else:
            self._connecting.refuse(connection, connect, exchange.client_info, ReasonCode.NOT_AUTHORIZED)

    def _finish_reauthentication(self, exchange: _AuthExchange, step: AuthStep) -> None:
        """Finish a re-authentication. The identity of a connected client cannot change."""
        if step.verdict == "accepted" and step.identity == exchange.client_info.identity:
            self._send(exchange, ReasonCode.SUCCESS, step.data)
            return
        facts = audit_facts(exchange.client_info)
        audit.info("client disconnected: re-authentication failed %s", facts)
        self._clients.end(exchange.connection, will=True, reason=ReasonCode.NOT_AUTHORIZED)

    def _send(self, exchange: _AuthExchange, code: ReasonCode, data: bytes | None) -> None:
        properties = Properties(authentication_method=exchange.method, authentication_data=data)
        packet = Auth(code, properties)
        client = self._clients.get(exchange.connection)
        if client is not None:
            self._clients.send_packet(client, packet)
        else:
            self._engine.send(exchange.connection, encode(packet, Version.V5))
