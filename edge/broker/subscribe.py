"""SUBSCRIBE and UNSUBSCRIBE: authorizes each filter, changes subscriptions, answers.

Owns the answers; the router owns the subscriptions, whose filters have the full names of the client's tenant.
A SUBSCRIBE is answered as a whole, after the access list has decided on each of its filters. Retained
messages follow the SUBACK.

A packet with only plain filters, the usual one, is one call of the engine (Engine.plain_subscribe). A plain
filter has no wildcards, and no options but QoS. All other packets are handled as follows.
A packet may have many filters, and a filter many topics. All work is therefore done in steps
(edge.broker.sliced_work); other clients are served between two steps. Equal filters of one packet are one
piece of work: the options of the last hold [MQTT-3.8.4-3].

Invariant: subscriptions and the routes of topics always agree. Steps of a session therefore run to their end
even if its connection ends.
"""

from __future__ import annotations

from functools import partial
from operator import methodcaller

from msgspec.structs import replace

from edge.auth.interfaces import Answer
from edge.auth.tenant_names import full_filter
from edge.broker.authorization import Authorization
from edge.broker.broker_limits import BrokerLimits
from edge.broker.connections import ConnectedClient, Connections
from edge.broker.deferred import DeferredDecisions
from edge.broker.retained_delivery import Retained
from edge.broker.router import Router, filter_bytes, plain_bytes
from edge.broker.sliced_work import Steps
from edge.engine.engine import Engine, Table, limits_of
from edge.engine.routing_calls import PLAIN_FILTERS_MAX
from edge.mqtt import (
    Properties,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    subscribe_steps,
    unsubscribe_steps,
)
from edge.mqtt.packet_types import PacketType

# Retain Handling of MQTT 5. Before MQTT 5, retained messages are sent at every SUBSCRIBE, which is value 0.
_IF_NEW, _NEVER = 1, 2
_SUBSCRIBE, _UNSUBSCRIBE = PacketType.SUBSCRIBE << 4 | 2, PacketType.UNSUBSCRIBE << 4 | 2  # first bytes
_QOS_MAX = 2
_GRANTED = tuple(map(ReasonCode, range(_QOS_MAX + 1)))
PLAIN_BODY_MAX_BYTES = 32_768  # of a SUBSCRIBE that is handled without a yield


