"""Client events for amqtt's plug-ins, under amqtt's names, on the plug-ins' loop.

    on_broker_client_connected      client_id, client_session
    on_broker_client_disconnected   client_id, client_session
    on_broker_client_subscribed     client_id, topic, qos
    on_broker_client_unsubscribed   client_id, topic

Owns the queue between the broker's thread and the loop. There are no events for messages, which never reach
Python.

Invariants: the broker's thread never waits. Events are delivered in order, the next after all plug-ins have
handled the one before or ANSWER_S has passed. At most `waiting_max` events wait; further ones are dropped and
counted.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from edge.auth.interfaces import ClientInfo
from edge.log_throttle import LogThrottle
from edge.logging_setup import pairs

log = logging.getLogger(__name__)

EVENTS_MAX = 20_000  # a fleet of 10 000 that reconnects, each with a subscription

Deliver = Callable[[str, dict[str, Any]], Coroutine[Any, Any, None]]


class PluginEvents:
    """A Watcher (edge.auth.interfaces) for plug-ins."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        session_of: Callable[[ClientInfo], object],
        deliver: Deliver,
        waiting_max: int = EVENTS_MAX,
    ) -> None:
        """Create the queue. `deliver` calls the plug-ins that listen, on `loop`; it must not raise."""
        self.dropped = 0
        self._loop = loop
        self._session_of = session_of
        self._deliver = deliver
        self._waiting_max = waiting_max
        self._lock = threading.Lock()  # of _waiting, _is_awake and _is_over
        self._waiting: deque[tuple[str, dict[str, Any]]] = deque()
        self._is_awake = False
        self._is_over = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None
        self._may_log = LogThrottle()

    def connected(self, client: ClientInfo) -> None:
        """The CONNECT of a client was accepted."""
        self._put("on_broker_client_connected", client, client_session=self._session_of(client))

    def disconnected(self, client: ClientInfo) -> None:
        """The connection of a client has ended."""
        self._put("on_broker_client_disconnected", client, client_session=self._session_of(client))

    def subscribed(self, client: ClientInfo, topic_filter: str, qos: int) -> None:
        """A subscription was granted, or replaced."""
        self._put("on_broker_client_subscribed", client, topic=topic_filter, qos=qos)

    def unsubscribed(self, client: ClientInfo, topic_filter: str) -> None:
        """A subscription has ended."""
        self._put("on_broker_client_unsubscribed", client, topic=topic_filter)

    async def finish(self, timeout_s: float) -> None:
        """Stop accepting events, and deliver the waiting ones, within `timeout_s`. On the loop."""
        with self._lock:
            self._is_over = True
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            log.warning("events dropped at the end %s", pairs(left=len(self._waiting)))

    def _put(self, event: str, client: ClientInfo, **details: Any) -> None:
        with self._lock:
            if self._is_over:
                return
            full = len(self._waiting) >= self._waiting_max
            if full:
                self.dropped += 1
            else:
                self._waiting.append((event, {"client_id": client.client_id, **details}))
                if not self._is_awake:
                    self._is_awake = True
                    self._loop.call_soon_threadsafe(self._wake)
        if full and self._may_log():
            words = "plug-in event queue full, events dropped %s"
            log.warning(words, pairs(waiting_max=self._waiting_max, dropped=self.dropped))

    def _wake(self) -> None:
        self._idle.clear()
        self._task = self._loop.create_task(self._work())

    async def _work(self) -> None:
        while (event := self._next()) is not None:
            await self._deliver(*event)
        self._idle.set()

    def _next(self) -> tuple[str, dict[str, Any]] | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._is_awake = False
            return None
