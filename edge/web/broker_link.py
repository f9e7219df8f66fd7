"""Broker link: requests of the console to the broker, its bridges and its consumers' endpoint.

Owns one connection to the control socket, opened again after the broker has ended. One request at a time:
the console never has more than one place of the broker's work. Requests to bridges and to the consumers'
endpoint block, and run on a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from edge.local.protocol import Connection, Request
from edge.rpc.protocol import Message

if TYPE_CHECKING:
    from edge.consumers.client_socket import RequestClient

M = TypeVar("M", bound=Message)
T = TypeVar("T")


class BrokerLink:
    """Requests to the broker of a runtime directory; None: the default one."""

    def __init__(self, runtime_dir: Path | None) -> None:
        self.runtime_dir = runtime_dir
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()

    async def request(self, request: Request, kind: type[M]) -> M:
        """Answer of the broker. Raises Refused, BrokerUnreachable, ControlError."""
        async with self._turn:
            if self._connection is None:
                self._connection = await asyncio.to_thread(Connection, self.runtime_dir)
            try:
                return await self._connection.request_async(request, kind)
            except (ConnectionError, asyncio.CancelledError):
                # a late answer must not be taken for that of the next request
                self.close()
                raise

    async def of_consumers(self, work: Callable[[RequestClient], T]) -> T:
        """Result of `work` with a client of the consumers' endpoint, on a thread."""
        return await asyncio.to_thread(self._with_consumers, work)

    def close(self) -> None:
        """Close the connection. The next request opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _with_consumers(self, work: Callable[[RequestClient], T]) -> T:
        from edge.consumers.client_socket import RequestClient  # with ZeroMQ, which few requests need

        with RequestClient(self.runtime_dir) as client:
            return work(client)
