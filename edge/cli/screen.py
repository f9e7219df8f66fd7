"""Terminal screen of a live view: the alternate screen, keys, and changes of the size. Plain ANSI sequences.

Owns the mode of the terminal from __enter__() to __exit__(). Lines must be escaped already; they are cut to
the width, and never wrapped.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterable
from types import FrameType
from typing import Self

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"  # other screen, no cursor, no wrapping, clear
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _REST = "\x1b[H", "\x1b[K", "\x1b[J"


def is_terminal() -> bool:
    """True if both ends are a terminal that understands the sequences."""
    return sys.stdout.isatty() and sys.stdin.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class Screen:
    """A terminal in use; a context manager that restores it."""

    def __enter__(self) -> Self:
        self._input = sys.stdin.fileno()
        self._mode = termios.tcgetattr(self._input)
        self._resized, self._resize = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._handler = signal.signal(signal.SIGWINCH, self._on_resize)
        tty.setcbreak(self._input)
        sys.stdout.write(_ENTER)
        sys.stdout.flush()
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGWINCH, self._handler)
        termios.tcsetattr(self._input, termios.TCSADRAIN, self._mode)
        os.close(self._resized)
        os.close(self._resize)
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        size = shutil.get_terminal_size()
        return size.columns, size.lines

    def show(self, lines: Iterable[str]) -> None:
        """Replace the content of the screen, without flicker."""
        columns, height = self.size
        shown = [line[:columns] + _REST_OF_LINE for line in lines][:height]
        sys.stdout.write(_HOME + "\r\n".join(shown) + _REST)
        sys.stdout.flush()

    def key(self, timeout_s: float) -> str | None:
        """The next key within `timeout_s`; "" after a change of the size; None at the end of the time."""
        deadline = time.monotonic() + timeout_s
        readable, _, _ = select.select(
            [self._input, self._resized], [], [], max(deadline - time.monotonic(), 0)
        )
        if self._resized in readable:
            os.read(self._resized, 64)
            return ""
        if self._input not in readable:
            return None
        return os.read(self._input, 1).decode("latin-1") or "q"  # the end of the terminal

    def _on_resize(self, _number: int, _frame: FrameType | None) -> None:
        os.write(self._resize, b"x")
