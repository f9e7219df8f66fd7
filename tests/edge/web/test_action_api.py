"""Actions of the web console, without a browser."""

from types import SimpleNamespace
from typing import Any, cast

from edge.local.protocol import Cleared, ClearRetained
from edge.web.action_api import OneFilter, clear_retained


async def test_messages_that_cannot_be_cleared_are_counted_on_all_pages() -> None:
    pages = {0: Cleared(1, 7, ("a",)), 7: Cleared(0, None, ("b", "c"))}
    audit: dict[str, Any] = {}

    async def request(page: ClearRetained, _: type[Cleared]) -> Cleared:
        return pages[page.first]

    def record(_: object, action: str, **facts: Any) -> None:
        audit[action] = facts

    console = SimpleNamespace(link=SimpleNamespace(request=request), record=record)
    result = await clear_retained(cast(Any, console), cast(Any, None), OneFilter("#"))
    assert result == {"count": 1, "refused": 3}
    assert audit == {"clear retained": {"filter": "#", "count": 1, "refused": 3}}
