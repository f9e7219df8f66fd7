"""PROXY answers: addresses of clients behind a proxy, for the C loop, and the log of invalid headers.

The C loop passes a header here when its last byte has arrived; its time and length are limited there. All
methods run on the broker's thread, or before it starts.
"""

from __future__ import annotations

import logging

from edge.engine.engine import Engine
from edge.engine.loop import Loop
from edge.log_throttle import LogThrottle
from edge.logging_setup import AUDIT, pairs
from edge.transport.errors import HandshakeError
from edge.transport.proxy_protocol import source_in

audit = logging.getLogger(AUDIT)

NAMES_MIN = 256  # names that are kept before those of ended connections are removed


class ProxyAnswers:
    """Headers of all listeners, and the names of certificates in them."""

    def __init__(self, engine: Engine, loop: Loop) -> None:
        self._engine = engine
        self._loop = loop
        self._trusts: set[int] = set()  # listeners that use the name in a header
        self._names: dict[int, str] = {}  # by connection
        self._names_max = NAMES_MIN
        self._log_refusal = LogThrottle()

    def trust(self, listener: int) -> None:
        """Use the names of certificates that headers to this listener have."""
        self._trusts.add(listener)

    def name(self, connection: int) -> str | None:
        """Common name of the client certificate that the proxy has verified."""
        return self._names.get(connection)

    def answer(self, connection: int, header: bytes) -> None:
        """Answer an event PROXY."""
        peer = self._engine.peer(connection)
        if peer is None:
            return
        try:
            source = source_in(header)
        except HandshakeError as error:
            self._loop.refuse_proxied(connection)
            if self._log_refusal():
                audit.info("connection refused %s", pairs(peer=peer[1], listener=peer[0], reason=error))
            return
        if source.certificate is not None and peer[0] in self._trusts:
            self._remember(connection, source.certificate)
        self._loop.proxied(connection, source.family, source.address, source.port)

    def _remember(self, connection: int, name: str) -> None:
        """Keep a name. Not every end of a connection is reported: names are checked when their number has
        doubled.
        """
        if len(self._names) >= self._names_max:
            self._names = {
                connection: name
                for connection, name in self._names.items()
                if self._engine.is_open(connection)
            }
            self._names_max = max(NAMES_MIN, 2 * len(self._names))
        self._names[connection] = name
