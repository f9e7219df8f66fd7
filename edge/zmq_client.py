"""ZmqSubscription: records of some topics by ZeroMQ, with detection of missing ones.

zmq_client_asyncio.py has the form for asyncio, with the same methods.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Self

import zmq

from edge.errors import FrameError
from edge.frames import TOPICS_MAX, Continuity, Header, decode, prefix_of
from edge.mqtt.topics import matches

__all__ = ["FrameSubscription", "ZmqSubscription"]

BATCH_MESSAGES = 256  # before other tasks of the event loop run
SLICE_MS = 200  # of waiting, so that signals are handled

Arrival = tuple[str, Header, bytes]


class FrameSubscription:
    """State that both forms of ZmqSubscription share: the socket, its filters, and what is missing.

    `gaps` counts the messages before which one of their topic is missing, or may be: it did not fit this
    subscriber's queue, or was overwritten before the broker had sent it. `unreadable` counts messages in an
    invalid format. ZeroMQ itself reconnects to a broker that returns.
    """

    def __init__(
        self, context: zmq.Context[Any], filters: tuple[str, ...], endpoint: str, *, receive_high_water: int
    ) -> None:
        self.unreadable = 0
        self._filters = filters
        self._continuity = Continuity()
        self._accepted: dict[str, bool] = {}
        self._taken: deque[Arrival] = deque()
        self._context = context
        self._socket = context.socket(zmq.SUB)
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

    def _release(self) -> None:
        self._socket.close()
        self._context.term()

    def _take_queued(self) -> bool:
        """Take what ZeroMQ has queued, at most one batch; True if a message can be handed out."""
        with suppress(zmq.Again):
            for _ in range(BATCH_MESSAGES):
                self._take(self._directly.recv_multipart(zmq.NOBLOCK))
        return bool(self._taken)

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


class ZmqSubscription(FrameSubscription):
    """Messages of some topics, as (topic, Header, payload).  Made by local_client.subscribe_zmq().

    Iteration does not end by itself.
    """

    def __init__(self, filters: tuple[str, ...], endpoint: str, *, receive_high_water: int) -> None:
        super().__init__(zmq.Context(), filters, endpoint, receive_high_water=receive_high_water)

    def read(self, timeout_s: float = 0.0) -> Arrival | None:
        """The next message; None if there is none within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while not self._taken and not self._take_queued():
            left_ms = (deadline - time.monotonic()) * 1000
            if left_ms <= 0:
                return None
            self._socket.poll(min(int(left_ms) + 1, SLICE_MS))
        return self._taken.popleft()

    def close(self) -> None:
        """End the subscription.  May be called twice."""
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Arrival]:
        return self

    def __next__(self) -> Arrival:
        while (arrival := self.read(SLICE_MS / 1000)) is None:
            pass
        return arrival
