"""Partition of a ring in a consumer group: its owner, and the state of its delivery. No I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from edge.consumers.ack_tracker import AckTracker
from edge.consumers.ring_source import RingRecords
from edge.log_throttle import LogThrottle


class LogAnswer(NamedTuple):
    """Records that the log has from an offset on."""

    epoch: int
    offset: int
    records: RingRecords | None


class NextRecord(NamedTuple):
    """The next new record for the group, if it is not due yet."""

    epoch: int
    offset: int
    timestamp_ns: int


@dataclass(slots=True, eq=False)
class GroupPartition:
    """Partition of a ring in a group: its owner, and the acknowledgements of its records."""

    ring: str
    epoch: int
    tracker: AckTracker
    owner: str | None = None
    since: int = 0
    successor: str | None = None
    idle: bool = False  # no new records were found, and the ring has reported none since
    reading: bool = False  # a read of the log is under way
    log_answer: LogAnswer | None = None  # answer of the log
    next_record: NextRecord | None = None  # of a replay
    publishing_dead_letters: bool = False  # dead letters of it are being published
    may_log_dead_letters: LogThrottle = field(default_factory=LogThrottle)
    dead_letters_not_logged: int = 0
    # no new attempt before this time, because there was no room, or the log was unreadable; 0: no pause
    retry_s: float = 0.0

    @property
    def next_ns(self) -> int | None:
        """Time of the next new record of a replay; None if it is not known."""
        known = self.next_record
        if known is None or (known.epoch, known.offset) != (self.epoch, self.tracker.next):
            return None
        return known.timestamp_ns

    def time_passes(self, now_s: float) -> bool:
        """End the pause after a failed attempt. Returns True if time may bring records: that pause is over,
        or leases or back-offs end.
        """
        if is_over := 0.0 < self.retry_s <= now_s:
            self.retry_s = 0.0
        return is_over or bool(self.tracker.spans)
