"""Standard streams of the command `brim`: all three are open, and accept every character."""

from __future__ import annotations

import io
import os
import sys


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


def _null_device(number: int) -> io.TextIOWrapper:
    """Text stream of this descriptor, which child processes inherit."""
    opened = os.open(os.devnull, os.O_RDWR)
    if opened != number:
        os.dup2(opened, number)
        os.close(opened)
    os.set_inheritable(number, True)
    return open(number, "w" if number else "r", encoding="utf-8", errors="backslashreplace")
