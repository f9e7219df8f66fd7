"""Stop request: a signal or a defect, kept until the event loop can serve it.

Owns the handlers of SIGTERM and SIGINT. The first signal requests an orderly end. A later one of any kind has
its default effect, which ends the process at once. In the first REPEAT_S it is taken for a repetition:
`timeout` and other supervisors send a signal to the process, and again to its group.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
REPEAT_S = 0.5


class StopRequest:
    """The first reason to stop."""

    def __init__(self) -> None:
        self.signal = ""  # its name
        self.defect = ""
        self._received_s = 0.0  # time of the first signal
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
        if not self.signal:
            self.signal, self._received_s = signal.Signals(number).name, time.monotonic()
            self._changed()
        elif time.monotonic() - self._received_s > REPEAT_S:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def _changed(self) -> None:
        if self._notify is not None:
            self._notify()
