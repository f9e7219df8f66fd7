"""Ranges of offsets: covered once, covered twice, not covered. Plain arithmetic, no files, no Spark.

A range is (first, last), both included. A list of ranges is sorted, and its ranges neither touch nor overlap.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

__all__ = ["Range", "Ranges", "count", "overlap", "subtract", "union"]

Range: TypeAlias = tuple[int, int]
Ranges: TypeAlias = list[Range]


def union(ranges: Iterable[Range]) -> Ranges:
    """Offsets that at least one of the ranges covers."""
    found: Ranges = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return found


def subtract(ranges: Ranges, taken: Ranges) -> Ranges:
    """Offsets that `ranges` cover and `taken` do not."""
    found: Ranges = []
    at = 0
    for begin, last in ranges:
        first = begin
        while at < len(taken) and taken[at][1] < first:
            at += 1
        for begins, ends in taken[at:]:
            if begins > last:
                break
            if begins > first:
                found.append((first, begins - 1))
            first = ends + 1
        if first <= last:
            found.append((first, last))
    return found


def overlap(ranges: Iterable[Range]) -> Ranges:
    """Offsets that more than one of the ranges covers."""
    found: Ranges = []
    reached = -1
    for first, last in sorted(ranges):
        if first <= reached:
            found.append((first, min(last, reached)))
        reached = max(reached, last)
    return union(found)


def count(ranges: Iterable[Range]) -> int:
    """Number of offsets in the ranges."""
    return sum(last - first + 1 for first, last in ranges)
