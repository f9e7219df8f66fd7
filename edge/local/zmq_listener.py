"""Listening socket of a ZeroMQ endpoint, bound without libzmq: loopback TCP, other TCP, or a Unix socket.

Owns the socket and its file from the start of the broker to its end, so that a busy endpoint is an error
before any client is served. Never accepts: the limiter (zmq_limiter.py) does, or libzmq for peers with keys.

A peer that has vanished, by a power cut for example, is probed by the kernel: a subscriber without messages
would otherwise keep its place among the connections until the broker ends.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from pathlib import Path

from edge.config.address_rules import split_address
from edge.errors import EdgeError, PortTaken
from edge.unix_socket import FileId, file_id, is_socket, remove_own, remove_unserved

BACKLOG = 512
PROBE_AFTER_S = 60  # of silence
PROBE_INTERVAL_S = 15
PROBES_MAX = 4  # without an answer
SIOCGIFADDR = 0x8915  # ioctl: IPv4 address of an interface
_IFREQ = struct.Struct("16s24x")
_IFREQ_ADDRESS = slice(20, 24)


class ZmqListener:
    """Listens at `endpoint` until close(). `table` has the endpoint in the configuration file."""

    def __init__(self, table: str, endpoint: str) -> None:
        """Bind. Raises PortTaken, or EdgeError if the endpoint cannot be bound."""
        self.table = table
        self.endpoint = endpoint  # the bound endpoint
        self.path: Path | None = None  # of a bound Unix socket with a file
        self._file: FileId = (0, 0)
        setting = f"{table}.endpoint"
        try:
            self.socket = self._listen()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                text = f"{setting} {endpoint} is in use"
                raise PortTaken(text, hint=f"stop the other program, or set {setting}") from error
            raise EdgeError(
                f"{setting} {endpoint}: {error.strerror or error}", hint=f"set {setting}"
            ) from error

    def close(self) -> None:
        """Close, and remove the file unless it is of another process now. May be called twice."""
        self.socket.close()
        if self.path is not None:
            remove_own(self.path, self._file)
            self.path = None

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
        addresses = socket.getaddrinfo(_address_of(host).encode(), port, type=socket.SOCK_STREAM)
        family, *_, address = min(addresses)
        listener = socket.create_server(address[:2], family=family, backlog=BACKLOG)
        listener.setblocking(False)
        _probe_peers(listener)
        bound, port = listener.getsockname()[:2]
        self.endpoint = f"tcp://[{bound}]:{port}" if family == socket.AF_INET6 else f"tcp://{bound}:{port}"
        return listener

    def _listen_unix(self, place: str) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            if place.startswith("@"):
                listener.bind("\0" + place[1:])
            else:
                path = Path(place)
                if is_socket(path) and not remove_unserved(path):  # bind() reports another file
                    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
                listener.bind(place)
                self.path, self._file = path, file_id(path)
                self.path.chmod(0o660)
            listener.listen(BACKLOG)
        except BaseException:
            listener.close()
            raise
        return listener


def _probe_peers(listener: socket.socket) -> None:
    """Make TCP end connections whose peers have vanished. Accepted sockets inherit this."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, PROBE_AFTER_S),
        (socket.TCP_KEEPINTVL, PROBE_INTERVAL_S),
        (socket.TCP_KEEPCNT, PROBES_MAX),
    ):
        listener.setsockopt(socket.IPPROTO_TCP, option, value)


def _address_of(host: str) -> str:
    """Host as for getaddrinfo(): ZeroMQ also accepts "*" and names of interfaces."""
    if host == "*":
        return "0.0.0.0"  # noqa: S104 - the configuration requires keys then
    if host not in {name for _, name in socket.if_nameindex()}:
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        request = fcntl.ioctl(asking, SIOCGIFADDR, _IFREQ.pack(host.encode()))
    return socket.inet_ntoa(request[_IFREQ_ADDRESS])
