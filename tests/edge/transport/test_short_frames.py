"""WebSocket frames with little or nothing in them: they end a stranger, and take no other client's turn."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios

import pytest

from edge.mqtt import ConnAck, Connect, PingReq, PingResp, PubAck, Publish, encode
from edge.transport.host_names import HostNames
from edge.transport.relay_connection import CHUNK_BYTES, FRAMES_MAX, SHORT_BYTES, RelayConnection
from edge.transport.websocket import WebSocket
from tests.support.mqtt_transports import WebSocketStream, transports

REQUEST = (
    b"GET /mqtt HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)
PATIENCE_S = 30.0


def frame(payload: bytes) -> bytes:
    """A masked binary frame; the mask is zero, so the payload stays legible."""
    length = bytes([0x80 | len(payload)]) if len(payload) < 126 else b"\xfe" + struct.pack(">H", len(payload))
    return b"\x82" + length + bytes(4) + payload


EMPTY = frame(b"")


@pytest.mark.parametrize("kind", ["ws", "wss"])
def test_a_stranger_who_sends_empty_frames_is_closed(kind: str) -> None:
    with transports(kind) as there, there.connected(kind) as stream:
        stream.socket.sendall(EMPTY * (FRAMES_MAX + 1))
        assert stream.recv(1) == b""
        assert isinstance(stream, WebSocketStream)
        assert stream.code == 1008


def test_a_client_may_send_connect_in_as_many_frames_as_it_has_bytes() -> None:
    hello = encode(Connect("c" * 900))
    with transports("ws") as there, WebSocketStream(there.dial("ws")) as stream:
        stream.socket.sendall(b"".join(frame(hello[i : i + 1]) for i in range(len(hello))))
        assert stream.recv(100) == encode(ConnAck())


@pytest.mark.parametrize("kind", ["ws", "wss"])
def test_short_frames_and_long_ones_of_an_accepted_client_all_arrive(kind: str) -> None:
    ping, publish = encode(PingReq()), encode(Publish("t", bytes(60_000), 1, packet_id=1))
    short = b"".join(frame(ping[i : i + 1]) for i in range(2)) * 3_000
    with transports(kind) as there, there.connected(kind) as stream:
        stream.send(encode(Connect("c")))
        assert stream.recv(100) == encode(ConnAck())
        stream.socket.sendall(short + frame(publish) + EMPTY * 5_000 + frame(publish) + short)
        answers = b""
        while answers.count(encode(PubAck(1))) < 2 or answers.count(encode(PingResp())) < 6_000:
            found = stream.recv(CHUNK_BYTES)
            assert found
            answers += found


def test_a_turn_reads_little_of_a_client_that_sends_short_frames() -> None:
    assert max(turns(EMPTY * 8_000)) <= SHORT_BYTES


def test_a_turn_reads_much_of_a_client_that_sends_long_frames() -> None:
    assert max(turns(frame(bytes(60_000)) * 4)) > CHUNK_BYTES / 2


def turns(data: bytes) -> list[int]:
    """Bytes that a relay takes from its client in each turn of the loop."""
    return asyncio.run(_turns(data))


async def _turns(data: bytes) -> list[int]:
    client, outer = socket.socketpair()
    broker, inner = socket.socketpair()
    for end in (client, outer, broker, inner):
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 21)
    websocket = WebSocket(("*",), 1 << 20, HostNames("127.0.0.1"))
    assert websocket.receive(REQUEST) == b""
    ended = asyncio.Event()
    relay = RelayConnection(outer, inner, websocket, 1 << 20, lambda: None, ended.set)
    taken: list[int] = []
    relay.start(b"")
    broker.send(encode(ConnAck()))  # from here on it is a client
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.get_running_loop().sock_recv(client, 1 << 16)  # CONNACK has passed the relay
        client.send(data)
        left = len(data)
        while left > 0:
            before, left = left, _unread(outer)
            taken.append(before - left)
            await asyncio.sleep(0)
            if _unread(broker):
                broker.recv(1 << 20)
    relay.end()
    await ended.wait()
    client.close()
    broker.close()
    return taken


def _unread(end: socket.socket) -> int:
    return int(struct.unpack("i", fcntl.ioctl(end, termios.FIONREAD, bytes(4)))[0])
