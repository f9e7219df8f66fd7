"""Partitions of a drain: attaches rings when they appear, detaches them when they are drained, computes
demands.

Owns the sources, the error of each, and the time since when its records wait. Sends nothing, and moves no
cursor.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bridge.drain.clock import DrainClock
from bridge.drain.restarts import skip_hint
from bridge.drain.scheduler import Demand
from bridge.drain.settings import BridgeSettings
from bridge.errors import BridgeError, SourceError
from bridge.format.cursor import Cursor
from bridge.source.partition_source import PartitionSource, RecordLog, RingName, find_rings, unreadable
from persistence.errors import LogError
from ringbuf import Reader
from ringbuf.errors import RingError

log = logging.getLogger(__name__)

TICK_S = 0.02  # while records wait for their linger time: interval of the check whether they fill a file
PARTITIONS_MAX = 64  # per stream, by the broker's configuration
SOURCE_RETRY_S = 5.0  # pause before the next try to read a partition that cannot be read


@dataclass(slots=True)
class Blocked:
    """Error of a partition that cannot be read, its begin, and the time of the next try; monotonic."""

    reason: str
    since: float
    retry_at: float


@dataclass(slots=True)
class Waiting:
    """Begin of the wait of a partition's records, by two clocks."""

    since: float  # monotonic, when they were noticed
    oldest_ns: int  # wall


