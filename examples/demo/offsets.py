"""Offset check: finds missing and repeated records by ring and epoch, as a subscriber sees them.

A ring numbers its records 0, 1, 2, ... without a hole. So a subscriber to a whole ring can detect the records
that it has missed, and notice when they arrive later. A new epoch (memory lost, log present) continues with
the offset at which the log ended. That offset may be before the last one that this subscriber had seen. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class _Ring:
    next: int = 0
    missing: set[int] = field(default_factory=set)


class Offsets:
    """Offsets seen of each ring, from its first record on.

    `records`: different ones; `twice`: repeated ones; `late`: missing ones that arrived later.
    """

    def __init__(self) -> None:
        self.records = 0
        self.twice = 0
        self.late = 0
        self._rings: dict[tuple[str, int], _Ring] = {}

    def accept(self, ring: str, epoch: int, offset: int) -> bool:
        """Record an offset; False: it was seen before."""
        seen = self._ring(ring, epoch, offset)
        if offset >= seen.next:
            seen.missing.update(range(seen.next, offset))
            seen.next = offset + 1
        elif offset in seen.missing:
            seen.missing.remove(offset)
            self.late += 1
        else:
            self.twice += 1
            return False
        self.records += 1
        return True

    def expect(self, ring: str, epoch: int, end: int) -> None:
        """State that the ring has records up to `end`, exclusive: others below it are missing."""
        seen = self._ring(ring, epoch, end)
        seen.missing.update(range(seen.next, end))
        seen.next = max(seen.next, end)

    def _ring(self, ring: str, epoch: int, offset: int) -> _Ring:
        """A ring in an epoch. A new one continues where the epoch before ended."""
        seen = self._rings.get((ring, epoch))
        if seen is None:
            before = max((e for name, e in self._rings if name == ring and e < epoch), default=None)
            end = 0 if before is None else self._rings[ring, before].next
            seen = self._rings[ring, epoch] = _Ring(min(offset, end))
        return seen

    def missing(self) -> Iterator[tuple[str, int, list[int]]]:
        """Ring, epoch and the missing offsets, sorted; rings without any are left out."""
        for (ring, epoch), seen in self._rings.items():
            if seen.missing:
                yield ring, epoch, sorted(seen.missing)

    @property
    def gaps(self) -> int:
        """Number of offsets that are missing now."""
        return sum(len(seen.missing) for seen in self._rings.values())

    def places(self) -> dict[str, list[int]]:
        """Ring -> [epoch, next offset], of its last epoch."""
        return {ring: [epoch, seen.next] for (ring, epoch), seen in sorted(self._rings.items())}
