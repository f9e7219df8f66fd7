"""Retention rules: the next segment of a log to be removed, and the resulting losses.

Owns only the decision.  It gets the state as arguments and reads no file, clock or consumer; maintenance.py
calls it repeatedly and executes the result.

Segments are removed from the oldest on, archived or not, never the last one, and always completely.  The
oldest segment is removed when **every stream with records in it** permits it:

    age      retain_s: its newest record of the stream is older (segment_ages.py gives ages despite clock
    changes)
    bytes    retain_bytes: newer segments have that many bytes of the stream, so at least that is kept; with
             discard = "new" publishers are refused at the cap instead, and records are removed when all
             holders have read them
    neither  the stream has no rules of its own: the log's retain_s and retain_bytes decide
    hold     a bridge, consumer or session that has not read it keeps it, up to hold_bytes of the stream
             beyond its rules; after that it loses records, which are counted

Two limits override all of this: the log's own retain_bytes, and a disk that is nearly full.  Records removed
for them against the rules of a stream are **forced**, and counted by stream.

An unreadable segment is removed together with the next readable one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from persistence.segment.segment_info import SEGMENT_COSTS_BYTES, RingInfo, SegmentInfo

ARCHIVE_COSTS_BYTES = 4 << 10
HOLD_BYTES = 1 << 30


# ---- streams ----


class Floor(NamedTuple):
    """Lower limit of a consumer: it still needs the records of a ring from `offset` of `epoch` on."""

    consumer: str  # for display: "bridge lake"
    epoch: int
    offset: int
    in_ring: tuple[int, int] | None = None  # epoch and offset from which on the ring has its records, too

    def needed_records(self, ring: RingInfo) -> int:
        """Number of these records, all of one epoch, that the consumer still needs."""
        if self.epoch != ring.epoch:
            return ring.end_offset - ring.first_offset if self.epoch < ring.epoch else 0
        return max(ring.end_offset - max(self.offset, ring.first_offset), 0)

    def lost_records(self, ring: RingInfo) -> int:
        """Number of these records that the consumer still needs, and that the ring has no longer."""
        epoch, oldest = self.in_ring or (-1, 0)
        if epoch == ring.epoch:
            ring = replace(ring, end_offset=min(ring.end_offset, max(oldest, ring.first_offset)))
        return self.needed_records(ring)


class StreamRules(NamedTuple):
    """Retention rules of a stream; 0: the log's rule."""

    name: str
    retain_bytes: int = 0
    retain_s: int = 0
    discard: Literal["old", "new"] = "old"
    hold_bytes: int = HOLD_BYTES

    @property
    def has_rules(self) -> bool:
        """True if the stream has rules of its own."""
        return bool(self.retain_bytes or self.retain_s)


class Loss(NamedTuple):
    """Records removed before a consumer had read them, and that no ring has."""

    consumer: str
    ring: str
    records: int


@dataclass
class Removal:
    """Removal of the oldest segment."""

    base: int
    archived: bool
    forced: bool  # by the log's cap or the disk: urgent
    forced_records: dict[str, int] = field(default_factory=dict)  # removed against the rules, by stream
    losses: list[Loss] = field(default_factory=list)


