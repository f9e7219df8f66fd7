"""CONNECT to CONNACK: decides which clients are accepted, on which terms, and with which session.

    CONNECT -> limits -> authentication -> authorization of the will -> session -> CONNACK

Each step may take time (edge.broker.deferred). _take_over_session() moves a session to a new connection of
its client. connections_max is decided before, in C: listener_full() in ringbuf/c/mqtt/accept.c. Never
touches a session before its client is authenticated. Never sends Response Information: clients agree among
themselves which topics carry responses.

After authentication, the client identifier and the topic of the will get the prefix of the client's tenant.

Invariants: a client never gets the session of another owner or tenant. An identifier stays with the client
that holds it, with one exception: an authenticated client gets the identifier of one that is not
authenticated, with a new session; the other session ends.
"""

from __future__ import annotations

import logging
import os
from concurrent.futures import Future
from functools import lru_cache, partial
from typing import Any

from msgspec.structs import replace

from edge.auth.interfaces import ClientInfo
from edge.auth.tenant_names import MARK
from edge.broker.authorization import Authorization
from edge.broker.broker_limits import BrokerLimits
from edge.broker.connections import ConnectedClient, Connections, audit_facts, encode_within
from edge.broker.deferred import DeferredDecisions
from edge.broker.plain_connect import PlainConnects
from edge.broker.quotas import key_of
from edge.broker.sessions import NEVER_S, Session, Sessions
from edge.broker.waiting_connects import WaitingConnects
from edge.engine.connect_calls import PlainConnect, connect_of
from edge.engine.engine import Engine, Table, limits_of
from edge.log_throttle import LogThrottle
from edge.logging_setup import AUDIT, pairs
from edge.mqtt import ConnAck, Connect, Properties, ReasonCode, Version, encode
from edge.mqtt.properties import NO_PROPERTIES

log = logging.getLogger(__name__)
audit = logging.getLogger(AUDIT)

RECEIVE_MAXIMUM = 65_535  # the value when CONNECT has no Receive Maximum [MQTT-3.1.2.11.3]
QOS_MAX = 2  # the value when CONNACK has no Maximum QoS
ANSWERS_KEPT = 64
# reading a member of an enumeration takes a function call
_USUAL_REFUSALS = (
    ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    ReasonCode.NOT_AUTHORIZED,
    ReasonCode.QUOTA_EXCEEDED,
)
_V5, _CONNECTIONS, _SESSIONS = Version.V5, int(Table.CONNECTIONS), int(Table.SESSIONS)


