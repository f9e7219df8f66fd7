"""The owner of a peer: its user or address, which libzmq reports with each of its messages."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest
import zmq

from edge.local.zmq_server_socket import ZmqServer
from tests.edge.local.test_zmq_limiter import GREETING, dial, frame, prop, served
from tests.support.children import Child
from tests.support.other_user import USER, as_other_user, other_user_or_skip
from tests.support.waiting import PATIENCE_S

QUESTION = frame(b"question")


def hello(name: bytes = b"", *, command: bool = True) -> bytes:
    """Greeting and READY of a peer that claims to be another user."""
    claims = prop(b"User-Id", b"uid 5") + prop(b"Socket-Type", b"DEALER") + prop(b"Identity", name)
    return GREETING + frame(b"\x05READY" + claims, command=command)


def ask(peer: socket.socket) -> None:
    """Send a message, when the other side is ready."""
    answer = b""
    while b"READY" not in answer:
        answer += peer.recv(4096)
    peer.sendall(QUESTION)


# The same of another user.
STRANGER = """
import socket, sys
path, hello, question = sys.stdin.readline().split()
peer, answer = socket.socket(socket.AF_UNIX), b""
peer.connect(path)
peer.sendall(bytes.fromhex(hello))
while b"READY" not in answer:
    answer += peer.recv(4096)
peer.sendall(bytes.fromhex(question))
sys.stdin.readline()
"""


def owner_of_next(server: ZmqServer) -> str:
    assert server.socket.poll(int(PATIENCE_S * 1000))
    first = server.socket.recv(copy=False)
    assert server.socket.recv() == b"question"
    return server.owner_of(first)


@pytest.mark.parametrize("size", [1, 7, 66, 1000], ids="{} bytes a packet".format)
@pytest.mark.parametrize("name", [b"", b"x" * 255], ids=["short", "long"])
@pytest.mark.parametrize(("address", "command"), [("127.0.0.1", True), ("127.0.0.1", False), ("::1", True)])
def test_the_address_of_a_peer_comes_with_its_message_whatever_it_claims(address, command, name, size):
    host = f"[{address}]" if ":" in address else address
    with served(zmq.ROUTER, f"tcp://{host}:*") as server:
        port = int(server.endpoint.rpartition(":")[2])
        with socket.create_connection((address, port)) as peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            data = hello(name, command=command)
            for at in range(0, len(data), size):
                peer.sendall(data[at : at + size])
            ask(peer)
            assert owner_of_next(server) == f"address {address}"


def test_the_user_of_a_peer_comes_with_its_message_and_is_empty_for_the_own_one(runtime_directory):
    other_user_or_skip()
    runtime_directory.chmod(0o755)
    path = runtime_directory / "s"
    with served(zmq.ROUTER, f"ipc://{path}") as server, Child(as_other_user(STRANGER)) as stranger:
        with closing(dial(path, hello())) as peer:
            ask(peer)
            assert owner_of_next(server) == ""
        path.chmod(0o666)
        stranger.say(f"{path} {hello().hex()} {QUESTION.hex()}")
        assert owner_of_next(server) == f"uid {USER}"


@pytest.mark.parametrize(
    "first",
    [frame(b"\x05HELLO!", command=True), frame(b"\x02NO", command=True)],
    ids=["another command", "a short one"],
)
def test_a_peer_that_begins_with_another_frame_is_refused(tmp_path, first):
    with (
        served(zmq.ROUTER, f"ipc://{tmp_path}/s") as server,
        closing(dial(tmp_path / "s", GREETING + first + QUESTION)) as peer,
    ):
        while peer.recv(1 << 16):
            pass
        assert not server.socket.poll(0)
