"""SUBSCRIBE and UNSUBSCRIBE: what a client gets of what it asks for.

Owns the answers; the subscriptions are the router's.  A SUBSCRIBE is answered as a whole, when the access
list has said of each of its filters whether it may be had; retained messages follow the SUBACK.
"""

from __future__ import annotations

from functools import partial
from operator import methodcaller

from edge.clients import Client, Clients
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

__all__ = ["Subscribing"]

# Retain Handling of MQTT 5; before, retained messages are sent at every SUBSCRIBE, which is 0.
_IF_NEW, _NEVER = 1, 2


class Subscribing:
    """One method for each packet."""

    def __init__(
        self,
        clients: Clients,
        router: Router,
        retained: Retained,
        permissions: Permissions,
        pending: Pending,
        limits: BrokerLimits,
    ) -> None:
        self._clients = clients
        self._router = router
        self._retained = retained
        self._permissions = permissions
        self._pending = pending
        self._limits = limits

    def subscribe(self, client: Client, packet: Subscribe) -> None:
        """Answered with SUBACK, one reason code for each filter [MQTT-3.8.4-6]."""
        answers = [
            self._permissions.may_subscribe(client.facts, subscription.topic_filter)
            if self._is_within_limits(subscription)
            else False
            for subscription in packet.subscriptions
        ]
        self._pending.when(client.connection, answers, False, partial(self._judged, client, packet))

    def unsubscribe(self, client: Client, packet: Unsubscribe) -> None:
        """Answered with UNSUBACK, one reason code for each filter [MQTT-3.11.3-1]."""
        gone = self._router.unsubscribe(client.session, packet.topic_filters)
        codes = tuple(
            ReasonCode.SUCCESS if was_there else ReasonCode.NO_SUBSCRIPTION_EXISTED for was_there in gone
        )
        self._clients.say(client, UnsubAck(packet.packet_id, codes))
        for topic_filter, was_there in zip(packet.topic_filters, gone, strict=True):
            if was_there:
                self._clients.tell(methodcaller("unsubscribed", client.facts, topic_filter))

    def _judged(self, client: Client, packet: Subscribe, allowed: list[bool]) -> None:
        identifier = next(iter(packet.properties.subscription_identifiers), 0)
        codes: list[ReasonCode] = []
        why: str | None = None
        retained: list[str] = []
        for subscription, may in zip(packet.subscriptions, allowed, strict=True):
            code, words = self._refusal(client, subscription, may)
            if code is None:
                code = ReasonCode(subscription.qos)
                is_new = self._router.subscribe(client.session, subscription, identifier)
                if _wants_retained(subscription, is_new):
                    retained.append(subscription.topic_filter)
            codes.append(code)
            why = why or words
        self._clients.say(client, SubAck(packet.packet_id, tuple(codes), Properties(reason_string=why)))
        for topic_filter in retained:
            self._retained.send(client.session, topic_filter)
        for its, code in zip(packet.subscriptions, codes, strict=True):
            if not code.failed:
                self._clients.tell(methodcaller("subscribed", client.facts, its.topic_filter, its.qos))

    def _is_within_limits(self, subscription: Subscription) -> bool:
        return self._limits.topics.allow_filter(subscription.topic_filter)

    def _refusal(
        self, client: Client, subscription: Subscription, allowed: bool
    ) -> tuple[ReasonCode | None, str | None]:
        """Why a subscription is not granted, and what to do about it."""
        limits, known = self._limits, client.session.subscriptions
        if not self._is_within_limits(subscription):
            return ReasonCode.TOPIC_FILTER_INVALID, (
                f"a topic filter exceeds topic_max_bytes = {limits.topics.topic_max_bytes}"
                f" or topic_levels_max = {limits.topics.topic_levels_max}"
            )
        if not allowed:
            return ReasonCode.NOT_AUTHORIZED, None
        if subscription.topic_filter in known:
            return None, None
        if len(known) >= limits.subscriptions_max:
            words = f"a client has at most subscriptions_max = {limits.subscriptions_max} of them"
            return ReasonCode.QUOTA_EXCEEDED, words
        most = limits.subscriptions_max_bytes
        if client.session.filters_bytes + filter_bytes(subscription.topic_filter) > most:
            words = f"filters of a client take at most subscriptions_max_bytes = {most}"
            return ReasonCode.QUOTA_EXCEEDED, words
        return None, None


def _wants_retained(subscription: Subscription, is_new: bool) -> bool:
    """Retained.send() knows that nothing is sent of shared subscriptions."""
    return subscription.retain_handling != _NEVER and (is_new or subscription.retain_handling != _IF_NEW)