class ConnectHandler:
    """Accepts or refuses each CONNECT, and answers it."""

    def __init__(
        self,
        engine: Engine,
        clients: Connections,
        sessions: Sessions,
        permissions: Authorization,
        pending: DeferredDecisions,
        limits: BrokerLimits,
    ) -> None:
        self._engine = engine
        self._clients = clients
        self._sessions = sessions
        self._permissions = permissions
        self._pending = pending
        self.limits = limits  # Broker.apply_limits() replaces the limits
        self._engine_limits = limits_of(engine)
        self._plain = PlainConnects(engine, clients, sessions, permissions, self._usual_answer)
        self._may_warn = LogThrottle()
        self.waiting = WaitingConnects()
        self._logins: dict[int, tuple[Connect, ClientInfo, Future[bool]]] = {}  # by connection
        self.refused = dict.fromkeys(
            (code.words for code in _USUAL_REFUSALS), 0
        )  # by reason, since the start

    def connect_plain(self, connection: int, plain: PlainConnect, packet_bytes: int) -> None:
        """As connect(), for a CONNECT that the engine has decoded."""
        if not self._plain.accept(connection, plain, self.limits):
            self.connect(connection, connect_of(plain), packet_bytes)

    def connect(self, connection: int, packet: Connect, packet_bytes: int) -> None:
        """Refuse a CONNECT, or authenticate its client and continue with the answer."""
        client_info = self.client_info_of(connection, packet)
        if refusal := self.refusal(client_info, packet):
            self.refuse(connection, packet, client_info, *refusal)
            return
        answer = self._permissions.may_connect(client_info, packet.password)
        if answer is True or answer is False:  # known at once: most clients
            self._admit(connection, packet, client_info, answer)
        elif self.waiting.take(connection, client_info.address, packet_bytes):
            self._logins[connection] = packet, client_info, answer
            self._pending.then(connection, [answer], False, partial(self._authenticated, connection))
        else:
            answer.cancel()
            self.refuse_busy(connection, packet, client_info)

    def _authenticated(self, connection: int, allowed: list[bool]) -> None:
        if connection in self._logins:
            packet, client_info, _ = self._logins.pop(connection)
            self.waiting.give(connection)
            self._admit(connection, packet, client_info, *allowed)

    def forget(self, connection: int) -> None:
        """Drop the CONNECT of a connection that has ended, and its authentication."""
        if connection in self._logins:
            *_, answer = self._logins.pop(connection)
            self.waiting.give(connection)
            answer.cancel()

    def refuse_busy(self, connection: int, packet: Connect, client_info: ClientInfo) -> None:
        """Refuse a client because too many others wait for their authentication with long packets."""
        properties = Properties(reason_string="too many long CONNECT packets wait; try again")
        self.refuse(connection, packet, client_info, ReasonCode.SERVER_BUSY, properties)

    def client_info_of(self, connection: int, packet: Connect) -> ClientInfo:
        """Facts of the client. A client without an identifier gets one [MQTT-3.1.3-6]."""
        client_id = packet.client_id or f"auto-{os.urandom(8).hex()}"
        return self._permissions.client_info_of(connection, client_id, packet.username)

    def refusal(self, client_info: ClientInfo, packet: Connect) -> tuple[ReasonCode, Properties] | None:
        """Reason to refuse a CONNECT before authentication; None if there is no reason."""
        policy = self._permissions.policies.get(client_info.listener)
        if policy is not None and policy.redirect_to is not None:
            return ReasonCode.USE_ANOTHER_SERVER, Properties(server_reference=policy.redirect_to)
        if not packet.client_id and not self.limits.empty_client_ids:
            reason_string = "a client identifier is required here: limits.allow_empty_client_id = false"
            return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, Properties(reason_string=reason_string)
        if packet.client_id.startswith(MARK):
            reason_string = f"client identifiers that begin with {MARK} are reserved; choose another one"
            return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, Properties(reason_string=reason_string)
        max_bytes = self.limits.client_id_max_bytes
        if (length := len(client_info.client_id.encode())) > max_bytes:
            reason_string = f"a client identifier of {length} bytes exceeds client_id_max_bytes = {max_bytes}"
            return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, Properties(reason_string=reason_string)
        if not self._sessions.fits_journal(client_info, packet.will):
            reason_string = "client identifier, user name and will are too long for sessions.journal_bytes"
            return ReasonCode.PACKET_TOO_LARGE, Properties(reason_string=reason_string)
        if packet.will is not None and len(packet.will.payload) > self._will_max_bytes(client_info):
            return ReasonCode.PACKET_TOO_LARGE, Properties(reason_string="the will is too large to be sent")
        return self._refusal_of_will(packet)

    def _refusal_of_will(self, packet: Connect) -> tuple[ReasonCode, Properties] | None:
        """Reason to refuse the will of an MQTT 5 client; None if the will can be stored as it is.

        Older clients are not refused for it: MQTT 3.1.1 has no such reason codes.
        """
        will = packet.will
        if will is None or packet.version != _V5:
            return None
        if will.retain and not self._engine_limits.retained_max:  # [MQTT-3.2.2-13]
            return ReasonCode.RETAIN_NOT_SUPPORTED, NO_PROPERTIES
        if will.qos > self._engine_limits.qos_max:  # [MQTT-3.2.2-12]
            return ReasonCode.QOS_NOT_SUPPORTED, NO_PROPERTIES
        return None

    def _admit(self, connection: int, packet: Connect, client_info: ClientInfo, allowed: bool) -> None:
        if not allowed:
            named = client_info.username is not None
            reason = ReasonCode.BAD_USER_NAME_OR_PASSWORD if named else ReasonCode.NOT_AUTHORIZED
            self.refuse(connection, packet, client_info, reason)
            return
        if self._permissions.is_verified(client_info):
            client_info = replace(client_info, identity=client_info.username, verified=True)
        self.authenticated(connection, packet, client_info)

    def authenticated(
        self, connection: int, packet: Connect, client_info: ClientInfo, data: bytes | None = None
    ) -> None:
        """Continue after authentication.

        `client_info`: has the verified identity. `data`: the last Authentication Data of an enhanced
        authentication, for CONNACK.
        """
        placed = self._permissions.in_tenant(client_info)
        if placed is None:
            reason_string = "this client belongs to another tenant than its listener or certificate"
            refusal = Properties(reason_string=reason_string)
            self.refuse(connection, packet, client_info, ReasonCode.NOT_AUTHORIZED, refusal)
            return
        if prefix := placed.prefix:
            client_info, packet = placed, _with_full_will(packet, prefix)
            if not self._sessions.fits_journal(client_info, packet.will):
                self.refuse(connection, packet, client_info, ReasonCode.PACKET_TOO_LARGE)
                return
        will = packet.will
        if will is None:
            self._accept_unless(connection, packet, client_info, data, allowed=True)
            return
        answer = self._permissions.may_publish(client_info, will.topic)
        self._pending.then(
            connection,
            [answer],
            False,
            lambda allowed: self._accept_unless(
                connection,
                packet,
                client_info,
                data,
                # a reload may have moved the client to another tenant meanwhile
                allowed=all(allowed) and self._permissions.is_in_its_tenant(client_info),
            ),
        )

    def _accept_unless(
        self, connection: int, packet: Connect, client_info: ClientInfo, data: bytes | None, *, allowed: bool
    ) -> None:
        known = self._clients.unexpired(client_info.client_id)
        if not allowed:
            self.refuse(connection, packet, client_info, ReasonCode.NOT_AUTHORIZED)
        elif (
            known is not None
            and known.client_info.owner != client_info.owner
            and not client_info.may_replace(known.client_info)
        ):
            self._refuse_identifier(connection, packet, client_info, known.client_info)
        elif self._sessions.failure and (_expiry_wanted_s(packet) or (known is not None and known.kept)):
            max_bytes = packet.properties.maximum_packet_size_bytes or 0
            self._refuse_session(connection, client_info, packet.version, max_bytes)
        elif (reason_string := self._quota_exceeded(packet, client_info, known)) is not None:
            refusal = Properties(reason_string=reason_string)
            self.refuse(connection, packet, client_info, ReasonCode.QUOTA_EXCEEDED, refusal)
        else:
            self._accept(connection, packet, client_info, known, data)

    def _quota_exceeded(self, packet: Connect, client_info: ClientInfo, known: Session | None) -> str | None:
        """Reason why the owner of a client may have no further connection or session; None if allowed.

        A client keeps what it already has: a connection that it takes over, a session that continues.
        """
        connected = known if known is not None and known.connection else None
        if not self._may_have(_CONNECTIONS, client_info, connected):
            return "too many connections of one user, address or tenant: see [quota] and [tenant.quota]"
        lasts = self._sessions.allowed_s(_expiry_wanted_s(packet)) > 0
        kept = known if known is not None and known.expiry_s else None
        if lasts and not self._may_have(_SESSIONS, client_info, kept):
            return (
                "too many sessions, or too many of one user, address or tenant: see limits.sessions_max, "
                "[quota] and [tenant.quota]"
            )
        if packet.will is None:
            return None
        held_by = known.connection if known is not None else 0
        return self._clients.refusal_of_will(client_info, packet.will, held_by) or None

    def _may_have(self, table: int, client_info: ClientInfo, held: Session | None) -> bool:
        """True if the owner of a client may have one more entry of a table.

        `held`: the session by which the client has the entry already, perhaps under another owner: the client
        may have another address now.
        """
        owner = key_of(client_info)
        if held is None:
            return self._engine.owner_may(owner, table, 1)
        return key_of(held.client_info) == owner or self._engine.owner_may_inherit(owner, table)

    def _refuse_identifier(
        self, connection: int, packet: Connect, client_info: ClientInfo, holder: ClientInfo
    ) -> None:
        """Refuse a client whose identifier another owner holds; only the log names the holder."""
        if self._may_warn():
            log.warning(
                "client refused: identifier held by another user; end that session with "
                "`brim clients forget CLIENT_ID` if it is not needed %s",
                pairs(
                    client=client_info.client_id,
                    user=client_info.identity or "",
                    peer=client_info.address,
                    holder=holder.identity or holder.certificate or "",
                    holder_peer=holder.address,
                ),
            )
        reason_string = "the client identifier belongs to another user; choose another one"
        self.refuse(
            connection,
            packet,
            client_info,
            ReasonCode.NOT_AUTHORIZED,
            Properties(reason_string=reason_string),
        )

    def refuse(
        self,
        connection: int,
        packet: Connect,
        client_info: ClientInfo,
        reason: ReasonCode,
        properties: Properties | None = None,
    ) -> None:
        """Send CONNACK with a reason, and end the connection."""
        answer = ConnAck(False, reason, properties or NO_PROPERTIES)
        max_bytes = packet.properties.maximum_packet_size_bytes or 0
        self._send_refusal(connection, client_info, answer, packet.version, max_bytes)

    def refuse_unconfirmed(self) -> None:
        """Refuse the accepted clients whose CONNACK waits for a log that accepts no records now."""
        waiting = [client for client in self._clients if self._engine.drop_unconfirmed(client.connection)]
        for client in waiting:
            self._refuse_session(
                client.connection, client.client_info, client.version, client.packet_max_bytes
            )
        if waiting:
            facts = pairs(clients=len(waiting), reason=self._sessions.failure)
            log.warning("clients refused: their sessions cannot be kept %s", facts)

    def _refuse_session(
        self, connection: int, client_info: ClientInfo, version: Version, max_bytes: int
    ) -> None:
        """Refuse a client because its session can be neither kept nor ended."""
        properties = Properties(reason_string=f"sessions cannot be kept now: {self._sessions.failure}")
        answer = ConnAck(False, ReasonCode.SERVER_UNAVAILABLE, properties)
        self._send_refusal(connection, client_info, answer, version, max_bytes)

    def _send_refusal(
        self, connection: int, client_info: ClientInfo, answer: ConnAck, version: Version, max_bytes: int
    ) -> None:
        words = answer.reason_code.words
        audit.info("client refused %s %s", audit_facts(client_info), pairs(reason=words))
        self.refused[words] = self.refused.get(words, 0) + 1
        if (data := encode_within(answer, version, max_bytes)) is not None:
            self._engine.send(connection, data)
        self._clients.end(connection, will=False)

    # ---- accepted ----

    def _accept(
        self,
        connection: int,
        packet: Connect,
        client_info: ClientInfo,
        known: Session | None,
        data: bytes | None,
    ) -> None:
        """Take over the connection and `known` session of this client [MQTT-3.1.4-3], and answer."""
        ends = known is not None and known.kept  # the session may end: a power cut must not undo that either
        session, present = self._take_over_session(packet, client_info, known)
        properties = packet.properties
        answer = self._answer(packet, client_info, session, present, data)
        max_bytes = properties.maximum_packet_size_bytes or 0
        fits = not max_bytes or len(answer) <= max_bytes
        if not fits or not self._attach(connection, packet, session, answer, ends or session.kept):
            # the connection closed meanwhile, or CONNACK is too long for the client
            self._engine.close(connection)
            self._clients.detach(session)
            return
        client = ConnectedClient(
            connection,
            client_info,
            packet.version,
            session,
            packet.will,
            max_bytes,
            properties.request_problem_information != 0,
            properties.request_problem_information == 1,
            properties.authentication_method,
            self._keep_alive_s(packet),
        )
        self._clients.register(client)

    def _take_over_session(
        self, packet: Connect, client_info: ClientInfo, session: Session | None
    ) -> tuple[Session, bool]:
        """Take over the session of this client, or open one; True if CONNACK reports a present session."""
        if session is not None and session.connection:
            log.info("session taken over %s", pairs(client=client_info.client_id, peer=client_info.address))
            self._clients.end(session.connection, will=True, reason=ReasonCode.SESSION_TAKEN_OVER)
            session = self._sessions.get(client_info.client_id)
        if session is not None and (packet.clean_start or session.client_info.owner != client_info.owner):
            self._clients.forget(session)
            session = None
        expiry_s = self._sessions.allowed_s(_expiry_wanted_s(packet))
        if session is None:
            return self._sessions.open(client_info, expiry_s), False
        self._sessions.resume(session, client_info, expiry_s)
        return session, packet.version != Version.V31  # MQTT 3.1 has no Session Present flag

    def _attach(
        self, connection: int, packet: Connect, session: Session, answer: bytes, after_journal: bool
    ) -> bool:
        properties, limits = packet.properties, self.limits
        publishes_all = self._permissions.publishes_all(session.client_info)
        attached = self._engine.accept(
            connection,
            session.handle,
            answer,
            after_journal,
            packet.version,
            limits.idle_max_ms(self._keep_alive_s(packet)),
            publishes_all,
            self._permissions.receives_all(session),
            min(limits.sessions.in_flight_max, properties.receive_maximum or RECEIVE_MAXIMUM),
            properties.maximum_packet_size_bytes or 0,
            min(limits.topic_alias_max, properties.topic_alias_maximum or 0),
            self._permissions.tenant_number(session.client_info),
        )
        if attached and not publishes_all:
            self._engine.publish_rules(connection, self._permissions.publish_rules(session.client_info))
        return attached

    # ---- CONNACK ----

    def _answer(
        self, packet: Connect, client_info: ClientInfo, session: Session, present: bool, data: bytes | None
    ) -> bytes:
        """CONNACK with each property that differs from the client's request or from the default of MQTT 5."""
        if packet.version != _V5:
            return _ACCEPTED[present]
        answer = (
            present,
            _unless(session.expiry_s, _expiry_wanted_s(packet)),
            *self._limits_of(client_info.listener),
            _unless(self._keep_alive_s(packet), packet.keep_alive_s),
        )
        method = packet.properties.authentication_method
        if packet.client_id and method is None:
            return _accepted_bytes(*answer)
        usual = _accepted(*answer)
        properties = replace(
            usual.properties,
            assigned_client_identifier=None if packet.client_id else client_info.visible.client_id,
            authentication_method=method,
            authentication_data=data,
        )
        return encode(replace(usual, properties=properties), Version.V5)

    def _usual_answer(self, version: Version, listener: int, wanted_s: int, keep_alive_s: int) -> bytes:
        """CONNACK to a client with a new session, without expiry and properties of its own."""
        if version != _V5:
            return _ACCEPTED[False]
        return _accepted_bytes(False, None, *self._limits_of(listener), _unless(keep_alive_s, wanted_s))

    def _limits_of(self, listener: int) -> tuple[int | None, int, int | None, int | None, int | None]:
        """Values of CONNACK that are the same for each client of the listener."""
        limits = self._engine_limits
        return (
            _unless(limits.receive_max, RECEIVE_MAXIMUM),
            self._packet_max_bytes(listener),
            limits.alias_max or None,
            _unless(limits.qos_max, QOS_MAX),
            None if limits.retained_max else 0,
        )

    def _packet_max_bytes(self, listener: int) -> int:
        policy = self._permissions.policies.get(listener)
        max_bytes: int = self._engine_limits.packet_max_bytes
        return max_bytes if policy is None or policy.packet_max_bytes is None else policy.packet_max_bytes

    def _will_max_bytes(self, client_info: ClientInfo) -> int:
        max_bytes = self._packet_max_bytes(client_info.listener)
        return min(max_bytes, self._engine_limits.payload_max_bytes or max_bytes)

    def _keep_alive_s(self, packet: Connect) -> int:
        return self.limits.keep_alive_s(packet.version, packet.keep_alive_s)


