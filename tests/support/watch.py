"""A subscriber of a test that collects the messages of some filters."""

import asyncio
from typing import Any, Self

from edge.client import Message, connect
from edge.mqtt import Version

SETTLED_S = 40.0


class Watch:
    """A subscriber that collects: `async with`, then heard(count)."""

    def __init__(self, url: str, *filters: str) -> None:
        self._client = connect(url, version=Version.V5)
        self._filters = filters

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        self._subscription = self._client.subscribe(*self._filters, qos=1)
        await self._subscription.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def heard(self, count: int) -> list[Message]:
        async with asyncio.timeout(SETTLED_S):
            return [await anext(self._subscription) for _ in range(count)]

    async def publish(self, *arguments: Any, **options: Any) -> None:
        await self._client.publish(*arguments, **options)
