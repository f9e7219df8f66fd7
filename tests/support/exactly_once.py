"""Two clients outside the broker that keep their sessions and rely on it: QoS 2 in, QoS 2 out, with a ledger.

MQTT 3.1.1, spoken by hand, each with the memory that the specification asks of a client; so whatever the
broker forgets of its side shows: a number that is gone or comes twice, a session that is not there again.
Identifiers are few and used again at once, as a device does that counts in a byte.
"""

import struct
from collections import deque

from tests.support.outside_client import Lost, OutsideClient, number_of, packet, payload_of, string

PUBLISH, PUBREC, PUBREL, PUBCOMP, SUBACK = 0x30, 0x50, 0x62, 0x70, 0x90
IDENTIFIERS = 8


class _Keeping(OutsideClient):
    """A client with a session that is to outlive everything."""

    def __init__(self, client_id: str) -> None:
        super().__init__(client_id, kept=True)

    def _say(self, first: int, identifier: int) -> None:
        self._out += struct.pack(">BBH", first, 2, identifier)


class Sender(_Keeping):
    """Publishes numbers, dense from 0.  `done`: so many of them are at the end of their exchange."""

    def __init__(self, client_id: str, topic: str) -> None:
        super().__init__(client_id)
        self.topic = topic.encode()
        self.sent = self.done = 0
        self.resting = False  # publishes nothing new
        self._free = deque(range(1, IDENTIFIERS + 1))
        self._under_way: dict[int, tuple[int, bool]] = {}  # number by identifier, and whether PUBREC has come

    @property
    def waiting(self) -> int:
        """Exchanges that are not at their end."""
        return len(self._under_way)

    @property
    def wants_to_send(self) -> bool:
        """True if send() would send a packet."""
        return bool(self._out) or bool(self._free and not self.resting)

    def send(self) -> None:
        """Send open packets again, and new numbers while packet identifiers are free."""
        while self._free and not self.resting:
            identifier = self._free.popleft()
            self._under_way[identifier] = self.sent, False
            self._publish(0x34, identifier, self.sent)
            self.sent += 1
        super().send()

    def _publish(self, first: int, identifier: int, number: int) -> None:
        body = string(self.topic) + struct.pack(">H", identifier) + payload_of(number)
        self._out += packet(first, body)

    def _connected(self, *, present: bool) -> None:
        for identifier, (number, received) in self._under_way.items():  # in the order of their first PUBLISH
            if received:
                self._say(PUBREL, identifier)
            else:
                self._publish(0x3C, identifier, number)

    def _take(self, first: int, body: bytes) -> None:
        (identifier,) = struct.unpack_from(">H", body)
        number, _ = self._under_way[identifier]
        if first == PUBREC:
            self._under_way[identifier] = number, True
            self._say(PUBREL, identifier)
        else:
            assert first == PUBCOMP, first
            del self._under_way[identifier]
            self._free.appendleft(identifier)
            self.done += 1


class Collector(_Keeping):
    """Subscribes once in its life.  `numbers`: what it has been given.  `repeated`: it may come again."""

    def __init__(self, client_id: str, topic_filter: str, *, repeated: bool = False) -> None:
        super().__init__(client_id)
        self.subscribed = False
        self._repeated = repeated
        self.numbers: set[int] = set()
        self._filter = topic_filter.encode()
        self._open: set[int] = set()  # identifiers between PUBLISH and PUBREL

    def _connected(self, *, present: bool) -> None:
        if not self.subscribed:
            self._out += packet(0x82, b"\x00\x01" + string(self._filter) + b"\x02")

    def _take(self, first: int, body: bytes) -> None:
        if first == SUBACK:
            assert body == b"\x00\x01\x02", body
            self.subscribed = True
            return
        if first == PUBREL:
            (identifier,) = struct.unpack_from(">H", body)
            self._open.discard(identifier)
            self._say(PUBCOMP, identifier)
            return
        assert first & 0xF0 == PUBLISH, first
        (length,) = struct.unpack_from(">H", body)
        (identifier,) = struct.unpack_from(">H", body, 2 + length)
        if identifier not in self._open:
            number = number_of(body[4 + length :])
            if number in self.numbers and not self._repeated:
                raise Lost(f"{self.client_id}: message {number} has come twice")
            self.numbers.add(number)
            self._open.add(identifier)
        self._say(PUBREC, identifier)
