"""Handshake: the steps of a connection before its bytes reach the C loop: PROXY header, TLS.

Owns the waiting: each step awaits the socket, and none reads a byte too many. The caller sets the time limit
for all steps. The result is a socket, and the facts that the steps have found.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass, field

from edge.transport.errors import HandshakeError
from edge.transport.proxy_protocol import ProxiedAddress, ProxyHeader
from edge.transport.tls import Certificates, certificate_name

__all__ = ["OpenedConnection", "close_politely", "open_connection", "source_of"]

READ_BYTES = 16_384
DRAIN_READS = 16


@dataclass(slots=True)
class OpenedConnection:
    """A connection that is ready for the C loop. Closing `socket` closes all layers."""

    socket: socket.socket
    source: ProxiedAddress
    certificate: str | None = None
    certificate_der: bytes | None = field(default=None, repr=False)


async def open_connection(
    client: socket.socket,
    *,
    proxied: bool,
    certificates: Certificates | None,
) -> OpenedConnection:
    """Run all steps of a listener; the PROXY header comes first, in clear text.

    Raises HandshakeError or OSError (ssl.SSLError is one), with `client` closed.
    """
    opened = OpenedConnection(client, ProxiedAddress())
    try:
        if proxied:
            opened.source = await _proxy(client)
        if certificates is not None:
            opened.socket = secure = await _tls(client, certificates)
            opened.certificate = certificate_name(secure.getpeercert())
            # verified, otherwise the handshake fails
            opened.certificate_der = secure.getpeercert(binary_form=True)
    except BaseException:
        close_politely(opened.socket)
        raise
    return opened


def close_politely(client: socket.socket) -> None:
    """Close a connection so that the peer can read the output sent before.

    Closing with unread input would reset the connection, and discard that output.
    """
    with suppress(OSError, ValueError):
        client.shutdown(socket.SHUT_WR)
        for _ in range(DRAIN_READS):
            if not client.recv(READ_BYTES):
                break
    client.close()


def source_of(client: socket.socket) -> ProxiedAddress:
    """Peer address from the kernel. An IPv4 client of a dual-stack listener counts as IPv4."""
    host, port = client.getpeername()[:2]
    host = host.partition("%")[0].removeprefix("::ffff:")
    family = socket.AF_INET if "." in host else socket.AF_INET6
    return ProxiedAddress(family, socket.inet_pton(family, host), port)


async def _proxy(client: socket.socket) -> ProxiedAddress:
    header = ProxyHeader()
    while header.wanted:
        try:
            data = client.recv(header.wanted)
        except BlockingIOError:
            await _ready(client, write=False)
            continue
        if not data:
            raise HandshakeError("it left before its PROXY header was whole")
        header.receive(data)
    return header.source()


async def _tls(client: socket.socket, certificates: Certificates) -> ssl.SSLSocket:
    secure = certificates.context.wrap_socket(client, server_side=True, do_handshake_on_connect=False)
    try:
        while True:
            try:
                secure.do_handshake()
                return secure
            except ssl.SSLWantReadError:
                await _ready(secure, write=False)
            except ssl.SSLWantWriteError:
                await _ready(secure, write=True)
    except BaseException:
        secure.close()
        raise


async def _ready(client: socket.socket, *, write: bool) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if write else (loop.add_reader, loop.remove_reader)
    fd = client.fileno()

    def wake() -> None:
        remove(fd)
        if not ready.done():
            ready.set_result(None)

    add(fd, wake)
    try:
        await ready
    finally:
        remove(fd)
