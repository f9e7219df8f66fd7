"""Gate before a ZeroMQ socket: limits of messages that libzmq does not have.

libzmq keeps the parts of a message until its last one, and limits neither their number nor their bytes: one
peer that never ends a message takes all memory. So peers connect to the gate, a thread in C
(ringbuf/c/gate/), which passes their bytes to libzmq and disconnects a peer that exceeds a limit.

Owns the listening socket with its file, the thread, and a name for libzmq's own socket: `inner`, in the
abstract namespace, which libzmq opens to this process only (ZMQ_IPC_FILTER_PID).

Only for peers without CURVE, which encrypts the ends of messages; peers with a key are not limited.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
import threading
from dataclasses import dataclass
from pathlib import Path

from edge.config.setting_rules import split_address
from edge.errors import EdgeError, PortTaken
from edge.log_throttle import LogThrottle
from edge.logging_setup import pairs
from ringbuf.native import ffi, lib

__all__ = ["Gate", "GateLimits"]

log = logging.getLogger(__name__)

BACKLOG = 512
OF_CONNECTION = 3  # descriptors: the peer's, and both ends of the connection to libzmq
UNFINISHED_MAX_BYTES = 64 << 20
UNDRAINED_MAX_BYTES = 64 << 20
UNFINISHED_MAX_MS = 30_000
COUNTED = ("open", "accepted", "refused", "malformed", "too_long", "unfinished", "unread")


@dataclass(frozen=True, slots=True)
class GateLimits:
    """Limits of a peer: parts of one message, and bytes of all its parts.

    `unread_max_ms`: time for an answer that the peer does not read, 0: no limit.
    """

    parts_max: int
    message_max_bytes: int
    unread_max_ms: int = 0
    connections_max: int = 1_024 // OF_CONNECTION  # of all peers


class Gate:
    """Listens at `endpoint` from open() to close(). `table` has the endpoint in the configuration file."""

    def __init__(self, table: str, endpoint: str, limits: GateLimits) -> None:
        self.endpoint = endpoint  # the bound endpoint, after open()
        self.inner = f"brim-{os.urandom(16).hex()}"
        self._setting = f"{table}.endpoint"
        self._table = table
        self._limits = limits
        self._listener: socket.socket | None = None
        self._path: Path | None = None  # of a bound Unix socket
        self._gate = ffi.NULL
        self._thread: threading.Thread | None = None
        self._may_log = LogThrottle()
        self._logged = 0

    def open(self) -> None:
        """Listen, and start the thread. Raises PortTaken, or EdgeError if the endpoint cannot be bound."""
        try:
            self._listener = self._listen()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                text = f"{self._setting} {self.endpoint} is in use"
                raise PortTaken(text, hint=f"stop the other program, or set {self._setting}") from error
            text = f"{self._setting} {self.endpoint}: {error.strerror or error}"
            raise EdgeError(text, hint=f"set {self._setting}") from error
        limits = ffi.new("gt_limits *")
        limits.connections_max = self._limits.connections_max
        limits.parts_max, limits.message_max_bytes = self._limits.parts_max, self._limits.message_max_bytes
        limits.unfinished_max_bytes = max(UNFINISHED_MAX_BYTES, 2 * self._limits.message_max_bytes)
        limits.undrained_max_bytes = UNDRAINED_MAX_BYTES
        limits.unfinished_max_ms = UNFINISHED_MAX_MS
        limits.unread_max_ms = self._limits.unread_max_ms
        name = self.inner.encode()
        self._gate = lib.gt_open(self._listener.fileno(), name, len(name), limits)
        if self._gate == ffi.NULL:
            raise EdgeError(f"{self._setting}: {os.strerror(ffi.errno)}")
        self._thread = threading.Thread(target=self._run, name=f"brim-{self._table}-gate", daemon=True)
        self._thread.start()

    def admit(self, descriptors: int) -> None:
        """Accept no more connections than so many descriptors allow, and at least one."""
        if self._gate != ffi.NULL:
            lib.gt_admit(self._gate, max(1, descriptors // OF_CONNECTION))

    def drained(self) -> None:
        """Report that the ZeroMQ socket had no further message. From the thread that receives."""
        if self._gate != ffi.NULL:
            lib.gt_drained(self._gate)

    def counts(self) -> dict[str, int]:
        """Current connections (open), and totals since the start: accepted, and refused or ended by cause."""
        if self._gate == ffi.NULL:
            return dict.fromkeys(COUNTED, 0)
        found = ffi.new("gt_counts *")
        lib.gt_counts_of(self._gate, found)
        return {name: int(getattr(found, name)) for name in COUNTED}

    def look(self) -> None:
        """Log peers that were refused or disconnected for a limit since the last call."""
        counts = self.counts()
        ended = sum(counts[name] for name in COUNTED[2:])
        if ended > self._logged and self._may_log():
            self._logged = ended
            found = {name: counts[name] for name in COUNTED[2:] if counts[name]}
            log.warning("ZeroMQ peers disconnected %s", pairs(endpoint=self.endpoint, **found))

    def close(self, linger_ms: int = 0) -> None:
        """Stop, after libzmq's answers were passed on for `linger_ms` at most. May be called twice."""
        if self._thread is not None:
            lib.gt_stop(self._gate, linger_ms)
            self._thread.join()
            self._thread = None
            lib.gt_close(self._gate)
            self._gate = ffi.NULL
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None

    def _run(self) -> None:
        if code := lib.gt_run(self._gate):
            log.error("ZeroMQ gate failed %s", pairs(endpoint=self.endpoint, reason=os.strerror(code)))

    # ---- listening ----

    def _listen(self) -> socket.socket:
        scheme, _, place = self.endpoint.partition("://")
        if scheme == "ipc":
            return self._listen_unix(place)
        if scheme != "tcp":
            raise OSError(errno.EINVAL, "neither ipc:// nor tcp://")
        try:
            host, port = split_address(place.removesuffix(":*") + ":0" if place.endswith(":*") else place)
        except ValueError:
            raise OSError(errno.EINVAL, "no address; write tcp://HOST:PORT") from None
        # IPv4 first, like libzmq's clients
        family, *_, address = min(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        listener = socket.create_server(address[:2], family=family, backlog=BACKLOG)
        listener.setblocking(False)
        bound, port = listener.getsockname()[:2]
        self.endpoint = f"tcp://[{bound}]:{port}" if family == socket.AF_INET6 else f"tcp://{bound}:{port}"
        return listener

    def _listen_unix(self, place: str) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            if place.startswith("@"):
                listener.bind("\0" + place[1:])
            else:
                _remove_socket(Path(place))
                listener.bind(place)
                self._path = Path(place)
                self._path.chmod(0o660)
            listener.listen(BACKLOG)
        except BaseException:
            listener.close()
            raise
        return listener


def _remove_socket(path: Path) -> None:
    """Remove the socket of a killed broker; the lock of the directory excludes other brokers."""
    try:
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()
    except FileNotFoundError:
        pass
