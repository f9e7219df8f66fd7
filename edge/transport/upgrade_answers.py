"""Answers to the HTTP requests of WebSocket clients, and the log of refused ones.

Owns the rules of each WebSocket listener. The loop passes a request here when its last byte has arrived; its
time and length are limited there. All methods run on the broker's thread, or before it starts.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from edge.config.listener import Listener as Settings
from edge.engine.engine import Engine
from edge.engine.loop import Loop
from edge.log_throttle import LogThrottle
from edge.logging_setup import AUDIT, pairs
from edge.transport.host_names import HostNames

if TYPE_CHECKING:
    from edge.transport.websocket_upgrade import UpgradeAnswer, WebSocketUpgrade

audit = logging.getLogger(AUDIT)


class Upgrades:
    """Answers of all WebSocket listeners."""

    def __init__(self, engine: Engine, loop: Loop) -> None:
        self._engine = engine
        self._loop = loop
        self._rules: dict[int, WebSocketUpgrade] = {}  # by listener number
        self._log_hint = LogThrottle()

    def add(self, number: int, settings: Settings) -> None:
        """Add a listener."""
        from edge.transport.websocket_upgrade import WebSocketUpgrade  # its library takes a while to load

        names = HostNames(settings.host, settings.host_names)
        self._rules[number] = WebSocketUpgrade(settings.origins, names)

    def answer(self, connection: int, request: bytes) -> None:
        """Answer an event UPGRADE."""
        peer = self._engine.peer(connection)
        if peer is None:
            return
        answer = self._rules[peer[0]].answer(request)
        if answer.refusal:
            self._log_refusal(*peer, answer)
        self._loop.upgrade(connection, answer.response, accepted=not answer.refusal)

    def _log_refusal(self, listener: int, peer: str, answer: UpgradeAnswer) -> None:
        """Log a refusal; as a warning if the operator can admit such clients."""
        if not answer.hint:
            audit.info("connection refused %s", pairs(peer=peer, listener=listener, reason=answer.refusal))
        elif self._log_hint():
            details = pairs(peer=peer, listener=listener, reason=answer.refusal, hint=answer.hint)
            audit.warning("connection refused %s", details)
