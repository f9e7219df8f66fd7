"""An MQTT client that is a socket: sends what a test says, nothing again by itself, and waits for answers."""

from __future__ import annotations

import select
import socket
import time
from types import TracebackType
from typing import Any, Self

from edge.mqtt import ConnAck, Connect, Packet, Version, decode_packet, encode
from edge.mqtt.primitives import decode_variable_integer
from tests.support.waiting import PATIENCE_S

__all__ = ["SocketClient"]


class SocketClient:
    """Connected, with a CONNACK that says yes.  A context manager."""

    def __init__(self, port: int, client_id: str, version: Version = Version.V5, **fields: Any) -> None:
        self.version = version
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._rest = b""
        try:
            self.send(Connect(client_id, version=version, **fields))
            answer = self.receive()
            assert isinstance(answer, ConnAck), answer
            assert answer.reason_code == 0, answer
        except BaseException:  # a test may catch it, and has nothing that it could close
            self.close()
            raise
        self.session_present = answer.session_present

    def send(self, *packets: Packet) -> None:
        """Sends them."""
        self._socket.sendall(b"".join(encode(packet, self.version) for packet in packets))

    def receive(self) -> Packet:
        """The next packet.  Fails when none comes, or the broker closes the connection."""
        packet = self.next(PATIENCE_S)
        assert packet is not None, "no answer"
        return packet

    def next(self, timeout_s: float) -> Packet | None:
        """The next packet; None: there is none in time.  Raises EOFError."""
        deadline = time.monotonic() + timeout_s
        while (packet := self._packet()) is None:
            left_s = deadline - time.monotonic()
            if not select.select([self._socket], [], [], max(left_s, 0))[0]:
                return None
            data = self._socket.recv(1 << 16)
            if not data:
                raise EOFError
            self._rest += data
        return packet

    def is_cut(self) -> bool:
        """True if the broker closes the connection without sending a byte."""
        try:
            self.next(PATIENCE_S)
        except (EOFError, ConnectionResetError):
            return True
        return False

    def close(self) -> None:
        """Without a word."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _packet(self) -> Packet | None:
        length = decode_variable_integer(self._rest, 1, len(self._rest)) if len(self._rest) > 1 else None
        if length is None or len(self._rest) < 1 + length[1] + length[0]:
            return None
        head = 1 + length[1]
        first, body = self._rest[0], self._rest[head : head + length[0]]
        self._rest = self._rest[head + length[0] :]
        return decode_packet(first, body, self.version)
