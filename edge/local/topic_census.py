"""Topic census: counts, sizes, rates and last records of topics, from the rings in shared memory.

The broker takes no part in it, and does nothing per message for it. Bounded: topics beyond `topics_max` are
not counted by name, only in `others`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from edge.local.shm_subscription import RingBatch, ShmSubscription
from ringbuf import Record
from ringbuf.errors import Overrun

TOPICS_MAX = 250_000


@dataclass(slots=True)
class TopicCount:
    """Records of one topic. `last` may be overwritten in the ring at any time."""

    ring: str
    last: Record
    count: int = 0
    size_bytes: int = 0  # of all payloads

    def payload(self) -> bytes | None:
        """A copy of the last payload; None if it was overwritten meanwhile."""
        try:
            return self.last.bytes()
        except Overrun:
            return None


class TopicCensus:
    """Counts of the records that add() got."""

    def __init__(self, topics_max: int = TOPICS_MAX) -> None:
        self.others = 0  # records of topics that are not counted by name
        self.lost = 0  # records that were overwritten before they were read
        self._topics_max = topics_max
        self._counts: dict[bytes, TopicCount] = {}
        self._since_ns: dict[str, int] = {}  # by ring

    def __len__(self) -> int:
        return len(self._counts)

    def items(self) -> Iterator[tuple[str, TopicCount]]:
        """Topics and their counts."""
        return ((key.decode("utf-8", "replace"), count) for key, count in self._counts.items())

    def seconds(self, ring: str, now_ns: int) -> float:
        """Time since the first counted record of a ring, or since begin()."""
        return max((now_ns - self._since_ns.get(ring, now_ns)) / 1e9, 1e-3)

    def begin(self, rings: Iterable[str]) -> None:
        """Count from zero, from now on."""
        now_ns = time.time_ns()
        self._counts.clear()
        self.others = 0
        self._since_ns = dict.fromkeys(rings, now_ns)

    def add(self, batch: RingBatch) -> None:
        """Count the records of a batch."""
        self.lost += batch.lost
        if len(batch):
            self._since_ns.setdefault(batch.ring, batch.records.timestamps_ns[0])
        for record in batch:
            try:
                key = record.key
            except Overrun:
                self.lost += 1
                continue
            count = self._counts.get(key)
            if count is None:
                if len(self._counts) >= self._topics_max:
                    self.others += 1
                    continue
                count = self._counts[key] = TopicCount(batch.ring, record)
            count.last = record
            count.count += 1
            count.size_bytes += len(record)

    def read_all(self, subscription: ShmSubscription) -> None:
        """Count the records from the subscription's position to the present end of each ring."""
        for batch in subscription.present_batches():
            self.add(batch)
