"""Records for a sink that takes them one by one: a broker, a queue, another log.

Owns the shape in which such a sink gets records. Never decides which records these are, and reads none. A
batch is walked in C (ringbuf.Batch), filters included; Python handles a record when the sink takes it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class SinkRecord(Protocol):
    """One record, with the attributes of ringbuf.Record. Plug-ins make a TransformedRecord."""

    @property
    def offset(self) -> int:
        """Offset in its partition and epoch; the three together are the identity of the record."""

    @property
    def timestamp_ns(self) -> int:
        """Wall clock of the broker, ns since 1970."""

    @property
    def key(self) -> bytes:
        """Topic to which it was published, UTF-8. SinkBatch.topic_of() returns the topic at the sink."""

    @property
    def flags(self) -> int:
        """ringbuf.FLAG_*: QoS and retain among others."""

    @property
    def properties(self) -> bytes:
        """MQTT 5 properties in wire form with their length first; b"": no properties."""

    def bytes(self) -> bytes:
        """A copy of the payload. A ringbuf.Record can be viewed without a copy: memoryview(record)."""


class Rejected(NamedTuple):
    """A record that the sink will never take, and the reason: a dead letter. The others are sent."""

    offset: int
    reason: str


def unchanged(topic: bytes) -> bytes:
    """The topic as it is: the default without a mapping."""
    return topic


@dataclass(frozen=True, slots=True, eq=False)
class SinkBatch:
    """Records of one partition and epoch, in the order of their offsets.

    After the sink has taken them, all offsets from first_offset to last_offset are complete, including those
    that a filter or a plug-in has left out. Memory is valid until the Future of send() is done.
    """

    edge: str
    stream: str  # or "stream@producer"
    partition: int
    epoch: int
    first_offset: int
    last_offset: int
    length: int  # bytes of all records in this range of offsets, for rates and limits
    # each a ringbuf.Batch with its columns, unless a plug-in made it
    batches: tuple[Sequence[SinkRecord], ...]
    # Key -> topic at the sink; it caches, so call it per record.
    topic_of: Callable[[bytes], bytes] = unchanged
    lost: tuple[tuple[int, int], ...] = ()  # ranges below these that will never be sent, both ends included

    @property
    def count(self) -> int:
        """Number of records to send."""
        return sum(len(batch) for batch in self.batches)

    def __iter__(self) -> Iterator[SinkRecord]:
        return itertools.chain.from_iterable(self.batches)
