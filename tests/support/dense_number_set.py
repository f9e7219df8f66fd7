"""A set of numbers that are nearly dense from 0, in as much memory as it has gaps."""

from __future__ import annotations


class DenseNumberSet:
    """Numbers that came, mostly in order.  Ten million take a few bytes."""

    def __init__(self) -> None:
        self.next = 0  # all below are in it
        self._beyond: set[int] = set()

    def add(self, number: int) -> bool:
        """Add a number; False: it was there."""
        if number < self.next or number in self._beyond:
            return False
        if number != self.next:
            self._beyond.add(number)
            return True
        self.next += 1
        while self.next in self._beyond:
            self._beyond.remove(self.next)
            self.next += 1
        return True

    def __contains__(self, number: int) -> bool:
        return number < self.next or number in self._beyond

    def __len__(self) -> int:
        return self.next + len(self._beyond)

    def lacks(self, other: DenseNumberSet) -> list[int]:
        """The numbers of `other` that are not in it, lowest first."""
        dense = [number for number in range(self.next, other.next) if number not in self._beyond]
        return dense + sorted(number for number in other._beyond if number not in self)
