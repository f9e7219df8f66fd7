"""Many delayed messages: a publisher and a subscriber on plain sockets, and what became of each message.

Packets have a fixed size, so that one process reads tens of thousands a second.  A payload is the number of
the message and the monotonic time, in ns, before which it may not arrive.
"""

import socket
import struct
import time
from array import array

PAYLOAD = struct.Struct("!QQ16x")
BATCH = 200  # publishes in flight: below receive_max
PUBACK_BYTES = 4
STRIDE = 7_919  # a prime number


def connect(port: int, client_id: str, *, clean: bool = True) -> socket.socket:
    line = socket.create_connection(("127.0.0.1", port))
    line.settimeout(300)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    name = client_id.encode()
    body = b"\0\4MQTT\4" + (b"\2" if clean else b"\0") + b"\0\0" + struct.pack("!H", len(name)) + name
    line.sendall(bytes([0x10, len(body)]) + body)
    assert exactly(line, 4)[0] == 0x20
    return line


def exactly(line: socket.socket, size: int) -> bytes:
    """`size` bytes.  Raises ConnectionError."""
    parts = bytearray()
    while len(parts) < size:
        part = line.recv(size - len(parts))
        if not part:
            raise ConnectionError("the broker has closed the connection")
        parts += part
    return bytes(parts)


class DelayedPublisher:
    """Publishes messages 0 to `count` at QoS 1, due evenly in `spread_s` from `begin_s` (monotonic) on.

    Delays are whole seconds.  Neighbours get delays far from each other: with equal ones all messages of a
    second would be due in the few milliseconds in which they were published.
    """

    def __init__(self, count: int, begin_s: float, spread_s: float) -> None:
        self.count, self.begin_s, self.spread_s = count, begin_s, spread_s
        self.next = 0  # the first that is not acknowledged
        self.again = 0  # messages that were sent twice

    def publish(self, port: int, until: int) -> None:
        """Publish up to number `until`.  Raises OSError if the broker ends: `next` is the place."""
        line = connect(port, "publisher")
        try:
            while self.next < until:
                first, last = self.next, min(self.next + BATCH, until)
                self.again += last - first
                line.sendall(b"".join(self._packet(number) for number in range(first, last)))
                exactly(line, PUBACK_BYTES * (last - first))
                self.again -= last - first
                self.next = last
        finally:
            line.close()

    def _packet(self, number: int) -> bytes:
        now = time.monotonic()
        due = self.begin_s + self.spread_s * (number * STRIDE % self.count) / self.count
        seconds = max(1, round(due - now))
        topic = b"$delayed/%04d/t" % seconds
        payload = PAYLOAD.pack(number, int((now + seconds) * 1e9))
        body = struct.pack("!H", len(topic)) + topic + struct.pack("!H", number % 60_000 + 1) + payload
        return bytes([0x32, len(body)]) + body


class DelayedSubscriber:
    """Receives the messages at QoS 1; `late_ns` by number, -1: not received."""

    PACKET_BYTES = 2 + 2 + 1 + 2 + PAYLOAD.size

    def __init__(self, count: int) -> None:
        self.late_ns = array("q", [-1]) * count
        self.received = self.repeated = self.early = 0

    def receive(self, port: int) -> None:
        """Receive until every message has come."""
        line = connect(port, "subscriber")
        line.sendall(b"\x82\x06\0\1\0\1t\1")
        exactly(line, 5)
        rest = b""
        while self.received < len(self.late_ns):
            data = line.recv(1 << 18)
            if not data:
                raise ConnectionError("the broker has closed the connection")
            now_ns = time.monotonic_ns()
            data = rest + data
            whole = len(data) // self.PACKET_BYTES * self.PACKET_BYTES
            acknowledged = bytearray()
            for at in range(0, whole, self.PACKET_BYTES):
                acknowledged += b"\x40\x02" + data[at + 5 : at + 7]
                number, due_ns = PAYLOAD.unpack_from(data, at + 7)
                self._count(number, due_ns, now_ns)
            rest = data[whole:]
            line.sendall(acknowledged)
        line.close()

    def _count(self, number: int, due_ns: int, now_ns: int) -> None:
        self.early += now_ns < due_ns
        if self.late_ns[number] >= 0:
            self.repeated += 1
            return
        self.late_ns[number] = max(0, now_ns - due_ns)
        self.received += 1

    def late_ms(self, share: float) -> float:
        """Lateness that this share of the messages does not exceed."""
        return sorted(self.late_ns)[int(share * (len(self.late_ns) - 1))] / 1e6
