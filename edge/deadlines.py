"""When what is due: one heap of keys with a time each.

Invariant: a key has at most one deadline.  What was moved or cancelled stays in the heap until its time has
come or it is rebuilt, which happens as soon as more than half of it is such: it never has more than twice as
many entries as there are deadlines, and a few.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

__all__ = ["Deadlines"]

SPARE = 64

K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    """Keys and when they are due, in seconds of whatever clock the caller reads."""

    def __init__(self) -> None:
        self._due: dict[K, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._number = 0  # two of the same time come in the order in which they were set

    def __len__(self) -> int:
        return len(self._due)

    def set(self, key: K, due_s: float) -> None:
        """`key` is due then, whatever was set before."""
        self._number += 1
        self._due[key] = (due_s, self._number)
        heapq.heappush(self._heap, (due_s, self._number, key))
        if len(self._heap) > 2 * len(self._due) + SPARE:
            self._heap = [(due, number, key) for key, (due, number) in self._due.items()]
            heapq.heapify(self._heap)

    def cancel(self, key: K) -> None:
        """`key` is not due any more; it need not have been."""
        self._due.pop(key, None)

    @property
    def next_s(self) -> float:
        """When the first is due; infinity: nothing is."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][:2]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else float("inf")

    def due(self, now_s: float) -> Iterator[K]:
        """Each key that is due by now, earliest first; it has no deadline any more."""
        while self.next_s <= now_s:
            key = heapq.heappop(self._heap)[2]
            del self._due[key]
            yield key
