"""What each control packet does: one method for each, on the broker's thread.

Owns who is connected, and joins sessions, routes, retained messages and wills.  Knows packets, not bytes
beyond them, and no sockets: events come from the engine, answers go to it.  What happens once a message
(PUBLISH, acknowledgements, PINGREQ) never comes here.

    event             method
    PACKET CONNECT    _connect -> authentication -> _accept
    PACKET SUBSCRIBE  _subscribe
    PACKET UNSUBSCRIBE _unsubscribe
    PACKET DISCONNECT _disconnect
    TOPIC             _topic: what is this topic, and may this client publish to it?
    CLOSED            _closed
    SOURCE            _source_topic
    COLD              ColdReads.wanted

Invariants: nobody touches a session before its client is authenticated; an exception while one event is
handled ends that connection and no other; every accepted client leaves through _end(), once.
"""

from __future__ import annotations

import ipaddress
import logging
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial

from edge.access import (
    AccessList,
    Authenticator,
    ClientFacts,
    ListenerPolicy,
    TransportFacts,
    Verdict,
)
from edge.cold import ColdReads
from edge.engine import FULL, OK, CloseCause, Engine, Event, EventKind
from edge.logs import pairs
from edge.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    Properties,
    ProtocolError,
    ReasonCode,
    Role,
    Rule,
    State,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Version,
    Will,
    decode_packet,
    encode,
    farewell,
)
from edge.mqtt.codec import decode_variable_integer
from edge.mqtt.topics import check_name
from edge.retained import Retained
from edge.router import PartitionLike, Router, TopicLimits
from edge.sessions import Session, SessionLimits, Sessions

__all__ = ["Broker", "BrokerLimits"]

log = logging.getLogger(__name__)

WAITING_MAX = 1_024  # messages of our own that wait for a full ring
RETRY_S = 0.005
REST_S = 30.0  # sessions are looked at for expiry this often


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """What one client may ask for.  Names as in the configuration file."""

    client_id_max_bytes: int = 256
    subscriptions_max: int = 1_000
    topic_alias_max: int = 32  # topic aliases towards one client that takes some
    keep_alive_max_s: int = 65_535  # for who asks for none; 0: then there is none
    sessions: SessionLimits = field(default_factory=SessionLimits)
    topics: TopicLimits = field(default_factory=TopicLimits)


@dataclass(slots=True)
class _Client:
    """An accepted connection."""

    connection: int
    facts: ClientFacts
    version: Version
    session: Session
    will: Will | None


