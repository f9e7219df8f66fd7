"""Log writer: batches ring records, schedules fsync, reports durability, recovers from errors.

LogWriter has no thread, no lock and no clock of its own: step() does one round and returns the time of the
next.  The crash simulation therefore runs the production code; thread.py calls it in a loop.

A round takes the rings' records, writes them at once, syncs if a sync is due, and publishes the new durable
positions: first the ring's durable word, then the release of the ring's memory, then on_durable.  Records
that arrive during a sync form the next round: group commit needs no timer.

    process    not logged: the ring outlives the process
    interval   synced sync_interval_ms after the first waiting record, or when sync_bytes wait
    disk       synced in the round that writes it

After a disk failure nothing is published.  The next rounds write everything again to a new segment (log.py):
at once the first time, then with growing pauses.  Until a write succeeds, the state is read_only with the
cause; rings fill up, and their writers reject records.  No unsafe record is acknowledged.  The log resumes by
itself.

step() does this in Python, with any clock and any disk.  round() and run() do the same in C (rounds.py) for
the log thread: they borrow the log's segment, and fall back to step() for work that C leaves to Python.

Invariants: a ring's memory is released only below the durable position, in whole chunks of its index; durable
positions only grow; records damaged in memory are skipped, counted and reported; a ring without valid records
after damage is abandoned, with the cause in `broken`.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from persistence.errors import EpochConflict, NoRoom, TooManyRings
from persistence.log import Log
from persistence.reading import from_offset
from persistence.stats import LogState
from ringbuf import Range, Reader, Ring, RingError
from ringbuf.core import ffi, lib
from ringbuf.errors import Corrupt, Overrun

__all__ = ["RINGS_MOST", "LogWriter", "Source"]

log = logging.getLogger(__name__)

RINGS_MOST: int = lib.RB_BELL_RINGS
ROUND_BYTES = 8 << 20  # taken from all rings in one round: bounds the delay of an acknowledgement
RANGES_MOST = 64  # taken at once from one ring; more exist only with records filled in place
EXTENT_BYTES = 1 << 20  # approximate size of an extent: read, verified and perhaps lost as a unit
SYNC_BYTES = 8 << 20
RING_SHARE = 4  # largest part of a ring that waits for an interval: the rest is for new records
PROVE_AFTER_NS = 1_000_000_000  # idle time before the end of the log is proven
RETRY_FIRST_NS = 50_000_000
RETRY_LAST_NS = 5_000_000_000
IDLE_NS = 60_000_000_000

_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EIO: "the disk has an error",
    errno.EROFS: "the file system has become read-only",
    errno.EFBIG: "the file size limit (ulimit -f) is too low",
    errno.EMFILE: "the process has too many open files",
    errno.ENFILE: "the system has too many open files",
}


class Source(NamedTuple):
    """A ring to be logged, with its options."""

    ring: Ring
    durability: Literal["interval", "disk"]
    sync_interval_ms: int = 1000
    sync_bytes: int = SYNC_BYTES


class _Joined:
    """A ring in the log.  Its state for rounds is an rb_log_ring, which both sides write in turn."""

    def __init__(self, source: Source, reader: Reader, ring_id: int, index: int, position: int) -> None:
        self.ring = source.ring
        self.ahead: list[Range] = []  # read, but not yet taken
        self.reader = reader
        self.ring_id = ring_id
        self.on_disk = source.durability == "disk"
        self.interval_ns = source.sync_interval_ms * 1_000_000
        self.sync_bytes = min(source.sync_bytes, source.ring.capacity_bytes // RING_SHARE)
        self.c: Any = ffi.new("rb_log_ring *")
        self.c.reader = ffi.cast("rb_reader *", reader.address)
        self.c.memory, self.c.cursors = source.ring.pointer, source.ring.cursors_pointer
        self.c.ring_id, self.c.epoch, self.c.index = ring_id, source.ring.epoch, index
        self.c.on_disk, self.c.interval_ns, self.c.sync_bytes = (
            self.on_disk,
            self.interval_ns,
            self.sync_bytes,
        )
        self.waits_since = None
        self.taken = self.durable = position
        self.passed: list[tuple[int, int]] = []  # begin and end of skipped parts, not yet durable
        self.told_lost = reader.lost

    @property
    def waits_since(self) -> int | None:
        """Time when its first non-durable record was taken; None without one."""
        return None if self.c.waits_since < 0 else int(self.c.waits_since)

    @waits_since.setter
    def waits_since(self, time_ns: int | None) -> None:
        self.c.waits_since = -1 if time_ns is None else time_ns

    @property
    def taken(self) -> int:
        """The position in the ring below which everything has been read."""
        return int(self.c.taken)

    @taken.setter
    def taken(self, position: int) -> None:
        self.c.taken = position

    @property
    def durable(self) -> int:
        """The position in the ring below which everything is on the disk."""
        return int(self.c.durable)

    @durable.setter
    def durable(self, position: int) -> None:
        self.c.durable = position

    @property
    def leaving(self) -> bool:
        """True if no more records are taken, and the ring is removed when the taken ones are durable."""
        return bool(self.c.leaving)

    @leaving.setter
    def leaving(self, leaving: bool) -> None:
        self.c.leaving = leaving

    def due_ns(self) -> int | None:
        """Time of the next sync; 0: now, None: never."""
        if self.waits_since is None:
            return None
        if self.on_disk or self.taken - self.durable >= self.sync_bytes:
            return 0
        return self.waits_since + self.interval_ns


class LogWriter:
    """Writes records of rings to `log` (recovered, open), and publishes when they are durable.

    Not thread-safe.  `on_durable`: called after every sync that advanced a ring's durable position.
    `wake_descriptor`: an eventfd that rounds write instead, if given; this needs no Python.
    """

    def __init__(
        self,
        log: Log,
        on_durable: Callable[[], object] | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        wake_descriptor: int = -1,
    ) -> None:
        self.log = log
        self.state = LogState()
        self.broken: dict[str, str] = {}  # abandoned rings, with the cause
        self.lost_records = 0  # damaged or overwritten before they were logged
        self.blocked = ""  # cause for blocking writes to a working disk; call() after a change
        self.removed = ""  # removed files of the log: records written there are lost
        self._on_durable = on_durable
        self._clock_ns = clock_ns
        self._joined: dict[int, _Joined] = {}
        self._retry_at = 0
        self._pause_ns = 0
        self._bell: Any = ffi.gc(lib.rb_bell_new(), lib.rb_bell_free)
        self._rounds = log.rounds(self._bell)
        c = self._rounds.c
        c.extent_bytes, c.round_bytes, c.prove_after_ns = EXTENT_BYTES, ROUND_BYTES, PROVE_AFTER_NS
        c.wake_descriptor, c.tells = wake_descriptor, on_durable is not None and wake_descriptor < 0
        c.active_at = clock_ns()

    def add(self, source: Source) -> None:
        """Log a ring from the log's end on: later records in the ring are appended.

        Only in the process that writes the ring, and before new records are published to a ring that was
        taken over.  Raises EpochConflict if the log has records that cannot be this ring's, TooManyRings.
        """
        ring = source.ring
        if len(self._joined) >= RINGS_MOST:
            raise TooManyRings(f"ring {ring.name}: a log thread serves at most {RINGS_MOST} rings")
        reader, ahead = _behind(self.log, ring)
        offset, position = (ahead[0].offset, ahead[0].position) if ahead else (reader.offset, reader.cursor)
        ring_id = self.log.join(ring.name, ring.epoch, offset)
        joined = self._joined[ring_id] = _Joined(source, reader, ring_id, self._free_index(), position)
        joined.ahead = ahead
        self._rounds.add(reader, joined.c)
        ring.rings(self._bell, joined.c.index)
        ring.followed_by(reader)
        reader.release(_chunk(ring, position))
        if not self.log.carries:  # otherwise the sync of the carried records publishes it
            ring.durable(position)  # the log has earlier records, or the ring lost them
        elif ring.extremes().durable_position > position:  # a damaged word
            ring.durable(0)

    def remove(self, name: str) -> bool:
        """Stop logging a ring after its present records.

        False if the disk failed, and the rest is dropped.
        """
        joined = next((it for it in self._joined.values() if it.ring.name == name), None)
        if joined is None:
            return True
        end = joined.ring.extremes().end_offset
        self.step(sync=True)
        while (joined.ahead or joined.reader.offset < end) and not (joined.leaving or self.state.failures):
            self.step(sync=True)
        safe = joined.taken == joined.durable
        if not safe:
            self.log.drop(joined.ring_id)
        if joined.ring_id in self._joined:
            self._leave(joined)
        return safe and not joined.leaving

    def readers(self) -> list[Reader]:
        """Readers whose records the next step() takes: none while the disk fails."""
        return [] if self.state.failures else [it.reader for it in self._joined.values() if not it.leaving]

    @property
    def is_waited_for(self) -> bool:
        """True if it has rings whose publishers wait for each sync."""
        return any(it.on_disk for it in self._joined.values())

    def step(self, *, sync: bool = False) -> int:
        """Run one round; `sync` makes all taken records durable.

        Returns the time in ns until the next round is due at the latest.
        """
        return self._step(self._clock_ns(), sync=sync, take=True)

    def round(self, *, sync: bool = False) -> None:
        """Run one round in C, or one step if that is not possible."""
        now = self._clock_ns()
        if not self._enter(now):
            self._step(now, sync=sync or bool(self.log.queued), take=True)
            return
        code = self._rounds.round(now, sync=sync)
        self._come_back(code, now)
        # extents that did not fit belong to this round, too
        while code == lib.RB_LOG_FULL and self._rounds.lent:
            code = self._rounds.round(now, sync=sync)
            self._come_back(code, now)

    def run(self) -> None:
        """Run rounds, with sleep between them, until call() or until Python must act."""
        now = self._clock_ns()
        if self._enter(now):
            code = self._rounds.run(IDLE_NS)
            self._come_back(code, self._clock_ns())
            return
        lib.rb_bell_drain(self._bell)
        pause_ns = self._step(now, sync=bool(self.log.queued), take=True)
        failing = bool(self.state.failures)
        if pause_ns and (failing or not self.log.queued):
            lib.rb_bell_sleep(self._bell, lib.RB_BELL_WAITS if failing else lib.RB_BELL_SLEEPS, pause_ns)

    def call(self) -> None:
        """End run(), or the next one; from any thread."""
        lib.rb_bell_call(self._bell)

    def called(self) -> bool:
        """True if call() was used since the last check; also after a run() that returned for it."""
        return bool(lib.rb_bell_called(self._bell))

    def _step(self, now: int, *, sync: bool, take: bool) -> int:
        self._rounds.leave()
        if now < self._retry_at:
            return self._retry_at - now
        if take and not self.state.failures:
            self._take(now)
        try:
            self._refuse()
            self.log.write()
            self._written()
            if self.log.queued and (sync or self.state.failures or self._due_ns(now) <= now):
                self.log.sync()
            elif now - self._rounds.c.active_at >= PROVE_AFTER_NS:
                self.log.prove()
            if self.state.failures:
                self._works()
        except OSError as error:
            self._failed(error, now)
        self._publish(now)
        self.state.unsynced_bytes = self.log.unsynced_bytes
        return self._pause(now)

    def roll(self) -> None:
        """End the active segment, if it has records, including all taken ones."""
        self.step(sync=True)
        if not self.state.failures:
            self.log.roll()

    def finish(self) -> bool:
        """Take and sync all present records.  False if the disk failed."""
        while True:
            self._retry_at = 0
            self.step(sync=True)
            if self.state.failures > 1:
                return False
            if not self.state.failures and not self.log.queued and not self._take(self._clock_ns()):
                return True

    def close(self) -> None:
        """Release all rings."""
        for joined in list(self._joined.values()):
            self._leave(joined)

    def status(self) -> dict[str, object]:
        """Status for `brim status`."""
        self.state.unsynced_bytes = self.log.unsynced_bytes
        return {
            **self.state.as_dict(),
            "broken_rings": dict(self.broken),
            "lost_records": self.lost_records,
            "durable_position": self.log.durable_position,
            "direct_block_bytes": max(self._rounds.block_bytes, 0),
            "one_by_one": self._rounds.one_by_one,
            "segments": len(self.log.reader.bases()),
            "damaged_places": len(self.log.reader.damaged),
            **self.log.stats.as_dict(),
        }

    # ---- one round ----

    def _take(self, now: int) -> int:
        """Queue the rings' records, in turns, so that a busy ring does not block others.

        Returns the bytes.
        """
        total = 0
        hungry = [joined for joined in self._joined.values() if not joined.leaving]
        while hungry and total < ROUND_BYTES:
            taken = [self._take_from(joined, now) for joined in hungry]
            total += sum(taken)
            hungry = [joined for joined, length in zip(hungry, taken, strict=True) if length >= EXTENT_BYTES]
        return total

    def _take_from(self, joined: _Joined, now: int) -> int:
        try:
            ranges = self._found_in(joined)
        except RingError as error:
            self._break(joined, error)
            return 0
        if not ranges:
            return 0
        self._append(joined.ring.name, joined.ring.epoch, joined.ring_id, ranges)
        joined.taken = ranges[-1].position + len(ranges[-1].view)
        if joined.waits_since is None:
            joined.waits_since = now
        self._rounds.c.active_at = now
        return sum(len(found.view) for found in ranges)

    def _found_in(self, joined: _Joined) -> list[Range]:
        """Runs from the ring's cursor on, after lost records.  Raises RingError."""
        ranges, joined.ahead = joined.ahead, []
        while not ranges:
            try:
                ranges = joined.reader.ranges(EXTENT_BYTES, RANGES_MOST)
                if ranges or not joined.reader.is_stuck:
                    break
                joined.reader.raise_for(lib.RB_CORRUPT)
            except (Overrun, Corrupt) as error:
                self._pass_over(joined, error)
        return ranges

    def _pass_over(self, joined: _Joined, error: RingError) -> None:
        """Continue after damaged records, or after records that the reader has passed already.

        Raises `error` if no record follows.
        """
        reader, name = joined.reader, joined.ring.name
        if isinstance(error, Corrupt) and not reader.skip():
            raise error
        lost, joined.told_lost = reader.lost - joined.told_lost, reader.lost
        log.error(
            "records lost before they were logged ring=%s before=%d records=%d", name, reader.offset, lost
        )
        self.lost_records += lost
        self.log.join(name, joined.ring.epoch, reader.offset)
        joined.passed.append((joined.taken, reader.cursor))
        joined.taken = reader.cursor

    def _append(self, name: str, epoch: int, ring_id: int, ranges: Sequence[Range]) -> None:
        self.log.append(ring_id, ranges)

    def _written(self) -> None:
        """Hook: all taken records are written, survive this process, and wait for a sync."""

    def _due_ns(self, now: int) -> int:
        """Time of the next sync; far in the future if no record waits."""
        dues = [due for it in self._joined.values() if (due := it.due_ns()) is not None]
        return min(dues, default=now + IDLE_NS)

    def _publish(self, now: int) -> None:
        ends = self.log.take_durable()
        for ring_id, (_, position) in ends.items():
            joined = self._joined.get(ring_id)
            if joined is None:
                continue
            joined.durable = position
            joined.waits_since = None if joined.taken == position else now
            joined.ring.durable(position)
            joined.reader.release(_chunk(joined.ring, position))
        for joined in self._joined.values():
            while joined.passed and joined.passed[0][0] <= joined.durable:
                joined.durable = max(joined.passed.pop(0)[1], joined.durable)
                joined.ring.durable(joined.durable)
                joined.reader.release(_chunk(joined.ring, joined.durable))
        for joined in [it for it in self._joined.values() if it.leaving and it.taken == it.durable]:
            self._leave(joined)
        if ends and self._on_durable is not None:
            self._on_durable()

    def _pause(self, now: int) -> int:
        if self.state.failures:
            return max(self._retry_at - now, 0)
        until = self._due_ns(now) - now
        proof = self._rounds.c.active_at + PROVE_AFTER_NS - now
        return max(min(until, proof if proof > 0 else IDLE_NS), 0)

    def _break(self, joined: _Joined, error: RingError) -> None:
        """Abandon a ring that cannot be read any further."""
        reason = self.broken[joined.ring.name] = str(error)
        log.error("ring is left out of the log ring=%s reason=%s", joined.ring.name, reason)
        joined.leaving = True
        if self.state.on_change is not None:
            self.state.on_change()  # its publishers must not wait for the log any more

    def _free_index(self) -> int:
        taken = {int(it.c.index) for it in self._joined.values()}
        return next(index for index in range(RINGS_MOST) if index not in taken)

    def _leave(self, joined: _Joined) -> None:
        del self._joined[joined.ring_id]
        self._rounds.remove(joined.c)
        joined.ring.rings(None, 0)
        self.log.leave(joined.ring.name)
        joined.reader.close()

    # ---- rounds ----

    def _enter(self, now: int) -> bool:
        """True if the next round can run in C."""
        if (
            self.state.failures
            or self.blocked
            or self.removed
            or any(it.ahead for it in self._joined.values())
        ):
            return False
        return self._rounds.enter(now)

    def _come_back(self, code: int, now: int) -> None:
        """Do the work that C leaves to Python."""
        if code == lib.RB_LOG_MOVED:
            if self._on_durable is not None:
                self._on_durable()
        elif code == lib.RB_LOG_FULL:
            self._go_on(now)
        elif code == lib.RB_LOG_FAILED:
            error = self._rounds.error()
            self._rounds.leave(ends=True)
            self.log.fail(sync=bool(self._rounds.c.failed_sync))
            self._failed(error, now)
            self.state.unsynced_bytes = self.log.unsynced_bytes
        elif code == lib.RB_LOG_TROUBLE:
            if self._rounds.c.tells and self._on_durable is not None:
                self._on_durable()  # positions of other rings may have changed in that round
            self._rounds.leave()
            self._note_troubles()
            self._step(now, sync=True, take=False)
        elif code == lib.RB_LOG_IDLE:
            self._step(now, sync=False, take=False)
        elif code == lib.RB_LOG_CALLED:
            self._rounds.leave()

    def _go_on(self, now: int) -> None:
        """Continue rounds in the next segment after the current one is full."""
        if self._rounds.c.tells and self._on_durable is not None:
            self._on_durable()
        try:
            self._refuse()
            self._rounds.go_on()
        except OSError as error:
            self._rounds.leave(ends=True)
            self._failed(error, now)
        self.state.unsynced_bytes = self.log.unsynced_bytes

    def _note_troubles(self) -> None:
        self._rounds.c.troubles = 0
        for joined in self._joined.values():
            if joined.c.trouble:
                trouble, joined.c.trouble = joined.c.trouble, 0
                try:
                    joined.reader.raise_for(trouble)
                except (Overrun, Corrupt) as error:
                    self._try_to_pass(joined, error)
                except RingError as error:
                    self._break(joined, error)

    def _try_to_pass(self, joined: _Joined, error: RingError) -> None:
        try:
            self._pass_over(joined, error)
        except RingError:
            self._break(joined, error)
        else:
            joined.leaving = False

    # ---- failure ----

    def _refuse(self) -> None:
        """Raise OSError if writes are blocked at present."""
        if self.removed:
            raise FileNotFoundError(errno.ENOENT, self.removed)
        if self.blocked:
            raise OSError(errno.ENOSPC, self.blocked)

    def _failed(self, error: OSError, now: int) -> None:
        code = errno.errorcode.get(error.errno or 0, "?")
        words = self.removed or self.blocked or _REASONS.get(error.errno or 0, error.strerror or str(error))
        if isinstance(error, NoRoom):
            words = str(error)
        reason = f"{words} ({code})"
        again = bool(self.state.failures)
        self.state.failed(reason, read_only=again)
        self._pause_ns = min(max(self._pause_ns * 2, RETRY_FIRST_NS), RETRY_LAST_NS) if again else 0
        self._retry_at = now + self._pause_ns
        if self.state.failures == 2:
            log.error("log takes no records reason=%s directory=%s", reason, self.log.directory)
        elif not (again or self.blocked or self.removed):
            log.warning("log writes into a new segment reason=%s directory=%s", reason, self.log.directory)

    def _works(self) -> None:
        if self.state.read_only:
            log.warning("log takes records again directory=%s", self.log.directory)
        self.state.works()
        self._pause_ns = self._retry_at = 0


