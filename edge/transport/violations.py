"""Log of connections that break the rules of TLS or of the PROXY protocol.

Owns the count of the last message. The C loop closes such connections; one message in 10 s gives their number
and the reason of the last one.
"""

from __future__ import annotations

import logging
from typing import Any

from edge.engine.engine import Engine, violation_of
from edge.log_throttle import LogThrottle
from edge.logging_setup import AUDIT, pairs
from ringbuf.native import ffi

audit = logging.getLogger(AUDIT)


class Violations:
    """Observer of the violations of an engine. On the broker's thread."""

    def __init__(self, engine: Engine) -> None:
        self._last: Any = violation_of(engine)
        self._engine = engine  # keeps the memory alive
        self._seen = 0
        self._log = LogThrottle()

    def log_violations(self) -> None:
        """Log the violations since the last message."""
        last = self._last
        if last.count == self._seen or not self._log():
            return
        details = pairs(
            refused=last.count - self._seen,
            peer=ffi.string(last.peer).decode(),
            listener=last.listener,
            reason=ffi.string(last.reason).decode(errors="replace"),
        )
        audit.info("connections refused %s", details)
        self._seen = last.count
