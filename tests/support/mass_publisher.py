"""Publishers of very many messages, with a ledger: numbers, dense from 0, made and looked at by arrays.

A message says who published it and which number it has, and the rest of it follows from that; those of one
publisher are equally long.  So what is found later can be judged without having been kept, a million at a
time.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ringbuf import Writer
from tests.support.outside_client import OutsideClient, packet, string

HEAD_BYTES = 12  # of a message: u64 its number, u32 whose it is
BATCH = 1_000  # without an acknowledgement
PUBACK = 0x4002
IDENTIFIERS = 65_535

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]


@dataclass
class Ledger:
    """Promises to one publisher.  `sent` numbers, of which `acked` are safe according to the broker."""

    publisher: int
    topic: str
    size: int  # of a message: at least HEAD_BYTES
    sent: int = 0
    acked: int = 0
    again: list[tuple[int, int]] = field(default_factory=list)  # [first, end) that were sent once more

    def times(self) -> Numbers:
        """Number of transmissions of each number."""
        times = np.ones(self.sent, np.int64)
        for first, end in self.again:
            times[first:end] += 1
        return times


def payloads(ledger: Ledger, numbers: Numbers) -> Bytes:
    """The messages of these numbers, one a row."""
    made = np.empty((len(numbers), ledger.size), np.uint8)
    made[:, :8] = numbers.astype("<u8").view(np.uint8).reshape(-1, 8)
    made[:, 8:HEAD_BYTES] = np.frombuffer(struct.pack("<I", ledger.publisher), np.uint8)
    made[:, HEAD_BYTES:] = (numbers[:, None] * 31 + np.arange(ledger.size - HEAD_BYTES)) & 255
    return made


def numbers_in(ledger: Ledger, found: Bytes) -> Numbers:
    """The numbers of messages, one a row.  Fails if these are not the bytes that were published."""
    numbers = np.ascontiguousarray(found[:, :8]).view("<i8").reshape(-1)
    assert np.array_equal(found, payloads(ledger, numbers)), f"{ledger.topic}: not what was published"
    return numbers


class MassPublisher(OutsideClient):
    """Publishes by MQTT, QoS 1, up to `allowed`, and repeats what a connection has left open."""

    def __init__(self, publisher: int, topic: str, size: int) -> None:
        super().__init__(f"mass-{publisher}")
        self.ledger = Ledger(publisher, topic, size)
        self.allowed = 0  # numbers below this may be sent
        body = string(topic.encode()) + b"\0\0" + bytes(size)
        self._template = np.frombuffer(packet(0x32, body), np.uint8)
        self._put = 0  # the next number of this connection

    @property
    def wants_to_send(self) -> bool:
        """True if send() would send a packet."""
        return bool(self._out) or self._room > 0

    @property
    def done(self) -> bool:
        """True if all that was allowed is acknowledged."""
        return self.ledger.acked == self.allowed

    @property
    def _room(self) -> int:
        return min(self.allowed, self.ledger.acked + BATCH) - self._put

    def send(self) -> None:
        """Send as many as there is space for, when all before are in flight."""
        if not self._out and (room := self._room) > 0:
            numbers = np.arange(self._put, self._put + room)
            self._put += room
            self.ledger.sent = max(self.ledger.sent, self._put)
            self._out = self._packets_of(numbers)
        super().send()

    def _packets_of(self, numbers: Numbers) -> bytes:
        made = np.tile(self._template, (len(numbers), 1))
        at = len(self._template) - self.ledger.size
        made[:, at - 2 : at] = _identifiers(numbers)
        made[:, at:] = payloads(self.ledger, numbers)
        return made.tobytes()

    def _packets(self) -> Iterator[tuple[int, bytes]]:
        """None that is left to be taken: acknowledgements come in the order in which was sent, by runs."""
        if (count := len(self._in) // 4) == 0:
            return iter(())
        found = np.frombuffer(self._in, ">u4", count)
        acked = self.ledger.acked
        wanted = _identifiers(np.arange(acked, acked + count)).view(">u2").reshape(-1).astype(np.uint32)
        assert np.array_equal(found, PUBACK << 16 | wanted), "not the acknowledgements of what was sent"
        self.ledger.acked += count
        self._in = self._in[count * 4 :]
        return iter(())

    def _connected(self, *, present: bool) -> None:
        if self._put > self.ledger.acked:
            self.ledger.again.append((self.ledger.acked, self._put))
        self._put = self.ledger.acked


class MassProducer:
    """Publishes into a ring of its own: what has gone in is safe."""

    def __init__(self, publisher: int, topic: str, size: int, writer: Writer) -> None:
        self.ledger = Ledger(publisher, topic, size)
        self._writer = writer

    def publish(self, end: int) -> None:
        """All numbers below `end` that are not there yet; fewer if the ring is full."""
        ledger = self.ledger
        data = payloads(ledger, np.arange(ledger.sent, end)).tobytes()
        messages = [data[at : at + ledger.size] for at in range(0, len(data), ledger.size)]
        ledger.sent += self._writer.publish_many(messages, ledger.topic)
        ledger.acked = ledger.sent


def _identifiers(numbers: Numbers) -> Bytes:
    return (numbers % IDENTIFIERS + 1).astype(">u2").view(np.uint8).reshape(-1, 2)
