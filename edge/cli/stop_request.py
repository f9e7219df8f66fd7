"""Stop request: a signal or a defect, kept until the event loop can serve it.

Owns the handlers of SIGTERM and SIGINT. The first signal requests an orderly end. The next one of any kind
has its default effect, which ends the process at once.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """The first reason to stop."""

    def __init__(self) -> None:
        self.signal = ""  # its name
        self.defect = ""
        self._notify: Callable[[], object] | None = None

    def install(self) -> None:
        """Install the handlers, in the main thread."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._received)

    def notify(self, notify: Callable[[], object]) -> None:
        """Call `notify` for each later request, on its thread, and now if there was one."""
        self._notify = notify
        if self.signal or self.defect:
            notify()

    def fail(self, defect: str) -> None:
        """Request a stop because of a defect. For any thread."""
        self.defect = defect
        self._changed()

    def _received(self, number: int, _frame: FrameType | None) -> None:
        for other in STOP_SIGNALS:
            signal.signal(other, signal.SIG_DFL)
        self.signal = signal.Signals(number).name
        self._changed()

    def _changed(self) -> None:
        if self._notify is not None:
            self._notify()
