"""Broker dispatcher: handles each event of the engine on the broker's thread.

Owns the order of the parts that decide: connecting, authenticating, subscribing, sessions, routes, retained
messages, wills and $SYS. Never touches sockets: events come from the engine, and answers go to the engine.
Never handles PUBLISH, acknowledgements or PINGREQ; those stay in C.

    event               handled by
    PACKET CONNECT      edge.broker.connect, or edge.broker.enhanced_auth if it names an Authentication Method
    PACKET AUTH         edge.broker.enhanced_auth
    PACKET SUBSCRIBE    edge.broker.subscribe
    PACKET UNSUBSCRIBE  edge.broker.subscribe
    PACKET DISCONNECT   _disconnect
    TOPIC               _topic: make the topic known, and authorize the client to publish to it
    CLOSED              _closed
    PRODUCER_TOPIC      _producer_topic
    BACKFILL            LogBackfill.start_read
    JOURNAL             SessionJournal.save_snapshot, or on_retained_due
    UPGRADE             on_upgrade: the transport answers the HTTP request of a WebSocket client
    PROXY               on_proxy: the transport answers the PROXY header of a connection

Invariants: an exception in the handling of one event ends the connection of that event and no other. Every
accepted client leaves through Connections.end(), once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

from edge.auth.interfaces import (
    AccessList,
    Authenticator,
    ClientCertificate,
    ClientInfo,
    EnhancedAuthenticator,
    ListenerPolicy,
    Watcher,
)
from edge.auth.tenants import NO_TENANTS, Tenants
from edge.broker.authorization import Authorization
from edge.broker.broker_limits import BrokerLimits
from edge.broker.connect import ConnectHandler
from edge.broker.connections import ConnectedClient, Connections, audit_facts
from edge.broker.deferred import Call, DeferredDecisions
from edge.broker.delayed_topics import DELAYED, delayed_target
from edge.broker.engine_rings import PartitionLike, StreamRules
from edge.broker.enhanced_auth import EnhancedAuth
from edge.broker.internal_publisher import RETRY_S, InternalPublisher
from edge.broker.log_backfill import LogBackfill
from edge.broker.quotas import Owners, key_of
from edge.broker.retained_authors import author_of
from edge.broker.retained_delivery import Retained
from edge.broker.router import Router
from edge.broker.sessions import Sessions
from edge.broker.sliced_work import Steps
from edge.broker.subscribe import SubscribeHandler
from edge.broker.sys_topics import SysTopics
from edge.broker.tenant_usage import TenantUsage
from edge.broker.wills import Wills, message_of
from edge.engine.engine import CloseCause, Engine, Event, EventKind, limits_of
from edge.logging_setup import AUDIT, pairs
from edge.mqtt import (
    Auth,
    Connect,
    Disconnect,
    ProtocolError,
    ReasonCode,
    Rule,
    Version,
    Will,
    check_name,
    decode_packet,
    encode,
    refusal,
)
from edge.mqtt.packet_types import PacketType
from edge.mqtt.primitives import decode_variable_integer
from edge.session_store.journal_writer import JournalTarget, SessionJournal
from edge.session_store.views import BrokerView

__all__ = ["Broker", "BrokerLimits"]

log = logging.getLogger(__name__)
audit = logging.getLogger(AUDIT)

_OF_SERVERS = {PacketType.CONNACK, PacketType.SUBACK, PacketType.UNSUBACK, PacketType.PINGRESP}

# the kinds that come once per client or topic; reading a member of an enumeration takes a function call
_PACKET, _TOPIC, _CLOSED = int(EventKind.PACKET), int(EventKind.TOPIC), int(EventKind.CLOSED)

_NORMAL_DISCONNECT = encode(Disconnect())  # the same in every version

REST_S = 10.0  # the longest time between two checks of what the hot path has refused


class Broker:
    """Control plane of the broker. All methods run on one thread: the thread that polls the engine."""

    def __init__(
        self,
        engine: Engine,
        partition_of: Callable[[str], PartitionLike],
        *,
        limits: BrokerLimits | None = None,
        authenticator: Authenticator | None = None,
        enhanced: EnhancedAuthenticator | None = None,
        access: AccessList | None = None,
        call: Call | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
        version: str = "",
        streams: StreamRules = (),
        tenants: Tenants = NO_TENANTS,
    ) -> None:
        """Create the parts of the control plane.

        `call` runs a function on this thread, from any other thread; answers that take time need it.
        `version` is the text of the topic $SYS/broker/version. `streams`: see Router.
        """
        self.limits = limits or BrokerLimits()
        self.on_producer_bad: Callable[[int], object] = lambda ring_number: None
        # rings are about to overwrite records that are retained
        self.on_retained_due: Callable[[], object] = lambda: None
        self.on_upgrade: Callable[[int, bytes], object] = lambda connection, request: None
        self.on_proxy: Callable[[int, bytes], object] = lambda connection, header: None
        self.engine = engine
        self.journal = SessionJournal(engine, clock=clock, wall_ns=wall_ns)
        self.router = Router(
            engine, partition_of, self.limits.topics, self.limits.sessions, self.journal, streams
        )
        self.sessions = Sessions(engine, self.limits.sessions, self.journal)
        self.backfill = LogBackfill(engine, self.router.rings.ring_of, self.router.purge_unnamed)
        self.own_messages = InternalPublisher(engine, self.router)
        self.retained = Retained(engine, self.router, self.journal, self.own_messages.topic_of, clock)
        self.owners = Owners(engine, clock)
        self.wills = Wills(self._publish_will, self.journal, self.limits.wills, lambda: not self.own_messages)
        self.tenants = TenantUsage(engine, self.wills, tenants)
        self.clients = Connections(engine, self.sessions, self.router, self.wills, self.journal, clock)
        self._engine = engine
        self._engine_limits = limits_of(engine)
        self._clock = clock
        self._permissions = Authorization(engine, authenticator, enhanced, access, tenants)
        self._pending = DeferredDecisions(engine, call, self._run_guarded)
        self.router.run_later = lambda steps: self._pending.work(0, object(), steps)
        self.retained.may_publish = self._may_publish
        self._connecting = ConnectHandler(
            engine, self.clients, self.sessions, self._permissions, self._pending, self.limits
        )
        self._authenticating = EnhancedAuth(
            engine, self.clients, self._connecting, self._permissions, self._pending
        )
        self._subscribing = SubscribeHandler(
            engine, self.clients, self.router, self.retained, self._permissions, self._pending, self.limits
        )
        self.sys_topics = SysTopics(
            engine,
            self.own_messages.topic_of,
            self.sessions,
            self.clients,
            self.router,
            self.limits.sys_interval_s,
            version,
            clock(),
        )
        self._set_access(access)

    @property
    def policies(self) -> dict[int, ListenerPolicy]:
        """Policy of each listener, by listener number. The listener's owner fills this mapping."""
        return self._permissions.policies

    @property
    def certificate_of(self) -> Callable[[int], ClientCertificate | None]:
        """Function that returns the certificate of a client. The owner of the connections sets it."""
        return self._permissions.certificate_of

    @certificate_of.setter
    def certificate_of(self, function: Callable[[int], ClientCertificate | None]) -> None:
        self._permissions.certificate_of = function

    @property
    def watchers(self) -> list[Watcher]:
        """Watchers that are notified when clients connect, disconnect, subscribe and unsubscribe."""
        return self.clients.watchers

    @property
    def call(self) -> Call | None:
        """Function that runs another function on this thread, from any other thread."""
        return self._pending.call

    @call.setter
    def call(self, call: Call) -> None:
        self._pending.call = call

    # ---- events ----

    def handle(self, events: Iterable[Event]) -> None:
        """Handle the events that the engine has collected."""
        self._pending.begin_slice()
        for kind, connection, detail, data in events:
            try:
                self._handle(kind, connection, detail, data)
            except Exception as error:  # noqa: BLE001 - an error ends only this connection
                self._failed(connection, error)

    def _run_guarded(self, connection: int, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001 - an error ends only this connection
            self._failed(connection, error)

    def _failed(self, connection: int, error: Exception) -> None:
        """End a connection after a protocol error of the client, or after a defect of the broker."""
        if isinstance(error, ProtocolError):
            self._broke_rule(connection, error)
            return
        peer = self._permissions.peer(connection)
        with suppress(MemoryError):  # without memory for a line too, only this connection ends
            log.error("event failed, connection closed %s", pairs(peer=peer), exc_info=error)
        self._abandon(connection)

    def _abandon(self, connection: int) -> None:
        try:
            self._end(connection, will=True, reason=ReasonCode.UNSPECIFIED_ERROR)
        except Exception:
            with suppress(MemoryError):
                log.exception("connection not ended cleanly %s", pairs(connection=connection))

    def _handle(self, kind: int, connection: int, detail: int, data: bytes) -> None:
        if kind == _PACKET:
            self._packet(connection, data)
        elif kind == _TOPIC:
            self._topic(connection, data)
        elif kind == _CLOSED:
            self._closed(connection, detail)
        elif kind == EventKind.UPGRADE:
            self.on_upgrade(connection, data)
        elif kind == EventKind.PROXY:
            self.on_proxy(connection, data)
        elif kind == EventKind.BACKFILL:
            if client := self.clients.get(connection):
                self.backfill.start_read(client.session, self.call)
        elif kind == EventKind.PRODUCER_TOPIC:
            self._producer_topic(detail, data)
        elif kind == EventKind.JOURNAL:
            self.journal.save_snapshot() if detail == 0 else self.on_retained_due()
        else:
            log.error("producer ring invalid, reading stopped %s", pairs(number=detail))
            self.on_producer_bad(detail)

    def _packet(self, connection: int, data: bytes) -> None:
        client = self.clients.get(connection)
        if client is not None and data == _NORMAL_DISCONNECT:
            self._end(connection, will=False, cause="DISCONNECT")
        elif client is not None:
            self._packet_of(client, data[0], _body_of(data))
        elif self._authenticating.is_under_way(connection):
            packet = decode_packet(data[0], _body_of(data), Version.V5, self.limits.packets)
            self._authenticating.before_connack(connection, packet)
        elif (plain := self._engine.plain_connect(data)) is not None:
            self._connecting.connect_plain(connection, plain, len(data))
        else:
            packet = decode_packet(data[0], _body_of(data), limits=self.limits.packets)
            if not isinstance(packet, Connect):
                raise ProtocolError(Rule.CONNECT_IS_FIRST, f"{type(packet).__name__} before CONNECT")
            if packet.properties.authentication_method is None:
                self._connecting.connect(connection, packet, len(data))
            else:
                self._authenticating.connect(connection, packet, len(data))

    def _packet_of(self, client: ConnectedClient, first_byte: int, body: bytes) -> None:
        # a second CONNECT is an error in every version, whatever it contains
        if first_byte >> 4 == PacketType.CONNECT:
            raise ProtocolError(Rule.CONNECT_IS_SENT_ONCE, "a second CONNECT", client.version)
        if first_byte >> 4 in _OF_SERVERS:  # refused without decoding
            text = f"a client does not send {PacketType(first_byte >> 4).name}"
            raise ProtocolError(Rule.DIRECTION, text, client.version)
        if first_byte >> 4 in (PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE):
            self._filters_of(client, first_byte, body)
            return
        packet = decode_packet(first_byte, body, client.version, self.limits.packets)
        if isinstance(packet, Disconnect):
            self._disconnect(client, packet)
        elif isinstance(packet, Auth):
            self._authenticating.auth(client, packet)
        else:
            raise ProtocolError(
                Rule.DIRECTION, f"a client does not send {type(packet).__name__}", client.version
            )

    def _filters_of(self, client: ConnectedClient, first_byte: int, body: bytes) -> None:
        """Handle SUBSCRIBE or UNSUBSCRIBE in steps: decoding takes time in proportion to the filters."""
        if first_byte >> 4 == PacketType.SUBSCRIBE:
            self._subscribing.subscribe(client, first_byte, body)
        else:
            self._subscribing.unsubscribe(client, first_byte, body)

    def _broke_rule(self, connection: int, error: ProtocolError) -> None:
        client = self.clients.get(connection)
        facts = pairs(peer=self._permissions.peer(connection), reason=error)
        if client is not None:
            log.info("connection closed %s", facts)
        else:
            audit.info("connection refused %s", facts)
            version = Version.V5 if self._authenticating.is_under_way(connection) else error.version
            error.version = version
            if (last_words := refusal(error)) is not None:
                self._engine.send(connection, encode(last_words, version))
        self._end(connection, will=True, reason=error.reason_code, reason_string=str(error))

    # ---- topics ----

    def _topic(self, connection: int, data: bytes) -> None:
        client = self.clients[connection]
        name = _topic_name(data, client.version)
        limits = self.limits.topics
        if not limits.allow(name):
            if client.version == Version.V5:  # an MQTT 5 client gets a reason code and stays connected
                self._engine.drop_publish(connection, ReasonCode.TOPIC_NAME_INVALID)
                return
            raise ProtocolError(
                Rule.VALUE_IS_IN_RANGE,
                f"a topic of {len(data)} bytes and {name.count('/') + 1} levels exceeds topic_max_bytes"
                f" = {limits.topic_max_bytes} or topic_levels_max = {limits.topic_levels_max}",
                client.version,
            )
        checked_topic = name  # the topic that the access rules decide about
        if self.router.delay_max_s and name.startswith(DELAYED):
            target = delayed_target(name, self.router.delay_max_s)
            if target is None:
                self._engine.drop_publish(connection, ReasonCode.TOPIC_NAME_INVALID)
                return
            _, checked_topic = target
        answer = self._permissions.may_publish(client.client_info, checked_topic)
        self._pending.then(connection, [answer], False, partial(self._authorize_topic, connection, name))

    def _authorize_topic(self, connection: int, name: str, allowed: list[bool]) -> None:
        self._pending.work(connection, connection, self._authorization_steps(connection, name, all(allowed)))

    def _authorization_steps(self, connection: int, name: str, allowed: bool) -> Steps[None]:
        client = self.clients.get(connection)
        if client is None:
            return
        topic = yield from self.router.topic_steps(name, client.session.handle)
        if topic is None:
            self._engine.drop_publish(connection, ReasonCode.QUOTA_EXCEEDED)
        else:
            self._engine.authorize(connection, topic, allowed)

    def _producer_topic(self, ring_number: int, data: bytes) -> None:
        try:
            name = _topic_name(data, Version.V311)
        except ProtocolError as error:
            log.warning("producer ring record skipped %s", pairs(number=ring_number, error=error))
            return
        if not name.startswith("$") and self.own_messages.topic_of(name) is not None:
            self._engine.resume_ring(ring_number)

    # ---- the end of a connection ----

    def _disconnect(self, client: ConnectedClient, packet: Disconnect) -> None:
        """End the connection. Only a normal disconnection discards the will [MQTT-3.14.4-3]."""
        expiry_s = packet.properties.session_expiry_interval_s
        if expiry_s is not None:
            if expiry_s > 0 and client.session.expiry_s == 0:
                text = "a session that was to end with its connection cannot be kept"
                raise ProtocolError(Rule.SESSION_EXPIRY_STAYS_ZERO, text, client.version)
            client.session.expiry_s = self.sessions.allowed_s(expiry_s)
        is_normal = packet.reason_code == ReasonCode.SUCCESS
        cause = "" if is_normal else f": {packet.reason_code.words}"
        self._end(client.connection, will=not is_normal, cause=f"DISCONNECT{cause}")

    def _closed(self, connection: int, cause: int) -> None:
        self._end(connection, will=True, cause=CloseCause(cause).words)

    def _end(
        self,
        connection: int,
        *,
        will: bool,
        reason: ReasonCode | None = None,
        reason_string: str | None = None,
        cause: str = "",
    ) -> None:
        self._authenticating.forget(connection)
        self._connecting.forget(connection)
        self._pending.forget(connection)
        self.clients.end(
            connection,
            will=will,
            reason=reason,
            reason_string=reason_string,
            cause=cause,
        )

    def acl_changed(self, access: AccessList | None) -> None:
        """Check every client and topic again with `access`, from the next message on.

        Clients that the authenticator no longer accepts are disconnected. Subscriptions stay; messages that
        may not be received any more are not delivered, nor queued for sessions of clients that are away.
        Routes of users whose rules are the same stay.
        """
        before = self._permissions.access
        self._set_access(access)
        self._engine.clear_acl_cache()
        self.users_changed()
        for client in self.clients:
            rules = self._permissions.publish_rules(client.client_info)
            self._engine.publish_rules(client.connection, rules)
        for session in self.sessions:
            self.engine.session_receives(session.handle, self._permissions.receives_all(session))
        users = self._permissions.changed_users(before)
        changed = None if users is None else [s for s in self.sessions if s.visible_client.identity in users]
        self.router.acl_changed(self.sessions, changed)
        self.check_retained()

    def users_changed(self) -> None:
        """Disconnect clients that the authenticator no longer accepts. The rules are the same as before: no
        route is made again, which takes 0.1 ms for each session, and no retained message is checked.
        """
        for client in self.clients:
            if not self._permissions.is_still_authorized(client.client_info):
                facts = audit_facts(client.client_info)
                audit.info("client disconnected: no longer authorized %s", facts)
                self._end(client.connection, will=True, reason=ReasonCode.NOT_AUTHORIZED)

    def apply_limits(self, limits: BrokerLimits) -> None:
        """Use other limits from now on. Connections, sessions, wills and subscriptions that exist stay; the
        bounds of a queue and an in-flight window are those of the time when their session was opened, or its
        client connected.
        """
        self.limits = self._connecting.limits = self._subscribing.limits = limits
        self.sessions.limits, self.wills.limits = limits.sessions, limits.wills
        self.router.apply_limits(limits.topics, limits.sessions)

    def apply_tenants(self, tenants: Tenants) -> None:
        """Use other tenants from now on. Clients that belong to another tenant than before are disconnected.

        Lower limits of a tenant end nothing: only new use is refused.
        """
        self._permissions.tenants = tenants
        self.tenants.apply(tenants)
        self._pending.work(0, self.tenants, self._tenant_steps())

    def _tenant_steps(self) -> Steps[None]:
        for client in self.clients:
            connected = self.clients.get(client.connection) is client
            if connected and not self._permissions.is_in_its_tenant(client.client_info):
                audit.info("client disconnected: moved to another tenant %s", audit_facts(client.client_info))
                self._end(client.connection, will=True, reason=ReasonCode.NOT_AUTHORIZED)
            yield

    def check_retained(self) -> None:
        """Withhold retained messages of clients that may no longer publish them."""
        if self.limits.check_retain_source:
            self._pending.work(0, self.retained, self.retained.check_authors())

    def _may_publish(self, client_info: ClientInfo, topic: str, then: Callable[[list[bool]], None]) -> None:
        self._pending.then(0, [self._permissions.may_publish(client_info, topic)], False, then)

    def _set_access(self, access: AccessList | None) -> None:
        self._permissions.access = access
        self.router.may_receive = None if access is None else self._permissions.may_receive
        self.router.routes.allowed_filters = self._permissions.allowed_filters
        self.router.receive_rules = self._permissions.receive_rules

    def disconnect(self, client_id: str) -> bool:
        """End a client's connection for an administrator. True if the client was connected."""
        session = self.sessions.get(client_id)
        if session is None or not session.connection:
            return False
        self._end(session.connection, will=True, reason=ReasonCode.ADMINISTRATIVE_ACTION)
        return True

    def stop(self) -> None:
        """End every connection and publish the wills that are due.

        Without a journal of sessions all waiting wills are published now. With a journal they stay in it, and
        wait again after the next start.
        """
        for client in self.clients:
            self._end(client.connection, will=True, reason=ReasonCode.SERVER_SHUTTING_DOWN)
        self.wills.stop(all_of_them=not self.journal.is_open)
        self.backfill.stop()
        self.journal.stop()

    def keep(self, place: JournalTarget) -> None:
        """Write the state that a restart needs to `place` from now on. Raises OSError."""
        view = BrokerView(self.sessions, self.router, self.wills, self.clients)
        self.journal.begin(place, view, self.call)

    def counts(self) -> dict[str, int]:
        """Figures of the control plane for the status: current values, and totals since the start."""
        return {
            "sessions_away": self.sessions.away,
            "sessions_expired": self.sessions.expired,
            "clients_max_seen": self.clients.clients_max_seen,
            "wills_waiting": len(self.wills),
            "wills_bytes": self.wills.held_bytes,
            "sys_topics": len(self.sys_topics),
            "own_messages_waiting": len(self.own_messages),
            "own_messages_dropped": self.own_messages.dropped,
        }

    @property
    def refused(self) -> dict[str, int]:
        """Refused CONNECTs since the start, by reason."""
        return self._connecting.refused.copy()

    def journal_failed(self, reason: str) -> None:
        """Refuse clients with a kept session, because the log of the journal accepts no records; "": it does
        again.
        """
        self.journal.ack_failure = reason
        if reason:
            self._connecting.refuse_unconfirmed()

    # ---- the broker's own messages, and time ----

    def publish(self, topic: str, payload: bytes, qos: int = 0, retain: bool = False) -> bool:
        """Store and deliver a message of the broker itself. False if it was dropped, which is counted.

        If the ring is full and its publishers wait, this message waits too, in a bounded queue.
        """
        return self.own_messages.publish(topic, payload, qos, retain)

    def _publish_will(self, client_info: ClientInfo, will: Will) -> None:
        """Publish a will, if the rules of now (not those at CONNECT) still allow that."""

        def decided(allowed: list[bool]) -> None:
            if all(allowed):
                properties, expiry_flag = message_of(will)
                # CONNACK of MQTT 3.1.1 cannot announce qos_max
                qos = min(will.qos, self._engine_limits.qos_max)
                session = self.sessions.get(client_info.client_id)  # No Local holds for the will too
                self.own_messages.publish(
                    will.topic,
                    will.payload,
                    qos,
                    will.retain,
                    properties,
                    expiry_flag,
                    key_of(client_info),
                    author_of(client_info),
                    session.handle if session is not None else 0,
                )
            else:
                log.info(
                    "will dropped: publication no longer allowed %s", pairs(client=client_info.client_id)
                )

        self._pending.then(0, [self._permissions.may_publish(client_info, will.topic)], False, decided)

    def tick(self) -> float:
        """Do the work that is due. Returns the seconds until more work is due."""
        now_s = self._clock()
        self.own_messages.tick()
        self.wills.tick(now_s)
        self.sys_topics.tick(now_s)
        self.journal.tick(now_s)
        self.retained.tick(now_s)
        self.owners.report_refused()
        for session in self.sessions.overdue(now_s):
            log.info("session expired %s", pairs(client=session.client_id))
            self.clients.forget(session)
        work_s = self._pending.tick()
        if self.own_messages:
            return min(RETRY_S, work_s)
        next_s = min(
            self.sessions.next_s,
            self.wills.next_s,
            self.sys_topics.next_s,
            self.journal.next_s,
            self.router.forget_idle_topics(now_s),
        )
        return min(max(next_s - now_s, 0.0), work_s, REST_S)


def _body_of(packet: bytes) -> bytes:
    """Body of a whole packet: the bytes after the fixed header."""
    if packet[1] < 0x80:
        return packet[2:]
    length = decode_variable_integer(packet, 1, len(packet))
    assert length is not None
    return packet[1 + length[1] :]


def _topic_name(data: bytes, version: Version) -> str:
    try:
        name = data.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(Rule.STRING_IS_UTF8, f"no UTF-8 topic: {error.reason}", version) from None
    check_name(name, version)
    return name
