"""Passed sockets: listening sockets that systemd opened before the start (socket activation).

Owns the protocol of sd_listen_fds(3): descriptors from 3 on, LISTEN_FDS of them, for the process LISTEN_PID.
A socket serves the [[listener]] whose address it has. systemd keeps such a socket open during a restart, so
clients wait and are not refused, and it may have a port below 1024 without a privilege of the broker.
"""

from __future__ import annotations

import logging
import os
import socket

from edge.logging_setup import pairs

log = logging.getLogger(__name__)

FIRST_DESCRIPTOR = 3


class PassedSockets:
    """Sockets of the service manager that no listener has taken yet."""

    def __init__(self) -> None:
        """Take over the sockets of the environment; without socket activation there are none."""
        count = os.environ.get("LISTEN_FDS", "")
        is_ours = os.environ.get("LISTEN_PID") == str(os.getpid()) and count.isdigit()
        for name in ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"):  # a child must not take them again
            os.environ.pop(name, None)
        self._sockets = [_taken(FIRST_DESCRIPTOR + index) for index in range(int(count) if is_ours else 0)]

    def take(self, address: object) -> socket.socket | None:
        """The listening stream socket with this address: (host, port) or the path of a Unix socket."""
        for passed in self._sockets:
            if _address_of(passed) == address:
                self._sockets.remove(passed)
                return passed
        return None

    def close(self) -> None:
        """Close the sockets that no listener has: their clients would wait for ever."""
        for passed in self._sockets:
            log.warning(
                "passed socket closed: no [[listener]] has its address %s",
                pairs(address=passed.getsockname(), remedy="set ListenStream= or [[listener]]"),
            )
            passed.close()
        self._sockets.clear()


def _taken(descriptor: int) -> socket.socket:
    os.set_inheritable(descriptor, False)
    passed = socket.socket(fileno=descriptor)
    passed.setblocking(False)
    return passed


def _address_of(passed: socket.socket) -> object:
    """Address of a socket as PassedSockets.take() has it; None if it does not accept connections."""
    if not passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) or passed.type != socket.SOCK_STREAM:
        return None
    address = passed.getsockname()
    return address if passed.family == socket.AF_UNIX else address[:2]
