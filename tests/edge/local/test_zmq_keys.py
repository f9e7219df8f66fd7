"""Connections to an endpoint with keys: those without one take no place from peers that have one."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
import zmq
import zmq.auth

from edge.local.curve_keys import Curve, encrypt
from edge.local.zmq_limiter import PeerLimits
from edge.local.zmq_listener import ZmqListener
from edge.local.zmq_server_socket import ZmqServer
from tests.edge.local.test_zmq_limiter import GREETING, frame
from tests.support.waiting import PATIENCE_S

LIMITS = PeerLimits(parts_max=4, message_max_bytes=1 << 16, connections_max=8, received_max_bytes=1 << 10)
CURVE_GREETING = GREETING.replace(b"NULL\0", b"CURVE", 1)


@contextmanager
def served(kind: int, directory: Path) -> Iterator[ZmqServer]:
    """A socket that accepts the key of `client`."""
    zmq.auth.create_certificates(directory, "server")
    zmq.auth.create_certificates(directory, "client")
    with (
        closing(ZmqListener("zmq", "tcp://127.0.0.1:*")) as listener,
        closing(ZmqServer(kind, listener, LIMITS, directory / "server.key_secret", directory)) as made,
    ):
        made.bind()
        yield made


@contextmanager
def connected(kind: int, server: ZmqServer, directory: Path) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(kind) as client:
        client.set(zmq.LINGER, 0)
        encrypt(client, server.endpoint, Curve(directory / "client.key_secret", directory / "server.key"))
        client.connect(server.endpoint)
        yield client


@pytest.mark.parametrize(
    "data",
    [
        b"",
        CURVE_GREETING[:20],
        CURVE_GREETING,
        CURVE_GREETING + frame(b"\x05HELLO" + bytes(100), command=True),
    ],
    ids=["nothing", "half a greeting", "a greeting", "a wrong key"],
)
def test_peers_without_a_key_take_no_place_from_those_with_one(tmp_path, data):
    with served(zmq.ROUTER, tmp_path) as server, ExitStack() as held:
        port = int(server.endpoint.rpartition(":")[2])
        for _ in range(4 * LIMITS.connections_max):
            stranger = held.enter_context(socket.create_connection(("127.0.0.1", port)))
            stranger.sendall(data)
        with connected(zmq.DEALER, server, tmp_path) as client:
            client.send(b"question")
            assert server.socket.poll(int(PATIENCE_S * 1000))
            peer = server.socket.recv(copy=False)
            assert server.socket.recv() == b"question"
            key, _ = zmq.auth.load_certificate(tmp_path / "client.key")
            assert server.owner_of(peer) == f"key {key.decode()}"
            assert server.peers()["open"] <= LIMITS.connections_max


def test_long_messages_of_many_parts_pass_in_both_directions(tmp_path):
    parts = [secrets.token_bytes(size) for size in (0, 1, 60_000, 300, 5_000, 60_000)]
    with served(zmq.ROUTER, tmp_path) as server, connected(zmq.DEALER, server, tmp_path) as client:
        client.send_multipart(parts)
        assert server.socket.poll(int(PATIENCE_S * 1000))
        peer, *arrived = server.socket.recv_multipart()
        assert arrived == parts
        server.socket.send_multipart([peer, *parts])
        assert client.poll(int(PATIENCE_S * 1000))
        assert client.recv_multipart() == parts
