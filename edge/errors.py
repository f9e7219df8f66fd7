"""What can go wrong in the broker, as classes.

    EdgeError                 .hint: what to do about it, or ""
        ConfigError           .problems: every mistake in the file, each with its line
        DirectoryBusy         another broker runs on this directory; .pid
        PortTaken             another program listens there
        RingsUnavailable      shared memory is full, or the rings are somebody else's
        BrokerUnreachable     no broker answers on the control socket
            AccessDenied      this user may not connect to the control socket
        Refused               the broker answered: no
        ControlError          a request or answer on the control socket that cannot be understood
        FrameError            a ZeroMQ message that cannot be understood

Every message names the thing, the value, the limit and the remedy.  Bugs are assertions, never these.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "AccessDenied",
    "BrokerUnreachable",
    "ConfigError",
    "ControlError",
    "DirectoryBusy",
    "EdgeError",
    "FrameError",
    "PortTaken",
    "Refused",
    "RingsUnavailable",
]


class EdgeError(Exception):
    """Something the person who runs or uses the broker can do something about."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        if hint:
            self.add_note(hint)  # a traceback shows it, too


class ConfigError(EdgeError):
    """The configuration cannot be used.  `problems`: `file:line: key: ...` each, in the order of the file."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class DirectoryBusy(EdgeError):
    """Another broker runs on this directory.  `pid` is its process, 0 if it has not said so yet."""

    def __init__(self, message: str, *, pid: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.pid = pid


class PortTaken(EdgeError):
    """The address of a listener is in use."""


class RingsUnavailable(EdgeError):
    """A ring cannot be made or taken over: no room in shared memory, or no right to the file."""


class BrokerUnreachable(EdgeError):
    """Nobody answers on the control socket."""


class AccessDenied(BrokerUnreachable):
    """The control socket is there, and this user may not connect to it."""


class Refused(EdgeError):
    """The broker understood the request and says no."""


class ControlError(EdgeError):
    """A datagram on the control socket that cannot be understood."""


class FrameError(EdgeError):
    """A ZeroMQ message that cannot be understood."""
