"""Errors of the broker.

    EdgeError                 .hint: a remedy, or ""
        InvalidFile           .problems: every mistake in the file, each with its line
            ConfigError       of the configuration
        DirectoryBusy         another broker runs on this directory; .pid
        PortTaken             another program listens there
        NewerState            a later version of Brim has written a state file
        RingsUnavailable      shared memory is full, or the rings belong to another user
        InvalidArgument       a ValueError: an argument that no broker would accept
        BrokerUnreachable     a ConnectionError: no broker answers
            AccessDenied      a PermissionError: this user may not connect to the control socket
            NoAnswer          a TimeoutError: the broker is there and did not answer in time
        NoLog                 there is no log in a directory
        NotOpen               a RuntimeError: used outside `with`, or in a forked child
        Refused               the broker refused the request
        ControlError          an invalid request or answer on the control socket
        FrameError            an invalid ZeroMQ message

Every message names the thing, the value, the limit and the remedy. Defects are assertions, never these.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from ringbuf.errors import BrimError

FILES_REMEDY: Final = "raise LimitNOFILE= of the service, or `ulimit -Hn`"  # of a process without descriptors
THREADS_REMEDY: Final = "raise TasksMax= of the service, `ulimit -u`, or a limit of memory (`ulimit -v`)"


class EdgeError(BrimError):
    """An error that the user or operator of the broker can correct."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        if hint:
            self.add_note(hint)  # so that a traceback shows the hint, too


class _Hinted(Protocol):
    hint: str


def with_hint(error: _Hinted) -> str:
    """The message of an error and its hint, on one line."""
    return f"{error}; {error.hint}" if error.hint else str(error)


class InvalidFile(EdgeError):
    """A file of the configuration is invalid. `problems`: `file:line: ...` each, in the order of the file.

    `unreadable`: it was not read; its disk may come later, or its rights be corrected.
    """

    def __init__(self, problems: Sequence[str], *, unreadable: bool = False) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)
        self.unreadable = unreadable


class ConfigError(InvalidFile):
    """The configuration is invalid. `problems`: `file:line: key: ...` each, in the order of the file."""


class DirectoryBusy(EdgeError):
    """Another broker, backup or restore works on this directory.

    `pid` is its process, 0 if it is not known yet; `verb` is "backup", "restore", or "" for a broker.
    """

    def __init__(self, message: str, *, pid: int, verb: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.pid, self.verb = pid, verb


class PortTaken(EdgeError):
    """The address of a listener is in use."""


class RingsUnavailable(EdgeError):
    """A ring cannot be created or taken over: no room in shared memory, or no right to the file."""


class NewerState(EdgeError):
    """A state file of a later version of Brim, whose content a start of this version would lose."""

    def __init__(self, file: Path | str, found: str, known: str) -> None:
        hint = "start the version that wrote it, or move the file away and lose its content"
        super().__init__(f"{file} is of a later version of Brim: {found} (known: {known})", hint=hint)


class InvalidArgument(EdgeError, ValueError):
    """An argument that cannot be used; the message names its value and what is allowed."""


class BrokerUnreachable(EdgeError, ConnectionError):
    """No broker answers, or it is gone."""


class AccessDenied(BrokerUnreachable, PermissionError):
    """The control socket exists, but this user may not connect to it."""


class NoAnswer(BrokerUnreachable, TimeoutError):
    """The broker is there and did not answer in time."""


class NoLog(EdgeError):
    """A directory without a log."""


class NotOpen(EdgeError, RuntimeError):
    """A consumer, client or subscription that is used before `with`, after its end, or in a forked child."""


def check_seconds(name: str, value_s: float) -> None:
    """Raise InvalidArgument for a time that is negative or not a number."""
    if not value_s >= 0:
        hint = "choose a number of seconds; 0 does not wait"
        raise InvalidArgument(f"invalid {name} {value_s} (allowed: 0 or more)", hint=hint)


def opened_before_fork(noun: str) -> NotOpen:
    """Error of a forked child that uses a connection of its parent: their threads are in the parent only."""
    return NotOpen(f"the {noun} was opened before a fork", hint="open another one in the child")


def invalid_endpoint(endpoint: str, why: str) -> InvalidArgument:
    """Error of an endpoint that ZeroMQ does not accept."""
    hint = "write it like tcp://127.0.0.1:5556 or ipc:///run/brim/NAME.sock"
    return InvalidArgument(f"invalid endpoint {endpoint!r}: {why}", hint=hint)


class Refused(EdgeError):
    """The broker understood the request and refused it."""


class ControlError(EdgeError):
    """An invalid datagram on the control socket."""


class FrameError(EdgeError):
    """An invalid ZeroMQ message."""
