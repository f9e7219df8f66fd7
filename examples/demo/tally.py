"""Tally: number of times each message was seen, by device and number. Every stage counts with it.

A device numbers its messages 0, 1, 2, ...; a tally has one byte for each: the number of times it was seen. A
million messages need a megabyte. Messages that are missing or double in one stage are found by comparing
bytes. Pure, except for save() and load().

File: zlib of a msgpack map, device -> bytes. It lives as long as one run of the demo, so it has no version.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import msgpack

NUMBER_MAX = 50_000_000  # per device: a payload with a higher number is not of the demo
SEEN_MAX = 255


class Tally:
    """(device, n) -> number of times it was seen, up to 255."""

    def __init__(self) -> None:
        self._seen: dict[str, bytearray] = {}

    def add(self, device: str, n: int) -> None:
        """Count message `n` of `device` once more. Raises ValueError: the number is not of the demo."""
        seen = self._seen.get(device)
        if seen is None:
            seen = self._seen[device] = bytearray()
        if n >= len(seen):
            if n > NUMBER_MAX:
                raise ValueError(f"message {n} of {device} is above {NUMBER_MAX}: it is not of this run")
            seen.extend(bytes(n + 1 + n // 8 - len(seen)))  # grows by an eighth, so that adding stays cheap
        seen[n] += seen[n] < SEEN_MAX

    def expect(self, device: str, count: int) -> None:
        """Count messages 0 .. count-1 of `device` once each. The device must be new."""
        self._seen[device] = bytearray(b"\1") * count

    def merge(self, other: Tally) -> None:
        """Add the counts of `other`."""
        for device, seen in other._seen.items():
            mine = self._seen.setdefault(device, bytearray())
            mine.extend(bytes(max(len(seen) - len(mine), 0)))
            for n, count in enumerate(seen):
                mine[n] = min(mine[n] + count, SEEN_MAX)

    def devices(self) -> list[str]:
        """Devices, sorted."""
        return sorted(self._seen)

    def count(self, device: str | None = None) -> int:
        """Number of different messages of one device, or of all."""
        devices = self._seen.values() if device is None else [self._seen.get(device, b"")]
        return sum(len(seen) - seen.count(0) for seen in devices)

    def total(self) -> int:
        """Number of messages, with repetitions."""
        return sum(sum(seen) for seen in self._seen.values())

    def missing(self, other: Tally) -> Iterator[tuple[str, int]]:
        """Messages that `other` has and this tally has not."""
        for device, theirs in sorted(other._seen.items()):
            mine = self._seen.get(device, b"")
            mine = mine[: len(theirs)].ljust(len(theirs), b"\0")
            if theirs != mine:
                yield from (
                    (device, n) for n, (w, m) in enumerate(zip(theirs, mine, strict=True)) if w and not m
                )

    def save(self, path: Path) -> None:
        """Write to a file; it is there whole or not at all."""
        temporary = path.with_suffix(".partial")
        packed = msgpack.packb({device: bytes(seen) for device, seen in self._seen.items()})
        temporary.write_bytes(zlib.compress(packed, 1))
        temporary.rename(path)

    @classmethod
    def load(cls, path: Path) -> Tally:
        """Read the file that save() wrote."""
        tally = cls()
        values = msgpack.unpackb(zlib.decompress(path.read_bytes()))
        tally._seen = {device: bytearray(seen) for device, seen in values.items()}
        return tally