_ACCEPTED = tuple(encode(ConnAck(present)) for present in (False, True))  # for versions before MQTT 5


def _accepted(
    present: bool,
    expiry_s: int | None,
    receive_max: int | None,
    packet_max_bytes: int,
    alias_max: int | None,
    qos_max: int | None,
    retain_available: int | None,
    keep_alive_s: int | None,
) -> ConnAck:
    properties = Properties(
        session_expiry_interval_s=expiry_s,
        receive_maximum=receive_max,
        maximum_packet_size_bytes=packet_max_bytes,
        topic_alias_maximum=alias_max,
        maximum_qos=qos_max,
        retain_available=retain_available,
        server_keep_alive_s=keep_alive_s,
    )
    return ConnAck(present, properties=properties)


@lru_cache(ANSWERS_KEPT)
def _accepted_bytes(*values: Any) -> bytes:
    """Encode CONNACK. Cached, because most clients of a fleet get the same one."""
    return encode(_accepted(*values), Version.V5)


def _with_full_will(packet: Connect, prefix: str) -> Connect:
    will = packet.will
    return packet if will is None else replace(packet, will=replace(will, topic=prefix + will.topic))


def _expiry_wanted_s(packet: Connect) -> int:
    if packet.version == _V5:
        return packet.properties.session_expiry_interval_s or 0
    return 0 if packet.clean_start else NEVER_S  # up to the limit of the broker


def _unless(value: int, usual: int) -> int | None:
    return None if value == usual else value
