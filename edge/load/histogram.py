"""Histogram of durations: percentiles within 1 part in 128, and a text chart.

C counts the values (ringbuf/c/load/load.c), one bucket for 1/128 of each power of two, so that memory does
not grow with the number of values. Every value is counted, without sampling.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ringbuf.native import lib

BAR = 40  # characters of the longest bar


class Histogram:
    """Durations in ns. `counts` by bucket; `min_ns` and `max_ns` are exact."""

    def __init__(self, counts: Sequence[int], min_ns: int, max_ns: int) -> None:
        self.counts = counts
        self.total = sum(counts)
        self.min_ns, self.max_ns = (min_ns, max_ns) if self.total else (0, 0)

    @classmethod
    def of(cls, values: Iterable[int]) -> Histogram:
        """Histogram of these durations."""
        values = list(values)
        counts = [0] * int(lib.LD_BUCKETS)
        for value in values:
            counts[lib.ld_bucket(value)] += 1
        return cls(counts, min(values, default=0), max(values, default=0))

    def percentile(self, percent: float) -> int:
        """The least value that `percent` (0..100) of all do not exceed, in ns; 0 if there are none.

        Too high by less than 1/128: it is the upper end of a bucket, or `max_ns`.
        """
        rank = max(1, math.ceil(round(self.total * percent / 100, 6)))
        seen = 0
        for bucket, count in enumerate(self.counts):
            seen += count
            if seen >= rank:
                return max(self.min_ns, min(self.max_ns, int(lib.ld_bucket_floor(bucket + 1)) - 1))
        return self.max_ns

    def as_dict(self) -> dict[str, float]:
        """Percentiles in microseconds, and the number of values."""
        if not self.total:
            return {"count": 0}
        ranks = {"p50_us": 50, "p90_us": 90, "p99_us": 99, "p99.9_us": 99.9}
        figures = {name: self.percentile(rank) / 1000 for name, rank in ranks.items()}
        return {"count": self.total, "min_us": self.min_ns / 1000, **figures, "max_us": self.max_ns / 1000}

    def lines(self) -> list[str]:
        """A text chart, one line for each power of two."""
        octaves: dict[int, int] = {}
        for bucket, count in enumerate(self.counts):
            if count:
                octave = int(lib.ld_bucket_floor(bucket)).bit_length()
                octaves[octave] = octaves.get(octave, 0) + count
        if not octaves:
            return []
        highest = max(octaves.values())
        return [
            f"  up to {time_in_words(1 << octave):>8} {octaves.get(octave, 0) / self.total:>8.2%} "
            + "#" * math.ceil(BAR * octaves.get(octave, 0) / highest)
            for octave in range(min(octaves), max(octaves) + 1)
        ]


def time_in_words(ns: float) -> str:
    """Text of a duration: `850 ns`, `12.3 µs`, `4.1 ms`, `2.5 s`."""
    for unit, length in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= length:
            return f"{ns / length:.3g} {unit}" if ns < 1000 * length else f"{ns / length:,.0f} {unit}"
    return f"{ns:.0f} ns"