class Broker:
    """The control plane.  All methods on one thread: the one that polls the engine."""

    def __init__(
        self,
        engine: Engine,
        partition_of: Callable[[str], PartitionLike],
        *,
        limits: BrokerLimits | None = None,
        authenticator: Authenticator | None = None,
        access: AccessList | None = None,
        call: Callable[[Callable[[], object]], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`call` runs a function on this thread, from any other: for authenticators that take their time."""
        self.limits = limits or BrokerLimits()
        self.policies: dict[int, ListenerPolicy] = {}  # by listener number
        self.transports: dict[int, TransportFacts] = {}  # by connection; who hands it over puts it here
        self.call = call
        self.on_source_bad: Callable[[int], object] = lambda source: None
        self.router = Router(engine, partition_of, self.limits.topics, self.limits.sessions)
        self.sessions = Sessions(engine, self.limits.sessions)
        self.cold = ColdReads(engine, self.router.ring_of)
        self.retained = Retained(engine, self.router, self._topic_if_valid)
        self._engine = engine
        self._authenticator = authenticator
        self._access = access
        self._clock = clock
        self._clients: dict[int, _Client] = {}
        self._waiting: deque[tuple[str, bytes, int, bool]] = deque()
        self._expiry_due_s = clock() + REST_S

    # ---- events ----

    def handle(self, events: Iterable[Event]) -> None:
        """Answer what the engine has left."""
        for kind, connection, detail, data in events:
            try:
                self._handle(kind, connection, detail, data)
            except ProtocolError as error:
                self._broke_rule(connection, error)
            except Exception:
                # A bug of ours, or what a client made of it: that client pays, nobody else does.
                log.exception(
                    "event failed, connection closed %s", pairs(kind=kind, peer=self._peer(connection))
                )
                self._abandon(connection)

    def _abandon(self, connection: int) -> None:
        try:
            self._end(connection, will=True)
        except Exception:
            log.exception("a client could not be seen off %s", pairs(connection=connection))

    def _handle(self, kind: int, connection: int, detail: int, data: bytes) -> None:
        if kind == EventKind.PACKET:
            self._packet(connection, data)
        elif kind == EventKind.TOPIC:
            self._topic(connection, data)
        elif kind == EventKind.CLOSED:
            self._closed(connection, CloseCause(detail))
        elif kind == EventKind.COLD:
            if client := self._clients.get(connection):
                self.cold.wanted(client.session.handle, self.call)
        elif kind == EventKind.SOURCE:
            self._source_topic(detail, data)
        else:
            log.error("a local ring holds what is no record; it is read no further %s", pairs(source=detail))
            self.on_source_bad(detail)

    def _packet(self, connection: int, data: bytes) -> None:
        client = self._clients.get(connection)
        length = decode_variable_integer(data, 1, len(data))
        assert length is not None  # the parser hands over whole packets
        body = memoryview(data)[1 + length[1] :]
        packet = decode_packet(data[0], body, client.version if client else Version.V311)
        if client is None:
            if not isinstance(packet, Connect):
                raise ProtocolError(Rule.CONNECT_IS_FIRST, f"{type(packet).__name__} before CONNECT")
            self._connect(connection, packet)
        elif isinstance(packet, Subscribe):
            self._subscribe(client, packet)
        elif isinstance(packet, Unsubscribe):
            self._unsubscribe(client, packet)
        elif isinstance(packet, Disconnect):
            self._end(connection, will=packet.reason_code is ReasonCode.DISCONNECT_WITH_WILL)
        elif isinstance(packet, Connect):
            raise ProtocolError(Rule.CONNECT_IS_SENT_ONCE, "a second CONNECT", client.version)
        else:
            raise ProtocolError(
                Rule.DIRECTION, f"a client does not send {type(packet).__name__}", client.version
            )

    def _broke_rule(self, connection: int, error: ProtocolError) -> None:
        client = self._clients.get(connection)
        state = State.CONNECTED if client else State.OPENING
        if client is not None:
            error.version = client.version  # a second CONNECT names one of its own
        log.info("connection closed %s", pairs(peer=self._peer(connection), error=error))
        if last_words := farewell(error, state, Role.SERVER):
            self._engine.send(connection, encode(last_words, client.version if client else error.version))
        self._engine.close(connection)
        self._end(connection, will=True)

    # ---- CONNECT ----

    def _connect(self, connection: int, packet: Connect) -> None:
        facts = self._facts(connection, packet)
        if len(facts.client_id.encode()) > self.limits.client_id_max_bytes:
            self._refuse(connection, packet, facts, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID)
        else:
            verdict = self._authenticate(facts, packet.password)
            if isinstance(verdict, bool):
                self._decided(connection, packet, facts, verdict)
            else:
                assert self.call is not None, "an authenticator that returns a Future needs Broker(call=...)"
                self._engine.hold(connection)
                answer = partial(self._answered, connection, packet, facts)
                call = self.call
                verdict.add_done_callback(lambda done: call(partial(answer, done)))

    def _authenticate(self, facts: ClientFacts, password: bytes | None) -> Verdict:
        policy = self.policies.get(facts.listener)
        if policy is not None and policy.certificate_is_user:
            return facts.certificate is not None
        anonymous = policy is not None and policy.allow_anonymous
        if facts.username is None or self._authenticator is None:
            return anonymous
        return self._authenticator.authenticate(facts, password)

    def _answered(self, connection: int, packet: Connect, facts: ClientFacts, done: Future[bool]) -> None:
        """The authenticator has taken its time; the client may have gone."""
        if not self._engine.is_open(connection):
            return
        try:
            allowed = done.result(timeout=0)
        except Exception:
            log.exception("authentication failed, client refused %s", pairs(client=facts.client_id))
            allowed = False
        self._decided(connection, packet, facts, allowed)
        self._engine.resume(connection)

    def _decided(self, connection: int, packet: Connect, facts: ClientFacts, allowed: bool) -> None:
        if not allowed:
            named = facts.username is not None
            reason = ReasonCode.BAD_USER_NAME_OR_PASSWORD if named else ReasonCode.NOT_AUTHORIZED
            self._refuse(connection, packet, facts, reason)
            return
        policy = self.policies.get(facts.listener)
        if self._authenticator is not None or (policy is not None and policy.certificate_is_user):
            facts = replace(facts, identity=facts.username)
        known = self.sessions.get(facts.client_id)
        if (known is not None and known.identity != facts.identity) or (
            packet.will is not None and not self._may_publish(facts, packet.will.topic)
        ):
            self._refuse(connection, packet, facts, ReasonCode.NOT_AUTHORIZED)
        else:
            self._accept(connection, packet, facts)

    def _refuse(self, connection: int, packet: Connect, facts: ClientFacts, reason: ReasonCode) -> None:
        log.info(
            "client refused %s",
            pairs(client=facts.client_id, peer=self._peer(connection), reason=reason.words),
        )
        self._engine.send(connection, encode(ConnAck(False, reason), packet.version))
        self._engine.close(connection)

    def _accept(self, connection: int, packet: Connect, facts: ClientFacts) -> None:
        """Take over what there is of this client [MQTT-3.1.4-2], and answer."""
        session = self.sessions.get(facts.client_id)
        if session is not None and session.connection:
            log.info("session taken over %s", pairs(client=facts.client_id, peer=self._peer(connection)))
            self._end(session.connection, will=True)
            session = self.sessions.get(facts.client_id)
        if session is not None and packet.clean_start:
            self._forget(session)
            session = None
        present = session is not None and packet.version is not Version.V31  # which has no such flag
        if session is None:
            session = self.sessions.open(facts.client_id, facts.identity, clean=packet.clean_start)
        session.clean = packet.clean_start
        wanted = packet.properties
        assigned = None if packet.client_id else facts.client_id
        answer = ConnAck(present, properties=Properties(assigned_client_identifier=assigned))
        self._engine.send(connection, encode(answer, packet.version))
        trusted = self._access is None
        idle_max_ms = self._idle_max_ms(packet.keep_alive_s)
        window = min(self.limits.sessions.in_flight_max, wanted.receive_maximum or 65_535)
        if not self._engine.attach(
            connection,
            session.handle,
            packet.version,
            idle_max_ms,
            trusted,
            window,
            wanted.maximum_packet_size_bytes or 0,
            min(self.limits.topic_alias_max, wanted.topic_alias_maximum or 0),
        ):
            self.sessions.left(session, self._clock())  # it has gone meanwhile: no client, no will
            if session.clean:
                self._forget(session)
            return
        self.sessions.came(session, connection)
        self._clients[connection] = _Client(connection, facts, packet.version, session, packet.will)
        if log.isEnabledFor(logging.DEBUG):  # a fleet that comes back at once should not pay for the words
            log.debug("client connected %s", pairs(client=facts.client_id, peer=facts.address))

    def _idle_max_ms(self, keep_alive_s: int) -> int:
        """One and a half times the keep alive [MQTT-3.1.2-24]; who asked for none gets the longest."""
        return keep_alive_s * 1500 or self.limits.keep_alive_max_s * 1000

    def _facts(self, connection: int, packet: Connect) -> ClientFacts:
        listener, *_ = self._engine.peer(connection) or (0,)
        client_id = packet.client_id or f"auto-{secrets.token_hex(8)}"
        policy = self.policies.get(listener)
        usual = TransportFacts(policy.transport if policy is not None else "tcp")
        known = self.transports.get(connection, usual)
        by_certificate = policy is not None and policy.certificate_is_user
        return ClientFacts(
            client_id,
            known.certificate if by_certificate else packet.username,
            self._peer(connection),
            listener,
            transport=known.transport,
            certificate=known.certificate,
        )

    # ---- SUBSCRIBE, UNSUBSCRIBE ----

    def _subscribe(self, client: _Client, packet: Subscribe) -> None:
        codes = []
        granted: list[str] = []
        identifier = next(iter(packet.properties.subscription_identifiers), 0)
        for subscription in packet.subscriptions:
            code = self._refusal(client, subscription)
            if code is None:
                code = ReasonCode(subscription.qos)
                is_new = self.router.subscribe(client.session, subscription, identifier)
                if subscription.retain_handling == 0 or (subscription.retain_handling == 1 and is_new):
                    granted.append(subscription.topic_filter)
            codes.append(code)
        self._engine.send(client.connection, encode(SubAck(packet.packet_id, tuple(codes)), client.version))
        for topic_filter in granted:
            self.retained.send(client.session, topic_filter)

    def _refusal(self, client: _Client, subscription: Subscription) -> ReasonCode | None:
        """Why a subscription is not granted."""
        topic_filter, known = subscription.topic_filter, client.session.subscriptions
        if not self.limits.topics.allow(topic_filter):
            return ReasonCode.TOPIC_FILTER_INVALID
        if topic_filter not in known and len(known) >= self.limits.subscriptions_max:
            return ReasonCode.QUOTA_EXCEEDED
        if self._access is not None and not self._access.may_subscribe(client.facts, topic_filter):
            return ReasonCode.NOT_AUTHORIZED
        return None

    def _unsubscribe(self, client: _Client, packet: Unsubscribe) -> None:
        codes = tuple(
            ReasonCode.SUCCESS if was_there else ReasonCode.NO_SUBSCRIPTION_EXISTED
            for was_there in self.router.unsubscribe(client.session, packet.topic_filters)
        )
        self._engine.send(client.connection, encode(UnsubAck(packet.packet_id, codes), client.version))

    # ---- topics ----

    def _topic(self, connection: int, data: bytes) -> None:
        client = self._clients[connection]
        name = _topic_name(data, client.version)
        limits = self.limits.topics
        if not limits.allow(name):
            if client.version is Version.V5:  # it can be told, and stay
                self._engine.skip(connection, ReasonCode.TOPIC_NAME_INVALID)
                return
            raise ProtocolError(
                Rule.VALUE_IS_IN_RANGE,
                f"a topic of {len(data)} bytes and {name.count('/') + 1} levels exceeds topic_max_bytes"
                f" = {limits.topic_max_bytes} or topic_levels_max = {limits.topic_levels_max}",
                client.version,
            )
        topic = self.router.topic_of(name)
        if topic is None:
            self._engine.skip(connection, ReasonCode.QUOTA_EXCEEDED)
        else:
            self._engine.judge(connection, topic, self._may_publish(client.facts, name))

    def _source_topic(self, source: int, data: bytes) -> None:
        try:
            name = _topic_name(data, Version.V311)
        except ProtocolError as error:
            log.warning("record of a local ring skipped %s", pairs(source=source, error=error))
            return
        if not name.startswith("$") and self._topic_if_valid(name) is not None:
            self._engine.judge_source(source)

    def _topic_if_valid(self, name: str) -> int | None:
        try:
            check_name(name)
        except ProtocolError:
            return None
        return self.router.topic_of(name) if self.limits.topics.allow(name) else None

    def _may_publish(self, facts: ClientFacts, topic: str) -> bool:
        """Topics that begin with $ are the server's."""
        return not topic.startswith("$") and (self._access is None or self._access.may_publish(facts, topic))

    def rules_changed(self, access: AccessList | None) -> None:
        """Judge every client and topic anew, by `access`, from the next message on."""
        self._access = access
        self._engine.forget_verdicts()

    # ---- the end of a connection ----

    def _closed(self, connection: int, cause: CloseCause) -> None:
        client = self._clients.get(connection)
        if client is not None and log.isEnabledFor(logging.DEBUG):
            log.debug("connection lost %s", pairs(client=client.facts.client_id, cause=cause.words))
        self._end(connection, will=True)

    def _end(self, connection: int, *, will: bool) -> None:
        """The only way out for a client; `will`: it went without DISCONNECT [MQTT-3.1.2-8]."""
        self._engine.close(connection)
        client = self._clients.pop(connection, None)
        if client is None:
            return
        if client.session.clean:
            self._forget(client.session)
        else:
            self.sessions.left(client.session, self._clock())
        if will and client.will is not None:
            self.publish(client.will.topic, client.will.payload, client.will.qos, client.will.retain)

    def _forget(self, session: Session) -> None:
        self.router.forget(session)
        self.sessions.close(session)

    def stop(self) -> None:
        """End every connection.  Their wills are published: for whoever reads the rings, they are gone."""
        for connection in list(self._clients):
            self._end(connection, will=True)
        self.cold.stop()

    # ---- the broker's own messages, and time ----

    def publish(self, topic: str, payload: bytes, qos: int = 0, retain: bool = False) -> bool:
        """Store a message of the broker itself and deliver it.  False: it was dropped, and counted.

        A full ring that makes publishers wait makes this one wait too: in a queue, up to WAITING_MAX.
        """
        if self._waiting:
            return self._wait(topic, payload, qos, retain)
        known = self._topic_if_valid(topic)
        if known is None:
            return False
        result = self.router.publish(known, payload, qos, retain)
        return self._wait(topic, payload, qos, retain) if result == FULL else result == OK

    def _wait(self, topic: str, payload: bytes, qos: int, retain: bool) -> bool:
        if len(self._waiting) >= WAITING_MAX:
            return False
        self._waiting.append((topic, payload, qos, retain))
        return True

    def tick(self) -> float:
        """What is due by now; seconds until there is more."""
        now_s = self._clock()
        waiting, self._waiting = self._waiting, deque()
        while waiting:
            topic, payload, qos, retain = waiting.popleft()
            self.publish(topic, payload, qos, retain)
            if self._waiting:  # still full: what follows keeps its place behind it
                self._waiting.extend(waiting)
                break
        if now_s >= self._expiry_due_s:
            self._expiry_due_s = now_s + REST_S
            for session in self.sessions.overdue(now_s):
                log.info("session expired %s", pairs(client=session.client_id))
                self._forget(session)
        return RETRY_S if self._waiting else max(self._expiry_due_s - now_s, 0.0)

    def _peer(self, connection: int) -> str:
        """`127.0.0.1:50123`, for logs and rules."""
        peer = self._engine.peer(connection)
        if peer is None:
            return ""
        _, family, address, port = peer
        if family == socket.AF_INET:
            return f"{ipaddress.IPv4Address(address[:4])}:{port}"
        return f"[{ipaddress.IPv6Address(address)}]:{port}" if family == socket.AF_INET6 else ""


def _topic_name(data: bytes, version: Version) -> str:
    try:
        name = data.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(Rule.STRING_IS_UTF8, f"no UTF-8 topic: {error.reason}", version) from None
    check_name(name, version)
    return name
