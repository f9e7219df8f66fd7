"""What the broker says about itself, on standard error: one line an event, for people or for machines.

    2026-11-21 07:46:31.123 INFO  edge.streams: ring re-attached name=default-0 offset=5120

Owns the format.  Modules log through logging.getLogger(__name__) with a constant message and key=value pairs,
never once per record.  Topics, client ids and paths are other people's text: control characters in them are
escaped, so that a client cannot write to the terminal or forge a line.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from typing import Final, Literal, TextIO

import msgspec

from edge.terminal import escaped

__all__ = ["FORMATS", "LEVELS", "configure", "pairs"]

FORMATS: Final = ("text", "json")
LEVELS: Final = ("debug", "info", "warning", "error")

_NEEDS_QUOTES = re.compile(r'[\s"=]|^$')


def pairs(**values: object) -> str:
    """`key=value key="with space"`, safe to print."""
    return " ".join(f"{key}={_quoted(str(value))}" for key, value in values.items())


def _quoted(text: str) -> str:
    text = escaped(text)
    return '"' + text.replace('"', '\\"') + '"' if _NEEDS_QUOTES.search(text) else text


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        text = escaped(record.getMessage())
        line = f"{seconds}.{int(record.msecs):03d} {record.levelname:<7} {record.name}: {text}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time_ns": int(record.created * 1e9),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def configure(
    level: str = "info", form: Literal["text", "json"] = "text", stream: TextIO | None = None
) -> None:
    """Sends the log of the whole process to `stream` (standard error), in place of what was set before."""
    output = logging.StreamHandler(stream or sys.stderr)
    output.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [output]
    root.setLevel(level.upper())
