"""Records for a sink that takes them one by one: a broker, a queue, a log of another kind.

Owns the shape of what such a sink is given.  Never decides which records those are, and reads none: a batch
is walked in C (ringbuf.Batch), filters included, and Python sees a record when the sink takes it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

__all__ = ["Message", "Records", "Rejected"]


class Message(Protocol):
    """One record, as ringbuf.Record is one; bridge.transform.Message is what plug-ins make."""

    @property
    def offset(self) -> int:
        """Of the record in its partition and epoch, with which it makes its identity."""

    @property
    def timestamp_ns(self) -> int:
        """Wall clock of the broker, ns since 1970."""

    @property
    def key(self) -> bytes:
        """The topic it was published to, UTF-8; Records.topic_of() says where it goes."""

    @property
    def flags(self) -> int:
        """ringbuf.FLAG_*: QoS and retain among them."""

    @property
    def properties(self) -> bytes:
        """MQTT 5 properties in wire form, their length in front; b"": none."""

    def bytes(self) -> bytes:
        """A copy of the payload.  (A ringbuf.Record can be viewed without one: memoryview(record).)"""


class Rejected(NamedTuple):
    """A record that the sink will never take, and why: it goes to the dead letters, the others go on."""

    offset: int
    reason: str


def unchanged(topic: bytes) -> bytes:
    """Where there is no remapping."""
    return topic


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Records of one partition and epoch, in the order of their offsets.

    When the sink has them, all offsets from first_offset to last_offset are done with: those that a filter
    or a plug-in has left out, too.  Memory is valid until the Future of send() is settled.
    """

    edge: str
    stream: str  # or "stream@producer"
    partition: int
    epoch: int
    first_offset: int
    last_offset: int
    length: int  # bytes of the records that this range of offsets has, for rates and limits
    batches: tuple[Sequence[Message], ...]  # ringbuf.Batch each, with its columns, unless a plug-in made it
    topic_of: Callable[[bytes], bytes] = unchanged  # key -> topic at the sink; remembers, so ask per record
    lost: tuple[tuple[int, int], ...] = ()  # ranges below these that will never come, both ends included

    @property
    def count(self) -> int:
        """Records that are to be sent."""
        return sum(len(batch) for batch in self.batches)

    def __iter__(self) -> Iterator[Message]:
        return itertools.chain.from_iterable(self.batches)