@dataclass
class Partitions:
    """Partitions by name. `cursor_of`: the cursor of a partition after all its files in flight."""

    settings: BridgeSettings
    record_log: RecordLog | None
    clock: DrainClock
    cursor_of: Callable[[RingName], Cursor | None]
    known: Callable[[], Iterable[RingName]]  # partitions that were begun, with or without a ring
    left: frozenset[str] = frozenset()  # streams and producers that the broker no longer has
    lake_epoch: Callable[[int], int] = lambda epoch: epoch  # from the epoch of a ring
    flushing: bool = False  # True: all records are due, whatever the linger time
    damaged_records: int = 0  # in rings, passed over
    sources: dict[RingName, PartitionSource] = field(default_factory=dict)
    waiting: dict[RingName, Waiting] = field(default_factory=dict)
    # Wall clock: timestamp of the oldest record that waits, where newer records are drained in parallel.
    backlog_ns: dict[RingName, int] = field(default_factory=dict)
    _blocked: dict[RingName, Blocked] = field(default_factory=dict)
    _logged: dict[RingName, str] = field(default_factory=dict)  # error of each since its last file
    _unseen: set[RingName] | None = None  # of `known`, those that were not looked up in the log yet

    def scan(self, busy: Callable[[RingName], bool]) -> None:
        """Attach new rings. Detach rings that are gone, drained and not `busy`."""
        ring_files = find_rings(self.settings.runtime_dir, self.streams)
        for name in [name for name in self.sources if name not in ring_files]:
            if not self.waits(name) and not busy(name):
                self.sources.pop(name).close()
                self.forget(name)
        for name, path in ring_files.items():
            if name not in self.sources:
                self.sources[name] = self._source(name, path)
            with self.recording_errors(name):
                self.sources[name].refresh()
        self._use_logs_of_removed_rings(ring_files)

    def _use_logs_of_removed_rings(self, rings: Container[RingName]) -> None:
        """Once: attach partitions of which only the log has records, for example of a renamed stream."""
        if self._unseen is None:
            self._unseen = {*self.known(), *self._never_begun()} if self.record_log is not None else set()
        for name in sorted(self._unseen):
            with self.recording_errors(name):
                if name not in rings and name.belongs_to(self.streams):
                    source = self.of(name)
                    source.use_log_only()
                    cursor = self.cursor_of(name)
                    epoch, offset = (cursor.epoch, cursor.next_offset) if cursor else (0, 0)
                    if (waiting := source.backlog(epoch, offset)[0]) > 0:
                        log.info(
                            "records left only in the log stream=%s partition=%d records=%d", *name, waiting
                        )
                        self.sources[name] = source
                self._unseen.discard(name)

    @property
    def streams(self) -> tuple[str, ...]:
        """Streams to drain; none: all."""
        streams = self.settings.streams
        return (*streams, *sorted({name.partition("@")[0] for name in self.left})) if streams else ()

    def _never_begun(self) -> Iterator[RingName]:
        """Rings that former streams may have had while the sink could not be reached."""
        for stream in self.left if self.settings.start == "oldest" else ():
            yield from (
                RingName(stream, partition) for partition in range(1 if "@" in stream else PARTITIONS_MAX)
            )

    def of(self, name: RingName) -> PartitionSource:
        """The source of a partition; without a ring, a source that reads only the log."""
        known = self.sources.get(name)
        path = self.settings.runtime_dir / name.ring
        return known or self._source(name, path)

    def _source(self, name: RingName, path: Path) -> PartitionSource:
        return PartitionSource(name, path, self.record_log, self._damaged, self.lake_epoch)

    def _damaged(self) -> None:
        self.damaged_records += 1

    def forget(self, name: RingName) -> None:
        """Forget the waits and errors of a partition, because its cursor has moved elsewhere."""
        for noted in (self.waiting, self.backlog_ns, self._blocked):
            noted.pop(name, None)

    @contextmanager
    def recording_errors(self, name: RingName) -> Iterator[None]:
        """Record an error of this partition in the `with` block. It does not stop the others."""
        try:
            yield
        except (SourceError, LogError, RingError, OSError, MemoryError) as error:
            if isinstance(error, OSError):
                error = unreadable(error)
            hint = error.hint if isinstance(error, BridgeError) else ""
            self._block(name, f"{error}; {hint}" if hint else str(error) or os.strerror(errno.ENOMEM))
        except BridgeError:
            raise
        except Exception as error:  # noqa: BLE001  a mistake that one partition meets must not stop others
            hint = skip_hint(f"{self.settings.name} --stream {name.stream}")
            self._block(name, f"a mistake in the program: {error!r}; {hint}", error)
        else:
            if (known := self._blocked.get(name)) and known.retry_at <= self.clock.monotonic():
                del self._blocked[name]

    def _block(self, name: RingName, text: str, mistake: Exception | None = None) -> None:
        now, known = self.clock.monotonic(), self._blocked.get(name)
        if self._logged.get(name) != text:
            self._logged[name] = text
            log.error("partition blocked stream=%s partition=%d reason=%s", *name, text, exc_info=mistake)
        since = now if known is None else known.since
        self._blocked[name] = Blocked(text, since, now + SOURCE_RETRY_S)

    def was_read(self, name: RingName) -> None:
        """Record that a file of the partition was begun: its next error is logged again."""
        self._logged.pop(name, None)

    def error_of(self, name: RingName) -> str:
        """Error of a partition that cannot be read; "": it can be read."""
        blocked = self._blocked.get(name)
        return blocked.reason if blocked else ""

    def blocked_s(self, name: RingName) -> float:
        """Seconds since a partition cannot be read; 0: it can be read."""
        blocked = self._blocked.get(name)
        return self.clock.monotonic() - blocked.since if blocked else 0.0

    def oldest_ns(self, name: RingName) -> int | None:
        """Timestamp of the oldest record that waits to be sent, or of a record shortly before it."""
        times_ns = [self.waiting[name].oldest_ns] if name in self.waiting else []
        if name in self.backlog_ns and (cursor := self.cursor_of(name)) and cursor.ahead:
            times_ns.append(self.backlog_ns[name])
        return min(times_ns, default=None)

    def waits(self, name: RingName) -> bool:
        """True if records of the partition are still to be sent."""
        cursor = self.cursor_of(name)
        if cursor is not None and cursor.ahead:
            return True
        epoch, offset = (cursor.epoch, cursor.live_offset) if cursor else (0, 0)
        return self.sources[name].backlog(epoch, offset)[0] > 0

    def readers(self) -> list[Reader]:
        """One reader of each ring: an idle bridge sleeps until a record arrives in any of them."""
        rings = []
        for name, source in self.sources.items():
            if (cursor := self.cursor_of(name)) is not None:
                rings.append(source.reader_at(cursor.epoch, cursor.live_offset))
        return [reader for reader in rings if reader is not None]

    def demands(self, begin: Callable[[Cursor], object]) -> list[Demand]:
        """Demands of all partitions, as known now. `begin` is called with each new cursor."""
        demands: list[Demand] = []
        for name, source in self.sources.items():
            with self.recording_errors(name):
                demands += self._demands(source, begin)
        return demands

    def close(self) -> None:
        """Detach from all."""
        for source in self.sources.values():
            source.close()
        self.sources.clear()

    def _demands(self, source: PartitionSource, begin: Callable[[Cursor], object]) -> list[Demand]:
        name = source.name
        now = self.clock.monotonic()
        if (blocked := self._blocked.get(name)) and blocked.retry_at > now:
            return [Demand(name, True, SOURCE_RETRY_S)]
        cursor = self.cursor_of(name) or self._begun(source, begin)
        if cursor is None:
            return []
        demands = [Demand(name, False, 0.0)] if cursor.ahead else []
        if source.moved_on(cursor.epoch):
            return [*demands, Demand(name, True, 0.0)]  # an epoch that has ended is due at once
        records, length = source.backlog(cursor.epoch, cursor.live_offset)
        if records == 0:
            self.waiting.pop(name, None)
            return demands
        waiting = self.waiting.setdefault(name, Waiting(now, self.clock.wall_ns()))
        full = length >= self.settings.file_bytes or records >= self.settings.file_records
        if full or self.flushing:
            return [*demands, Demand(name, True, 0.0)]
        due_s = waiting.since + self.settings.linger_ms / 1000 - now
        return [*demands, Demand(name, True, min(due_s, TICK_S))]

    def _begun(self, source: PartitionSource, begin: Callable[[Cursor], object]) -> Cursor | None:
        """Begin a partition. Returns its first cursor; None: there is no record to begin with."""
        if (cursor := self.first_cursor(source)) is not None:
            begin(cursor)
        return cursor

    def first_cursor(self, source: PartitionSource) -> Cursor | None:
        """The cursor with which a partition begins at this moment; None: there is no record."""
        oldest = self.settings.start == "oldest"
        for epoch, first in source.epochs()[:1] if oldest else source.epochs()[-1:]:
            end = None if oldest else source.end_offset()
            begun = Cursor(*source.name, epoch, first, first)
            return begun if end is None else begun.passed(end)
        return None
