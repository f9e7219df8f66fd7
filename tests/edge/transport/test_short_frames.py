"""WebSocket frames with little or nothing in them: they end a stranger, and take no other client's turn."""

import struct

import pytest

from edge.mqtt import ConnAck, Connect, PingReq, PingResp, PubAck, Publish, encode
from tests.support.mqtt_transports import WebSocketStream, transports

FRAMES_MAX = 1_024  # before CONNECT is answered


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
            found = stream.recv(65_536)
            assert found
            answers += found
