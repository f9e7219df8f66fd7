"""Timer heap: at most one deadline per key.

Invariant: the heap has at most twice as many entries as there are deadlines, and SPARE more. A moved or
cancelled deadline stays in the heap until its time, or until the heap is rebuilt at that bound.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

SPARE = 64

K = TypeVar("K", bound=Hashable)


class TimerHeap(Generic[K]):
    """Keys and their deadlines, in seconds of the caller's clock."""

    def __init__(self) -> None:
        self._due: dict[K, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._number = 0  # deadlines of equal time are returned in the order in which they were set

    def __len__(self) -> int:
        return len(self._due)

    def set(self, key: K, due_s: float) -> None:
        """Set the deadline of `key`, in place of an earlier one."""
        self._number += 1
        self._due[key] = (due_s, self._number)
        heapq.heappush(self._heap, (due_s, self._number, key))
        if len(self._heap) > 2 * len(self._due) + SPARE:
            self._heap = [(due, number, key) for key, (due, number) in self._due.items()]
            heapq.heapify(self._heap)

    def cancel(self, key: K) -> None:
        """Remove the deadline of `key`, if it has one."""
        self._due.pop(key, None)

    def is_due(self, key: K, now_s: float) -> bool:
        """True if `key` has a deadline that is due by now."""
        due = self._due.get(key)
        return due is not None and due[0] <= now_s

    @property
    def next_s(self) -> float:
        """Earliest deadline; infinity if there is none."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][:2]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else float("inf")

    def due(self, now_s: float) -> Iterator[K]:
        """Keys that are due by now, earliest first. Their deadlines are removed."""
        while self.next_s <= now_s:
            key = heapq.heappop(self._heap)[2]
            del self._due[key]
            yield key
