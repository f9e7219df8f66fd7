"""The drain: records of many partitions, unit by unit, into one sink, each exactly once.

Owns the order of things and nothing that runs by itself: step() does the next thing and says how long there
is nothing to do.  runner.py calls it, waits, and tries again what failed.

A unit
  1. is decided on: a contiguous range of one partition, with what is missing before it;
  2. is written down as the intent (checkpoint), with the number and so the name that it will have;
  3. is put; the sink stores a name once, so a put that was repeated stores nothing twice;
  4. is written down as done.

Killed at any instruction, the next drain finds either no intent, and nothing of that unit in the sink; or the
intent, reads the same records again, builds the same bytes and puts the same name.  If those records are
gone by then, the sink is asked whether it has the name.

What the sink holds is worth more than the checkpoint: one that is missing, damaged, or came back from a
backup is corrected by the names that are there, before the first unit.

Not covered: a store that answers "no such name" and carries out a put of the killed process afterwards, when
the records of that put are gone from ring and log.  The gap report then names the doubled drain_seq.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta

from bridge.checkpoint import Checkpoint, Cursor
from bridge.drained import Name
from bridge.errors import BridgeError, SourceError
from bridge.settings import BridgeSettings
from bridge.sink import UnitSink
from bridge.source import ColdLog, PartitionSource, RecordBuffer, RingName, find_rings
from bridge.unit import Batch, Intent, Unit, build
from persistence.errors import LogError
from ringbuf import Reader
from ringbuf.errors import RingError

__all__ = ["Drain", "Lost", "Moved", "PartitionLag", "Totals"]

log = logging.getLogger(__name__)

Lost = Sequence[tuple[int, int]]  # ranges of offsets, both ends included
# ring name, epoch, offset, lost: the sink has all records of the ring below the offset, but for those
Moved = Callable[[str, int, int, Lost], object]

TICK_S = 0.02  # while records wait for their linger: how often is looked whether they fill a unit already
SOURCE_RETRY_S = 5.0  # a partition that cannot be read is left alone for so long
LOOK_BACK_DAYS = 8  # an older checkpoint is compared with all names in the sink, others with those since then


@dataclass(slots=True)
class Totals:
    """What this drain has done since it began."""

    units: int = 0
    records: int = 0
    bytes: int = 0
    lost_records: int = 0  # declared so in a footer


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far one partition is from being drained."""

    stream: str
    partition: int
    epoch: int
    next_offset: int
    lag_records: int
    lag_bytes: int
    lag_s: float  # age of the oldest record that waits, as far as it is known; 0 when none does
    error: str


@dataclass(slots=True)
class _Waiting:
    """Records of a partition that wait: since when, by two clocks."""

    since: float  # monotonic, when they were noticed
    oldest_ns: int  # wall


