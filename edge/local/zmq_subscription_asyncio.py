"""ZmqSubscription for asyncio: the methods of zmq_subscription.py; those that wait are coroutines."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Self

import zmq.asyncio

from edge.errors import check_seconds
from edge.local.zmq_subscription import Arrival, FrameSubscription


class ZmqSubscription(FrameSubscription):
    """Messages of some topics: zmq_subscription.ZmqSubscription for asyncio, with the same arguments.

    Needs a running event loop.  Iteration does not end by itself.
    """

    _context_type = zmq.asyncio.Context

    async def read(self, timeout_s: float = 0.0) -> Arrival | None:
        """The next message; None if there is none within `timeout_s`."""
        if not self._taken:
            check_seconds("timeout_s", timeout_s)
        deadline = time.monotonic() + timeout_s
        while not self._taken and not self._take_queued():
            left_ms = (deadline - time.monotonic()) * 1000
            if left_ms <= 0:
                return None
            await self._socket.poll(int(left_ms) + 1)
        return self._taken.popleft()

    async def close(self) -> None:
        """End the subscription.  May be called twice."""
        self._release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._release()

    def __aiter__(self) -> AsyncIterator[Arrival]:
        return self

    async def __anext__(self) -> Arrival:
        while not self._taken:
            self._check_open()
            self._take(await self._socket.recv_multipart())
            self._take_queued()  # without a Future for each
        return self._taken.popleft()
