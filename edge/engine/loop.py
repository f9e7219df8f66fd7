"""Loop of the C engine for Python: sockets, polls and wake-ups (ringbuf/c/mqtt/event_loop.h).

Owns the C loop, from its creation to close(). Decides nothing.
"""

from __future__ import annotations

import os

from edge.engine.engine import Engine
from ringbuf.native import ffi, lib


class Loop:
    """The sockets of an engine. poll() releases the GIL; wake() and call() are for any thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine  # must outlive the loop
        self._loop = lib.mq_loop_open(ffi.cast("mq_engine *", engine.address))
        if self._loop == ffi.NULL:
            raise OSError(ffi.errno, f"the MQTT loop cannot be opened: {os.strerror(ffi.errno)}")
        self._wake_fd: int = lib.mq_loop_wake_fd(self._loop)
        self._call_fd: int = lib.mq_loop_call_fd(self._loop)

    def listen(self, fd: int, number: int) -> None:
        """Accept from `fd`, a non-blocking listening socket, which belongs to the loop from now on."""
        result = lib.mq_loop_listen(self._loop, fd, number)
        if result:
            raise OSError(-result, f"listener {number} cannot be watched: {os.strerror(-result)}")

    def proxied(self, connection: int, family: int, address: bytes, port: int) -> None:
        """Answer a PROXY event by the address of the client; `family`, AF_*, is 0 for the proxy."""
        lib.mq_loop_proxied(self._loop, connection, family, address.ljust(16, b"\0"), port)

    def refuse_proxied(self, connection: int) -> None:
        """Answer a PROXY event with an invalid header: the connection is closed."""
        lib.mq_loop_proxied(self._loop, connection, -1, bytes(16), 0)

    def upgrade(self, connection: int, answer: bytes, *, accepted: bool) -> None:
        """Answer an UPGRADE event. WebSocket frames follow if accepted; otherwise the connection closes."""
        engine = ffi.cast("mq_engine *", self._engine.address)
        lib.mq_engine_upgrade(engine, connection, answer, len(answer), accepted)

    def poll(self, timeout_ms: int) -> int:
        """Serve sockets until Python has events, at most `timeout_ms` (-1: no limit); return their number."""
        count: int = lib.mq_loop_poll(self._loop, timeout_ms)
        if count < 0:
            raise OSError(-count, f"the MQTT loop cannot wait: {os.strerror(-count)}")
        return count

    def send(self) -> None:
        """Send output, up to the limit of a round. The next poll() sends the rest."""
        lib.mq_loop_send(self._loop)

    def flush(self) -> None:
        """Send what can be sent at once."""
        lib.mq_loop_flush(self._loop)

    def close_listeners(self) -> None:
        """Close the listening sockets; connections stay."""
        lib.mq_loop_close_listeners(self._loop)

    @property
    def wake_descriptor(self) -> int:
        """An eventfd, valid until close(): writing it has the effect of wake()."""
        return self._wake_fd

    def wake(self) -> None:
        """Make the loop check durable positions and producer rings, without Python."""
        os.eventfd_write(self._wake_fd, 1)

    def call(self) -> None:
        """Make poll() return."""
        os.eventfd_write(self._call_fd, 1)

    def close(self) -> None:
        """Close every socket. May be called twice."""
        loop, self._loop = self._loop, ffi.NULL
        if loop != ffi.NULL:
            lib.mq_loop_close(loop)
