"""A publisher outside the broker, with a ledger: what it was told is safe, it will ask for.

MQTT 3.1.1, QoS 1, spoken by hand: fast enough to be in the middle of everything when the broker is killed,
and of no code of the broker's.  Each message is a number, dense from 0 in a topic, and filler that follows
from the number; so what is found later can be judged without keeping it.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable, Sequence

from tests.support.waiting import PATIENCE_S

__all__ = ["OutsidePublisher", "drain", "number_of", "payload_of", "pump"]

WINDOW = 64  # messages without an acknowledgement
FILLER = bytes(range(256)) * 2
PUBACK = 0x40


def payload_of(number: int) -> bytes:
    """The message of that number: 8 to 260 bytes."""
    return struct.pack(">Q", number) + FILLER[number % 256 : number % 256 + number * 7919 % 253]


def number_of(payload: bytes) -> int:
    """The number of a message.  Fails if these are not its bytes."""
    (number,) = struct.unpack_from(">Q", payload)
    assert payload == payload_of(number), f"message {number} is not what was published"
    return int(number)


class OutsidePublisher:
    """Publishes to one topic, over as many connections as it takes, one after the other."""

    def __init__(self, topic: str, window: int = WINDOW) -> None:
        self.topic = topic
        self.sent = 0  # the next number
        self.acked: set[int] = set()  # the ledger
        self._window = window
        self._under_way: dict[int, int] = {}  # number by packet identifier
        self._socket: socket.socket | None = None
        self._out = self._in = b""

    def connect(self, port: int) -> None:
        """A new connection, and session; what was under way is neither promised nor repeated."""
        self.close()
        self._under_way.clear()
        self._out = self._in = b""
        its = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        its.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        its.sendall(_connect(f"outside-{self.topic}"))
        answer = b""
        while len(answer) < 4:
            more = its.recv(4 - len(answer))
            assert more, "the broker has closed the connection"
            answer += more
        assert answer == b"\x20\x02\x00\x00", answer
        its.setblocking(False)
        self._socket = its

    @property
    def connected(self) -> bool:
        """Whether there is a connection."""
        return self._socket is not None

    @property
    def waiting(self) -> int:
        """Messages that were sent on this connection and not acknowledged yet."""
        return len(self._under_way)

    @property
    def waiting_since(self) -> int:
        """The number of the oldest of these, or the next one's: all before are acknowledged, or given up."""
        return min(self._under_way.values(), default=self.sent)

    @property
    def wants_to_send(self) -> bool:
        """Whether send() would do something."""
        return bool(self._out) or self.waiting < self._window

    def fileno(self) -> int:
        """Of its socket."""
        assert self._socket is not None
        return self._socket.fileno()

    def send(self) -> None:
        """As many as the window and the socket take."""
        while len(self._under_way) < self._window:
            identifier = self.sent % 65535 + 1
            self._under_way[identifier] = self.sent
            self._out += _publish(self.topic.encode(), identifier, payload_of(self.sent))
            self.sent += 1
        assert self._socket is not None
        try:
            self._out = self._out[self._socket.send(self._out) :]
        except BlockingIOError:
            return
        except OSError:
            self.close()

    def receive(self) -> None:
        """Acknowledgements that are there; they go into the ledger."""
        assert self._socket is not None
        try:
            data = self._socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self._in += data
        whole = len(self._in) // 4 * 4
        for kind, length, identifier in struct.iter_unpack(">BBH", self._in[:whole]):
            assert (kind, length) == (PUBACK, 2), (kind, length)
            self.acked.add(self._under_way.pop(identifier))
        self._in = self._in[whole:]

    def close(self) -> None:
        """Without a word."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def pump(publishers: Sequence[OutsidePublisher], until: Callable[[], bool], *, send: bool = True) -> None:
    """Lets them publish, or only receive, until that holds or no connection is left."""
    while not until() and (connected := [it for it in publishers if it.connected]):
        poll = select.poll()
        its = {it.fileno(): it for it in connected}
        for it in connected:
            wanted = select.POLLOUT if send and it.wants_to_send else 0
            poll.register(it.fileno(), select.POLLIN | wanted)
        for number, events in poll.poll(5):
            if events & select.POLLOUT:
                its[number].send()
            if events & ~select.POLLOUT and its[number].connected:
                its[number].receive()


def drain(publishers: Sequence[OutsidePublisher]) -> None:
    """Reads what a broker that has died had still said."""
    deadline = time.monotonic() + PATIENCE_S
    pump(publishers, lambda: time.monotonic() > deadline, send=False)
    assert not any(it.connected for it in publishers), "a dead broker keeps its connections"


def _string(text: bytes) -> bytes:
    return struct.pack(">H", len(text)) + text


def _packet(first: int, body: bytes) -> bytes:
    length, coded = len(body), b""
    while True:
        length, digit = length >> 7, length & 127
        coded += bytes([digit | (128 if length else 0)])
        if not length:
            return bytes([first]) + coded + body


def _connect(client_id: str) -> bytes:
    body = _string(b"MQTT") + bytes([4, 2]) + struct.pack(">H", 0) + _string(client_id.encode())
    return _packet(0x10, body)


def _publish(topic: bytes, identifier: int, payload: bytes) -> bytes:
    return _packet(0x32, _string(topic) + struct.pack(">H", identifier) + payload)