class SubscribeHandler:
    """Handler of SUBSCRIBE and UNSUBSCRIBE: one method for each packet."""

    def __init__(
        self,
        engine: Engine,
        clients: Connections,
        router: Router,
        retained: Retained,
        permissions: Authorization,
        pending: DeferredDecisions,
        limits: BrokerLimits,
    ) -> None:
        self._engine = engine
        self._engine_limits = limits_of(engine)
        self._clients = clients
        self._router = router
        self._retained = retained
        self._permissions = permissions
        self._pending = pending
        self.limits = limits

    def subscribe(self, client: ConnectedClient, first_byte: int, body: bytes) -> None:
        """Handle SUBSCRIBE; the answer is SUBACK with one reason code for each filter [MQTT-3.8.4-6]."""
        self._pending.work(client.connection, client.session, self._subscribe(client, first_byte, body))

    def _subscribe(self, client: ConnectedClient, first_byte: int, body: bytes) -> Steps[None]:
        """Add plain filters in one call; any other SUBSCRIBE is authorized filter by filter."""
        packets = self.limits.packets
        plain = None
        if first_byte == _SUBSCRIBE and len(body) <= PLAIN_BODY_MAX_BYTES:
            max_filters = min(packets.filters_max, PLAIN_FILTERS_MAX)
            plain = self._engine.plain_subscribe(body, client.version, max_filters)
        if plain is not None:
            packet_id, filters, qos = plain
            if prefix := client.client_info.prefix:
                filters = [prefix + topic_filter for topic_filter in filters]
            more_bytes = plain_bytes(filters)
            if self._may_add(client, filters, more_bytes):
                yield from self._add_plain(client, packet_id, filters, qos, more_bytes)
                return
        decoding = subscribe_steps(first_byte, body, client.version, packets)
        self._pending.work(client.connection, client.connection, self._authorize_filters(client, decoding))

    def _may_add(self, client: ConnectedClient, filters: list[str], more_bytes: int) -> bool:
        """True if plain filters are new, within all limits, and allowed without a look at each of them."""
        session, limits, known = client.session, self.limits, client.session.subscriptions
        return (
            self._is_plain(client)
            and (not client.client_info.prefix or all(map(limits.topics.allow, filters)))
            and not self._clients.watchers
            and len(known) + len(filters) <= limits.subscriptions_max
            and session.filters_bytes + more_bytes <= limits.subscriptions_max_bytes
            and len(set(filters)) == len(filters)
            and known.has_none_of(filters)
            and self._engine.session_has_room(session.handle, Table.SUBSCRIPTION_BYTES, more_bytes)
        )

    def _add_plain(
        self, client: ConnectedClient, packet_id: int, filters: list[str], qos: bytes, more_bytes: int
    ) -> Steps[None]:
        if not self._engine.is_open(client.connection):
            return
        max_qos: int = self._engine_limits.qos_max
        if max_qos < _QOS_MAX:
            qos = bytes(min(qos_byte, max_qos) for qos_byte in qos)
        retaining = self._router.subscribe_plain(client.session, filters, qos, more_bytes)
        self._retained.begin(client.session, retaining)
        self._clients.send_packet(client, SubAck(packet_id, tuple(map(_GRANTED.__getitem__, qos))))
        for topic_filter in retaining:
            yield from self._retained.send(client.session, topic_filter)
            yield

    def unsubscribe(self, client: ConnectedClient, first_byte: int, body: bytes) -> None:
        """Handle UNSUBSCRIBE; the answer is UNSUBACK with one reason code for each filter [MQTT-3.11.3-1]."""
        self._pending.work(client.connection, client.session, self._unsubscribe(client, first_byte, body))

    def _unsubscribe(self, client: ConnectedClient, first_byte: int, body: bytes) -> Steps[None]:
        """Remove plain filters in one call, others filter by filter, and answer."""
        packets, plain = self.limits.packets, None
        if first_byte == _UNSUBSCRIBE and len(body) <= PLAIN_BODY_MAX_BYTES and self._is_plain(client):
            max_filters = min(packets.filters_max, PLAIN_FILTERS_MAX)
            plain = self._engine.plain_unsubscribe(body, client.version, max_filters)
        if plain is not None:
            packet = Unsubscribe(plain[0], tuple(plain[1]))
            remove = self._router.unsubscribe_plain
        else:
            packet = yield from unsubscribe_steps(first_byte, body, client.version, packets)
            remove = self._router.unsubscribing
        if self._engine.is_open(client.connection):
            packet = self._with_full_filters(client, packet)
            removed = yield from remove(client.session, packet.topic_filters)
            yield from self._answer_unsubscribe(client, packet, removed)

    def _with_full_filters(self, client: ConnectedClient, packet: Unsubscribe) -> Unsubscribe:
        prefix = client.client_info.prefix
        if not prefix:
            return packet
        full = tuple(full_filter(prefix, topic_filter) for topic_filter in packet.topic_filters)
        return replace(packet, topic_filters=full)

    def _is_plain(self, client: ConnectedClient) -> bool:
        """True if the routes of the client's session follow from its filters and their QoS only."""
        session = client.session
        return session.not_plain == 0 and not session.ended and self._permissions.receives_all(session)

    def _authorize_filters(self, client: ConnectedClient, decoding: Steps[Subscribe]) -> Steps[None]:
        """Authorize each filter once."""
        packet = yield from decoding
        if not self._engine.is_open(client.connection):
            return
        packet = self._granted(client, packet)
        by_filter: dict[str, list[Subscription]] = {}
        for subscription in packet.subscriptions:
            by_filter.setdefault(subscription.topic_filter, []).append(subscription)
        answers: list[Answer] = []
        for topic_filter in by_filter:
            allowed = self.limits.topics.allow_filter(topic_filter)
            answers.append(allowed and self._permissions.may_subscribe(client.client_info, topic_filter))
            yield
        then = partial(self._on_authorized, client, packet, by_filter)
        self._pending.then(client.connection, answers, False, then)

    def _granted(self, client: ConnectedClient, packet: Subscribe) -> Subscribe:
        """The packet with the QoS limited to qos_max, and the full names of filters."""
        max_qos: int = self._engine_limits.qos_max
        prefix = client.client_info.prefix
        if not prefix and max_qos == _QOS_MAX:
            return packet
        full = partial(full_filter, prefix) if prefix else str
        granted = (
            replace(each, topic_filter=full(each.topic_filter), qos=min(each.qos, max_qos))
            for each in packet.subscriptions
        )
        return replace(packet, subscriptions=tuple(granted))

    def _on_authorized(
        self,
        client: ConnectedClient,
        packet: Subscribe,
        by_filter: dict[str, list[Subscription]],
        allowed: list[bool],
    ) -> None:
        steps = self._add_and_answer(client, packet, by_filter, dict(zip(by_filter, allowed, strict=True)))
        self._pending.work(client.connection, client.session, steps)

    def _add_and_answer(
        self,
        client: ConnectedClient,
        packet: Subscribe,
        by_filter: dict[str, list[Subscription]],
        allowed: dict[str, bool],
    ) -> Steps[None]:
        identifier = next(iter(packet.properties.subscription_identifiers), 0)
        refused: dict[str, ReasonCode] = {}
        why: str | None = None
        retained: list[str] = []
        for topic_filter, subscriptions in by_filter.items():
            if not self._engine.is_open(client.connection):
                return  # the rest was not acknowledged, and never will be
            code, reason_string = self._refusal(client, topic_filter, allowed[topic_filter])
            if code is None:
                is_new = yield from self._router.subscribing(client.session, subscriptions[-1], identifier)
                if _sends_retained(subscriptions, is_new):
                    retained.append(topic_filter)
            else:
                refused[topic_filter] = code
            why = why or reason_string
            yield
        codes = tuple(
            refused.get(subscription.topic_filter, ReasonCode(subscription.qos))
            for subscription in packet.subscriptions
        )
        if self._clients.get(client.connection) is not client:
            return
        self._retained.begin(client.session, retained)
        self._clients.send_packet(client, SubAck(packet.packet_id, codes, Properties(reason_string=why)))
        for topic_filter in retained:
            yield from self._retained.send(client.session, topic_filter)
            yield
        if self._clients.watchers:
            for subscription, code in zip(packet.subscriptions, codes, strict=True):
                if not code.failed:
                    self._clients.notify_watchers(
                        methodcaller(
                            "subscribed", client.client_info, subscription.topic_filter, subscription.qos
                        )
                    )
                yield

    def _answer_unsubscribe(
        self, client: ConnectedClient, packet: Unsubscribe, removed: list[bool]
    ) -> Steps[None]:
        codes = tuple(
            ReasonCode.SUCCESS if was_there else ReasonCode.NO_SUBSCRIPTION_EXISTED for was_there in removed
        )
        if self._clients.get(client.connection) is not client:
            return
        self._clients.send_packet(client, UnsubAck(packet.packet_id, codes))
        if self._clients.watchers:
            for topic_filter, was_there in zip(packet.topic_filters, removed, strict=True):
                if was_there:
                    self._clients.notify_watchers(
                        methodcaller("unsubscribed", client.client_info, topic_filter)
                    )
                yield

    def _refusal(
        self, client: ConnectedClient, topic_filter: str, allowed: bool
    ) -> tuple[ReasonCode | None, str | None]:
        """Reason code and Reason String of a refused subscription; (None, None) if it is granted."""
        limits, known = self.limits, client.session.subscriptions
        if not limits.topics.allow_filter(topic_filter):
            return ReasonCode.TOPIC_FILTER_INVALID, (
                f"a topic filter exceeds topic_max_bytes = {limits.topics.topic_max_bytes}"
                f" or topic_levels_max = {limits.topics.topic_levels_max}"
            )
        if not allowed:
            return ReasonCode.NOT_AUTHORIZED, None
        if topic_filter in known:
            return None, None
        if len(known) >= limits.subscriptions_max:
            reason_string = (
                f"too many subscriptions (limit: subscriptions_max = {limits.subscriptions_max}); "
                "unsubscribe some"
            )
            return ReasonCode.QUOTA_EXCEEDED, reason_string
        max_bytes = limits.subscriptions_max_bytes
        if client.session.filters_bytes + filter_bytes(topic_filter) > max_bytes:
            reason_string = (
                f"topic filters too large (limit: subscriptions_max_bytes = {max_bytes}); unsubscribe some"
            )
            return ReasonCode.QUOTA_EXCEEDED, reason_string
        more = filter_bytes(topic_filter)
        if not self._engine.session_may(client.session.handle, Table.SUBSCRIPTION_BYTES, more):
            reason_string = (
                "topic filters of all clients, or of one user or address, are at their limit; "
                "raise limits.filters_max_bytes or [quota]"
            )
            return ReasonCode.QUOTA_EXCEEDED, reason_string
        return None, None


def _sends_retained(subscriptions: list[Subscription], is_new: bool) -> bool:
    """True if retained messages are sent for equal filters of one packet, in the order of the packet.

    Shared subscriptions are not considered here: Retained.send() leaves them out.
    """
    for number, subscription in enumerate(subscriptions):
        handling = subscription.retain_handling
        if handling not in (_IF_NEW, _NEVER) or (handling == _IF_NEW and is_new and number == 0):
            return True
    return False
