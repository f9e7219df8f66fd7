"""Logging setup: the broker's log on standard error, one line per event, for people or for machines.

    2026-11-21 07:46:31.123 INFO  edge.streams.streams: ring re-attached name=default-0 offset=5120

Owns the format. Modules log through logging.getLogger(__name__) with a constant message and key=value pairs,
never once per record. Topics, client ids and paths are untrusted text: their control characters are escaped,
so that a client cannot control the terminal or forge a line.

The thread that serves every client also logs, and a client often causes the line. So lines of one kind are
limited to LINES_BURST at once and then to LINES_PER_S, with a count of the others. Inside detached() no
logging thread waits for the reader of the log: a stopped terminal or a full pipe costs lines, but delays no
message, and no end of the process.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import re
import select
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Final, Literal, TextIO

from edge.log_throttle import LineBudget
from edge.recent_lines import RecentLines
from edge.terminal_escape import escaped

FORMATS: Final = ("text", "json")
LEVELS: Final = ("debug", "info", "warning", "error")

# Logger of connections, refusals, kicks and reloads: docs/how-to/monitoring.md lists its events.
AUDIT: Final = "brim.audit"

LINES_BURST = 50  # of one kind at once: lines of one place in the code
LINES_PER_S = 5  # lines afterwards: one client can cause them for days
AUDIT_BURST = 50  # lines of one kind of the audit log at once
AUDIT_PER_S = 0.5  # lines afterwards: clients cause them without a login, and must not fill a disk
KINDS_MAX = 1_000
WAITING_MAX = 10_000  # lines
VALUE_MAX = 1_000  # characters of a value: a client may choose 64 KiB of text, and has not logged in yet
FLUSH_S = 2.0  # time to write waiting lines at the end, if the reader is slow
ROOM_MS = 100  # between two looks at the end, while the reader of the log does not read

_form: Final = ["text"]  # that of configure()
_recent: Final = RecentLines()
_NEEDS_QUOTES = re.compile(r'[\s"=]|^$')


class LoggedPairs(str):
    """Text of pairs, and their values as `fields` for the log in JSON."""

    __slots__ = ("fields",)
    fields: dict[str, object]


def pairs(**values: object) -> LoggedPairs:
    """Text of `key=value key="with space"` pairs, safe to print. A value ends after VALUE_MAX characters."""
    limited = {key: _limited(value) for key, value in values.items()}
    text = LoggedPairs(" ".join(f"{key}={_quoted(str(value))}" for key, value in limited.items()))
    text.fields = {key: _plain(value) for key, value in limited.items()}  # an exception would keep its frames
    return text


def _fields_of(record: logging.LogRecord) -> dict[str, object]:
    """Fields of all pairs of a record: numbers and truth values as they are, the rest as text."""
    parts = record.args if isinstance(record.args, tuple) else ()
    return {
        key: value for part in parts if isinstance(part, LoggedPairs) for key, value in part.fields.items()
    }


def _plain(value: object) -> object:
    """`value` as JSON can have it."""
    if isinstance(value, bool | None):
        return value
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 63):
        return float(value) if isinstance(value, float) else int(value)  # of subclasses, too
    return str(value).encode("utf-8", "backslashreplace").decode()


def _limited(value: object) -> object:
    """The value, with six digits after the point; the beginning of its text if that is long."""
    if isinstance(value, float):
        return round(value, 6)
    text = str(value)
    return value if len(text) <= VALUE_MAX else f"{text[:VALUE_MAX]}…"


def _quoted(text: str) -> str:
    text = escaped(text)
    return '"' + text.replace('"', '\\"') + '"' if _NEEDS_QUOTES.search(text) else text


def text_of(line: dict[str, Any]) -> str:
    """Text of a line in the form for people, without control characters."""
    seconds, ms = divmod(line["time_ns"] // 1_000_000, 1_000)
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    text = f"{clock}.{ms:03d} {line['level'].upper():<7} {line['logger']}: {escaped(line['message'])}"
    return "\n".join([text, *map(escaped, line.get("exception", "").splitlines())])


def _line_of(record: logging.LogRecord) -> dict[str, Any]:
    """A record as JSON can have it."""
    line: dict[str, Any] = {
        "time_ns": int(record.created * 1e9),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": _plain(record.getMessage()),
    }
    if fields := _fields_of(record):
        line["fields"] = fields
    if record.exc_info:
        line["exception"] = logging.Formatter().formatException(record.exc_info)
    return line


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return text_of(_line_of(record))


class _JsonFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__()
        from msgspec.json import encode  # not needed for --help

        self._encode = encode

    def format(self, record: logging.LogRecord) -> str:
        return self._encode(_line_of(record)).decode()


class _Limit(logging.Filter):
    """Filter for a budget of lines of each kind. The next line after an excess has the number left out."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[tuple[str, str], LineBudget] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if len(self._kinds) >= KINDS_MAX:  # a library that puts values into its messages has unbounded kinds
            self._kinds.clear()
        kind = record.name, str(record.msg)
        if (budget := self._kinds.get(kind)) is None:
            limits = (AUDIT_BURST, AUDIT_PER_S) if record.name == AUDIT else (LINES_BURST, LINES_PER_S)
            budget = self._kinds[kind] = LineBudget(*limits)
        if not budget.take(record.created):
            return False
        if left_out := budget.left_out():
            count, values = pairs(lines_left_out=left_out), record.args
            if isinstance(values, tuple) and values:  # the line keeps its fields
                record.msg, record.args = f"{record.msg} %s", (*values, count)
            else:
                record.msg, record.args = f"{record.getMessage()} {count}", None
        return True


