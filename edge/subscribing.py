"""SUBSCRIBE and UNSUBSCRIBE: authorizes each filter, changes subscriptions, answers.

Owns the answers; the router owns the subscriptions. A SUBSCRIBE is answered as a whole, after the access list
has decided on each of its filters. Retained messages follow the SUBACK.

A packet may have many filters, and a filter many topics. All work is therefore done in steps (edge.steps);
other clients are served between two steps. Equal filters of one packet are one piece of work: the options of
the last hold [MQTT-3.8.4-3].

Invariant: subscriptions and the routes of topics always agree. Steps of a session therefore run to their end
even if its connection ends.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from operator import methodcaller

from edge.access import Answer
from edge.clients import Client, Clients
from edge.engine import Engine, Table, limits_of
from edge.limits import BrokerLimits
from edge.mqtt import (
    Properties,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
)
from edge.pending import Pending
from edge.permissions import Permissions
from edge.retained import Retained
from edge.router import Router, filter_bytes
from edge.steps import Steps

__all__ = ["Subscribing"]

# Retain Handling of MQTT 5. Before MQTT 5, retained messages are sent at every SUBSCRIBE, which is value 0.
_IF_NEW, _NEVER = 1, 2


class Subscribing:
    """Handler of SUBSCRIBE and UNSUBSCRIBE: one method for each packet."""

    def __init__(
        self,
        engine: Engine,
        clients: Clients,
        router: Router,
        retained: Retained,
        permissions: Permissions,
        pending: Pending,
        limits: BrokerLimits,
    ) -> None:
        self._engine = engine
        self._engine_limits = limits_of(engine)
        self._clients = clients
        self._router = router
        self._retained = retained
        self._permissions = permissions
        self._pending = pending
        self._limits = limits

    def subscribe(self, client: Client, decoding: Steps[Subscribe]) -> None:
        """Handle SUBSCRIBE; the answer is SUBACK with one reason code for each filter [MQTT-3.8.4-6]."""
        self._pending.work(client.connection, client.connection, self._asked(client, decoding))

    def unsubscribe(self, client: Client, decoding: Steps[Unsubscribe]) -> None:
        """Handle UNSUBSCRIBE; the answer is UNSUBACK with one reason code for each filter [MQTT-3.11.3-1]."""
        self._pending.work(client.connection, client.session, self._unsubscribed(client, decoding))

    def _asked(self, client: Client, decoding: Steps[Subscribe]) -> Steps[None]:
        """Authorize each filter once."""
        packet = yield from decoding
        if not self._engine.is_open(client.connection):
            return
        alike: dict[str, list[Subscription]] = {}
        for subscription in map(self._granted, packet.subscriptions):
            alike.setdefault(subscription.topic_filter, []).append(subscription)
        answers: list[Answer] = []
        for topic_filter in alike:
            allowed = self._limits.topics.allow_filter(topic_filter)
            answers.append(allowed and self._permissions.may_subscribe(client.facts, topic_filter))
            yield
        then = partial(self._judged, client, packet, alike)
        self._pending.when(client.connection, answers, False, then)

    def _granted(self, subscription: Subscription) -> Subscription:
        """The same subscription with its QoS limited to qos_max."""
        most: int = self._engine_limits.qos_max
        return subscription if subscription.qos <= most else replace(subscription, qos=most)

    def _judged(
        self, client: Client, packet: Subscribe, alike: dict[str, list[Subscription]], allowed: list[bool]
    ) -> None:
        steps = self._subscribed(client, packet, alike, dict(zip(alike, allowed, strict=True)))
        self._pending.work(client.connection, client.session, steps)

    def _subscribed(
        self,
        client: Client,
        packet: Subscribe,
        alike: dict[str, list[Subscription]],
        allowed: dict[str, bool],
    ) -> Steps[None]:
        identifier = next(iter(packet.properties.subscription_identifiers), 0)
        refused: dict[str, ReasonCode] = {}
        why: str | None = None
        retained: list[str] = []
        for topic_filter, same in alike.items():
            if not self._engine.is_open(client.connection):
                return  # the rest was not acknowledged, and never will be
            code, words = self._refusal(client, topic_filter, allowed[topic_filter])
            if code is None:
                is_new = yield from self._router.subscribing(client.session, same[-1], identifier)
                if _wants_retained(same, is_new):
                    retained.append(topic_filter)
            else:
                refused[topic_filter] = code
            why = why or words
            yield
        granted = map(self._granted, packet.subscriptions)
        codes = tuple(refused.get(its.topic_filter, ReasonCode(its.qos)) for its in granted)
        if self._clients.get(client.connection) is not client:
            return
        self._clients.say(client, SubAck(packet.packet_id, codes, Properties(reason_string=why)))
        for topic_filter in retained:
            yield from self._retained.send(client.session, topic_filter)
            yield
        if self._clients.watchers:
            for its, code in zip(packet.subscriptions, codes, strict=True):
                if not code.failed:
                    self._clients.tell(methodcaller("subscribed", client.facts, its.topic_filter, its.qos))
                yield

    def _unsubscribed(self, client: Client, decoding: Steps[Unsubscribe]) -> Steps[None]:
        packet = yield from decoding
        if not self._engine.is_open(client.connection):
            return
        gone = yield from self._router.unsubscribing(client.session, packet.topic_filters)
        codes = tuple(
            ReasonCode.SUCCESS if was_there else ReasonCode.NO_SUBSCRIPTION_EXISTED for was_there in gone
        )
        if self._clients.get(client.connection) is not client:
            return
        self._clients.say(client, UnsubAck(packet.packet_id, codes))
        if self._clients.watchers:
            for topic_filter, was_there in zip(packet.topic_filters, gone, strict=True):
                if was_there:
                    self._clients.tell(methodcaller("unsubscribed", client.facts, topic_filter))
                yield

    def _refusal(
        self, client: Client, topic_filter: str, allowed: bool
    ) -> tuple[ReasonCode | None, str | None]:
        """Reason code and Reason String of a refused subscription; (None, None) if it is granted."""
        limits, known = self._limits, client.session.subscriptions
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
            words = f"a client has at most subscriptions_max = {limits.subscriptions_max} of them"
            return ReasonCode.QUOTA_EXCEEDED, words
        most = limits.subscriptions_max_bytes
        if client.session.filters_bytes + filter_bytes(topic_filter) > most:
            words = f"filters of a client take at most subscriptions_max_bytes = {most}"
            return ReasonCode.QUOTA_EXCEEDED, words
        more = filter_bytes(topic_filter)
        if not self._engine.session_may(client.session.handle, Table.SUBSCRIPTION_BYTES, more):
            words = "filters of all clients, or of one user or address, take too much: see filters_max_bytes"
            return ReasonCode.QUOTA_EXCEEDED, words
        return None, None


def _wants_retained(same: list[Subscription], is_new: bool) -> bool:
    """True if retained messages are sent for equal filters of one packet, given in their order.

    Shared subscriptions are not considered here: Retained.send() leaves them out.
    """
    return any(
        its.retain_handling not in (_IF_NEW, _NEVER) or (its.retain_handling == _IF_NEW and is_new and first)
        for first, its in ((its is same[0], its) for its in same)
    )
