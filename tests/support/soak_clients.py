"""Clients of the soak that publish at a pace and that take what is published, each with a ledger.

MQTT 3.1.1, spoken by hand (outside_client.py).  Their sessions are kept, connections end at any time, and
what was under way is repeated: QoS 1 arrives at least once, QoS 2 exactly once, QoS 0 at most once.  Ledgers
take no memory for what is dense, so that a soak may last for hours.
"""

import socket
import struct
import time

from tests.support.dense_number_set import DenseNumberSet
from tests.support.outside_client import Lost, OutsideClient, number_of, packet, payload_of, string

PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, PUBLISH = 0x40, 0x50, 0x62, 0x70, 0x90, 0x30
DUP = 8
WINDOW = 400  # messages under way; the broker allows 1,024
BEHIND_MAX_S = 0.5  # a publisher that could not keep its pace for longer does not catch up


class PacedPublisher(OutsideClient):
    """Publishes numbers to one topic, so many a second, until rest()."""

    def __init__(self, topic: str, qos: int, rate: float) -> None:
        super().__init__(f"paced-{topic}", kept=qos > 0)
        self.topic, self.qos, self.rate = topic, qos, rate
        self.sent = 0  # the next number
        self.acked = DenseNumberSet()
        self.skipped = 0  # the pace allowed them, and the broker did not take them in time
        self._head = string(topic.encode())
        self._under_way: dict[int, int] = {}  # number by packet identifier
        self._released: dict[int, None] = {}  # identifiers that wait for PUBCOMP
        self._identifier = 0
        self._due = 0.0
        self._last_s = time.monotonic()
        self._resting = False

    @property
    def waiting(self) -> int:
        """Exchanges that are not at their end."""
        return len(self._under_way) + len(self._released)

    def rest(self) -> None:
        """Publish nothing new."""
        self._resting = True

    def work(self, now_s: float) -> None:
        """Take what has come, and send what is due."""
        if not self.connected:
            return
        self.receive()
        self._due += (now_s - self._last_s) * self.rate
        self._last_s = now_s
        if self._due > self.rate * BEHIND_MAX_S:
            self.skipped += int(self._due - self.rate * BEHIND_MAX_S)
            self._due = self.rate * BEHIND_MAX_S
        if not self._resting and self.connected:
            self._publish_due()
        if self._out and self.connected:
            self.send()

    def _publish_due(self) -> None:
        count = int(min(self._due, 10_000 if self.qos == 0 else WINDOW - self.waiting))
        if count <= 0 or len(self._out) > 1 << 18:
            return
        self._due -= count
        parts = [self._out]
        for number in range(self.sent, self.sent + count):
            identifier = 0
            if self.qos:
                identifier = self._free()
                self._under_way[identifier] = number
            parts.append(self._publish(identifier, number))
        self.sent += count
        self._out = b"".join(parts)

    def _free(self) -> int:
        while True:
            self._identifier = self._identifier % 65535 + 1
            if self._identifier not in self._under_way and self._identifier not in self._released:
                return self._identifier

    def _publish(self, identifier: int, number: int, flags: int = 0) -> bytes:
        middle = struct.pack(">H", identifier) if self.qos else b""
        return packet(PUBLISH | self.qos << 1 | flags, self._head + middle + payload_of(number))

    def _connected(self, *, present: bool) -> None:
        self._last_s = time.monotonic()
        for identifier, number in self._under_way.items():
            self._out += self._publish(identifier, number, DUP)
        for identifier in self._released:
            self._out += packet(PUBREL, struct.pack(">H", identifier))

    def _take(self, first: int, body: bytes) -> None:
        identifier = body[0] << 8 | body[1]
        if first == PUBCOMP:
            del self._released[identifier]
            return
        assert first == (PUBREC if self.qos == 2 else PUBACK), first
        if self.qos == 2:
            self._released[identifier] = None
            self._out += packet(PUBREL, body)
            if identifier not in self._under_way:  # It was said before the connection ended.
                return
        self.acked.add(self._under_way.pop(identifier))


class SteadySubscriber(OutsideClient):
    """Takes what is published to one topic, each message as it was published."""

    def __init__(self, topic: str, qos: int, *, name: str = "steady") -> None:
        super().__init__(f"{name}-{topic}", kept=qos > 0)
        self.topic, self.qos = topic, qos
        self.arrived = DenseNumberSet()
        self.count = self.again = 0
        self.subscribed = False
        self._taken: set[int] = set()  # identifiers of QoS 2 that wait for PUBREL
        self._answers: list[bytes] = []

    def work(self, _now_s: float) -> None:
        """Take what has come, and acknowledge it."""
        for _ in range(8):
            if not self.connected:
                return
            before = self.count
            self.receive()
            if self.count == before:
                break
        if self.connected and self._out:
            self.send()

    def receive(self) -> None:
        """As OutsideClient, with all answers at once."""
        super().receive()
        self._out += b"".join(self._answers)
        self._answers.clear()

    def _connected(self, *, present: bool) -> None:
        self._answers.clear()
        if not present:
            self._out += packet(0x82, b"\0\1" + string(self.topic.encode()) + bytes([self.qos]))

    def _take(self, first: int, body: bytes) -> None:
        if first & 0xF0 == PUBLISH:
            self._message(first, body)
        elif first == PUBREL:
            self._taken.discard(body[0] << 8 | body[1])
            self._answers.append(packet(PUBCOMP, body))
        else:
            assert first == SUBACK, first
            assert body[2] == self.qos, body
            self.subscribed = True

    def _message(self, first: int, body: bytes) -> None:
        behind = 2 + (body[0] << 8 | body[1])
        qos = first >> 1 & 3
        self.count += 1
        if qos == 0:
            number = number_of(body[behind:])
        else:
            identifier = body[behind] << 8 | body[behind + 1]
            self._answers.append(packet(PUBREC if qos == 2 else PUBACK, body[behind : behind + 2]))
            if qos == 2 and identifier in self._taken:
                return  # Said again.
            if qos == 2:
                self._taken.add(identifier)
            number = number_of(body[behind + 2 :])
        if self.arrived.add(number):
            return
        self.again += 1
        if qos != 1:
            raise Lost(f"{self.client_id}: {number} of QoS {qos} arrived twice")


class SlowSubscriber(OutsideClient):
    """Reads a little at a time, so that most of what is for it is dropped; `acknowledges` or never does."""

    BYTES = 2_048

    def __init__(self, topic: str, qos: int, *, acknowledges: bool) -> None:
        super().__init__(f"slow-{topic}-{acknowledges}")
        self.topic, self.qos, self.acknowledges = topic, qos, acknowledges
        self.count = 0

    def _connected(self, *, present: bool) -> None:
        assert self._socket is not None
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        self._out += packet(0x82, b"\0\1" + string(self.topic.encode()) + bytes([self.qos]))

    def work(self, _now_s: float) -> None:
        """A few bytes."""
        if self._socket is None:
            return
        try:
            data = self._socket.recv(self.BYTES)
        except BlockingIOError:
            data = None
        except OSError:
            data = b""
        if data == b"":
            self.close()
            return
        self._in += data or b""
        for first, body in self._packets():
            self._take(first, body)
        if self._out:
            self.send()

    def _take(self, first: int, body: bytes) -> None:
        if first & 0xF0 != PUBLISH:
            return
        self.count += 1
        behind = 2 + (body[0] << 8 | body[1])
        if first & 6 and self.acknowledges:
            self._out += packet(PUBACK, body[behind : behind + 2])