@dataclass(frozen=True)
class Retention:
    """The rules of a log.

    `stream_of`: the rules of a ring's stream.  `floors`: the consumers that still need records of a ring.
    """

    retain_bytes: int
    retain_s: int
    segment_bytes: int  # full size of the active segment
    stream_of: Callable[[str], StreamRules]
    floors: Callable[[str], Iterable[Floor]]

    def next(self, segments: Sequence[SegmentInfo], now_ns: int, *, forced: bool = False) -> Removal | None:
        """The removal of the oldest segment; None if it stays.

        `segments`: all of the log, rising, the active one last; `forced`: the disk needs space.
        """
        if len(segments) < 2:
            return None
        oldest, cap = segments[0], self._exceeds_cap(segments)
        removal = Removal(oldest.base, oldest.state == "archived", cap or forced)
        readable = next((segment for segment in segments[:-1] if segment.state != "lost"), None)
        if readable is None:
            return removal if cap or forced else None
        streams = {self.stream_of(ring.name).name: self.stream_of(ring.name) for ring in readable.rings}
        floors = {ring.name: list(self.floors(ring.name)) for ring in readable.rings}
        allowed = True
        for rules in streams.values():
            permitted = self._rules_allow(rules, readable, segments, floors, now_ns, cap=cap)
            if permitted and not self._held(rules, readable, segments, floors, now_ns):
                continue
            allowed = False
            if rules.has_rules and not permitted:
                removal.forced_records[rules.name] = sum(ring.records for ring in self._rings(rules, oldest))
        removal.losses = _losses(oldest, floors)
        return removal if allowed or cap or forced else None

    def full(self, segments: Sequence[SegmentInfo]) -> set[str]:
        """Streams that accept no more records: discard = "new", and at their cap."""
        streams = {self.stream_of(ring.name) for segment in segments for ring in segment.rings}
        return {
            stream.name
            for stream in streams
            if stream.discard == "new"
            and stream.retain_bytes
            and self._bytes(stream, segments) >= stream.retain_bytes
        }

    def bytes_of(self, segments: Sequence[SegmentInfo]) -> Mapping[str, int]:
        """Disk space of each stream."""
        streams = {self.stream_of(ring.name) for segment in segments for ring in segment.rings}
        return {stream.name: self._bytes(stream, segments) for stream in streams}

    # ---- internal ----

    def _exceeds_cap(self, segments: Sequence[SegmentInfo]) -> bool:
        """True if the log exceeds its cap, with the active segment at its full size."""
        total = sum(_cost(segment) for segment in segments[:-1]) + self.segment_bytes
        return bool(self.retain_bytes) and total > self.retain_bytes

    def _rules_allow(
        self,
        rules: StreamRules,
        oldest: SegmentInfo,
        segments: Sequence[SegmentInfo],
        floors: Mapping[str, list[Floor]],
        now_ns: int,
        *,
        cap: bool,
    ) -> bool:
        if not rules.has_rules:
            return cap or self._expired(rules, oldest, self.retain_s, now_ns)
        if self._expired(rules, oldest, rules.retain_s, now_ns):
            return True
        if not rules.retain_bytes:
            return False
        if rules.discard == "new":
            needed = self._needed(rules, oldest, floors)
            return bool(needed) and not any(needed) and self._bytes(rules, segments) >= rules.retain_bytes
        return self._bytes(rules, segments) - self._bytes(rules, [oldest]) >= rules.retain_bytes

    def _expired(self, rules: StreamRules, segment: SegmentInfo, retain_s: int, now_ns: int) -> bool:
        last_ns = max((ring.last_timestamp_ns for ring in self._rings(rules, segment)), default=0)
        return bool(retain_s) and last_ns < now_ns - retain_s * 1_000_000_000

    def _held(
        self,
        rules: StreamRules,
        oldest: SegmentInfo,
        segments: Sequence[SegmentInfo],
        floors: Mapping[str, list[Floor]],
        now_ns: int,
    ) -> bool:
        """True if a consumer keeps records that the rules would remove, within hold_bytes."""
        needed = any(self._needed(rules, oldest, floors))
        return needed and self._beyond(rules, segments, now_ns) <= rules.hold_bytes

    def _needed(
        self, rules: StreamRules, segment: SegmentInfo, floors: Mapping[str, list[Floor]]
    ) -> list[int]:
        """Records of a stream in a segment that each of its consumers still needs."""
        rings = self._rings(rules, segment)
        return [floor.needed_records(ring) for ring in rings for floor in floors[ring.name]]

    def _beyond(self, rules: StreamRules, segments: Sequence[SegmentInfo], now_ns: int) -> int:
        """Bytes of a stream that its rules would remove without consumers: from the oldest on."""
        total = 0
        retain_s = rules.retain_s if rules.has_rules else self.retain_s
        left = self._bytes(rules, segments)
        for segment in segments[:-1]:
            stream_bytes = self._bytes(rules, [segment])
            over = bool(rules.retain_bytes) and left - stream_bytes >= rules.retain_bytes
            if stream_bytes and not over and not self._expired(rules, segment, retain_s, now_ns):
                break
            total += stream_bytes
            left -= stream_bytes
        return total

    def _rings(self, rules: StreamRules, segment: SegmentInfo) -> list[RingInfo]:
        """Rings of a stream in a segment."""
        return [ring for ring in segment.rings if self.stream_of(ring.name).name == rules.name]

    def _bytes(self, rules: StreamRules, segments: Sequence[SegmentInfo]) -> int:
        """Disk space of a stream in these files: its share of compressed ones."""
        total = 0
        for segment in segments:
            mine = sum(ring.bytes for ring in self._rings(rules, segment))
            if segment.state == "archived" and mine:
                mine = mine * segment.file_bytes // sum(ring.bytes for ring in segment.rings)
            total += mine
        return total


def _cost(segment: SegmentInfo) -> int:
    least = ARCHIVE_COSTS_BYTES if segment.state == "archived" else SEGMENT_COSTS_BYTES
    return max(segment.file_bytes, least)


def _losses(segment: SegmentInfo, floors: Mapping[str, list[Floor]]) -> list[Loss]:
    return [
        Loss(floor.consumer, ring.name, records)
        for ring in segment.rings
        for floor in floors.get(ring.name, [])
        if (records := floor.lost_records(ring))
    ]
