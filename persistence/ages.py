"""How old segments are, whatever becomes of the machine's clock.

Records carry the time of the wall clock, which people and networks set, and which machines without a battery
begin in 1970.  Retention by age must neither take what is young, because the clock has been set forward
since, nor keep for ever what was stamped in a time to come.  So that clock is asked once about a segment,
when it is first seen in this life of the process; from then on it ages by the monotonic clock, and a segment
that was written to meanwhile is as old as its last growth.

What a stamp cannot say is taken for young: one of a time to come, or from before CLOCK_SET_NS.  But what was
written earlier is never younger than what was written later.  So a wrong stamp costs at most that its segment
is kept until this process has run for the time that retention says, or until the next one goes.

Owns these times, and looks at no clock itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from persistence.facts import SegmentFacts

__all__ = ["CLOCK_SET_NS", "Ages"]

CLOCK_SET_NS = 1_577_836_800 * 1_000_000_000  # 2020: nothing that runs this is older
SHIFT_LEAST_NS = 2_000_000_000  # clocks drift; what differs by less is left as it is


@dataclass(slots=True)
class _Segment:
    bytes: int
    newest_ns: int  # when its last record came, by the monotonic clock


class Ages:
    """Of the segments of one log."""

    def __init__(self) -> None:
        self._known: dict[int, _Segment] = {}
        self._newest_base = -1
        self._looked_ns: int | None = None  # the last time, by the monotonic clock

    def dated(self, segments: Sequence[SegmentFacts], wall_ns: int, monotonic_ns: int) -> list[SegmentFacts]:
        """The same segments, their stamps moved such that the wall clock, as it is now, tells their age.

        `segments`: all of the log, rising.
        """
        for it in segments:
            self._see(it, wall_ns, monotonic_ns)
        for base in self._known.keys() - {it.base for it in segments}:
            del self._known[base]
        self._looked_ns = monotonic_ns
        self._newest_base = max(self._newest_base, *(it.base for it in segments), -1)
        found: list[SegmentFacts] = []
        age_ns = 0
        for it in reversed(segments):
            if it.rings:
                age_ns = max(age_ns, monotonic_ns - self._known[it.base].newest_ns)
            found.append(_moved(it, wall_ns - age_ns - it.last_timestamp_ns) if it.rings else it)
        return found[::-1]

    def _see(self, it: SegmentFacts, wall_ns: int, monotonic_ns: int) -> None:
        known = self._known.get(it.base)
        if known is None:
            age_ns = wall_ns - it.last_timestamp_ns if it.last_timestamp_ns >= CLOCK_SET_NS else 0
            if self._looked_ns is not None and it.base > self._newest_base:  # begun since then
                age_ns = min(age_ns, monotonic_ns - self._looked_ns)
            self._known[it.base] = _Segment(it.bytes, monotonic_ns - max(age_ns, 0))
        elif it.bytes > known.bytes:
            known.bytes, known.newest_ns = it.bytes, monotonic_ns


def _moved(it: SegmentFacts, shift_ns: int) -> SegmentFacts:
    if abs(shift_ns) < SHIFT_LEAST_NS:
        return it
    rings = tuple(replace(ring, last_timestamp_ns=ring.last_timestamp_ns + shift_ns) for ring in it.rings)
    return replace(it, rings=rings, last_timestamp_ns=it.last_timestamp_ns + shift_ns)