class _Waiting(logging.Handler):
    """Handler that keeps lines for recent() and queues records; if the queue is full they are counted."""

    def __init__(self, waiting: queue.Queue[logging.LogRecord | None]) -> None:
        super().__init__()
        self.dropped = 0
        self._waiting = waiting

    def emit(self, record: logging.LogRecord) -> None:
        _recent.add(_line_of(record))
        try:
            self._waiting.put_nowait(record)
        except queue.Full:
            self.dropped += 1


@contextlib.contextmanager
def detached() -> Iterator[None]:
    """Context in which a separate thread writes the log, in order."""
    root = logging.getLogger()
    outputs = root.handlers[:]
    waiting: queue.Queue[logging.LogRecord | None] = queue.Queue(WAITING_MAX)
    taker, over = _Waiting(waiting), threading.Event()
    for output in outputs:
        for limit in output.filters:  # lines over the limit need not be queued
            taker.addFilter(limit)

    def write() -> None:
        while (record := waiting.get()) is not None and _await_room(outputs, over):
            if taker.dropped and waiting.empty():
                dropped, taker.dropped = taker.dropped, 0
                root.warning("log lines dropped because the output is blocked %s", pairs(lines=dropped))
            for output in outputs:
                output.emit(record)

    writer = threading.Thread(
        target=write, name="brim-log", daemon=True
    )  # daemon: a write may block for ever
    writer.start()
    root.handlers[:] = [taker]
    try:
        yield
    finally:
        root.handlers[:] = outputs
        with contextlib.suppress(queue.Full):
            waiting.put(None, timeout=FLUSH_S)
            writer.join(FLUSH_S)
        over.set()  # a writer inside of a write would keep the lock of the stream, which the exit needs
        writer.join(FLUSH_S)


def _await_room(outputs: list[logging.Handler], over: threading.Event) -> bool:
    """Wait until the streams of the log take a line. False: it is over first."""
    for output in outputs:
        if not isinstance(output, logging.StreamHandler):
            continue
        room = select.poll()
        try:
            room.register(output.stream, select.POLLOUT)
        except (OSError, ValueError):
            continue  # a stream in memory, or a closed one
        while not room.poll(ROOM_MS):
            if over.is_set():
                return False
    return True


def configure(
    level: str = "info", form: Literal["text", "json"] = "text", stream: TextIO | None = None
) -> None:
    """Send the log of the whole process to `stream` (standard error), replacing earlier settings."""
    _form[:] = [form]
    output = logging.StreamHandler(stream or sys.stderr)
    output.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter())
    output.addFilter(_Limit())
    root = logging.getLogger()
    root.handlers[:] = [output]
    set_level(level)


def form() -> str:
    """Form of the log, as configure() has set it, for processes that write to the same place."""
    return _form[0]


def recent() -> RecentLines:
    """The newest lines that this process has logged inside detached()."""
    return _recent


def set_level(level: str) -> None:
    """Log records of this level and above from now on."""
    logging.getLogger().setLevel(level.upper())
