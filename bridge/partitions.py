"""The partitions that a drain knows: attached as they come, let go when they are drained; what each wants.

Owns the sources, what is wrong with each, and since when its records wait.  Sends nothing, and moves no
cursor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bridge.clock import Clock
from bridge.cursor import Cursor
from bridge.errors import BridgeError, SourceError
from bridge.plan import Want
from bridge.settings import BridgeSettings
from bridge.source import ColdLog, PartitionSource, RingName, find_rings
from persistence.errors import LogError
from ringbuf import Reader
from ringbuf.errors import RingError

__all__ = ["TICK_S", "Partitions"]

log = logging.getLogger(__name__)

TICK_S = 0.02  # while records wait for their linger: how often is looked whether they fill a unit already
PARTITIONS_MAX = 64  # of a stream, by the broker's configuration
SOURCE_RETRY_S = 5.0  # a partition that cannot be read is left alone for so long


@dataclass(slots=True)
class Blocked:
    """Why a partition cannot be read, since when, and until when it is left as it is; monotonic."""

    reason: str
    since: float
    retry_at: float


@dataclass(slots=True)
class Waiting:
    """Records of a partition that wait: since when, by two clocks."""

    since: float  # monotonic, when they were noticed
    oldest_ns: int  # wall


@dataclass
class Partitions:
    """By name.  `cursor_of`: where one stands when the sink has what is under way."""

    settings: BridgeSettings
    cold: ColdLog | None
    clock: Clock
    cursor_of: Callable[[RingName], Cursor | None]
    known: Callable[[], Iterable[RingName]]  # partitions that were begun, their rings being there or not
    left: frozenset[str] = frozenset()  # streams and producers that the broker does not have any more
    lake_epoch: Callable[[int], int] = lambda epoch: epoch  # of a ring's
    flushing: bool = False  # what waits is due, whatever its linger
    damaged_records: int = 0  # in rings, passed over
    sources: dict[RingName, PartitionSource] = field(default_factory=dict)
    waiting: dict[RingName, Waiting] = field(default_factory=dict)
    # Wall: how old what waits is, where newer records are drained beside it.
    backlog_ns: dict[RingName, int] = field(default_factory=dict)
    _blocked: dict[RingName, Blocked] = field(default_factory=dict)
    _unseen: set[RingName] | None = None  # of `known`, those of which the log has not been asked yet

    def scan(self, busy: Callable[[RingName], bool]) -> None:
        """Attach rings that are new; let go of those that are gone, once they are drained and not `busy`."""
        found = find_rings(self.settings.runtime_dir, self.streams)
        for name in [name for name in self.sources if name not in found]:
            if not self.waits(name) and not busy(name):
                self.sources.pop(name).close()
                self.forget(name)
        for name, path in found.items():
            if name not in self.sources:
                self.sources[name] = self._source(name, path)
            with self.blamed(name):
                self.sources[name].refresh()
        self._look_back(found)

    def _look_back(self, found: Container[RingName]) -> None:
        """Once: attach what the log alone has left of rings that are gone, as those of a renamed stream."""
        if self._unseen is None:
            self._unseen = {*self.known(), *self._never_begun()} if self.cold is not None else set()
        for name in sorted(self._unseen):
            with self.blamed(name):
                if name not in found and name.belongs_to(self.streams):
                    source = self.of(name)
                    source.look_back()
                    cursor = self.cursor_of(name)
                    epoch, offset = (cursor.epoch, cursor.next_offset) if cursor else (0, 0)
                    if (waiting := source.backlog(epoch, offset)[0]) > 0:
                        log.info("left in the log alone stream=%s partition=%d records=%d", *name, waiting)
                        self.sources[name] = source
                self._unseen.discard(name)

    @property
    def streams(self) -> tuple[str, ...]:
        """Streams whose rings are drained; none: all."""
        chosen = self.settings.streams
        return (*chosen, *sorted({it.partition("@")[0] for it in self.left})) if chosen else ()

    def _never_begun(self) -> Iterator[RingName]:
        """Rings that streams of the past may have had, while the sink could not be reached."""
        for stream in self.left if self.settings.start == "oldest" else ():
            yield from (RingName(stream, it) for it in range(1 if "@" in stream else PARTITIONS_MAX))

    def of(self, name: RingName) -> PartitionSource:
        """The source of a partition, or one that has the log alone: its ring is gone."""
        known = self.sources.get(name)
        path = self.settings.runtime_dir / name.ring
        return known or self._source(name, path)

    def _source(self, name: RingName, path: Path) -> PartitionSource:
        return PartitionSource(name, path, self.cold, self._damaged, self.lake_epoch)

    def _damaged(self) -> None:
        self.damaged_records += 1

    def forget(self, name: RingName) -> None:
        """What was noted of its records is of another place."""
        for noted in (self.waiting, self.backlog_ns, self._blocked):
            noted.pop(name, None)

    @contextmanager
    def blamed(self, name: RingName) -> Iterator[None]:
        """Keeps what is wrong with one partition from stopping the others."""
        try:
            yield
        except (SourceError, LogError, RingError, OSError) as error:
            hint = error.hint if isinstance(error, BridgeError) else ""
            text = f"{error}; {hint}" if hint else str(error)
            now, known = self.clock.monotonic(), self._blocked.get(name)
            if known is None or known.reason != text:
                log.error("partition blocked stream=%s partition=%d: %s", *name, text)
            since = now if known is None else known.since
            self._blocked[name] = Blocked(text, since, now + SOURCE_RETRY_S)
        else:
            if (known := self._blocked.get(name)) and known.retry_at <= self.clock.monotonic():
                del self._blocked[name]

    def error_of(self, name: RingName) -> str:
        """Why a partition cannot be read; "": it can."""
        blocked = self._blocked.get(name)
        return blocked.reason if blocked else ""

    def blocked_s(self, name: RingName) -> float:
        """Seconds since a partition cannot be read; 0: it can."""
        blocked = self._blocked.get(name)
        return self.clock.monotonic() - blocked.since if blocked else 0.0

    def oldest_ns(self, name: RingName) -> int | None:
        """Timestamp of the oldest record that waits to be sent, or of one not long before it."""
        found = [self.waiting[name].oldest_ns] if name in self.waiting else []
        if name in self.backlog_ns and (cursor := self.cursor_of(name)) and cursor.ahead:
            found.append(self.backlog_ns[name])
        return min(found, default=None)

    def waits(self, name: RingName) -> bool:
        """Whether anything of it is still to be sent."""
        cursor = self.cursor_of(name)
        if cursor is not None and cursor.ahead:
            return True
        epoch, offset = (cursor.epoch, cursor.live_offset) if cursor else (0, 0)
        return self.sources[name].backlog(epoch, offset)[0] > 0

    def readers(self) -> list[Reader]:
        """One of each ring: when nothing waits, a record in any of them is what to wait for."""
        found = []
        for name, source in self.sources.items():
            if (cursor := self.cursor_of(name)) is not None:
                found.append(source.reader_at(cursor.epoch, cursor.live_offset))
        return [reader for reader in found if reader is not None]

    def wants(self, begin: Callable[[Cursor], object]) -> list[Want]:
        """What is to be sent, and when, as far as is known now; `begin` is told of cursors that are new."""
        found: list[Want] = []
        for name, source in self.sources.items():
            with self.blamed(name):
                found += self._wants(source, begin)
        return found

    def close(self) -> None:
        """Detach from all."""
        for source in self.sources.values():
            source.close()
        self.sources.clear()

    def _wants(self, source: PartitionSource, begin: Callable[[Cursor], object]) -> list[Want]:
        name = source.name
        now = self.clock.monotonic()
        if (blocked := self._blocked.get(name)) and blocked.retry_at > now:
            return [Want(name, True, SOURCE_RETRY_S)]
        cursor = self.cursor_of(name) or self._begun(source, begin)
        if cursor is None:
            return []
        wants = [Want(name, False, 0.0)] if cursor.ahead else []
        if source.moved_on(cursor.epoch):
            return [*wants, Want(name, True, 0.0)]  # an epoch that has ended waits for nothing more
        records, length = source.backlog(cursor.epoch, cursor.live_offset)
        if records == 0:
            self.waiting.pop(name, None)
            return wants
        waiting = self.waiting.setdefault(name, Waiting(now, self.clock.wall_ns()))
        full = length >= self.settings.unit_bytes or records >= self.settings.unit_records
        if full or self.flushing:
            return [*wants, Want(name, True, 0.0)]
        due_s = waiting.since + self.settings.linger_ms / 1000 - now
        return [*wants, Want(name, True, min(due_s, TICK_S))]

    def _begun(self, source: PartitionSource, begin: Callable[[Cursor], object]) -> Cursor | None:
        """Where a partition is begun that never was; None: there is nothing to begin with."""
        oldest = self.settings.start == "oldest"
        for epoch, first in source.epochs()[:1] if oldest else source.epochs()[-1:]:
            end = None if oldest else source.end_offset()
            cursor = Cursor(*source.name, epoch, first, first, first if end is None else end)
            begin(cursor)
            return cursor
        return None
