"""A publisher outside the broker, with a ledger of its acknowledged numbers, which must be found later."""

import struct

from tests.support.outside_client import OutsideClient, packet, payload_of, string

WINDOW = 64  # messages without an acknowledgement
PUBACK, PUBREC, PUBREL, PUBCOMP = 0x40, 0x50, 0x62, 0x70
DUP = 8


class OutsidePublisher(OutsideClient):
    """Publishes to one topic.  `qos` 1: what was under way when a connection ends is neither promised nor
    repeated.  2: its session is kept, and open exchanges continue: each number arrives once.
    """

    def __init__(self, topic: str, window: int = WINDOW, qos: int = 1) -> None:
        super().__init__(f"outside-{topic}", kept=qos == 2)
        self.topic = topic
        self.qos = qos
        self.sent = 0  # the next number
        self.acked: set[int] = set()  # the ledger
        self.is_paused = False  # it sends no new message
        self._window = window
        self._under_way: dict[int, int] = {}  # number by packet identifier
        self._released: dict[int, None] = {}  # identifiers that wait for PUBCOMP

    @property
    def waiting(self) -> int:
        """Messages that were sent, in this session, and not acknowledged yet."""
        return len(self._under_way)

    @property
    def waiting_since(self) -> int:
        """The number of the oldest of these, or the next one's: all before are acknowledged, or given up."""
        return min(self._under_way.values(), default=self.sent)

    @property
    def wants_to_send(self) -> bool:
        """True if send() would send a packet."""
        return bool(self._out) or self._room > 0

    @property
    def _room(self) -> int:
        return 0 if self.is_paused else self._window - len(self._under_way) - len(self._released)

    def send(self) -> None:
        """As many as the window and the socket take."""
        for _ in range(self._room):
            identifier = self.sent % 65535 + 1
            self._under_way[identifier] = self.sent
            self._out += self._publish(identifier, self.sent)
            self.sent += 1
        super().send()

    def _connected(self, *, present: bool) -> None:
        if not self.kept:
            self._under_way.clear()
        for identifier, number in self._under_way.items():
            self._out += self._publish(identifier, number, DUP if present else 0)
        for identifier in self._released:
            self._out += packet(PUBREL, struct.pack(">H", identifier))

    def _take(self, first: int, body: bytes) -> None:
        assert len(body) == 2, (first, body)
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

    def _publish(self, identifier: int, number: int, flags: int = 0) -> bytes:
        body = string(self.topic.encode()) + struct.pack(">H", identifier) + payload_of(number)
        return packet(0x30 | self.qos << 1 | flags, body)
