"""Pages of the HTTP endpoint: /metrics, /healthz and /readyz, made of the status report."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from edge.observe.health import health_page, ready_page
from edge.observe.http_endpoint import Answer, Page
from edge.observe.prometheus import CONTENT_TYPE, page

_JSON = "application/json"


Status = Mapping[str, Any]


def pages(
    report: Callable[[], Awaitable[Status]],
    essentials: Callable[[], Awaitable[Status]],
    watchdog: Callable[[], Status],
) -> Mapping[str, Page]:
    """Pages by path. `report` gathers the status report; the others gather parts of it, with less work."""

    async def metrics(allowed: bool) -> Answer | None:
        return Answer(200, page(await report()).encode(), CONTENT_TYPE) if allowed else None

    async def health(_allowed: bool) -> Answer:
        status, text = health_page(watchdog())
        return Answer(status, text.encode(), _JSON)

    async def ready(allowed: bool) -> Answer:
        status, text = ready_page(await essentials(), detailed=allowed)
        return Answer(status, text.encode(), _JSON)

    return {"/metrics": metrics, "/healthz": health, "/readyz": ready}
