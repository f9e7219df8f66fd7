"""ZmqSubscription: records of some topics by ZeroMQ, with detection of missing ones."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Self

import zmq
import zmq.asyncio

from edge.errors import FrameError
from edge.frames import TOPICS_MAX, Continuity, Header, decode, prefix_of
from edge.mqtt.topics import matches

__all__ = ["ZmqSubscription"]

BATCH_MESSAGES = 256  # before other tasks of the event loop run


class ZmqSubscription:
    """Subscription, created by local_client.subscribe_zmq(). `async for topic, header, payload in ...`,
    without end.

    `gaps` counts the messages before which one of their topic is missing, or may be: it did not fit this
    subscriber's queue, or was overwritten before the broker had sent it. `unreadable` counts messages in an
    invalid format. ZeroMQ itself reconnects to a broker that returns.
    """

    def __init__(self, filters: tuple[str, ...], endpoint: str, *, receive_high_water: int) -> None:
        self.unreadable = 0
        self._filters = filters
        self._continuity = Continuity()
        self._accepted: dict[str, bool] = {}
        self._taken: deque[tuple[str, Header, bytes]] = deque()
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.set(zmq.RCVHWM, receive_high_water)
        self._socket.set(zmq.SNDHWM, 0)  # otherwise ZeroMQ drops subscriptions, from the thousandth on
        self._socket.set(zmq.LINGER, 0)
        self._socket.connect(endpoint)
        for prefix in {prefix_of(topic_filter) for topic_filter in filters}:
            self._socket.subscribe(prefix)
        self._directly: zmq.Socket[bytes] = zmq.Socket.shadow(self._socket.underlying)

    @property
    def gaps(self) -> int:
        """Number of messages before which one was missing."""
        return self._continuity.gaps

    def close(self) -> None:
        """Close the socket. May be called twice."""
        self._socket.close()
        self._context.term()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> AsyncIterator[tuple[str, Header, bytes]]:
        return self

    async def __anext__(self) -> tuple[str, Header, bytes]:
        while not self._taken:
            self._take(await self._socket.recv_multipart())
            with suppress(zmq.Again):  # further messages that are there, without a Future for each
                for _ in range(BATCH_MESSAGES):
                    self._take(self._directly.recv_multipart(zmq.NOBLOCK))
        return self._taken.popleft()

    def _take(self, parts: list[bytes]) -> None:
        try:
            topic, header, payload = decode(parts)
        except FrameError:
            self.unreadable += 1
            return
        if self._accepts(topic):
            self._continuity.accept(topic, header)
            self._taken.append((topic, header, bytes(payload)))

    def _accepts(self, topic: str) -> bool:
        """True if a filter matches the topic. A prefix passes more topics than its filter; each is checked
        once.
        """
        accepted = self._accepted.get(topic)
        if accepted is None:
            if len(self._accepted) >= TOPICS_MAX:
                self._accepted.clear()
            accepted = any(matches(topic_filter, topic) for topic_filter in self._filters)
            self._accepted[topic] = accepted
        return accepted
