"""Partition of a ring in a consumer group: its owner, and the state of its delivery. No I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from edge.consumers.ack_tracker import AckTracker
from edge.consumers.ring_source import RingRecords

__all__ = ["GroupPartition", "LogAnswer"]


class LogAnswer(NamedTuple):
    """Records that the log has from an offset on."""

    epoch: int
    offset: int
    records: RingRecords | None


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
    publishing_dead_letters: bool = False  # dead letters of it are being published
    retry_s: float = 0.0  # no new attempt before this time: there was no room, or the log was unreadable
