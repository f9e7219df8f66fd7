"""Pages of the HTTP endpoint: /metrics, /healthz and /readyz, made of the status report.

A report takes time of all parts of the broker. So one page answers all requests that wait for it, and pages
are made in a share of the time only (edge/pace.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar

from edge.observe.health import health_page, ready_page
from edge.observe.http_endpoint import Answer, Page
from edge.observe.prometheus import CONTENT_TYPE, page
from edge.pace import PacedWork

_JSON = "application/json"


Status = Mapping[str, Any]
T = TypeVar("T")


class _Shared(Generic[T]):
    """A result that is made for all requests that wait for it."""

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self._make = make
        self._making: asyncio.Task[T] | None = None
        self._pace = PacedWork()

    async def get(self) -> T:
        """The result that is being made, or the next one."""
        if self._making is None or self._making.done():
            self._making = asyncio.create_task(self._pace.run(self._make))
        return await asyncio.shield(self._making)


def pages(
    report: Callable[[], Awaitable[Status]],
    essentials: Callable[[], Awaitable[Status]],
    watchdog: Callable[[], Status],
) -> Mapping[str, Page]:
    """Pages by path. `report` gathers the status report; the others gather parts of it, with less work."""

    async def all_metrics() -> Answer:
        return Answer(200, page(await report()).encode(), CONTENT_TYPE)

    made = _Shared(all_metrics)
    gathered = _Shared(essentials)

    async def metrics(allowed: bool) -> Answer | None:
        return await made.get() if allowed else None

    async def health(_allowed: bool) -> Answer:
        status, text = health_page(watchdog())
        return Answer(status, text.encode(), _JSON)

    async def ready(allowed: bool) -> Answer:
        status, text = ready_page(await gathered.get(), detailed=allowed)
        return Answer(status, text.encode(), _JSON)

    return {"/metrics": metrics, "/healthz": health, "/readyz": ready}
