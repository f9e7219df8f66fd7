"""A task that is cancelled in the moment in which it leaves a context."""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

from tests.support.waiting import PATIENCE_S


async def ends_when_cancelled_on_leaving(context: AbstractAsyncContextManager[Any]) -> bool:
    """True if the cancellation ends the task, False if leaving `context` swallows it."""
    entered, leave = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        async with context:
            entered.set()
            await leave.wait()

    task = asyncio.create_task(work())
    async with asyncio.timeout(PATIENCE_S):
        await entered.wait()
        leave.set()
        await asyncio.sleep(0)  # the task leaves
        task.cancel()
        await asyncio.wait((task,))
    return task.cancelled()
