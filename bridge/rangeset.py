"""Ranges of offsets: covered once, covered twice, not covered. Plain arithmetic, no files, no Spark.

A range is (first, last), both included. A list of ranges is sorted, and its ranges neither touch nor overlap.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Range: TypeAlias = tuple[int, int]
Ranges: TypeAlias = list[Range]


def union(ranges: Iterable[Range]) -> Ranges:
    """Offsets that at least one of the ranges covers."""
    merged: Ranges = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(merged[-1][1], last)
        else:
            merged.append((first, last))
    return merged


def subtract(ranges: Ranges, taken: Ranges) -> Ranges:
    """Offsets that `ranges` cover and `taken` do not."""
    remaining: Ranges = []
    at = 0
    for begin, last in ranges:
        first = begin
        while at < len(taken) and taken[at][1] < first:
            at += 1
        for taken_first, taken_last in taken[at:]:
            if taken_first > last:
                break
            if taken_first > first:
                remaining.append((first, taken_first - 1))
            first = taken_last + 1
        if first <= last:
            remaining.append((first, last))
    return remaining


def overlap(ranges: Iterable[Range]) -> Ranges:
    """Offsets that more than one of the ranges covers."""
    common: Ranges = []
    reached = -1
    for first, last in sorted(ranges):
        if first <= reached:
            common.append((first, min(last, reached)))
        reached = max(reached, last)
    return union(common)


def count(ranges: Iterable[Range]) -> int:
    """Number of offsets in the ranges."""
    return sum(last - first + 1 for first, last in ranges)
