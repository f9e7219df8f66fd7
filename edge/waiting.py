"""Waiting with a limit, for coroutines: None at the end of the time.

A TimeoutError of the work itself, such as NoAnswer, is raised and never taken for the end of the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def within(timeout_s: float, work: Awaitable[T]) -> T | None:
    """The result of `work`; None if it takes longer than `timeout_s`, and then it is cancelled."""
    try:
        async with asyncio.timeout(max(timeout_s, 0.0)) as waiting:
            return await work
    except TimeoutError:
        if not waiting.expired():
            raise
        return None
