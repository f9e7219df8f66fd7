"""Consumers of a group, for programs with asyncio: the functions and methods of client.py as coroutines.

    async with Consumer("billing", "plant/#") as records:
        async for batch in records:
            for record in batch:
                handle(record.key, bytes(record))
            await records.ack(batch)

A task of the consumer talks to the broker, so that the member stays in its group while the program works.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from typing import Any, Self

from edge.consumers.ack_result import AckResult
from edge.consumers.client import LEAVE_MS
from edge.consumers.client_socket import unreachable
from edge.consumers.client_state import ConsumerBatch
from edge.consumers.consumer_connection import ConsumerConnection
from edge.consumers.protocol import Acknowledgement
from edge.errors import NotOpen
from edge.waiting import within
from ringbuf import Record

__all__ = ["Consumer"]


class Consumer(ConsumerConnection[Coroutine[Any, Any, AckResult]]):
    """A member of a group: client.Consumer for asyncio, with the same arguments.

    Iterate with `async for` inside `async with`. Entering raises BrokerUnreachable, or Refused: the group has
    other filters or settings, or is full.
    """

    _task: asyncio.Task[None] | None = None
    _changed: asyncio.Event
    _to_send: asyncio.Event

    async def __aenter__(self) -> Self:
        self._changed, self._to_send = asyncio.Event(), asyncio.Event()
        self._open()
        self._task = asyncio.create_task(self._pump())
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                while not self._core.joined:
                    self._raise_refusal()
                    await self._change()
        except TimeoutError as error:
            await self.close()
            raise unreachable(self._endpoint) from error
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave the group.  Records in hand come to other members.  May be called twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        if self._send_leave() and self._client_socket is not None:
            await asyncio.to_thread(self._client_socket.socket.poll, LEAVE_MS)
        self._close()

    def __aiter__(self) -> AsyncIterator[ConsumerBatch]:
        return self

    async def __anext__(self) -> ConsumerBatch:
        while not self._core.batches:
            await self._change()
        self._to_send.set()  # the next fetch
        return self._core.batches.popleft()

    async def read(self, timeout_s: float = 0.0) -> ConsumerBatch | None:
        """The next batch; None if there is none within `timeout_s`."""
        if self._core.batches:
            return await anext(self)
        return await within(timeout_s, anext(self))

    async def working(self) -> None:
        """Extend the lease of all records that this member has: to consumers.lease_ms from now."""
        request = self._core.working()
        if request is not None:
            self._core.queue(request, wait=False)
            self._to_send.set()

    async def _request(
        self, request: Acknowledgement, batch: ConsumerBatch, selection: list[Record | int] | None
    ) -> AckResult:
        number = self._core.queue(request, wait=True)
        self._to_send.set()
        try:
            while (answer := self._core.answers[number]) is None and not self._core.is_lost(number):
                await self._change()
        finally:
            self._core.answers.pop(number, None)
        return self._result(request, answer, batch, selection)

    async def _pump(self) -> None:
        """Exchange requests and answers with the broker until it is cancelled."""
        wire = self._opened()
        loop, descriptor = asyncio.get_running_loop(), wire.socket.fileno()
        loop.add_reader(descriptor, self._to_send.set)
        try:
            while True:
                self._to_send.clear()
                pause_s = self._exchange()
                self._changed.set()
                if wire.readable:  # ZeroMQ's descriptor reports a change once
                    await asyncio.sleep(0)
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._to_send.wait()
        finally:
            loop.remove_reader(descriptor)
            self._changed.set()

    async def _change(self) -> None:
        """Wait until something may be different."""
        task = self._task
        if task is None:
            raise NotOpen("the consumer is not open", hint="use it inside `async with`")
        self._changed.clear()
        await self._changed.wait()
        if task.done():
            task.result()  # raises what ended it
