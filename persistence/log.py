"""Log of one worker: a directory of segments with one writer.

    directory/LOCK            an flock: one writer
    directory/<position>.log  segments, named by their base position
    directory/prepared.tmp    the preallocated next segment (room.py)
    directory/checkpoint      clean-shutdown marker (checkpoint.py)
    directory/quarantine/     copies of damaged bytes

Owns the path from a run of records to durability: the queue of extents that are not synced yet, the active
segment, the begin of a new one, and the reaction to disk failures.  It has no thread and no timer: writer.py
drives it.

Appended records stay queued until their sync has returned.  **When a write or a sync fails, the segment is
ended at the last durable position, and the next write() begins a new one there and writes the queue again**:
the bytes are still in the ring.  A failed sync is therefore never retried, and no record is reported durable
that might not be.

Invariants: durable_position only grows, or returns to the base of a segment without records; a segment's base
is the durable position at its begin; reader returns only durable records.

Threads: one thread writes (append to close); tend() and remove() run concurrently in another; any thread may
read.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self, cast

from persistence.checkpoint import write_checkpoint
from persistence.errors import LogClosed, LogLocked, NoRoom
from persistence.files import Files, OsFiles
from persistence.format import CatalogueEntry, SegmentHeader, ring_id_of
from persistence.reading import Epoch, LogReader, RingEnd
from persistence.recovery import RecoveryReport, recover
from persistence.retention import keep_within
from persistence.rounds import Rounds
from persistence.scan import SegmentTable
from persistence.segment import EXTENTS_MOST, WRITE_MOST_BYTES, ActiveSegment, Pending
from persistence.stats import LiveStats, LogStats
from persistence.tended import Tended
from ringbuf import Range

__all__ = ["Log"]

log = logging.getLogger(__name__)

SEGMENT_BYTES = 64 << 20
RETAIN_BYTES = 4 << 30

SECTOR_BYTES = 512
PAGE_BYTES = 4096

_LOCK_NAME = "LOCK"


def _twice(entries: dict[int, CatalogueEntry], room_bytes: int) -> list[Pending]:
    """Two copies of a catalogue, `room_bytes` from begin to begin.

    One damaged sector then destroys neither names nor proof.
    """
    return [Pending.catalogue(entries, room_bytes), Pending.catalogue(entries)]


def _random_u32() -> int:
    return int.from_bytes(os.urandom(4), "little")


class Log(Tended):
    """A log in `directory`, which is created if missing.

    Order of calls: recover(); join(), append(), write(), sync(); close().

    `segment_bytes`: a segment is closed before an extent that would exceed it.  `retain_bytes`: the oldest
    segments are removed above this total; 0 keeps everything.  `worker`: written to segment headers.
    `direct`: rounds write past the page cache if the file system permits it: less work and less wear.

    `on_sealed`: callbacks of tend() with the base of each sealed segment: synced up to its end, and never
    written again.  Also called for the last ones that recover() found.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        files: Files | None = None,
        *,
        worker: int = 0,
        segment_bytes: int = SEGMENT_BYTES,
        retain_bytes: int = RETAIN_BYTES,
        direct: bool = True,
        clock_ns: Callable[[], int] = time.time_ns,
        salt: Callable[[], int] = _random_u32,
    ) -> None:
        super().__init__(OsFiles() if files is None else files, os.fspath(directory), segment_bytes)
        self.worker = worker
        self.retain_bytes = retain_bytes
        self.direct = direct
        self._stats = LogStats()  # of this class; rounds have their own counters
        self.stats = cast(LogStats, LiveStats(self._now))  # totals since the log was opened
        self._durable_position = 0
        self._unsynced_bytes = 0  # of the queue
        self._rounds: Rounds | None = None
        self.reader = LogReader(self.files, self.directory)
        self._clock_ns = clock_ns
        self._salt = salt
        self._lock: int | None = None
        self._generation = 1
        self._durable: dict[int, CatalogueEntry] = {}  # first catalogue of a segment that begins now
        self._ids: dict[str, int] = {}  # ring ids by name
        self._elsewhere: dict[str, RingEnd] = {}  # ends of rings in other logs
        self._joined: dict[int, int] = {}  # epoch of each joined ring
        self._touched: dict[int, int] = {}  # base after which no segment has records of the ring
        self._queue: list[Pending] = []  # appended, not yet durable
        self._waits_since_ns = 0  # time of its oldest item, or of an older one
        self._written = 0  # items written to the active segment
        self._carried = 0  # items that recovery took from an unsynced segment
        self._ends: dict[int, tuple[int, int]] = {}  # new durable ends not yet taken: offset and position
        self._active: ActiveSegment | None = None
        self._proven = 0  # the highest durable_position written
        self._is_proven = True  # False: only the next segment's name proves the end
        # First, because the next segment may wait for that space.
        self.on_sealed.insert(0, lambda _: keep_within(self, self.retain_bytes))

    # ---- starting ----

    def recover(self) -> RecoveryReport:
        """Take the lock and repair the log.  Must be the first call.

        Raises LogLocked, and OSError if the directory cannot be created, locked or listed.
        """
        started = time.perf_counter()
        self.files.makedirs(self.directory)
        try:
            self._lock = self.files.lock(os.path.join(self.directory, _LOCK_NAME))
        except BlockingIOError as error:
            raise LogLocked(
                f"{self.directory} is written by another process; stop it, or give this one its own directory"
            ) from error
        try:
            found = recover(self.files, self.directory)
        except OSError:
            self.close()
            raise
        self.reader = found.reader
        self._durable = found.catalogue
        self._generation = found.generation
        self._enqueue(found.carried)
        self._carried = len(found.carried)
        self._is_proven = found.is_proven
        self.durable_position = max(found.end_position, found.reader.archive.end_position())
        self._ids = {it.name: ring_id for item in self._queue for ring_id, it in item.entries.items()}
        self._ids.update({it.name: ring_id for ring_id, it in self._durable.items()})
        bases = found.reader.bases()
        self._found_sealed(bases)
        self._touched = dict.fromkeys(self._durable, bases[-1] if bases else 0)
        with suppress(OSError):
            self._room.adopt()
        return RecoveryReport(
            rings=self.ends(),
            segments=len(bases),
            end_position=found.end_position,
            torn=found.torn,
            damage=tuple(found.damage),
            notes=tuple(found.notes),
            duration_ms=(time.perf_counter() - started) * 1000,
        )

    def close(self) -> None:
        """Write a last catalogue, which proves the durable position, sync it, and release the lock.

        Records not yet written and synced are left out.  Disk errors are ignored here, because nothing
        depends on success.  May be called twice.
        """
        self._take_over()
        with suppress(OSError):
            self._prove_found()
        if self._active is not None:
            with suppress(OSError):
                if not self._queue:
                    self._active.write(_twice(self._durable, PAGE_BYTES), self.durable_position)
                    self._active.sync()
                self._active.cut(self._active.end)
                self._active.sync()
                if not self._queue:
                    its = self._active.header, self._active.end, self._durable
                    write_checkpoint(self.files, self.directory, *its)
            self._active.close()
            self._active = None
        self._room.close()
        if self._lock is not None:
            self.files.close(self._lock)
            self._lock = None
        # queued items keep memory of rings mapped
        self._queue, self._written, self._unsynced_bytes = [], 0, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- writing ----

    def join(self, name: str, epoch: int, next_offset: int) -> int:
        """Id of a ring that will be appended from `next_offset` on.

        A new end is written to the catalogue.
        """
        self._check_open()
        ring_id = self._ids[name] = ring_id_of(name, {taken: known for known, taken in self._ids.items()})
        self._joined[ring_id] = epoch
        entry = CatalogueEntry(name, epoch, next_offset)
        if self._announced().get(ring_id) != entry:
            self._enqueue(_twice({ring_id: entry}, SECTOR_BYTES))
        return ring_id

    def leave(self, name: str) -> None:
        """Stop appending that ring.  The log forgets it when its last record is removed."""
        ring_id = self._ids.get(name, 0)
        if self._joined.pop(ring_id, None) is not None:
            self._touched[ring_id] = self._active.header.base_position if self._active else 0

    def drop(self, ring_id: int) -> None:
        """Discard the queued items of a ring, because its memory will change."""
        self._take_over()
        if self._written:
            self._give_up()
        carried, queued = self._queue[: self._carried], self._queue[self._carried :]
        self._queue = carried + [item for item in queued if item.ring_id != ring_id]
        self._unsynced_bytes = sum(item.size for item in self._queue)

    def append(self, ring_id: int, ranges: Sequence[Range]) -> None:
        """Queue runs of a joined ring.  Each must continue the one before.

        Their memory must not change until take_durable() has reported their end.
        """
        self._check_open()
        self._enqueue([Pending.run(ring_id, found) for found in ranges])

    def _enqueue(self, items: Sequence[Pending]) -> None:
        if not self._queue:
            self._waits_since_ns = time.perf_counter_ns()
        self._queue += items
        self._unsynced_bytes += sum(item.size for item in items)

    @property
    def carries(self) -> bool:
        """True if ends() includes carried records, which a recovery could not sync."""
        return self._carried > 0

    @property
    def queued(self) -> int:
        """Number of extents that are not durable yet."""
        return len(self._queue)

    def write(self) -> None:
        """Pass everything queued to the kernel.

        Raises OSError; the whole queue is then written again later.
        """
        self._check_open()
        while self._written < len(self._queue):
            active = self._active or self._begin()
            batch = self._batch(active)
            if not batch:
                self.sync()
                self._seal()
                continue
            started = time.perf_counter_ns()
            try:
                written = active.write(batch, self.durable_position)
            except OSError:
                self._stats.failed_writes += 1
                self._give_up()
                raise
            self._proven = self.durable_position
            self._written += len(batch)
            self._stats.write.add(time.perf_counter_ns() - started)
            self._stats.extents += len(batch)
            self._stats.written_bytes += written

    def sync(self) -> None:
        """Put the written bytes on the disk.  Raises OSError; the whole queue is then written again later."""
        self._take_over()
        active = self._active
        if active is None or active.end_position == self.durable_position:
            return
        started = time.perf_counter_ns()
        try:
            active.sync()
        except OSError:
            self._stats.failed_syncs += 1
            self._give_up()
            raise
        now = time.perf_counter_ns()
        self._stats.fsync.add(now - started)
        self._stats.commit.add(now - self._waits_since_ns)
        self._waits_since_ns = started
        self._stats.syncs += 1
        self._stats.synced_bytes += active.end_position - self.durable_position
        self.durable_position = active.end_position
        done, self._queue = self._queue[: self._written], self._queue[self._written :]
        self._written = 0
        self._settle(done, active.header.base_position)
        self.reader.publish(done, active.end)

    def take_durable(self) -> dict[int, tuple[int, int]]:
        """New durable ends by ring id: the offset and the ring position below which all is durable."""
        ends, self._ends = self._ends, {}
        return ends

    def prove(self) -> None:
        """Write the proof of the end (format.py) when the log is idle; the next sync covers it.

        Raises OSError.
        """
        self._take_over()
        self._prove_found()
        if self._active is None or self._queue or self._proven == self.durable_position:
            return
        try:
            self._stats.written_bytes += self._active.write(_twice({}, SECTOR_BYTES), self.durable_position)
        except OSError:
            self._stats.failed_writes += 1
            self._give_up()
            raise
        self._proven = self.durable_position

    def _prove_found(self) -> None:
        """Begin a segment if the found end is synced but not proven: only a new name proves it."""
        if self._lock is not None and self._active is None and not (self._is_proven or self._queue):
            self._begin()

    @property
    def active_path(self) -> str:
        """Path of the active segment's file, "" without one.  From any thread."""
        active = self._active
        return active.path if active is not None else ""

    # ---- numbers, from any thread ----

    def _now(self) -> LogStats:
        return self._stats if self._rounds is None else self._stats.plus(self._rounds.c)

    @property
    def durable_position(self) -> int:
        """Log position below which everything is on the disk."""
        if self._rounds is not None and self._rounds.lent:
            return int(self._rounds.c.durable_position)
        return self._durable_position

    @durable_position.setter
    def durable_position(self, position: int) -> None:
        self._durable_position = position

    @property
    def unsynced_bytes(self) -> int:
        """Bytes of the queue, with headers."""
        if self._rounds is not None and self._rounds.lent:
            return int(self._rounds.c.unsynced_bytes)
        return self._unsynced_bytes

    # ---- rounds: see rounds.py ----

    def rounds(self, bell: Any) -> Rounds:
        """Native rounds, which borrow the active segment from now on.

        Only on the log thread, as all writes.
        """
        self._take_over()
        if self._rounds is not None:
            self._stats = self._stats.plus(self._rounds.c)
            self._durable = self._rounds.entries(self._durable, taken=False)
        self._rounds = Rounds(self, bell)
        self.reader.fed_by(self._rounds.pull)
        return self._rounds

    def lendable(self) -> ActiveSegment | None:
        """The active segment, if nothing must be written before the rounds' records; or None."""
        return None if self._queue or self._lock is None else self._active

    @property
    def proven(self) -> int:
        """Highest durable position that has been written."""
        return self._proven

    def take_back(
        self, end: int, durable_position: int, proven: int, waiting: list[Pending], written: int
    ) -> None:
        """Take the active segment back from the rounds.

        It ends at `end`.  `waiting` is not durable; its first `written` extents are in the segment.
        """
        assert self._active is not None
        assert self._rounds is not None
        self._active.end = end
        self._durable_position, self._proven = durable_position, proven
        self._durable = self._rounds.entries(self._durable, taken=False)
        self._queue, self._written = [], 0
        self._enqueue(waiting)
        self._written = written

    def requeue(self, waiting: Sequence[Pending]) -> None:
        """Queue records that rounds have taken but that are in no segment."""
        self._enqueue(waiting)

    def fail(self, *, sync: bool) -> None:
        """Handle a disk error of the rounds, in a write or a `sync`, as write() and sync() do."""
        if sync:
            self._stats.failed_syncs += 1
        else:
            self._stats.failed_writes += 1
        self._give_up()

    def _take_over(self) -> None:
        if self._rounds is not None:
            self._rounds.leave()

    # ---- reading ----

    def read(self, ring_name: str, epoch: int, offset: int, limit_bytes: int) -> list[Range]:
        """See LogReader.read()."""
        return self.reader.read(ring_name, epoch, offset, limit_bytes)

    def ends(self) -> dict[str, RingEnd]:
        """Next offset of each ring in the log, including queued records."""
        ends = {it.name: RingEnd(it.epoch, it.next_offset) for it in self._announced().values()}
        return {name: max(end, ends.get(name, end)) for name, end in (ends | self._elsewhere).items()}

    def go_on_behind(self, ends: Mapping[str, RingEnd]) -> None:
        """Set the ends of rings in other logs: joined rings are appended after them.  Before join()."""
        self._elsewhere = dict(ends)

    def epochs(self, ring_name: str) -> list[Epoch]:
        """See LogReader.epochs()."""
        return self.reader.epochs(ring_name)

    # ---- segments ----

    def _begin(self) -> ActiveSegment:
        """Begin a new active segment at the durable position.  Raises OSError."""
        base = self.durable_position
        self._forget()
        header = SegmentHeader(self.worker, base, self._generation, self._salt(), self._clock_ns())
        opening = Pending.catalogue(self._durable)
        carried = self._queue[: self._carried]
        self._require_room()
        handle, temporary = self._room.take()
        try:
            active = ActiveSegment.begin(
                self.files, self.directory, temporary, handle, header, opening, carried
            )
        except OSError:
            self._stats.failed_writes += 1
            self.files.close(handle)
            with suppress(OSError):
                self.files.unlink(temporary)
            raise
        table = SegmentTable(os.path.basename(active.path), header, end=active.first_place)
        table.announce(opening.entries)
        if self._rounds is None:
            self.reader.begin(base, table)
        else:
            self._rounds.begin(base, table)
        self.reader.publish(carried, active.end)
        del self._queue[: self._carried]
        self._carried = 0
        self._settle(carried, base)
        self._active = active
        self._proven, self._is_proven = base, True
        self.durable_position = active.end_position
        self._stats.segments_begun += 1
        return active

    def _require_room(self) -> None:
        """Require that a segment is prepared, or that a new one leaves the disk's floor free.

        Raises OSError.
        """
        size = max(self.segment_bytes, self._queue[0].size if self._queue else 0)
        if not self._room.ready and not self.has_room(size):
            self._stats.failed_writes += 1
            raise NoRoom(self.floor(self.files.disk(self.directory)[1]) if self.floor else 0)

    def _batch(self, active: ActiveSegment) -> list[Pending]:
        """Items for the next write to the active segment; empty if the segment is full."""
        batch: list[Pending] = []
        size = 0
        room = self.segment_bytes - active.end
        for item in self._queue[self._written : self._written + EXTENTS_MOST]:
            fits = size + item.size <= room or (not batch and active.end == active.first_place)
            if not fits or (batch and size + item.size > WRITE_MOST_BYTES):
                break
            batch.append(item)
            size += item.size
        return batch

    def _seal(self) -> None:
        """End the active segment, which is full and synced up to its end."""
        active = self._active
        assert active is not None
        assert self.durable_position == active.end_position
        self._shelve(active.header.base_position, active.size())
        active.close()
        self._active = None

    def next_segment(self) -> ActiveSegment:
        """The next segment for rounds, whose segment is full and synced up to its end.  Raises OSError."""
        self._seal()
        return self._begin()

    @property
    def active_since_ns(self) -> int | None:
        """Wall-clock time of the active segment's begin; None if it has no records.  From any thread."""
        active = self._active
        holds = active is not None and self.durable_position > active.position(active.first_place)
        return active.header.created_ns if active is not None and holds else None

    def roll(self) -> None:
        """End the active segment, unless some of it is not durable.  Raises OSError."""
        self._check_open()
        active = self._active
        if active is not None and not self._queue and active.end > active.first_place:
            self.sync()
            active.cut(active.end)
            self._seal()

    def _give_up(self) -> None:
        """End the active segment at the durable position; its content after that is unknown."""
        active = self._active
        assert active is not None
        self._stats.rewritten_bytes += sum(item.size for item in self._queue[: self._written])
        self._written = 0
        with suppress(OSError):  # the next base marks it, too; this frees space on a full disk
            active.cut(self.durable_position - active.header.base_position)
        with suppress(OSError):
            active.close()
        self._active = None
        if self.durable_position == active.position(active.first_place):
            self.durable_position = active.header.base_position  # the next segment takes its name
        else:
            self._shelve(active.header.base_position, self.durable_position - active.header.base_position)

    def _settle(self, done: Sequence[Pending], base: int) -> None:
        for item in done:
            self._unsynced_bytes -= item.size
            self._durable.update(item.entries)
            self._touched.update(dict.fromkeys(item.entries or [item.ring_id], base))
            if item.range is None:
                continue
            end = item.range.offset + item.range.count
            self._durable[item.ring_id] = self._durable[item.ring_id]._replace(next_offset=end)
            if self._joined.get(item.ring_id) == item.range.epoch:  # otherwise its memory is already released
                self._ends[item.ring_id] = (end, item.range.position + item.length)
            self._stats.records += item.range.count
            self._stats.record_bytes += item.length

    def _announced(self) -> dict[int, CatalogueEntry]:
        """Catalogue entries of each ring after the whole queue is written."""
        entries = dict(self._durable)
        for item in list(self._queue):
            entries.update(item.entries)
            if item.range is not None:
                end = item.range.offset + item.range.count
                entries[item.ring_id] = entries[item.ring_id]._replace(next_offset=end)
        return entries if self._rounds is None else self._rounds.entries(entries, taken=True)

    def _forget(self) -> None:
        """Forget rings that have left and have no records in any segment."""
        first = min([*self.sealed(), *self.reader.archive.bases()], default=self.durable_position)
        gone = [it for it, last in self._touched.items() if last < first and it not in self._joined]
        for ring_id in gone:
            self._durable.pop(ring_id, None)
            del self._touched[ring_id]

    def _check_open(self) -> None:
        if self._lock is None:
            raise LogClosed(f"the log {self.directory} is not open; call recover() first")
        self._take_over()
