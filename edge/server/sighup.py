"""SIGHUP handler: calls a function, which reloads the configuration and its files (BrokerServer.reload).

Owns the handler of SIGHUP, from the first line of `brim run` to the end of the process. A signal before the
broker is ready is remembered, and handled later.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType


class SighupHandler:
    """The handler, which replaces the default: that one ends the process."""

    def __init__(self) -> None:
        self._pending = False
        self._serve: Callable[[], object] | None = None

    def install(self) -> None:
        """Install the handler, in the main thread. May be called twice."""
        signal.signal(signal.SIGHUP, self._received)

    def serve(self, serve: Callable[[], object] | None) -> None:
        """Call `serve` in the main thread for each SIGHUP, and for an earlier one; None: ignore them."""
        self._serve = serve
        if serve is not None and self._pending:
            self._pending = False
            serve()

    def _received(self, _number: int, _frame: FrameType | None) -> None:
        if self._serve is None:
            self._pending = True
        else:
            self._serve()


sighup = SighupHandler()
