"""Log of one worker: a directory of segments with one writer.

    directory/LOCK            an flock: one writer
    directory/<position>.log  segments, named by their base position
    directory/prepared.tmp    the preallocated next segment (preallocate.py)
    directory/checkpoint      clean-shutdown marker (clean_shutdown.py)
    directory/quarantine/     copies of damaged bytes

Owns the segments: the begin of a new one, the end of a full or a failed one, and the names and ends of the
rings in them.  NativeCommit (native_commit.py) owns the queue, the water marks and the writes.  The log has
no thread and no timer: log_writer.py drives it.

    state        event                           next state
    no segment   records wait, begin succeeds    segment
    no segment   begin fails (open, write, ...)  no segment; the caller tries again later
    segment      it is full and synced           no segment, sealed at its end
    segment      its age is segment_age_s        no segment, sealed at its end
    segment      a write or a sync fails         no segment, sealed at the durable position, or without
                                                 records: the next segment takes its name

Two triggers end a segment: its size (extents_that_fit() in ringbuf/c/log/write_extents.c) and its age
(persistence/maintenance/maintenance.py).

Appended records stay queued until their sync has returned.  **When a write or a sync fails, the segment is
ended at the last durable position, and the next one begins there and gets the queue again**: the bytes are
still in the ring.  A failed sync is therefore never retried, and no record is reported durable that might not
be.

Invariants: durable_position only grows, or returns to the base of a segment without records; a segment's base
is the durable position at its begin; reader returns only durable records.

Threads: one thread writes (append to close); run_maintenance() and remove() run concurrently in another; any
thread may read.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self, cast

from persistence.errors import LogClosed, LogLocked, NoDiskRoom
from persistence.files import Files, OsFiles
from persistence.log.native_commit import NativeCommit
from persistence.log.recovery import RecoveryReport, recover
from persistence.log.sealed_segments import SealedSegments
from persistence.read.log_reader import Epoch, LogReader, RingEnd
from persistence.segment.clean_shutdown import write_marker
from persistence.segment.format import CatalogueEntry, SegmentHeader, ring_id_of
from persistence.segment.scan import SegmentTable
from persistence.segment.segment_info import SEGMENT_COSTS_BYTES
from persistence.segment.writer import ActiveSegment, Pending
from persistence.stats import LiveStats, LogStats
from ringbuf import Range
from ringbuf.native import ffi, lib

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


def _update(entries: dict[int, CatalogueEntry], item: Pending) -> None:
    """Update a catalogue with an extent behind it."""
    entries.update(item.entries)
    if item.range is not None:
        end = item.range.offset + item.range.count
        entries[item.ring_id] = entries[item.ring_id]._replace(next_offset=end)


class Log(SealedSegments):
    """A log in `directory`, which is created if missing.

    Order of calls: recover(); join(), append(), write(), sync(); close().

    `segment_bytes`: a segment is closed before an extent that would exceed it.  `retain_bytes`: the oldest
    segments are removed above this total; 0 keeps everything.  `worker`: written to segment headers.
    `direct`: writes bypass the page cache if the file system permits it: less work and less wear.

    `on_sealed`: callbacks of run_maintenance() for each sealed segment, with its base.  A sealed segment is
    synced up to its end and never written again.  recover() also reports the last sealed segments of an
    earlier start.
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
        self._stats = LogStats()  # of this class; the commit has its own counters
        self.stats = cast(LogStats, LiveStats(lambda: self._stats.plus(self.commit.c)))  # since it was opened
        self.reader = LogReader(self.files, self.directory)
        self.commit = NativeCommit(self.files, self.directory, self.reader)
        self._clock_ns = clock_ns
        self._salt = salt
        self._lock: int | None = None
        self._generation = 1
        self._durable: dict[int, CatalogueEntry] = {}  # names and ends of rings, by id; see _catalogue()
        self._ids: dict[str, int] = {}  # ring ids by name
        self._elsewhere: dict[str, RingEnd] = {}  # ends of rings in other logs
        self._joined: set[int] = set()  # ids of joined rings
        self._touched: dict[
            int, int
        ] = {}  # base of the last segment that has records of the ring, by ring id
        self._carried: list[
            Pending
        ] = []  # records of a segment that was not synced: written to the next segment
        self._active: ActiveSegment | None = None
        # Retention runs before all other callbacks: the next segment may need the space of a removed one.
        self.on_sealed.insert(0, lambda _: self._keep_within())

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
            recovered = recover(self.files, self.directory)
        except OSError:
            self.close()
            raise
        self.reader = recovered.reader
        self._durable = recovered.catalogue
        self._generation = recovered.generation
        self._carried = recovered.carried
        end = max(recovered.end_position, recovered.reader.archive.end_position())
        self.commit.start(recovered.reader, end, is_proven=recovered.is_proven)
        self._ids = {entry.name: ring_id for ring_id, entry in self._announced().items()}
        bases = recovered.reader.bases()
        self._found_sealed(bases)
        last = max([*bases, *recovered.reader.archive.bases()], default=0)
        self._touched = dict.fromkeys(self._durable, last)
        with suppress(OSError):
            self._preallocator.adopt()
        return RecoveryReport(
            rings=self.ends(),
            segments=len(bases),
            end_position=recovered.end_position,
            torn=recovered.torn,
            damage=tuple(recovered.damage),
            notes=tuple(recovered.notes),
            duration_ms=(time.perf_counter() - started) * 1000,
        )

    def close(self) -> None:
        """Write a last catalogue, which proves the durable position, sync it, and release the lock.

        Records not yet written and synced are left out.  Disk errors are ignored here, because nothing
        depends on success.  May be called twice.
        """
        with suppress(OSError):
            self._prove_found()
        if self._active is not None:
            with suppress(OSError):
                self._close_cleanly(self._active)
            if self._active is not None:
                self._active.close()
                self.commit.leave()
                self._active = None
        self.commit.close()
        self._preallocator.close()
        if self._lock is not None:
            self.files.close(self._lock)
            self._lock = None

    def _close_cleanly(self, active: ActiveSegment) -> None:
        """Write the last catalogue, cut the segment at its end, and save the checkpoint.  Raises OSError."""
        proves = not self.queued
        if proves:
            self._done(self.commit.prove(_twice(self._catalogue(), PAGE_BYTES)))
            self.sync()
        else:
            self._done(self.commit.flush())
        active.cut(self.commit.end)
        active.sync()
        if proves:
            write_marker(self.files, self.directory, active.header, self.commit.end, self._durable)

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
        self._joined.add(ring_id)
        entry = CatalogueEntry(name, epoch, next_offset)
        if self._announced().get(ring_id) != entry:
            self.commit.append(_twice({ring_id: entry}, SECTOR_BYTES))
        return ring_id

    def skip(self, name: str, epoch: int, next_offset: int, position: int, ring: Any, now_ns: int) -> None:
        """Declare records of a joined ring lost: the next one is `next_offset`, at `position` in the ring.

        `ring`: its rb_log_ring, whose durable position follows.
        """
        entry = CatalogueEntry(name, epoch, next_offset)
        copies = _twice({self._ids[name]: entry}, SECTOR_BYTES)
        self.commit.append(copies, ring, now_ns, (position, next_offset))

    def leave(self, name: str) -> None:
        """Stop appending that ring.  The log forgets it when its last record is removed."""
        ring_id = self._ids.get(name, 0)
        if ring_id in self._joined:
            self._catalogue()
            self._joined.remove(ring_id)
            # without a segment the last sealed one may have its records
            self._touched[ring_id] = (
                self._active.header.base_position if self._active else self.durable_position
            )

    def drop(self, ring_id: int) -> None:
        """Discard the queued records of a ring, because its memory will change."""
        if not self.commit.is_synced:
            self._give_up()
        self.commit.drop(ring_id)

    def append(self, ring_id: int, ranges: Sequence[Range], ring: Any = ffi.NULL, now_ns: int = 0) -> None:
        """Queue runs of a joined ring.  Each must continue the one before.

        Their memory must not change until they are durable.  `ring`: its rb_log_ring, if it has one.
        """
        self._check_open()
        self.commit.append([Pending.run(ring_id, part) for part in ranges], ring, now_ns)

    @property
    def carries(self) -> bool:
        """True if ends() includes carried records, which a recovery could not sync."""
        return bool(self._carried)

    @property
    def queued(self) -> int:
        """Number of extents that are not durable yet."""
        return len(self._carried) + self.commit.queued

    def write(self) -> None:
        """Pass everything queued to the kernel.

        Raises OSError; the whole queue is then written again later.
        """
        self._check_open()
        self.begin_carried()
        while not self._done(self.commit.write()):
            self.sync()
            self.next_segment()

    def sync(self) -> None:
        """Put the written bytes on the disk.  Raises OSError; the whole queue is then written again later."""
        self._done(self.commit.sync())
        self.release_synced()

    def release_synced(self) -> None:
        """Release the memory of appended extents that have become durable, and update the ends of rings."""
        self.commit.take_synced(lambda item: _update(self._durable, item))

    def _done(self, code: int) -> bool:
        """True for the result of a call that did its work, False if it needs the next segment.

        Raises OSError if the disk failed.
        """
        if code == lib.RB_LOG_FAILED:
            raise self.give_up()
        return bool(code != lib.RB_LOG_FULL)

    def prove(self) -> None:
        """Write the proof of the end (format.py) when the log is idle; the next sync covers it.

        Raises OSError.
        """
        self._prove_found()
        if self._active is not None and not self.queued and not self.commit.is_proven:
            self._done(self.commit.prove())

    def _prove_found(self) -> None:
        """Begin a segment if the found end is synced but not proven: only a new name proves it."""
        if self._lock is not None and self._active is None and not (self.commit.is_proven or self.queued):
            self._begin()

    @property
    def active_file(self) -> tuple[str, int]:
        """Path and salt of the active segment, "" and 0 without one.  From any thread."""
        active = self._active
        return (active.path, active.header.salt) if active is not None else ("", 0)

    # ---- numbers, from any thread ----

    @property
    def durable_position(self) -> int:
        """Log position below which everything is on the disk."""
        return self.commit.durable_position

    @property
    def unsynced_bytes(self) -> int:
        """Bytes of the queue, with headers."""
        return sum(item.size for item in self._carried) + int(self.commit.c.unsynced_bytes)

    # ---- reading ----

    def read(self, ring_name: str, epoch: int, offset: int, limit_bytes: int) -> list[Range]:
        """See LogReader.read()."""
        return self.reader.read(ring_name, epoch, offset, limit_bytes)

    def ends(self) -> dict[str, RingEnd]:
        """Next offset of each ring in the log, including queued records."""
        ends = {entry.name: RingEnd(entry.epoch, entry.next_offset) for entry in self._announced().values()}
        return {name: max(end, ends.get(name, end)) for name, end in (ends | self._elsewhere).items()}

    def set_other_ends(self, ends: Mapping[str, RingEnd]) -> None:
        """Set the ends of rings in other logs: joined rings continue after them.  Before join()."""
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
        opening = Pending.catalogue(dict(self._catalogue()))
        carried = self._carried
        self.require_room()
        handle, temporary = self._preallocator.take()
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
        self.commit.enter(active, table, self.segment_bytes, direct=self.direct)
        self.reader.tables.publish(carried, active.end)
        for item in carried:
            _update(self._durable, item)
            self._touched.update(dict.fromkeys(item.entries or [item.ring_id], base))
        self._carried = []
        self._active = active
        self._stats.segments_begun += 1
        return active

    def begin_carried(self) -> bool:
        """Begin a segment with the carried records, if any.  True if they became durable.  Raises OSError."""
        if not self._carried:
            return False
        self._begin()
        return True

    def require_room(self) -> None:
        """Require that a segment is prepared, or that a new one leaves the disk's floor free.

        Raises OSError.
        """
        if not self._preallocator.ready and not self.has_room(
            max(self.segment_bytes, self.commit.next_bytes)
        ):
            self._stats.failed_writes += 1
            raise NoDiskRoom(self.floor(self.files.disk(self.directory)[1]) if self.floor else 0)

    def _seal(self) -> None:
        """End the active segment, which is full and synced up to its end."""
        active = self._active
        assert active is not None
        self._catalogue()
        self.commit.leave()
        self._add_sealed(active.header.base_position, active.size())
        active.close()
        self._active = None

    def next_segment(self) -> None:
        """Begin the next segment after RB_LOG_FULL.  Seals the full one, which is synced.  Raises OSError."""
        if self._active is not None:
            self._seal()
        self._begin()

    @property
    def active_since_ns(self) -> int | None:
        """Wall-clock time of the active segment's begin; None if it has no records.  From any thread."""
        active = self._active
        holds = active is not None and self.durable_position > active.position(active.first_place)
        return active.header.created_ns if active is not None and holds else None

    def roll(self) -> None:
        """End the active segment, unless some of it is not durable.  Raises OSError.

        The maintenance requests it after segment_age_s: persistence/maintenance/maintenance.py.
        """
        self._check_open()
        active = self._active
        if active is not None and not self.queued and self.commit.end > active.first_place:
            self.sync()
            active.cut(self.commit.end)
            self._seal()

    def give_up(self) -> OSError:
        """End the active segment after RB_LOG_FAILED.  Returns the disk's error."""
        error = self.commit.error()
        if error.errno == errno.EINVAL and self.direct:  # also at a file size limit inside a block
            self.direct = False
            log.info("log writes use the page cache reason=%s directory=%s", error.strerror, self.directory)
        self._give_up()
        return error

    def _give_up(self) -> None:
        """End the active segment at the durable position; its content after that is unknown."""
        active = self._active
        if active is None:
            self.commit.leave()
            return
        durable, base = self.durable_position, active.header.base_position
        is_empty = durable == active.position(active.first_place)
        self.commit.leave(base if is_empty else None)  # without records the next segment takes its name
        with suppress(OSError):  # the next base marks it, too; this frees space on a full disk
            active.cut(durable - base)
        with suppress(OSError):
            active.close()
        self._active = None
        if not is_empty:
            self._add_sealed(base, durable - base)

    def _catalogue(self) -> dict[int, CatalogueEntry]:
        """Name, epoch and durable end of each ring, by id."""
        with self.commit.lock:
            self.release_synced()
            return self._with_ends(self._durable, taken=False)

    def _announced(self) -> dict[int, CatalogueEntry]:
        """Catalogue entries of each ring after the whole queue is written.  From any thread."""
        with self.commit.lock:
            entries = dict(self._durable)
            for item in [*self._carried, *self.commit.waiting()]:
                _update(entries, item)
        return self._with_ends(entries, taken=True)

    def _with_ends(self, entries: dict[int, CatalogueEntry], *, taken: bool) -> dict[int, CatalogueEntry]:
        for ring_id, (epoch, end) in self.commit.ends(taken=taken).items():
            entry = entries.get(ring_id)
            if entry is not None and entry.epoch == epoch and end > entry.next_offset:
                entries[ring_id] = entry._replace(next_offset=end)
        return entries

    def _keep_within(self) -> None:
        """Remove the oldest segments while the total exceeds `retain_bytes`; 0 keeps everything.

        The active segment counts with its full size.  For a log without maintenance.  Raises OSError: that
        segment and later ones remain until the next start.
        """
        sealed = self.sealed()
        total = sum(max(size, SEGMENT_COSTS_BYTES) for size in sealed.values()) + self.segment_bytes
        for base in sorted(sealed):
            if not self.retain_bytes or total <= self.retain_bytes:
                return
            total -= max(sealed[base], SEGMENT_COSTS_BYTES)
            self.remove(base)

    def _forget(self) -> None:
        """Forget rings that have left and have no records in any segment."""
        first = min([*self.sealed(), *self.reader.archive.bases()], default=self.durable_position)
        used = self._joined | {item.ring_id for item in self.commit.waiting()}
        unused = [ring_id for ring_id, last in self._touched.items() if last < first and ring_id not in used]
        for ring_id in unused:
            self._durable.pop(ring_id, None)
            del self._touched[ring_id]

    def _check_open(self) -> None:
        if self._lock is None:
            raise LogClosed(f"the log {self.directory} is not open; call recover() first")
