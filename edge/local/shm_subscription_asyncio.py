"""ShmSubscription for asyncio: the methods of edge.local.shm_subscription.ShmSubscription, those that wait as
coroutines.

One event loop uses a subscription; no method blocks it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Self

from edge.errors import BrokerUnreachable, check_seconds
from edge.local.shm_subscription import RingBatch, RingSubscription
from edge.waiting import within


class ShmSubscription(RingSubscription):
    """Records of some topics: shm_subscription.ShmSubscription for asyncio, with the same arguments.

    Iteration does not end by itself. Entered by `async with`, it begins at `start` from then on; otherwise
    at the first read.
    Raises BrokerUnreachable if no broker is there at the start; Refused or Evicted with blocks_writer=True.
    """

    _loop: asyncio.AbstractEventLoop | None = None
    _woken: asyncio.Event

    async def read(self, timeout_s: float = 0.0) -> RingBatch | None:
        """The next batch, of one ring; None if there is none within `timeout_s`."""
        check_seconds("timeout_s", timeout_s)
        await self._send_due_requests()
        if timeout_s <= 0:
            return self._next_batch()
        return await within(timeout_s, anext(self))

    async def close(self) -> None:
        """Close all rings. Records that the caller holds stay readable. May be called twice."""
        self._release()

    async def __aenter__(self) -> Self:
        try:
            await self._send_requests()
        except BaseException:
            self._release()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._release()

    def __aiter__(self) -> AsyncIterator[RingBatch]:
        return self

    async def __anext__(self) -> RingBatch:
        while True:
            await self._send_due_requests()
            batch = self._next_batch()
            if batch is not None:
                return batch
            if self._has_due_requests():
                continue
            self._poll.watch()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._retry_in(time.monotonic()) if not self.connected else None):
                    await self._woken.wait()
            self._woken.clear()

    def _on_record(self) -> None:
        self._poll.acknowledge()
        self._woken.set()

    def _on_notification(self) -> None:
        self._listen()
        self._woken.set()

    async def _send_due_requests(self) -> None:
        if self._has_due_requests():
            await self._send_requests()

    async def _send_requests(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._woken = asyncio.Event()
            self._loop.add_reader(self._poll.fileno(), self._on_record)
        requests, answer = self._due_requests(), None
        try:
            while True:
                request, expected = requests.send(answer)
                assert self._connection is not None
                answer = await self._connection.request_async(request, expected)
        except StopIteration:
            assert self._connection is not None
            self._loop.add_reader(self._connection.fileno(), self._on_notification)
        except BrokerUnreachable:
            self._lose_broker()
            if not self._started:
                self._release()
                raise
        except asyncio.CancelledError:
            self._lose_broker()  # an answer may be in flight: it would be taken for that of the next request
            raise

    def _release(self) -> None:
        if self._loop is not None and not self._loop.is_closed() and self._poll.fileno() >= 0:
            self._loop.remove_reader(self._poll.fileno())
        super()._release()

    def _disconnect(self) -> None:
        if self._connection is None:
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._connection.fileno())
        super()._disconnect()
