"""MQTT clients outside the broker, with a ledger of the acknowledgements that they have received.

MQTT 3.1.1, spoken by hand: fast enough to be in the middle of everything when the broker is killed, and of no
code of the broker's.  A client outlives its connections.  Each message is a number, dense from 0 in a topic,
and filler that follows from the number; so what is found later can be judged without keeping it.
"""

import select
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence

from tests.support.waiting import PATIENCE_S

FILLER = bytes(range(256)) * 2


class Lost(AssertionError):
    """Something acknowledged is not there, or something is there twice or out of order."""


class OutsideClient:
    """A client, over as many connections as it takes, one after the other.  `kept`: one session for all."""

    def __init__(self, client_id: str, *, kept: bool = False) -> None:
        self.client_id = client_id
        self.kept = kept
        self.known = False  # whether the broker has a session of it, by what it has said
        self._socket: socket.socket | None = None
        self._out = self._in = b""

    def connect(self, port: int) -> None:
        """A new connection.  Raises Lost: the broker does not know the session any more."""
        self.close()
        self._out = self._in = b""
        its = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        its.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        flags = bytes([4, 0 if self.kept else 2])
        body = string(b"MQTT") + flags + struct.pack(">H", 0) + string(self.client_id.encode())
        its.sendall(packet(0x10, body))
        answer = b""
        while len(answer) < 4:
            more = its.recv(4 - len(answer))
            assert more, "the broker has closed the connection"
            answer += more
        assert answer in (b"\x20\x02\x00\x00", b"\x20\x02\x01\x00"), answer
        its.setblocking(False)
        self._socket = its
        present = bool(answer[2])
        if self.known and not present:
            raise Lost(f"{self.client_id}: the broker has forgotten its session")
        self._connected(present=present)
        self.known = self.kept

    @property
    def connected(self) -> bool:
        """True if there is a connection."""
        return self._socket is not None

    @property
    def wants_to_send(self) -> bool:
        """True if send() would send a packet."""
        return bool(self._out)

    def fileno(self) -> int:
        """Of its socket."""
        assert self._socket is not None
        return self._socket.fileno()

    def send(self) -> None:
        """As much as the socket takes."""
        assert self._socket is not None
        try:
            self._out = self._out[self._socket.send(self._out) :]
        except BlockingIOError:
            return
        except OSError:
            self.close()

    def receive(self) -> None:
        """Read all received bytes into the ledger."""
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
        for first, body in self._packets():
            self._take(first, body)

    def close(self) -> None:
        """Without a word."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connected(self, *, present: bool) -> None:
        """A connection begins; `present`: the session-present flag."""
        raise NotImplementedError

    def _take(self, first: int, body: bytes) -> None:
        """One packet."""
        raise NotImplementedError

    def _packets(self) -> Iterator[tuple[int, bytes]]:
        """First byte and body of each that is whole."""
        data, at = self._in, 0
        while at + 2 <= len(data):
            length, begin = data[at + 1], at + 2
            if length & 128:
                if begin >= len(data):
                    break
                assert data[begin] < 128, "a packet of more than 16 KiB"
                length, begin = (length & 127) | data[begin] << 7, begin + 1
            if begin + length > len(data):
                break
            yield data[at], data[begin : begin + length]
            at = begin + length
        self._in = data[at:]


def payload_of(number: int) -> bytes:
    """The message of that number: 8 to 260 bytes."""
    return struct.pack(">Q", number) + FILLER[number % 256 : number % 256 + number * 7919 % 253]


def number_of(payload: bytes) -> int:
    """The number of a message.  Fails if these are not its bytes."""
    (number,) = struct.unpack_from(">Q", payload)
    assert payload == payload_of(number), f"message {number} is not what was published"
    return int(number)


def pump(clients: Sequence[OutsideClient], until: Callable[[], bool], *, send: bool = True) -> None:
    """Lets them talk, or only listen, until that holds or no connection is left."""
    while not until() and (connected := [it for it in clients if it.connected]):
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


def drain(clients: Sequence[OutsideClient]) -> None:
    """Reads what a broker that has died had still said."""
    deadline = time.monotonic() + PATIENCE_S
    pump(clients, lambda: time.monotonic() > deadline, send=False)
    assert not any(it.connected for it in clients), "a dead broker keeps its connections"


def string(text: bytes) -> bytes:
    """As MQTT writes them."""
    return struct.pack(">H", len(text)) + text


def packet(first: int, body: bytes) -> bytes:
    """A whole one."""
    length, coded = len(body), b""
    while True:
        length, digit = length >> 7, length & 127
        coded += bytes([digit | (128 if length else 0)])
        if not length:
            return bytes([first]) + coded + body
