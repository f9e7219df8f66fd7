"""Subscriptions: messages of topic filters in bounded queues, and the queues of each message.

A full queue never stops the connection, because acknowledgements that its own reader awaits could then not
arrive. Instead a QoS 0 message is dropped and counted. A QoS 1 or 2 message is held and acknowledged only
when there is room: the broker's in-flight window then holds the rest back.

Messages of a resumed session may arrive before a subscription exists. They wait, unacknowledged, for a
matching subscription; above UNCLAIMED_LIMIT the oldest is dropped and counted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, Self

from edge.client.errors import SubscribeRefused
from edge.errors import check_seconds
from edge.mqtt import Properties, Publish, Version, matches, split_share
from edge.mqtt.inflight import Receipt
from edge.mqtt.properties import NO_PROPERTIES
from edge.waiting import within

UNCLAIMED_LIMIT = 1000
ROUTES_LIMIT = 10_000  # topics whose subscriptions are cached


@dataclass(frozen=True, slots=True)
class Message:
    """A received message. `retain`: it was retained before this client subscribed."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False  # the broker may have sent it before
    properties: Properties = NO_PROPERTIES

    @property
    def text(self) -> str:
        """The payload as UTF-8; invalid bytes become U+FFFD."""
        return self.payload.decode(errors="replace")


class Held:
    """A message at QoS 1 or 2 that some queues have no room for: acknowledged when all have taken it."""

    __slots__ = ("parties", "receipt")

    def __init__(self, receipt: Receipt) -> None:
        self.receipt = receipt
        self.parties = 0


class Subscriber(Protocol):
    """The part of a client that a subscription uses."""

    async def _begin(self, subscription: Subscription) -> None:
        """Wait until the broker has granted all filters."""

    async def _end(self, subscription: Subscription) -> None:
        """Wait until the broker sends no more for the subscription."""

    def _taken(self, receipt: Receipt) -> None:
        """Report that the message may be acknowledged."""


class Subscription:
    """Messages that match `filters`, as an asynchronous iterator. Created by Client.subscribe().

    Begins with the first requested message, or with `async with`, which also ends it: leaving a loop does
    not. Iteration ends when the client is closed, and raises ConnectionLost when the connection is lost
    without a reconnect. Only one task may iterate. `dropped` counts QoS 0 messages without room.
    """

    def __init__(
        self, client: Subscriber, filters: tuple[str, ...], qos: int, limit: int, limit_bytes: int
    ) -> None:
        self.filters = filters
        self.qos = qos
        self.dropped = 0
        self._client = client
        self._limit, self._limit_bytes = limit, limit_bytes
        self._queue: deque[Message] = deque()
        self._queued_bytes = 0
        self._late: deque[tuple[Message, Held]] = deque()
        self._arrival: asyncio.Future[None] | None = None
        self._started = False
        self._over = False
        self._error: Exception | None = None

    def __len__(self) -> int:
        """Number of messages that wait to be taken."""
        return len(self._queue) + len(self._late)

    @property
    def _crowded(self) -> bool:
        """True if the queue is more than half full: its reader should run."""
        return 2 * len(self._queue) > self._limit or 2 * self._queued_bytes > self._limit_bytes

    async def start(self) -> None:
        """Subscribe, unless done already. Raises SubscribeRefused; no messages arrive then."""
        if not self._started:
            self._started = True
            await self._client._begin(self)

    async def close(self) -> None:
        """Unsubscribe. Waiting messages may still be taken; then iteration ends."""
        if self._started and not self._over:
            self._finish(None)
            await self._client._end(self)

    @property
    def _ended(self) -> bool:
        """True if no message waits and none will come."""
        return self._over and not self._queue

    def _raise_error(self) -> None:
        """Raise the error that ended the subscription, if there is one."""
        if self._error is not None:
            raise self._error

    async def read(self, timeout_s: float = 0.0) -> Message | None:
        """The next message; None if there is none within `timeout_s`, or the subscription has ended."""
        await self.start()
        if not self._queue and not self._over:
            check_seconds("timeout_s", timeout_s)
            if timeout_s == 0:
                return None
        with suppress(StopAsyncIteration):
            return await within(timeout_s, anext(self))
        return None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        if not self._started:
            await self.start()
        while not self._queue:
            if self._over:
                raise self._error or StopAsyncIteration
            self._arrival = asyncio.get_running_loop().create_future()
            try:
                await self._arrival
            finally:
                self._arrival = None
        return self._take()

    def _take(self) -> Message:
        """The next message, without waiting. Raises IndexError if there is none."""
        message = self._queue.popleft()
        self._queued_bytes -= len(message.payload)
        while self._late and self._has_room(self._late[0][0]):
            late, receipt = self._late.popleft()
            self._append(late)
            receipt.parties -= 1
            if not receipt.parties:
                self._client._taken(receipt.receipt)
        return message

    def _offer(self, message: Message, receipt: Held | None) -> None:
        """Queue a message, or drop it (QoS 0), or hold it and count this queue in held.parties."""
        if not self._late and self._has_room(message):
            self._append(message)
        elif receipt is None:
            self.dropped += 1
        else:
            receipt.parties += 1
            self._late.append((message, receipt))

    def _finish(self, error: Exception | None) -> None:
        """Accept no more messages. Iteration ends after the queued ones, with `error` if there is one."""
        self._over = True
        self._error = self._error or error
        self._wake()

    def _forget_late(self) -> None:
        """Drop held QoS 1 messages: they were not acknowledged, so the broker sends them again."""
        self._late = deque((message, receipt) for message, receipt in self._late if message.qos == 2)

    def _has_room(self, message: Message) -> bool:
        if not self._queue:
            return True  # otherwise one larger than limit_bytes would never pass
        return (
            len(self._queue) < self._limit and self._queued_bytes + len(message.payload) <= self._limit_bytes
        )

    def _append(self, message: Message) -> None:
        self._queue.append(message)
        self._queued_bytes += len(message.payload)
        self._wake()

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)


