"""Connection of a core for asyncio: core_connection.BlockingConnection as coroutines.

A task exchanges requests and answers with the broker, so that a member stays in its group while the program
works.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Self, TypeVar

from edge.consumers.core_connection import LEAVE_MS, CoreConnection
from edge.errors import check_seconds
from edge.waiting import within

LEAVE_STEP_MS = 5

B = TypeVar("B")


class AsyncioConnection(CoreConnection[B]):
    """Form for asyncio."""

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
            unreachable = self._opened().unreachable()
            await self.close()
            raise unreachable from error
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave the broker. Records in hand come to other members of a group. May be called twice.

        A method that waits in another task raises NotOpen.
        """
        task, self._task = self._task, None
        if task is None:
            return
        self._is_closed = True
        self._changed.set()
        try:
            task.cancel()
            await asyncio.wait((task,))  # not `await task`: a cancellation of the caller would look the same
            if not task.cancelled():
                task.result()  # raises what ended it
            if self._send_leave():
                await self._await_answer()
        finally:
            self._close()

    async def _await_answer(self) -> None:
        """Wait until the last request is answered, at most LEAVE_MS."""
        for _ in range(LEAVE_MS // LEAVE_STEP_MS):
            if self._client_socket is None or self._client_socket.readable:
                return
            await asyncio.sleep(LEAVE_STEP_MS / 1000)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> B:
        self._opened()
        while (batch := self._core.next_batch(time.monotonic())) is None:
            await self._change()
        self._to_send.set()  # the next request
        return batch

    async def read(self, timeout_s: float = 0.0) -> B | None:
        """The next batch; None if there is none within `timeout_s`."""
        check_seconds("timeout_s", timeout_s)
        self._opened()
        if (batch := self._core.next_batch(time.monotonic())) is None:
            return await within(timeout_s, self.__anext__())
        self._to_send.set()
        return batch

    async def _pump(self) -> None:
        """Exchange requests and answers with the broker until it is cancelled."""
        client_socket = self._opened()
        loop, descriptor = asyncio.get_running_loop(), client_socket.socket.fileno()
        loop.add_reader(descriptor, self._to_send.set)
        try:
            while True:
                self._to_send.clear()
                pause_s = self._exchange()
                self._changed.set()
                if client_socket.readable:  # ZeroMQ's descriptor reports a change once
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
            raise self._not_open()
        self._changed.clear()
        await self._changed.wait()
        if self._task is not task:
            raise self._not_open()
        if task.done():
            task.result()  # raises what ended it
