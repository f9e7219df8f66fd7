"""Relay of one connection, with a socket pair on either side."""

from __future__ import annotations

import asyncio
import socket
import ssl

import pytest
import trustme

from edge.transport.relay_connection import RelayConnection
from tests.support.waiting import PATIENCE_S


async def readable(end: socket.socket) -> None:
    """Wait until `end` has input, and leave it there."""
    seen = asyncio.Event()
    asyncio.get_running_loop().add_reader(end, seen.set)
    await asyncio.wait_for(seen.wait(), PATIENCE_S)
    asyncio.get_running_loop().remove_reader(end)


async def secured(client: socket.socket, theirs: socket.socket) -> tuple[socket.socket, socket.socket]:
    """Both ends of a TCP connection with TLS, after the handshake."""
    authority = trustme.CA()
    server, trusts = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(server)
    authority.configure_trust(trusts)
    accepted, connected = await asyncio.gather(
        asyncio.to_thread(server.wrap_socket, theirs, server_side=True),
        asyncio.to_thread(trusts.wrap_socket, client, server_hostname="localhost"),
    )
    return connected, accepted


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname(), PATIENCE_S)
        return client, server.accept()[0]


@pytest.mark.parametrize("kind", ["plain", "tls"])
async def test_input_before_a_reset_reaches_the_broker_although_output_fails(kind: str) -> None:
    client, theirs = tcp_pair()
    if kind == "tls":
        client, theirs = await secured(client, theirs)
    broker, engine = socket.socketpair()
    ended = asyncio.Event()
    theirs.setblocking(False)
    broker.setblocking(False)
    relay = RelayConnection(theirs, broker, lambda: None, ended.set)
    relay.start()
    engine.sendall(b"never read")
    await readable(client)
    engine.sendall(b"into the closed socket")  # The first event of the relay, which then fails to send it.
    client.send(b"disconnect")
    client.close()
    await readable(engine)
    assert engine.recv(100) == b"disconnect"
    await readable(engine)
    assert engine.recv(100) == b""
    engine.close()
    await asyncio.wait_for(ended.wait(), PATIENCE_S)
