"""ZmqLimiter before a ZeroMQ socket: limits of messages that libzmq does not have.

libzmq keeps the parts of a message until its last one, and limits neither their number nor their bytes: one
peer that never ends a message takes all memory. So peers connect to the limiter, a thread in C
(ringbuf/c/zmq_limiter/), which passes their bytes to libzmq and disconnects a peer that exceeds a limit.

Owns the thread, and a name for libzmq's own socket: `inner`, in the abstract namespace, which libzmq opens to
this process only (ZMQ_IPC_FILTER_PID).

libzmq gives the owner of a peer, which the limiter knows, to the program: the limiter adds it to the peer's
READY as the property User-Id (ringbuf/c/zmq_limiter/limiter.h).

libzmq keeps subscriptions without a limit, too. `received_max_bytes` bounds them: beyond it the peer that has
sent most is disconnected. When it connects again, it subscribes only to the prefixes that it holds then.

CURVE encrypts the ends of messages: of peers with keys each part counts as a message, and their number is not
limited. It also encrypts READY: libzmq's thread for keys reports the key of a peer.
"""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass

from edge.errors import EdgeError
from edge.local.zmq_listener import ZmqListener
from edge.log_throttle import LogThrottle
from edge.logging_setup import pairs
from ringbuf.native import ffi, lib

log = logging.getLogger(__name__)

OF_CONNECTION = 3  # descriptors: the peer's, and both ends of the connection to libzmq
UNFINISHED_MAX_BYTES = 64 << 20
UNDRAINED_MAX_BYTES = 64 << 20
UNFINISHED_MAX_MS = 30_000
COUNTED = ("open", "accepted", "refused", "malformed", "too_long", "unfinished", "unread", "too_many_bytes")


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """Limits of a peer: parts of one message, and bytes of all its parts.

    `unread_max_ms`: time for an answer that the peer does not read, 0: no limit.
    """

    parts_max: int
    message_max_bytes: int
    unread_max_ms: int = 0
    received_max_bytes: int = 0  # of all peers, since each connected, without heartbeats; 0: no limit
    undrained_max_bytes: int = UNDRAINED_MAX_BYTES  # finished messages that the server has not received
    connections_max: int = 1_024 // OF_CONNECTION  # of all peers


class ZmqLimiter:
    """Accepts the peers of `listener` from open() to close()."""

    def __init__(self, listener: ZmqListener, limits: PeerLimits) -> None:
        self.inner = f"brim-{os.urandom(16).hex()}"
        self._listener = listener
        self._limits = limits
        self._connections_max = limits.connections_max
        self._limiter = ffi.NULL
        self._thread: threading.Thread | None = None
        self._may_log = LogThrottle()
        self._logged = 0

    def open(self) -> None:
        """Start the thread. Raises EdgeError."""
        limits = ffi.new("zl_limits *")
        limits.connections_max = self._connections_max
        limits.parts_max, limits.message_max_bytes = self._limits.parts_max, self._limits.message_max_bytes
        limits.unfinished_max_bytes = max(UNFINISHED_MAX_BYTES, 2 * self._limits.message_max_bytes)
        limits.undrained_max_bytes = self._limits.undrained_max_bytes
        limits.received_max_bytes = self._limits.received_max_bytes
        limits.unfinished_max_ms = UNFINISHED_MAX_MS
        limits.unread_max_ms = self._limits.unread_max_ms
        name = self.inner.encode()
        self._limiter = lib.zl_open(self._listener.socket.fileno(), name, len(name), limits)
        if self._limiter == ffi.NULL:
            raise EdgeError(f"{self._listener.table}.endpoint: {os.strerror(ffi.errno)}")
        thread = threading.Thread(target=self._run, name=f"brim-{self._listener.table}-limiter", daemon=True)
        try:
            thread.start()
        except BaseException:
            lib.zl_close(self._limiter)
            self._limiter = ffi.NULL
            raise
        self._thread = thread

    def admit(self, descriptors: int) -> None:
        """Accept no more connections than so many descriptors allow, and at least one.

        Before open(), which accepts all peers that wait, or later.
        """
        self._connections_max = max(1, descriptors // OF_CONNECTION)
        if self._limiter != ffi.NULL:
            lib.zl_set_connections_max(self._limiter, self._connections_max)

    def drained(self) -> None:
        """Report that the ZeroMQ socket had no further message. From the thread that receives."""
        if self._limiter != ffi.NULL:
            lib.zl_drained(self._limiter)

    def counts(self) -> dict[str, int]:
        """Current connections (open), and totals since the start: accepted, and refused or ended by cause."""
        if self._limiter == ffi.NULL:
            return dict.fromkeys(COUNTED, 0)
        counters = ffi.new("zl_counts *")
        lib.zl_read_counts(self._limiter, counters)
        return {name: int(getattr(counters, name)) for name in COUNTED}

    def log_refusals(self) -> None:
        """Log peers that were refused or disconnected for a limit since the last call."""
        counts = self.counts()
        ended = sum(counts[name] for name in COUNTED[2:])
        if ended > self._logged and self._may_log():
            self._logged = ended
            new_counts = {name: counts[name] for name in COUNTED[2:] if counts[name]}
            log.warning("ZeroMQ peers disconnected %s", pairs(endpoint=self._listener.endpoint, **new_counts))

    def close(self, linger_ms: int = 0) -> None:
        """Stop, after libzmq's answers were passed on for `linger_ms` at most. May be called twice."""
        if self._thread is not None:
            lib.zl_stop(self._limiter, linger_ms)
            self._thread.join()
            self._thread = None
            lib.zl_close(self._limiter)
            self._limiter = ffi.NULL

    def _run(self) -> None:
        if code := lib.zl_run(self._limiter):
            log.error(
                "ZeroMQ limiter failed %s", pairs(endpoint=self._listener.endpoint, reason=os.strerror(code))
            )
