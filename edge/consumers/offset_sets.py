"""Sets of offsets: searches in Roaring bitmaps in time proportional to runs, not to offsets. No state."""

from __future__ import annotations

from collections.abc import Iterator

from pyroaring import BitMap64

NONE = 1 << 63  # above every offset


def first_absent(offsets: BitMap64, first: int, end: int) -> int:
    """The first of first .. end - 1 that is not in the set; `end` if all are."""
    if first not in offsets:
        return first
    step = 1
    while first < end:
        stop = min(first + step, end)
        if offsets.contains_range(first, stop):
            first, step = stop, step * 2
        elif step == 1:
            return first
        else:
            step = max(step // 4, 1)
    return end


def next_present(offsets: BitMap64, offset: int) -> int:
    """The first from `offset` on that is in the set; NONE if there is none."""
    if not offsets or offsets.max() < offset:
        return NONE  # next_set_bit() of pyroaring 1.2 does not free its iterator when it finds nothing
    return offsets.next_set_bit(offset)


def range_set(first: int, end: int) -> BitMap64:
    """The set of first .. end - 1."""
    offsets = BitMap64()
    offsets.add_range(first, end)
    return offsets


def runs_of_set(offsets: BitMap64) -> Iterator[tuple[int, int]]:
    """(offset, count) of each contiguous run of the set, rising."""
    if not offsets:  # pyroaring 1.2 does not free the iterator of an empty set: 224 bytes
        return
    behind = offsets.shift(1)  # in C: a loop over the runs took 20 times as long
    for first, end in zip(offsets - behind, behind - offsets, strict=True):
        yield first, end - first
