"""Standard streams of the command `brim`: all three are open, and accept every character.

Standard error accepts every message, also if its disk or its pipe is full, or its reader has ended: the exit
status of a verb does not depend on it. The same is true of both outputs of a service, which also never waits
long for their reader: a supervisor may stop reading, and must be able to end the service.
"""

from __future__ import annotations

import io
import os
import select
import sys
from typing import Any

WAIT_MS = 1_000  # for the reader of an output of a service


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
        sys.stderr = _lossy(2, sys.stderr.encoding)


def limit_waits() -> None:
    """Make both outputs those of a service: no write fails, or waits longer than WAIT_MS for a reader."""
    _LossyFile.wait_ms = WAIT_MS
    if sys.stdout is sys.__stdout__ and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.flush()
        sys.stdout = _lossy(1, sys.stdout.encoding)


def _lossy(descriptor: int, encoding: str) -> io.TextIOWrapper:
    buffer = io.BufferedWriter(_LossyFile(descriptor, "w", closefd=False))
    return io.TextIOWrapper(buffer, encoding, "backslashreplace", line_buffering=True)


class _LossyFile(io.FileIO):
    """File that loses what cannot be written."""

    wait_ms: int | None = None  # None: as long as a write takes

    def write(self, data: Any, /) -> int:
        """Write the data. Returns the number of bytes that are written or lost."""
        if self.wait_ms is not None:
            self._write_parts(memoryview(data), self.wait_ms)
            return memoryview(data).nbytes
        try:
            written: int | None = super().write(data)  # None: a non-blocking pipe is full
        except OSError:
            written = None
        return memoryview(data).nbytes if written is None else written

    def _write_parts(self, data: memoryview, wait_ms: int) -> None:
        """Write as much as fits. A pipe with room takes PIPE_BUF bytes at once, so no write blocks."""
        room = select.poll()
        room.register(self, select.POLLOUT)
        for first in range(0, len(data), select.PIPE_BUF):
            if not room.poll(wait_ms):
                return
            try:
                super().write(data[first : first + select.PIPE_BUF])
            except OSError:
                return


def _null_device(number: int) -> io.TextIOWrapper:
    """Text stream of this descriptor, the lowest one that is free; child processes inherit it."""
    os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    return open(number, "w" if number else "r", encoding="utf-8", errors="backslashreplace")