def _behind(log_: Log, ring: Ring) -> tuple[Reader, list[Range]]:
    """A gating reader of `ring`, and the records already read that the log does not have.

    It reads from the ring's oldest record on and does not seek.  A ring finds offsets by the first record of
    each chunk, so the last records in a full ring cannot be found once that first record was overwritten.
    For the same reason _chunk() is held completely.
    """
    end = log_.ends().get(ring.name)
    reader = ring.reader(name="log", start="oldest", gating=True, own=True, early=True)
    if end is None or end.epoch < ring.epoch:
        return reader, []
    ring_end = ring.extremes().end_offset
    if end.epoch > ring.epoch or end.end_offset > ring_end:
        reader.close()
        raise EpochConflict(
            f"ring {ring.name} is of epoch {ring.epoch} and ends at offset {ring_end}, but the log "
            f"{log_.directory} holds it up to offset {end.end_offset} of epoch {end.epoch}; "
            f"make the ring anew with an epoch above that and first_offset={end.end_offset}",
            name=ring.name,
            epoch=end.epoch,
        )
    if reader.offset > end.end_offset:
        log.warning("ring has moved on ring=%s from=%d to=%d", ring.name, end.end_offset, reader.offset)
    ahead: list[Range] = []
    while reader.offset < end.end_offset:
        try:
            found = reader.ranges(EXTENT_BYTES)
        except Overrun:  # a gap of damaged records: the log has them, or lacks them, too
            continue
        if not found:
            break
        news = [it for it in found if it.offset + it.count > end.end_offset]
        ahead = [from_offset(it, end.end_offset) for it in news]
    return reader, ahead


def _chunk(ring: Ring, position: int) -> int:
    """Begin of the chunk of the ring's index that has `position`."""
    chunk_bytes = max(ring.capacity_bytes // lib.RB_INDEX_ENTRIES, lib.RB_CHUNK_MIN_BYTES)
    return int(position - position % chunk_bytes)