class SubscriptionRouter:
    """Subscriptions of a client: all their filters, and the queues for each message."""

    def __init__(self, taken: Callable[[Receipt], None], version: Version) -> None:
        self.unclaimed_dropped = 0
        self._taken = taken
        self._version = version
        self._subscriptions: list[Subscription] = []
        self._routes: dict[str, tuple[Subscription, ...]] = {}
        self._unclaimed: deque[tuple[Message, Receipt | None]] = deque()

    @property
    def crowded(self) -> bool:
        """True if the reader of some subscription should run before more messages are queued."""
        return any(subscription._crowded for subscription in self._subscriptions)

    @property
    def dropped(self) -> int:
        """Number of QoS 0 messages without room, and of messages without a subscription."""
        return self.unclaimed_dropped + sum(one.dropped for one in self._subscriptions)

    def filters(self) -> dict[str, int]:
        """All filters, each with the highest requested QoS."""
        qos_by_filter: dict[str, int] = {}
        for subscription in self._subscriptions:
            for topic_filter in subscription.filters:
                qos_by_filter[topic_filter] = max(subscription.qos, qos_by_filter.get(topic_filter, 0))
        return qos_by_filter

    def add(self, subscription: Subscription) -> dict[str, int]:
        """Add a subscription, and deliver unclaimed messages to it. Returns the filters to subscribe to."""
        self._subscriptions.append(subscription)
        self._routes.clear()
        waiting, self._unclaimed = self._unclaimed, deque()
        for message, receipt in waiting:
            self.deliver(message, receipt)
        return {one: qos for one, qos in self.filters().items() if one in subscription.filters}

    def remove(self, subscription: Subscription) -> list[str]:
        """Remove a subscription. Returns the filters that no other subscription has."""
        if subscription not in self._subscriptions:
            return []
        self._subscriptions.remove(subscription)
        self._routes.clear()
        still = self.filters()
        return [one for one in dict.fromkeys(subscription.filters) if one not in still]

    def deliver(self, message: Message, receipt: Receipt | None) -> None:
        """Offer a message to all matching subscriptions; acknowledge it when all have taken it."""
        targets = self._targets(message.topic)
        if not targets:
            self._set_aside(message, receipt)
            return
        held_receipt = None if receipt is None else Held(receipt)
        for subscription in targets:
            subscription._offer(message, held_receipt)
        if held_receipt is not None and not held_receipt.parties:
            self._taken(held_receipt.receipt)

    def reconnected(self, *, session_present: bool) -> None:
        """Drop the messages that the broker will send again, so that they do not come twice."""
        if session_present:
            for subscription in self._subscriptions:
                subscription._forget_late()
            self._unclaimed = deque((m, r) for m, r in self._unclaimed if m.qos != 1)

    def refuse(self, error: SubscribeRefused) -> None:
        """End the subscriptions to a filter that the broker no longer grants."""
        for subscription in [one for one in self._subscriptions if error.topic_filter in one.filters]:
            subscription._finish(error)
            self.remove(subscription)

    def finish(self, error: Exception | None) -> None:
        """End every subscription."""
        for subscription in self._subscriptions:
            subscription._finish(error)

    def _targets(self, topic: str) -> tuple[Subscription, ...]:
        subscriptions = self._routes.get(topic)
        if subscriptions is None:
            subscriptions = tuple(one for one in self._subscriptions if self._matches_any(one.filters, topic))
            if len(self._routes) >= ROUTES_LIMIT:
                self._routes.clear()
            self._routes[topic] = subscriptions
        return subscriptions

    def _matches_any(self, filters: Iterable[str], topic: str) -> bool:
        if self._version == Version.V5:
            filters = [split_share(topic_filter)[1] for topic_filter in filters]
        return any(matches(topic_filter, topic) for topic_filter in filters)

    def _set_aside(self, message: Message, receipt: Receipt | None) -> None:
        self._unclaimed.append((message, receipt))
        if len(self._unclaimed) > UNCLAIMED_LIMIT:
            _, oldest = self._unclaimed.popleft()
            self.unclaimed_dropped += 1
            if oldest is not None:
                self._taken(oldest)


def message_of(packet: Publish) -> Message:
    """Copy the message, so that a queue does not keep received chunks in memory."""
    return Message(
        packet.topic, bytes(packet.payload), packet.qos, packet.retain, packet.dup, packet.properties
    )
