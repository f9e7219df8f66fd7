"""A service that starts when the first connection waits at its port: until then it costs one descriptor.

Owns the listening socket and the service behind it. Everything here runs on the event loop, except the import
of the service's modules, which takes longer than an event loop may.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from edge.local.zmq_listener import ZmqListener
from edge.logging_setup import pairs

log = logging.getLogger(__name__)

RETRY_S = 5.0


class Service(Protocol):
    """A service that OnDemand starts and stops."""

    def stop(self) -> None:
        """Stop, and wait for the end."""


S = TypeVar("S", bound=Service)


class OnDemand(Generic[S]):
    """Starts a service by `start`, after the import of `module`.

    Call watch() or start_now(), and stop() once.
    """

    def __init__(self, listener: ZmqListener, module: str, start: Callable[[], S]) -> None:
        self.listener = listener
        self.service: S | None = None  # None: not started
        self._module = module
        self._start = start
        self._starting: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None

    def start_now(self) -> None:
        """Start the service without a connection. Raises its errors."""
        self.service = self._start()

    def watch(self) -> None:
        """Start the service at the next connection."""
        asyncio.get_running_loop().add_reader(self.listener.socket, self._connected)

    async def stop(self) -> None:
        """Stop the service, or the wait for a connection."""
        asyncio.get_running_loop().remove_reader(self.listener.socket)
        if self._starting is not None:
            await self._starting
        if self._retry is not None:
            self._retry.cancel()
        if self.service is not None:
            await asyncio.to_thread(self.service.stop)

    def _connected(self) -> None:
        asyncio.get_running_loop().remove_reader(self.listener.socket)
        self._starting = asyncio.create_task(self._import_and_start())

    async def _import_and_start(self) -> None:
        """Start. A failure is logged and ends neither the broker nor the wait."""
        try:
            await asyncio.to_thread(importlib.import_module, self._module)
            self.start_now()
        except Exception as error:
            details = pairs(endpoint=self.listener.endpoint, reason=error, retry_s=RETRY_S)
            log.exception("ZeroMQ service not started %s", details)
            self._retry = asyncio.get_running_loop().call_later(RETRY_S, self.watch)
