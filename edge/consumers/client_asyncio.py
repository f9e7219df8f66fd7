"""Consumers of a group, for programs with asyncio: the functions and methods of client.py as coroutines.

    async with Consumer("billing", "plant/#") as records:
        async for batch in records:
            for record in batch:
                handle(record.key, bytes(record))
            await records.ack(batch)

A task of the consumer talks to the broker, so that the member stays in its group while the program works.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from edge.consumers.ack_result import AckResult
from edge.consumers.client_state import ConsumerBatch
from edge.consumers.consumer_connection import ConsumerConnection
from edge.consumers.core_connection_asyncio import AsyncioConnection
from edge.consumers.protocol import Acknowledgement
from ringbuf import Record


class Consumer(ConsumerConnection[Coroutine[Any, Any, AckResult]], AsyncioConnection[ConsumerBatch]):
    """A member of a group: client.Consumer for asyncio, with the same arguments.

    Iterate with `async for` inside `async with`. Entering raises BrokerUnreachable, or Refused: the group has
    other filters or settings, or is full.
    """

    async def working(self) -> None:
        """Extend the lease of all records that this member has: to consumers.lease_ms from now."""
        self._opened()
        request = self._core.working()
        if request is not None:
            self._core.queue(request, wait=False)
            self._to_send.set()

    async def _request(
        self, request: Acknowledgement, batch: ConsumerBatch, selection: list[Record | int] | None
    ) -> AckResult:
        self._opened()
        number = self._core.queue(request, wait=True)
        self._to_send.set()
        try:
            while (answer := self._core.answers[number]) is None and not self._core.is_lost(number):
                await self._change()
        finally:
            self._core.answers.pop(number, None)
        return self._result(request, answer, batch, selection)