class Drain:
    """Drains the rings of `settings` into `sink`.  Belongs to one thread.

    `cold`: the log, if any.  `moved` is told after the sink has taken a unit, and of each partition before
    the first.
    """

    def __init__(
        self,
        settings: BridgeSettings,
        sink: UnitSink,
        checkpoint: Checkpoint,
        cold: ColdLog | None = None,
        moved: Moved | None = None,
    ) -> None:
        self.settings = settings
        self.totals = Totals()
        self.last_ack: float | None = None  # monotonic
        self.flushing = False  # what waits is due, whatever its linger
        self._sink = sink
        self._checkpoint = checkpoint
        self._cold = cold
        self._moved = moved
        self._buffer = RecordBuffer()
        self._sources: dict[RingName, PartitionSource] = {}
        self._errors: dict[RingName, tuple[float, str]] = {}
        self._waiting: dict[RingName, _Waiting] = {}
        self._unit: Unit | None = None  # built for the checkpoint's intent, not yet in the sink
        self._reconciled = False
        self._scan_at = 0.0

    @property
    def drain_seq(self) -> int:
        """Of the last unit that the sink has."""
        return self._checkpoint.drain_seq

    def step(self) -> float:
        """Do the next thing.  Seconds in which there will be nothing to do, 0: go on at once.

        Raises SinkError, CheckpointError: nothing is lost, call again.
        """
        if not self._reconciled:
            self._reconcile()
            self._reconciled = True
            for cursor in self._checkpoint.cursors.values():
                self._tell(cursor.stream, cursor.partition, cursor.epoch, cursor.accounted_offset, ())
        if self._checkpoint.intent is not None:
            self._deliver(self._checkpoint.intent)
            return 0.0
        now = time.monotonic()
        if now >= self._scan_at:
            self._scan()
            self._scan_at = now + self.settings.scan_interval_ms / 1000
        waits = [self._scan_at - now]
        for name, source in list(self._sources.items()):
            with self._blamed(name):
                wait = self._until_due(source)
                if wait <= 0 and self._decide(source):
                    self._sources[name] = self._sources.pop(name)  # the others come first, next time
                    return 0.0
                waits.append(TICK_S if name in self._waiting else max(wait, TICK_S))
        return min(waits)

    @property
    def idle(self) -> bool:
        """Whether nothing waits, as far as the last step() saw."""
        return not self._waiting and self._checkpoint.intent is None

    def readers(self) -> list[Reader]:
        """One of each ring: when nothing waits, a record in any of them is what to wait for."""
        cursors = self._checkpoint.cursors
        known = [(source, cursors[name]) for name, source in self._sources.items() if name in cursors]
        found = (source.reader_at(cursor.epoch, cursor.next_offset) for source, cursor in known)
        return [reader for reader in found if reader is not None]

    def lags(self) -> list[PartitionLag]:
        """Each partition as it stands."""
        return [self._lag(source) for source in self._sources.values()]

    def drained(self) -> bool:
        """Whether the sink has everything that is in the rings now."""
        self._scan()
        return self._checkpoint.intent is None and all(lag.lag_records == 0 for lag in self.lags())

    def close(self) -> None:
        """Detach from all rings.  The checkpoint and the sink are the caller's."""
        for source in self._sources.values():
            source.close()
        self._sources.clear()

    # ---- what there is ----

    def _scan(self) -> None:
        """Attach rings that are new; let go of those that are gone, once they are drained."""
        found = find_rings(self.settings.runtime_dir, self.settings.streams)
        for name in [name for name in self._sources if name not in found]:
            cursor = self._checkpoint.cursors.get(name)
            if cursor is None or self._sources[name].backlog(cursor.epoch, cursor.next_offset)[0] == 0:
                self._sources.pop(name).close()
                self._waiting.pop(name, None)
                self._errors.pop(name, None)
        for name, path in found.items():
            if name not in self._sources:
                self._sources[name] = PartitionSource(name, path, self._cold, self._buffer)
            with self._blamed(name):
                self._sources[name].refresh()

    @contextmanager
    def _blamed(self, name: RingName) -> Iterator[None]:
        """Keeps what is wrong with one partition from stopping the others."""
        try:
            yield
        except (SourceError, LogError, RingError, OSError) as error:
            hint = error.hint if isinstance(error, BridgeError) else ""
            text = f"{error}; {hint}" if hint else str(error)
            if self._errors.get(name, (0.0, ""))[1] != text:
                log.warning("partition cannot be read stream=%s partition=%d: %s", *name, text)
            self._errors[name] = time.monotonic() + SOURCE_RETRY_S, text
        else:
            if self._errors.get(name, (0.0, ""))[0] <= time.monotonic():
                self._errors.pop(name, None)

    def _until_due(self, source: PartitionSource) -> float:
        """Seconds until a unit of this partition is to be cut, as far as is known now."""
        name = source.name
        if self._errors.get(name, (0.0, ""))[0] > time.monotonic():
            return SOURCE_RETRY_S
        cursor = self._cursor(source)
        if cursor is not None and source.moved_on(cursor.epoch):
            return 0.0  # an epoch that has ended waits for nothing more
        records, length = source.backlog(cursor.epoch, cursor.next_offset) if cursor else (0, 0)
        if records == 0:
            self._waiting.pop(name, None)
            return self.settings.scan_interval_ms / 1000
        waiting = self._waiting.setdefault(name, _Waiting(time.monotonic(), time.time_ns()))
        full = length >= self.settings.unit_bytes or records >= self.settings.unit_records
        if full or self.flushing:
            return 0.0
        return waiting.since + self.settings.linger_ms / 1000 - time.monotonic()

    def _cursor(self, source: PartitionSource) -> Cursor | None:
        """Where the partition stands; begun if it never was; None: there is nothing to begin with."""
        known = self._checkpoint.cursors.get(source.name)
        if known is not None:
            return known
        for epoch, first in source.epochs()[:1] if self.settings.start == "oldest" else source.epochs()[-1:]:
            end = source.end_offset() if self.settings.start == "latest" else None
            begin = first if end is None else end
            known = Cursor(*source.name, epoch, first, first, begin)
            self._checkpoint.move(known)
        return known

    # ---- one unit ----

    def _decide(self, source: PartitionSource) -> bool:
        """Begin a unit of this partition, or its next epoch.  False: there is nothing to do after all."""
        cursor = self._cursor(source)
        assert cursor is not None
        batch = source.read(cursor.epoch, cursor.next_offset, self.settings.unit_bytes)
        if batch is None:
            return self._next_epoch(source, cursor)
        intent = Intent(
            drain_seq=self._checkpoint.drain_seq + 1,
            created_ns=time.time_ns(),
            stream=cursor.stream,
            partition=cursor.partition,
            epoch=cursor.epoch,
            epoch_first_offset=cursor.epoch_first_offset,
            previous=cursor.previous,
            first_offset=batch.first_offset,
            last_offset=batch.last_offset,
            lost=_range(cursor.next_offset, batch.first_offset),
            skipped=_range(cursor.accounted_offset, cursor.next_offset),
        )
        self._unit = build(self.settings.edge_id, intent, batch)
        self._checkpoint.begin(intent)
        self._deliver(intent)
        return True

    def _next_epoch(self, source: PartitionSource, cursor: Cursor) -> bool:
        """Go on with the epoch after the cursor's, which has been read to its end.  False: there is none."""
        epochs = source.epochs()
        later = [it for it in epochs if it[0] > cursor.epoch]
        if not later:
            if epochs and epochs[-1][0] < cursor.epoch:
                raise SourceError(
                    f"{source.path}: epoch {epochs[-1][0]}, after epoch {cursor.epoch} that has been drained",
                    hint="epochs must rise: restore the broker's state_dir, or remove the ring",
                )
            return False
        epoch, first = later[0]
        untouched = cursor.next_offset == cursor.epoch_first_offset
        previous = cursor.previous if untouched and cursor.previous else (cursor.epoch, cursor.next_offset)
        self._checkpoint.move(Cursor(*source.name, epoch, first, first, first, previous))
        source.forget_before(epoch)
        log.info("next epoch stream=%s partition=%d epoch=%d after=%d", *source.name, epoch, cursor.epoch)
        return True

    def _deliver(self, intent: Intent) -> None:
        """Put the unit under way, and write down that it is done."""
        unit = self._unit or self._built_again(intent)
        if unit is not None:
            self._sink.put(unit)
        elif not self._is_there(intent):
            log.error("unit given up: its records are gone drain_seq=%d", intent.drain_seq)
            self._checkpoint.give_up()
            return
        self._checkpoint.finish()
        self._unit = None
        self._count(intent, unit)
        self._tell(intent.stream, intent.partition, intent.epoch, intent.last_offset + 1, intent.lost)

    def _built_again(self, intent: Intent) -> Unit | None:
        """The unit that a crash has interrupted; None: its records can be read no more."""
        name = RingName(intent.stream, intent.partition)
        if name not in self._sources:
            self._scan()
        source = self._sources.get(name)
        if source is None:
            path = self.settings.runtime_dir / name.ring
            source = PartitionSource(name, path, self._cold, self._buffer)
        try:
            batch: Batch | None = source.read_exactly(intent.epoch, intent.first_offset, intent.last_offset)
        except SourceError as error:
            log.error("unit cannot be read again drain_seq=%d reason=%s", intent.drain_seq, error)
            batch = None
        self._unit = build(self.settings.edge_id, intent, batch) if batch else None
        return self._unit

    def _is_there(self, intent: Intent) -> bool:
        path = intent.name(self.settings.edge_id).path
        return path in set(self._sink.names(path.rpartition("/")[0] + "/"))

    def _count(self, intent: Intent, unit: Unit | None) -> None:
        records = intent.last_offset - intent.first_offset + 1
        lost = sum(last - first + 1 for first, last in intent.lost)
        self.last_ack = time.monotonic()
        self.totals.units += 1
        self.totals.records += records
        self.totals.lost_records += lost
        if unit is not None:
            self.totals.bytes += unit.length
            waiting = self._waiting.get(RingName(intent.stream, intent.partition))
            if waiting is not None:
                waiting.since, waiting.oldest_ns = self.last_ack, unit.footer.last_timestamp_ns
        if lost:
            log.warning("records lost, and declared so unit=%s lost=%s", intent.drain_seq, list(intent.lost))
        log.debug("drained drain_seq=%d records=%d", intent.drain_seq, records)

    def _tell(self, stream: str, partition: int, epoch: int, offset: int, lost: Lost) -> None:
        if self._moved is not None:
            self._moved(RingName(stream, partition).ring, epoch, offset, lost)

    def _lag(self, source: PartitionSource) -> PartitionLag:
        cursor = self._checkpoint.cursors.get(source.name)
        epoch, offset = (cursor.epoch, cursor.next_offset) if cursor else (0, 0)
        error = self._errors.get(source.name, (0.0, ""))[1]
        records, length, age_s = 0, 0, 0.0
        try:
            records, length = source.backlog(epoch, offset)
        except RingError as broken:
            error = error or str(broken)
        waiting = self._waiting.get(source.name)
        if records and waiting:
            age_s = max(time.time_ns() - waiting.oldest_ns, 0) / 1e9
        return PartitionLag(*source.name, epoch, offset, records, length, age_s, error)

    # ---- what the sink holds ----

    def _reconcile(self) -> None:
        """Correct the checkpoint by the names in the sink, which may know of units that it does not."""
        checkpoint = self._checkpoint
        self._sink.begin(self.settings.edge_id)
        names = list(self._names())
        under_way = checkpoint.intent.drain_seq if checkpoint.intent else checkpoint.drain_seq
        if all(name.drain_seq <= under_way for name in names):
            return
        if (
            checkpoint.intent is not None
        ):  # of a time before those units: by now it is there, or never will be
            there = checkpoint.intent.name(self.settings.edge_id) in names
            (checkpoint.finish if there else checkpoint.give_up)()
        newer = sorted(name for name in names if name.drain_seq > checkpoint.drain_seq)
        last = newer[-1]
        log.warning(
            "the sink is ahead of the checkpoint, which is corrected checkpoint=%s from=%d to=%d",
            checkpoint.path, checkpoint.drain_seq, last.drain_seq,
        )  # fmt: skip
        for name in newer:
            key = RingName(name.stream, name.partition)
            known = checkpoint.cursors.get(key)
            end = name.last_offset + 1
            if known is None or name.epoch > known.epoch:
                first = self._first_offset_of(key, name)
                checkpoint.move(Cursor(*key, name.epoch, first, end, end))
            elif name.epoch == known.epoch and end > known.next_offset:
                checkpoint.move(replace(known, accounted_offset=end, next_offset=end, previous=None))
        checkpoint.drain_seq, checkpoint.day = last.drain_seq, last.day

    def _names(self) -> Iterator[Name]:
        """Names in the sink, at least all that the checkpoint may not know."""
        edge = f"edge={self.settings.edge_id}/"
        prefixes = [edge]
        if not self._checkpoint.fresh and self._checkpoint.day:
            day, today = date.fromisoformat(self._checkpoint.day), datetime.now(UTC).date()
            if day <= today < day + timedelta(days=LOOK_BACK_DAYS):
                days = (day + timedelta(days=number) for number in range((today - day).days + 1))
                prefixes = [f"{edge}dt={it.isoformat()}/" for it in days]
        paths = itertools.chain.from_iterable(map(self._sink.names, prefixes))
        return (name for path in paths if (name := Name.parse(path)) is not None)

    def _first_offset_of(self, key: RingName, name: Name) -> int:
        """With which offset the epoch of `name` began, as far as the ring still tells."""
        self._scan()
        source = self._sources.get(key)
        return dict(source.epochs()).get(name.epoch, name.first_offset) if source else name.first_offset


def _range(first: int, end: int) -> tuple[tuple[int, int], ...]:
    return ((first, end - 1),) if end > first else ()
