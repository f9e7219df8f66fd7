"""How often each message was seen, by device and number: the one thing that every stage is counted with.

A device numbers its messages 0, 1, 2, ...; a tally holds a byte for each, how often it was seen.  A million
messages are a megabyte, and what is missing or double in one stage against another is found by comparing
bytes.  Pure, but for save() and load().

File: zlib of a msgpack map, device -> bytes.  It lives as long as one run of the demo, so it has no version.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import msgpack

__all__ = ["NUMBER_MAX", "Tally"]

NUMBER_MAX = 50_000_000  # of one device: a payload that says more is not one of ours
SEEN_MAX = 255


class Tally:
    """(device, n) -> how often it was seen, up to 255 times."""

    def __init__(self) -> None:
        self._seen: dict[str, bytearray] = {}

    def add(self, device: str, n: int) -> None:
        """Message `n` of `device` was seen once more.  Raises ValueError: no device counts like that."""
        seen = self._seen.get(device)
        if seen is None:
            seen = self._seen[device] = bytearray()
        if n >= len(seen):
            if n > NUMBER_MAX:
                raise ValueError(f"message {n} of {device} is above {NUMBER_MAX}: it is not of this run")
            seen.extend(bytes(n + 1 + n // 8 - len(seen)))  # grows by an eighth, so that adding stays cheap
        seen[n] += seen[n] < SEEN_MAX

    def expect(self, device: str, count: int) -> None:
        """Messages 0 .. count-1 of `device` were seen once each, and none of it before."""
        self._seen[device] = bytearray(b"\1") * count

    def merge(self, other: Tally) -> None:
        """Add all that `other` saw."""
        for device, seen in other._seen.items():
            mine = self._seen.setdefault(device, bytearray())
            mine.extend(bytes(max(len(seen) - len(mine), 0)))
            for n, count in enumerate(seen):
                mine[n] = min(mine[n] + count, SEEN_MAX)

    def devices(self) -> list[str]:
        """Sorted."""
        return sorted(self._seen)

    def count(self, device: str | None = None) -> int:
        """Different messages seen, of one device or of all."""
        chosen = self._seen.values() if device is None else [self._seen.get(device, b"")]
        return sum(len(seen) - seen.count(0) for seen in chosen)

    def total(self) -> int:
        """Messages seen, repeated ones counted again."""
        return sum(sum(seen) for seen in self._seen.values())

    def missing(self, wanted: Tally) -> Iterator[tuple[str, int]]:
        """What `wanted` has seen and this has not."""
        for device, theirs in sorted(wanted._seen.items()):
            mine = self._seen.get(device, b"")
            mine = mine[: len(theirs)].ljust(len(theirs), b"\0")
            if theirs != mine:
                yield from (
                    (device, n) for n, (w, m) in enumerate(zip(theirs, mine, strict=True)) if w and not m
                )

    def save(self, path: Path) -> None:
        """Into a file of its own; it is there whole or not at all."""
        temporary = path.with_suffix(".partial")
        packed = msgpack.packb({device: bytes(seen) for device, seen in self._seen.items()})
        temporary.write_bytes(zlib.compress(packed, 1))
        temporary.rename(path)

    @classmethod
    def load(cls, path: Path) -> Tally:
        """What save() wrote."""
        tally = cls()
        found = msgpack.unpackb(zlib.decompress(path.read_bytes()))
        tally._seen = {device: bytearray(seen) for device, seen in found.items()}
        return tally
