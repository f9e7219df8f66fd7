"""Listening sockets: TCP over IPv4 and IPv6, and Unix sockets, with their addresses.

Only binds, or takes the socket that systemd has bound. A Unix socket is a file that outlives its process: a
file without a listening process is replaced, one with a listening process is an error, and a file that is not
a socket is never touched.
"""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

from msgspec import Struct

from edge.config.address_rules import split_address
from edge.config.listener import Listener
from edge.errors import EdgeError, PortTaken
from edge.transport.passed_sockets import PassedSockets
from edge.unix_socket import FileId, file_id, is_socket, remove_own, remove_unserved

BACKLOG = 4_096  # a fleet that reconnects at once; the kernel limits it to net.core.somaxconn
UNIX_UMASK = 0o117  # leaves 0660


class ListenAddress(Struct, frozen=True):
    """Bound address of a listener: its port is never 0."""

    scheme: str  # tcp, tls, ws, wss, unix
    host: str
    port: int
    path: str = ""
    file: FileId = (0, 0)  # of a Unix socket

    def __str__(self) -> str:
        """`127.0.0.1:1883`, `wss://[::]:443`, `unix:///run/brim/mqtt.sock`."""
        if self.path:
            return f"unix://{self.path}"
        place = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        return place if self.scheme == "tcp" else f"{self.scheme}://{place}"


def bind(settings: Listener, passed: PassedSockets | None = None) -> tuple[socket.socket, ListenAddress]:
    """Bind a non-blocking listening socket, or take one of `passed`.

    Raises PortTaken, EdgeError, OSError.
    """
    if settings.path is not None:
        opened = passed.take(str(settings.path)) if passed is not None else None
        if opened is not None:  # its file belongs to systemd
            return opened, ListenAddress("unix", "", 0, str(settings.path))
        return _bind_unix(settings.path)
    hostname = settings.host.strip("[]")
    family, _, _, _, address = socket.getaddrinfo(
        hostname.encode() if hostname.isascii() else hostname,  # for text Python imports the codec "idna"
        settings.port,
        type=socket.SOCK_STREAM,
        flags=socket.AI_PASSIVE,
    )[0]
    if passed is not None and (opened := passed.take(address[:2])) is not None:
        return opened, ListenAddress(settings.scheme, *address[:2])
    server = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            alone = address[0] != "::"
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, alone)
        server.bind(address)
        server.listen(BACKLOG)
    except OSError as error:
        server.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(
                f"port {settings.port} of {settings.host} is in use",
                hint="stop what listens there, or set another port in [[listener]]",
            ) from error
        raise
    host, port = server.getsockname()[:2]
    return server, ListenAddress(settings.scheme, host, port)


def http_url(listener: socket.socket, *, is_secure: bool) -> str:
    """URL of the HTTP server at a bound socket, without a path."""
    host, port, *_ = listener.getsockname()
    return f"{'https' if is_secure else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def bind_http(listen: str, setting: str) -> socket.socket:
    """Bind "HOST:PORT", the value of `setting`: one address, if possible of IPv4.

    Raises PortTaken, EdgeError.
    """
    host, port = split_address(listen)
    try:
        family, *_, address = min(socket.getaddrinfo(host.encode(), port, type=socket.SOCK_STREAM))
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            text = f"{setting} {listen} is in use"
            raise PortTaken(text, hint=f"stop the other program, or set {setting}") from error
        raise EdgeError(f"{setting} {listen}: {error.strerror}", hint=f"set {setting}") from error


def _bind_unix(path: Path) -> tuple[socket.socket, ListenAddress]:
    _clear(path)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    before = os.umask(UNIX_UMASK)  # of the whole process: therefore at start, before there are other threads
    try:
        server.bind(str(path))
        server.listen(BACKLOG)
    except OSError as error:
        server.close()
        text = f"Unix socket {path} cannot be made: {error.strerror}"
        raise EdgeError(text, hint="make its directory, or let the broker's user write there") from error
    finally:
        os.umask(before)
    return server, ListenAddress("unix", "", 0, str(path), file_id(path))


def _clear(path: Path) -> None:
    """Remove a socket file without a listening process."""
    is_a_socket = is_socket(path)
    if is_a_socket is None:
        return
    if not is_a_socket:
        raise EdgeError(f"{path} exists and is not a socket", hint="set another path in [[listener]]")
    try:
        if remove_unserved(path):
            return
    except OSError as error:
        text = f"Unix socket {path} cannot be looked at: {error.strerror}"
        raise EdgeError(text, hint="remove it, or set another path in [[listener]]") from error
    raise PortTaken(f"Unix socket {path} is in use", hint="stop what listens there, or set another path")


def remove_socket(address: ListenAddress) -> None:
    """Remove the file of a Unix socket, unless it belongs to another process now."""
    if address.path:
        remove_own(Path(address.path), address.file)
