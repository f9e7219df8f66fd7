"""MQTT clients that are sockets: they send the packets of a test, repeat none, and wait for answers."""

from __future__ import annotations

import select
import socket
import time
from typing import TYPE_CHECKING, Any, Self

from edge.mqtt import (
    ConnAck,
    Connect,
    Packet,
    PingReq,
    PingResp,
    Publish,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    Version,
    encode,
)
from tests.support.frames import first_packet
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from tests.support.mqtt_transports import Stream


class RawClient:
    """A blocking socket that speaks packets.  Nothing of a client library is between it and the broker.

    `stream`: instead of a new socket to `port`, one of tests.support.mqtt_transports.
    """

    def __init__(self, port: int, version: Version = Version.V311, *, stream: Stream | None = None) -> None:
        self.version = version
        self.stream = stream
        self.socket = stream.socket if stream else socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self.session_present = False
        self._rest = b""

    def send(self, *packets: Packet) -> None:
        """Send packets."""
        data = b"".join(encode(packet, self.version) for packet in packets)
        (self.stream.send if self.stream else self.socket.sendall)(data)

    def packet(self) -> Packet | None:
        """The next packet; None: the broker has closed the connection."""
        while (first := first_packet(self._rest, self.version)) is None:
            try:
                more = (self.stream or self.socket).recv(1 << 16)
            except ConnectionResetError:
                return None
            if not more:
                return None
            self._rest += more
        packet, self._rest = first
        return packet

    def publish(self) -> Publish:
        """The next packet, which must be a PUBLISH."""
        packet = self.packet()
        assert isinstance(packet, Publish), packet
        return packet

    def subscribe(self, topic_filter: str, qos: int = 0) -> None:
        """Subscribe, and wait for the SUBACK."""
        self.send(Subscribe(7, (Subscription(topic_filter, qos),)))
        assert self.packet() == SubAck(7, (ReasonCode(qos),))

    def ping(self) -> None:
        """Wait until the broker has handled what was sent before."""
        self.send(PingReq())
        assert self.packet() == PingResp()

    def is_silent(self) -> bool:
        """True if no packet has come that the test has not read."""
        return not self._rest and not select.select([self.socket], [], [], 0)[0]

    def close(self) -> None:
        """Close the socket, without DISCONNECT."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SocketClient(RawClient):
    """Connected, with a CONNACK that says yes.  A context manager."""

    def __init__(self, port: int, client_id: str, version: Version = Version.V5, **fields: Any) -> None:
        super().__init__(port, version)
        try:
            self.send(Connect(client_id, version=version, **fields))
            answer = self.receive()
            assert isinstance(answer, ConnAck), answer
            assert answer.reason_code == 0, answer
        except BaseException:  # a test may catch it, and has nothing that it could close
            self.close()
            raise
        self.session_present = answer.session_present

    def receive(self) -> Packet:
        """The next packet.  Fails when none comes, or the broker closes the connection."""
        packet = self.next(PATIENCE_S)
        assert packet is not None, "no answer"
        return packet

    def next(self, timeout_s: float) -> Packet | None:
        """The next packet; None: there is none in time.  Raises EOFError."""
        deadline = time.monotonic() + timeout_s
        while (first := first_packet(self._rest, self.version)) is None:
            left_s = deadline - time.monotonic()
            if not select.select([self.socket], [], [], max(left_s, 0))[0]:
                return None
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError
            self._rest += data
        packet, self._rest = first
        return packet

    def is_cut(self) -> bool:
        """True if the broker closes the connection without sending a byte."""
        try:
            self.next(PATIENCE_S)
        except (EOFError, ConnectionResetError):
            return True
        return False
