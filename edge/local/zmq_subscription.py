"""ZmqSubscription: records of some topics by ZeroMQ, with detection of missing ones.

zmq_subscription_asyncio.py has the form for asyncio, with the same methods.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Self

import zmq

from edge.config.directories import StrPath, runtime_directory
from edge.errors import (
    EdgeError,
    FrameError,
    InvalidArgument,
    NotOpen,
    check_seconds,
    invalid_endpoint,
    opened_before_fork,
)
from edge.local.curve_keys import Curve, encrypt
from edge.local.filters import checked_filters
from edge.local.zmq_frames import TOPICS_MAX, Continuity, Header, decode, prefix_of
from edge.mqtt.topic_filters import matches

BATCH_MESSAGES = 256  # before other tasks of the event loop run
SLICE_MS = 200  # of waiting, so that signals are handled

Arrival = tuple[str, Header, bytes]


class FrameSubscription:
    """State that both forms of ZmqSubscription share: the socket, its filters, and what is missing.

    `gaps` counts the messages before which one of their topic is missing, or may be: it did not fit this
    subscriber's queue, or was overwritten before the broker had sent it. `unreadable` counts messages in an
    invalid format. ZeroMQ itself reconnects to a broker that returns.
    """

    _context_type: type[zmq.Context[Any]]

    def __init__(
        self,
        filters: str | Iterable[str],
        *,
        runtime_dir: StrPath | None = None,
        endpoint: str = "",
        curve: Curve | None = None,
        receive_high_water: int = 10_000,
    ) -> None:
        self.unreadable = 0
        self._filters = checked_filters(filters)
        self._continuity = Continuity()
        self._accepted: dict[str, bool] = {}
        self._taken: deque[Arrival] = deque()
        self._pid = os.getpid()
        if not 0 <= receive_high_water < 1 << 31:
            text = f"invalid receive_high_water {receive_high_water} (allowed: 0 to {(1 << 31) - 1})"
            raise InvalidArgument(text, hint="set a number of messages; 0 is no limit")
        self._context = self._context_type()
        self._socket: Any = self._context.socket(zmq.SUB)
        self._socket.set(zmq.RCVHWM, receive_high_water)
        self._socket.set(zmq.SNDHWM, 0)  # otherwise ZeroMQ drops subscriptions, from the thousandth on
        self._socket.set(zmq.LINGER, 0)
        place = endpoint or f"ipc://{runtime_directory(runtime_dir) / 'zmq.sock'}"
        try:
            if curve is not None:
                encrypt(self._socket, place, curve)
            self._socket.connect(place)
        except zmq.ZMQError as error:
            self._release()
            raise invalid_endpoint(endpoint, error.strerror) from error
        except EdgeError:
            self._release()
            raise
        for prefix in {prefix_of(topic_filter) for topic_filter in self._filters}:
            self._socket.subscribe(prefix)
        self._directly: zmq.Socket[bytes] = zmq.Socket.shadow(self._socket.underlying)

    @property
    def gaps(self) -> int:
        """Number of messages before which one was missing."""
        return self._continuity.gaps

    def _release(self) -> None:
        self._socket.close()
        self._context.term()

    def _check_open(self) -> None:
        """Raise NotOpen if the socket cannot be used."""
        if self._socket.closed:
            raise NotOpen("the subscription is closed", hint="make another one to continue")
        if self._pid != os.getpid():
            raise opened_before_fork("subscription")

    def _take_queued(self) -> bool:
        """Take what ZeroMQ has queued, at most one batch; True if a message can be handed out."""
        self._check_open()
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
        """True if a filter matches the topic, checked once: a prefix passes more topics than its filter."""
        accepted = self._accepted.get(topic)
        if accepted is None:
            if len(self._accepted) >= TOPICS_MAX:
                self._accepted.clear()
            accepted = any(matches(topic_filter, topic) for topic_filter in self._filters)
            self._accepted[topic] = accepted
        return accepted


class ZmqSubscription(FrameSubscription):
    """Messages of the topics that `filters` match, by ZeroMQ: (topic, Header, payload).

    `endpoint`: the broker's ZeroMQ endpoint, if it is not ipc://RUNTIME_DIR/zmq.sock. `curve`: keys for an
    endpoint that other machines reach; with unknown keys no message arrives. `receive_high_water`: messages
    that may wait here before ZeroMQ drops further ones. Iteration does not end by itself. Raises
    InvalidArgument; ControlError: a file has no secret key.
    """

    _context_type = zmq.Context

    def read(self, timeout_s: float = 0.0) -> Arrival | None:
        """The next message; None if there is none within `timeout_s`."""
        if not self._taken:
            check_seconds("timeout_s", timeout_s)
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
