"""Standard streams of the command `brim`: all three are open, and accept every character.

Standard error accepts every message, also if its disk or its pipe is full, or its reader has ended: the exit
status of a verb does not depend on it.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any


def prepare_streams() -> None:
    """Open closed standard streams as the null device, and let standard output accept every character.

    Otherwise the next file that is opened, such as a ring, would be standard output or standard error.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, _null_device(number))
    if isinstance(sys.stdout, io.TextIOWrapper):
        if not sys.stdout.isatty():  # a program reads it, which expects JSON in UTF-8
            sys.stdout.reconfigure(encoding="utf-8")
        sys.stdout.reconfigure(errors="backslashreplace")
    if sys.stderr is sys.__stderr__ and isinstance(sys.stderr, io.TextIOWrapper):
        buffer, encoding = io.BufferedWriter(_LossyFile(2, "w", closefd=False)), sys.stderr.encoding
        sys.stderr = io.TextIOWrapper(buffer, encoding, "backslashreplace", line_buffering=True)


class _LossyFile(io.FileIO):
    """File that loses what cannot be written."""

    def write(self, data: Any, /) -> int:
        """Write the data. Returns the number of bytes that are written or lost."""
        try:
            written: int | None = super().write(data)  # None: a non-blocking pipe is full
        except OSError:
            written = None
        return memoryview(data).nbytes if written is None else written


def _null_device(number: int) -> io.TextIOWrapper:
    """Text stream of this descriptor, the lowest one that is free; child processes inherit it."""
    os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    return open(number, "w" if number else "r", encoding="utf-8", errors="backslashreplace")
