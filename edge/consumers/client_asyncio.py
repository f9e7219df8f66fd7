"""Consumers of a group, for programs with asyncio: the functions and methods of client.py as coroutines.

    async with consumer("billing", "plant/#") as records:
        async for batch in records:
            for record in batch:
                handle(record.key, bytes(record))
            await records.ack(batch)

A task of the consumer talks to the broker, so that the member stays in its group while the program works.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Literal, Self

from edge.consumers.ack_result import AckResult, Offsets
from edge.consumers.client import LEAVE_MS
from edge.consumers.core import ConsumerBatch
from edge.consumers.groups import Mode
from edge.consumers.membership import Membership, offset_after
from edge.consumers.messages import Ack, Commit, Nack
from edge.consumers.wire import Curve, unreachable
from edge.directories import StrPath
from edge.errors import NotOpen
from edge.waiting import within
from ringbuf import Record

__all__ = ["Consumer", "consumer"]


def consumer(
    group: str,
    filters: str | Iterable[str],
    *,
    mode: Mode = "ordered",
    start: Literal["oldest", "latest"] = "latest",
    name: str = "",
    session_s: float = 10.0,
    batch_bytes: int = 1 << 20,
    ahead: int = 1,
    connect_timeout_s: float = 5.0,
    runtime_dir: StrPath | None = None,
    endpoint: str = "",
    curve: Curve | None = None,
) -> Consumer:
    """See client.consumer()."""
    return Consumer(
        group,
        filters,
        mode=mode,
        start=start,
        name=name,
        session_s=session_s,
        batch_bytes=batch_bytes,
        ahead=ahead,
        connect_timeout_s=connect_timeout_s,
        runtime_dir=runtime_dir,
        endpoint=endpoint,
        curve=curve,
    )


class Consumer(Membership):
    """A member of a group.  Made by consumer().  Iterate with `async for` inside `async with`.

    Entering raises BrokerUnreachable, or Refused: the group has other filters, or is full.
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
        if self._say_goodbye() and self._wire is not None:
            await asyncio.to_thread(self._wire.socket.poll, LEAVE_MS)
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

    async def ack(self, batch: ConsumerBatch, offsets: Offsets | None = None) -> AckResult:
        """Acknowledge these records of the batch (Records or offsets), or all: they are done.

        The result counts the accepted and the refused records; refused: another member has or did them, or
        the broker was lost (`cause`).  The broker does not forget what it accepted.
        """
        chosen = None if offsets is None else list(offsets)
        return await self._request(self._core.ack(batch, chosen), batch, chosen)

    async def nack(
        self,
        batch: ConsumerBatch,
        offsets: Offsets | None = None,
        *,
        delay_s: float | None = None,
        cause: str = "",
    ) -> AckResult:
        """Give these records of the batch, or all, back: they come again.

        They come after `delay_s`, or a time that grows with each try.  In an ordered group all records behind
        the first of them come again too, in order.
        """
        chosen = None if offsets is None else list(offsets)
        return await self._request(self._core.nack(batch, chosen, delay_s, cause), batch, chosen)

    async def commit(self, batch: ConsumerBatch, last: Record | int | None = None) -> AckResult:
        """Acknowledge all records of the batch's ring up to and with `last`, or the batch (ordered groups).

        The result counts the records that were not acknowledged before.
        """
        return await self._request(self._core.commit(batch, offset_after(batch, last)), batch, None)

    async def working(self) -> None:
        """Extend the lease of all records that this member has: to consumers.lease_ms from now."""
        request = self._core.working()
        if request is not None:
            self._core.queue(request, wait=False)
            self._to_send.set()

    async def _request(
        self, request: Ack | Nack | Commit, batch: ConsumerBatch, chosen: list[Record | int] | None
    ) -> AckResult:
        number = self._core.queue(request, wait=True)
        self._to_send.set()
        try:
            while (answer := self._core.answers[number]) is None and not self._core.is_lost(number):
                await self._change()
        finally:
            self._core.answers.pop(number, None)
        return self._result(request, answer, batch, chosen)

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
