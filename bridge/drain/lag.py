"""Lag of a drain, by partition, and the time until its buffer is full.

Owns the measurement of the rate at which records arrive. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bridge.drain.drain import Drain
from bridge.drain.loss_report import VanishedRange
from bridge.drain.losses import OVERWRITTEN, RETENTION
from bridge.errors import BridgeError
from bridge.format.cursor import Cursor
from bridge.source.partition_source import PartitionSource, RecordBuffer, RingName
from persistence.errors import LogError
from ringbuf.errors import RingError

GONE_S = 2.0  # minimum interval between two requests to a log for the range that it still has
SMOOTHING_S = 60.0  # after this time a measurement has a third of its weight
NAMED_MAX = 10  # partitions that an error names


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """Lag of one partition."""

    stream: str
    partition: int
    epoch: int
    next_offset: int
    lag_records: int
    lag_bytes: int  # for records that are no longer in the ring: estimated from the length of those that are
    lag_s: float  # age of the oldest record that waits, if it is known; 0: no record waits
    backlog_records: int  # records that wait while newer ones are drained in parallel
    # Seconds until records are lost, at the present rate; None: no records arrive.
    buffer_left_s: float | None
    error: str


def error_of(lags: Sequence[PartitionLag]) -> str:
    """Names of the partitions that cannot be read, and the error of the first; "": all can be read."""
    broken = [(RingName(lag.stream, lag.partition).ring, lag.error) for lag in lags if lag.error]
    if not broken:
        return ""
    names, more = ", ".join(name for name, _ in broken[:NAMED_MAX]), len(broken) - NAMED_MAX
    names += f" and {more} more" if more > 0 else ""
    name, error = broken[0]
    others = ", other partitions are drained" if len(broken) < len(lags) else ""
    return f"cannot read {names}{others}: {error.removeprefix(f'{name}: ')}"


@dataclass(slots=True)
class _Inflow:
    """Rate at which records arrive in a partition."""

    at: float
    position: int
    bytes_s: float = 0.0


class LagMeter:
    """Lag of one drain, measured on its thread."""

    def __init__(self, drain: Drain) -> None:
        self._drain = drain
        self._inflows: dict[RingName, _Inflow] = {}
        # records that wait, and that are in neither ring nor log
        self.gone: dict[RingName, VanishedRange] = {}
        self._gone_at = float("-inf")
        # (epoch, offset) and timestamp of the first record that waits, if the drain has not read it
        self._first: dict[RingName, tuple[tuple[int, int], int]] = {}

    def lags(self) -> list[PartitionLag]:
        """Lag of each partition at this moment."""
        for name in [name for name in self._inflows if name not in self._drain.partitions.sources]:
            del self._inflows[name]
            self._first.pop(name, None)
        sources = list(self._drain.partitions.sources.values())
        if (now := self._drain.clock.monotonic()) >= self._gone_at + GONE_S:
            self._gone_at = now
            vanished = ((source.name, self._find_gone(source)) for source in sources)
            self.gone = {name: gone for name, gone in vanished if gone is not None}
        else:
            self.gone = {
                source.name: gone
                for source in sources
                if (gone := self.gone.get(source.name)) is not None and self._is_gone(source, gone)
            }
        return [self._lag(source) for source in sources]

    def _find_gone(self, source: PartitionSource) -> VanishedRange | None:
        """The range behind the cursor and all files in flight that can no longer be read."""
        if (cursor := self._drain.cursor_of(source.name) or self._first_cursor(source)) is None:
            return None
        epoch, first = cursor.epoch, cursor.next_offset
        try:
            end = source.readable_from(epoch, first)
            cause = RETENTION if end > first and source.is_logged() else OVERWRITTEN
        except (LogError, RingError, OSError):
            return None  # the drain reports it
        end = min(end, cursor.stop_offset) if cursor.stop_offset is not None else end
        return VanishedRange(epoch, first, end - 1, cause) if end > first else None

    def _first_cursor(self, source: PartitionSource) -> Cursor | None:
        """The cursor with which a partition begins; the sink has never been reached."""
        try:
            return self._drain.partitions.first_cursor(source)
        except (BridgeError, LogError, RingError, OSError):
            return None  # the drain reports it

    def _is_gone(self, source: PartitionSource, gone: VanishedRange) -> bool:
        """True while the drain has not moved past these records."""
        cursor = self._drain.cursor_of(source.name) or self._first_cursor(source)
        return cursor is not None and (cursor.epoch, cursor.next_offset) == (gone.epoch, gone.first)

    def _lag(self, source: PartitionSource) -> PartitionLag:
        drain, name = self._drain, source.name
        cursor = drain.checkpoint.cursors.get(name) or self._first_cursor(source)
        epoch, offset = (cursor.epoch, cursor.next_offset) if cursor else (0, 0)
        error = drain.partitions.error_of(name)
        records, length, age_s, left_s, waiting = 0, 0, 0.0, None, 0
        try:
            if cursor is None:  # the sink has never been reached
                epoch, offset = source.oldest()
            records, length = source.backlog(epoch, offset)
            if error and source.moved_on(epoch):  # no record of the ring is known to be drained
                oldest = source.oldest()[1]
                records = (source.end_offset() or oldest) - oldest
            records -= sum(end - first for first, end in cursor.ahead) if cursor else 0
            records -= vanished.last - vanished.first + 1 if (vanished := self.gone.get(name)) else 0
            left_s = self._left_s(source, length)
        except RingError as broken:
            error = error or str(broken)
        if cursor is not None and cursor.ahead:
            drained = sum(end - first for first, end in cursor.ahead[:-1])
            waiting = cursor.ahead[-1][0] - offset - drained
        if records > 0:
            oldest_ns = drain.oldest_ns_of(name) or self._first_ns(source, epoch, offset)
            if oldest_ns is not None:
                age_s = drain.clock.age_s(oldest_ns)
            age_s = max(age_s, drain.partitions.blocked_s(name))
        return PartitionLag(*name, epoch, offset, max(records, 0), length, age_s, waiting, left_s, error)

    def _first_ns(self, source: PartitionSource, epoch: int, offset: int) -> int | None:
        """Timestamp of the first record that waits, read once: a drain without its sink reads nothing."""
        known = self._first.get(source.name)
        if known is not None and known[0] == (epoch, offset):
            return known[1]
        try:
            batch = source.read(epoch, offset, 1, RecordBuffer())
        except (BridgeError, LogError, RingError, OSError):
            return None  # the drain reports it
        if batch is None:
            return None
        self._first[source.name] = (epoch, offset), batch.first_timestamp_ns
        return batch.first_timestamp_ns

    def _left_s(self, source: PartitionSource, lag_bytes: int) -> float | None:
        capacity = source.capacity()
        if capacity is None:
            return None
        capacity_bytes, position = capacity
        now = self._drain.clock.monotonic()
        inflow = self._inflows.setdefault(source.name, _Inflow(now, position))
        elapsed = now - inflow.at
        if elapsed >= 1:
            latest = max(position - inflow.position, 0) / elapsed
            weight = min(elapsed / SMOOTHING_S, 1.0) if inflow.bytes_s else 1.0
            inflow.bytes_s += weight * (latest - inflow.bytes_s)
            inflow.at, inflow.position = now, position
        if inflow.bytes_s <= 0:
            return None
        stream = source.name.stream.partition("@")[0]
        kept_bytes = capacity_bytes + self._drain.settings.spool_bytes.get(stream, 0)
        return max(kept_bytes - lag_bytes, 0) / inflow.bytes_s
