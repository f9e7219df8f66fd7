"""Segment ages that do not depend on changes of the machine's clock.

Records have wall-clock timestamps.  People and networks set that clock, and machines without a battery start
in 1970.  Retention by age must not remove young segments after the clock was set forward, and must not keep
segments with future timestamps forever.  The wall clock is therefore used once per segment, when this process
first sees the segment.  From then on the segment ages by the monotonic clock.  A segment that has grown is as
old as its last growth.

An implausible timestamp counts as young: one in the future, or before CLOCK_SET_NS.  A segment written
earlier is never younger than one written later.  A wrong timestamp therefore only keeps its segment until
this process has run for the retention time, or until the next segment is removed.

A clock that is far ahead of all records at a start is wrong, or the machine was off for long.  For DOUBTED_NS
segments are then only as old as the newest record shows, so that people or a time service can set the clock.
After that the wall clock counts.

Owns these times, which retention uses.  Never reads a clock.  The end of an active segment that is old is
decided in maintenance.py, by the wall clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from persistence.segment.segment_info import SegmentInfo
from ringbuf.constants import CLOCK_SET_NS

SHIFT_MIN_NS = 2_000_000_000  # clocks drift: smaller differences are ignored
AHEAD_MIN_NS = 86_400 * 1_000_000_000  # of the newest record: from here on a clock is doubted
DOUBTED_NS = 3600 * 1_000_000_000


@dataclass(slots=True)
class _Segment:
    bytes: int
    newest_ns: int  # monotonic time of its last record


class SegmentAges:
    """Ages of the segments of one log."""

    def __init__(self) -> None:
        self._known: dict[int, _Segment] = {}
        self._newest_base = -1
        self._looked_ns: int | None = None  # monotonic time of the last call
        self.ahead_ns = 0  # of the wall clock to the newest record at the start, while the clock is doubted
        self._trusted_from_ns = 0  # monotonic time at which that ends
        self._doubted: dict[int, int] = {}  # segments of the start, with their bytes

    def dated(self, segments: Sequence[SegmentInfo], wall_ns: int, monotonic_ns: int) -> list[SegmentInfo]:
        """The same segments, with timestamps moved so that the current wall clock gives their age.

        `segments`: all segments of the log, in rising order.
        """
        if self._looked_ns is None:
            self._compare(segments, wall_ns, monotonic_ns)
        elif self.ahead_ns and monotonic_ns >= self._trusted_from_ns:
            self._end_doubt()
        for segment in segments:
            self._see(segment, wall_ns - self.ahead_ns, monotonic_ns)
        for base in self._known.keys() - {segment.base for segment in segments}:
            del self._known[base]
        self._looked_ns = monotonic_ns
        self._newest_base = max(self._newest_base, *(segment.base for segment in segments), -1)
        dated: list[SegmentInfo] = []
        age_ns = 0
        for segment in reversed(segments):
            if segment.rings:
                age_ns = max(age_ns, monotonic_ns - self._known[segment.base].newest_ns)
            dated.append(
                _moved(segment, wall_ns - age_ns - segment.last_timestamp_ns) if segment.rings else segment
            )
        return dated[::-1]

    def _compare(self, segments: Sequence[SegmentInfo], wall_ns: int, monotonic_ns: int) -> None:
        """Doubt the wall clock if it is far ahead of all records."""
        newest_ns = max((segment.last_timestamp_ns for segment in segments), default=0)
        if newest_ns >= CLOCK_SET_NS and wall_ns - newest_ns > AHEAD_MIN_NS:
            self.ahead_ns, self._trusted_from_ns = wall_ns - newest_ns, monotonic_ns + DOUBTED_NS
            self._doubted = {segment.base: segment.bytes for segment in segments}

    def _end_doubt(self) -> None:
        """Forget ages that the wall clock did not give; _see() asks it again."""
        self._known = {
            base: known for base, known in self._known.items() if self._doubted.get(base) != known.bytes
        }
        self.ahead_ns, self._doubted = 0, {}

    def _see(self, segment: SegmentInfo, wall_ns: int, monotonic_ns: int) -> None:
        known = self._known.get(segment.base)
        if known is None:
            age_ns = wall_ns - segment.last_timestamp_ns if segment.last_timestamp_ns >= CLOCK_SET_NS else 0
            if self._looked_ns is not None and segment.base > self._newest_base:  # begun since the last call
                age_ns = min(age_ns, monotonic_ns - self._looked_ns)
            self._known[segment.base] = _Segment(segment.bytes, monotonic_ns - max(age_ns, 0))
        elif segment.bytes > known.bytes:
            known.bytes, known.newest_ns = segment.bytes, monotonic_ns


def _moved(segment: SegmentInfo, shift_ns: int) -> SegmentInfo:
    if abs(shift_ns) < SHIFT_MIN_NS:
        return segment
    rings = tuple(
        replace(ring, last_timestamp_ns=ring.last_timestamp_ns + shift_ns) for ring in segment.rings
    )
    return replace(segment, rings=rings, last_timestamp_ns=segment.last_timestamp_ns + shift_ns)
