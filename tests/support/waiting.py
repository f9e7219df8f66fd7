"""Waiting for what another task, thread or process brings about, where nothing tells when."""

import asyncio
import time
from collections.abc import Callable

PATIENCE_S = 60.0  # a machine under load may take seconds for what takes microseconds
STEP_S = 0.002
STEP_MAX_S = 0.1  # a condition that takes long is looked at half of the time at most


async def until(condition: Callable[[], object]) -> None:
    """Until `condition` holds.  The event loop runs meanwhile.  Fails after PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"{condition} does not hold after {PATIENCE_S} s"
        await asyncio.sleep(STEP_S)


def wait_until(condition: Callable[[], object]) -> None:
    """The same without an event loop."""
    deadline = time.monotonic() + PATIENCE_S
    begun = time.monotonic()
    while not condition():
        now = time.monotonic()
        assert now < deadline, f"{condition} does not hold after {PATIENCE_S} s"
        time.sleep(min(max(STEP_S, now - begun), STEP_MAX_S))
        begun = time.monotonic()
