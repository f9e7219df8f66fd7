"""Waiting for what another task, thread or process brings about, where nothing tells when."""

import asyncio
import time
from collections.abc import Callable, Iterator

PATIENCE_S = 60.0  # a machine under load may take seconds for what takes microseconds
STEP_S = 0.002
STEP_MAX_S = 0.1  # a condition that takes long is looked at half of the time at most


async def until(condition: Callable[[], object]) -> None:
    """Until `condition` holds.  The event loop runs meanwhile.  Fails after PATIENCE_S."""
    for pause_s in _pauses(condition):
        await asyncio.sleep(pause_s)


def wait_until(condition: Callable[[], object]) -> None:
    """The same without an event loop."""
    for pause_s in _pauses(condition):
        time.sleep(pause_s)


def _pauses(condition: Callable[[], object]) -> Iterator[float]:
    """The time to wait before each further look at `condition`, as long as it does not hold."""
    deadline = time.monotonic() + PATIENCE_S
    begun = time.monotonic()
    while not condition():
        now = time.monotonic()
        assert now < deadline, f"{condition} does not hold after {PATIENCE_S} s"
        yield min(max(STEP_S, now - begun), STEP_MAX_S)
        begun = time.monotonic()
