"""Log writer: joins rings to a log, schedules rounds, reports durability, recovers from errors.

LogWriter has no thread, no lock and no clock of its own: step() does one round and returns the time of the
next.  The crash simulation therefore runs the production code; log_thread.py calls run() in a loop, which
sleeps between rounds.  Rounds are C's (native_commit.py).

A round takes the rings' records, writes them at once, syncs if a sync is due, and publishes the new durable
positions: first the ring's durable word, then the release of the ring's memory, then on_durable.  Records
that arrive during a sync form the next round: group commit needs no timer.

    process    not logged: the ring outlives the process
    interval   synced sync_interval_ms after the first waiting record, or when sync_bytes wait
    upstream   as interval: publishers wait for the sinks, not for the log
    disk       synced in the round that writes it

A round ends with a result code, and each code has one reaction:

    full      the log begins the next segment, and the round continues in it
    trouble   damaged records of a ring are skipped and declared lost, or the ring is abandoned
    failed    the log ends the segment.  The next rounds take no records, write everything again to a new
              segment and sync it: at once the first time, then with growing pauses

After a failure nothing is published before such a sync.  From the second failure in a row on, the state is
read_only with the cause; rings fill up, and their writers reject records.  No unsafe record is acknowledged.
A ring with a LogAbsence leaves the log then, and its writer continues; it returns before the log resumes.
The log resumes by itself.  An error at the begin of a segment has the same reaction.  A log that must not
write (`blocked`, `removed`) keeps its segment.

Invariants: a ring's memory is released only below the durable position, in whole chunks of its index; durable
positions only grow; records damaged in memory are skipped, counted and reported; a ring without valid records
after damage is abandoned, with the cause in `broken`.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Literal, NamedTuple

from persistence.durable_file import lacks_inodes, remedy_of
from persistence.errors import EpochConflict, NoDiskRoom, TooManyRings
from persistence.log.log import Log
from persistence.segment.verified_reader import from_offset
from persistence.stats import LogState
from ringbuf import Range, Reader, Ring, RingError
from ringbuf.errors import Corrupt, Overrun
from ringbuf.native import ffi, lib

log = logging.getLogger(__name__)

RINGS_MAX: int = lib.RB_WAKEUP_RINGS
ROUND_BYTES = 8 << 20  # taken from all rings in one round, at most; fewer if the disk is slow
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


class LogAbsence(NamedTuple):
    """Rule by which a ring leaves a log that fails. Both may be used by any thread.

    `is_away`: set while the ring is not in the log. It is cleared before `may_return` is called.
    `may_return`: True if the log need not have the records that the ring has lost meanwhile.
    """

    is_away: threading.Event
    may_return: Callable[[], bool]


class LoggedRing(NamedTuple):
    """A ring to be logged, with its options."""

    ring: Ring
    durability: Literal["interval", "disk"]
    sync_interval_ms: int = 1000
    sync_bytes: int = SYNC_BYTES
    absence: LogAbsence | None = None  # the ring leaves a log that fails; None: it stays


class JoinedRing:
    """A ring in the log: `c` is its rb_log_ring, with the positions up to which it is taken and durable."""

    def __init__(
        self, logged_ring: LoggedRing, reader: Reader, ring_id: int, index: int, position: int
    ) -> None:
        self.logged_ring = logged_ring
        self.ring = logged_ring.ring
        self.reader = reader
        self.ring_id = ring_id
        self.reported_lost = reader.lost
        c = self.c = ffi.new("rb_log_ring *")
        c.reader = ffi.cast("rb_reader *", reader.address)
        c.memory, c.cursors, c.local_cursors = logged_ring.ring.pointers
        c.ring_id, c.epoch, c.index = ring_id, logged_ring.ring.epoch, index
        c.on_disk = logged_ring.durability == "disk"
        c.interval_ns = logged_ring.sync_interval_ms * 1_000_000
        c.sync_bytes = min(logged_ring.sync_bytes, logged_ring.ring.capacity_bytes // RING_SHARE)
        c.waits_since = -1
        c.taken = c.durable = position

    @property
    def leaving(self) -> bool:
        """True if no more records are taken, and the ring is removed when the taken ones are durable."""
        return bool(self.c.leaving)

    @property
    def is_durable(self) -> bool:
        """True if all taken records are durable."""
        return bool(self.c.taken == self.c.durable)


class LogWriter:
    """Writes records of rings to `log` (recovered, open), and publishes when they are durable.

    Not thread-safe.  `on_durable`: called after every sync that advanced a ring's durable position.
    `wake_descriptor`: an eventfd that rounds write instead, if given; this needs no Python.
    """

    copies = False  # True: step() takes copies of the records; False: rounds take them

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
        self._joined: dict[int, JoinedRing] = {}
        self._away: list[LoggedRing] = []  # they have left the failing log
        self._retry_at = 0
        self._pause_ns = 0
        self._commit = log.commit
        c = self._commit.c
        c.extent_bytes, c.round_bytes, c.prove_after_ns = EXTENT_BYTES, ROUND_BYTES, PROVE_AFTER_NS
        c.wake_descriptor, c.returns_durable = wake_descriptor, on_durable is not None and wake_descriptor < 0
        c.active_at = clock_ns()

    def add(self, logged_ring: LoggedRing) -> None:
        """Log a ring from the log's end on: later records in the ring are appended.

        Only in the process that writes the ring, and before new records are published to a ring that was
        taken over.  Raises EpochConflict if the log has records that cannot be this ring's, TooManyRings.
        """
        ring = logged_ring.ring
        if len(self._joined) >= RINGS_MAX:
            raise TooManyRings(f"ring {ring.name}: a log thread serves at most {RINGS_MAX} rings")
        reader, ahead = _behind(self.log, ring)
        offset, position = (ahead[0].offset, ahead[0].position) if ahead else (reader.offset, reader.cursor)
        ring_id = self.log.join(ring.name, ring.epoch, offset)
        joined = self._joined[ring_id] = JoinedRing(
            logged_ring, reader, ring_id, self._free_index(), position
        )
        self._commit.add(reader, joined.c, copied=self.copies)
        if ahead:
            self.log.append(ring_id, ahead, joined.c, self._clock_ns())
        ring.set_wakeup(self._commit.wakeup, joined.c.index)
        ring.followed_by(reader)
        reader.release(position - position % ring.chunk_bytes)
        if not self.log.carries:  # otherwise the next segment publishes it, which begins with these records
            ring.durable(position)  # the log has earlier records, or the ring lost them
        elif ring.extremes().durable_position > position:  # a damaged word
            ring.durable(0)

    def remove(self, name: str) -> bool:
        """Stop logging a ring after its present records.

        False if the disk failed, and the rest is dropped.
        """
        joined = next((joined for joined in self._joined.values() if joined.ring.name == name), None)
        if joined is None:
            return True
        end = joined.ring.extremes().end_offset
        self.step(sync=True)
        while joined.reader.offset < end and not (joined.leaving or self.state.failures):
            self.step(sync=True)
        safe = joined.is_durable
        if not safe:
            self.log.drop(joined.ring_id)
        if joined.ring_id in self._joined:
            self._leave(joined)
        return safe and not joined.leaving

    def readers(self) -> list[Reader]:
        """Readers whose records the next step() takes: none while the disk fails."""
        return (
            []
            if self.state.failures
            else [joined.reader for joined in self._joined.values() if not joined.leaving]
        )

    @property
    def is_waited_for(self) -> bool:
        """True if it has rings whose publishers wait for each sync."""
        return any(joined.c.on_disk for joined in self._joined.values())

    def step(self, *, sync: bool = False) -> int:
        """Run one round; `sync` makes all taken records durable.

        Returns the time in ns until the next round is due at the latest.
        """
        now = self._clock_ns()
        if now >= self._retry_at:
            self._round(now, sync=sync)
        if self.state.failures:
            return max(self._retry_at - now, 0)
        return self._commit.pause_ns(now)

    def run(self) -> None:
        """Run rounds, with sleep between them, until call() or until Python must act."""
        appended = self._commit.has_appended
        if self.state.failures or self.log.carries or appended or self.blocked or self.removed:
            pause_ns = self.step(sync=appended)
            if self.state.failures and pause_ns:
                lib.rb_wakeup_sleep(self._commit.wakeup, lib.RB_WAKEUP_WAITS, pause_ns)
            return
        code = self._commit.run(IDLE_NS)
        self._report()
        if code in (lib.RB_LOG_FULL, lib.RB_LOG_TROUBLE, lib.RB_LOG_FAILED):
            self._round(self._clock_ns(), sync=False, code=code)

    def call(self) -> None:
        """End run(), or the next one; from any thread."""
        lib.rb_wakeup_call(self._commit.wakeup)

    def called(self) -> bool:
        """True if call() was used since the last check; also after a run() that returned for it."""
        return bool(lib.rb_wakeup_called(self._commit.wakeup))

    def roll(self) -> None:
        """End the active segment, if it has records, including all taken ones."""
        self.step(sync=True)
        if not self.state.failures:
            self.log.roll()

    def finish(self) -> bool:
        """Take and sync all present records.  False if the disk failed."""
        while True:
            self._retry_at = 0
            before, took = self._commit.c.extents_queued, not self.state.failures
            self.step(sync=True)
            if self.state.failures > 1:
                return False
            done = not (self.state.failures or self.log.queued)
            if done and took and self._commit.c.extents_queued == before:
                return True

    def close(self) -> None:
        """Release all rings."""
        for joined in list(self._joined.values()):
            self._leave(joined)

    def status(self) -> dict[str, object]:
        """Status for `brim status`."""
        return {
            **self.state.as_dict(),
            "unsynced_bytes": self.log.unsynced_bytes,
            "broken_rings": dict(self.broken),
            "lost_records": self.lost_records,
            "durable_position": self.log.durable_position,
            "direct_block_bytes": max(self._commit.block_bytes, 0),
            "one_by_one": self._commit.one_by_one,
            "segments": len(self.log.reader.bases()),
            "damaged_places": len(self.log.reader.damaged),
            **self.log.stats.as_dict(),
        }

    # ---- one round ----

    def _round(self, now: int, *, sync: bool, code: int | None = None) -> None:
        """One round, or the rest of one that ended with that code."""
        failing = bool(self.state.failures)
        sync = sync or failing
        try:
            if code is None:
                self._refuse()
                self._take_back()
                self._begin_carried()
                if not failing:
                    self._take(now)
                code = self._commit.round(now, take=not failing, sync=sync)
            while code not in (lib.RB_LOG_DONE, lib.RB_LOG_MOVED):
                self._report()
                self._react(code)
                skipped = code == lib.RB_LOG_TROUBLE
                code = self._commit.round(now, take=skipped and not failing, sync=sync or skipped)
            if failing:
                self._recovered()
        except OSError as error:
            self._failed(error, now)
        self._report()
        self.log.release_synced()
        for joined in [joined for joined in self._joined.values() if joined.leaving and joined.is_durable]:
            self._leave(joined)

    def _react(self, code: int) -> None:
        """The reaction to the code of a round.  Raises OSError."""
        if code == lib.RB_LOG_FAILED:
            raise self.log.give_up()
        if code == lib.RB_LOG_TROUBLE:
            self._note_troubles()
        else:
            self._refuse()
            self.log.next_segment()

    def _begin_carried(self) -> None:
        """Bring carried records to the disk; they include all that the rings have below their `durable`."""
        if self.log.begin_carried():
            for joined in self._joined.values():
                joined.ring.durable(joined.c.durable)
            self._commit.c.moved = self._on_durable is not None

    def _take(self, now: int) -> None:
        """Hook: append copied records."""

    def _report(self) -> None:
        """Call on_durable if durable positions have changed."""
        moved, self._commit.c.moved = self._commit.c.moved, 0
        if moved and self._on_durable is not None:
            self._on_durable()

    def _pass_over(self, joined: JoinedRing, error: RingError) -> None:
        """Continue after damaged records, or after records that the reader has passed already.

        Raises `error` if no record follows.
        """
        reader, name = joined.reader, joined.ring.name
        if isinstance(error, Corrupt) and not reader.skip():
            raise error
        lost, joined.reported_lost = reader.lost - joined.reported_lost, reader.lost
        log.error(
            "records lost before they were logged ring=%s before=%d records=%d", name, reader.offset, lost
        )
        self.lost_records += lost
        epoch = joined.ring.epoch
        self.log.skip(name, epoch, reader.offset, reader.cursor, joined.c, self._clock_ns())

    def _break(self, joined: JoinedRing, error: RingError) -> None:
        """Abandon a ring that cannot be read any further."""
        joined.c.leaving = True
        self._note_broken(joined.ring.name, error)

    def _note_broken(self, name: str, error: RingError) -> None:
        reason = self.broken[name] = str(error)
        log.error("ring no longer logged ring=%s reason=%s", name, reason)
        if self.state.on_change is not None:
            self.state.on_change()  # its publishers must not wait for the log any more

    def _free_index(self) -> int:
        taken = {int(joined.c.index) for joined in self._joined.values()}
        return next(index for index in range(RINGS_MAX) if index not in taken)

    def _leave(self, joined: JoinedRing) -> None:
        del self._joined[joined.ring_id]
        self.log.leave(joined.ring.name)
        self._commit.remove(joined.c)
        joined.ring.set_wakeup(None, 0)
        joined.reader.close()

    def _note_troubles(self) -> None:
        self._commit.c.troubles = 0
        for joined in self._joined.values():
            if joined.c.trouble:
                trouble, joined.c.trouble = joined.c.trouble, 0
                try:
                    self._try_to_pass(joined, trouble)
                except RingError as error:
                    self._break(joined, error)

    def _try_to_pass(self, joined: JoinedRing, trouble: int) -> None:
        try:
            joined.reader.raise_for(trouble)
        except (Overrun, Corrupt) as error:
            self._pass_over(joined, error)
            lib.rb_log_resume(self._commit.c, joined.c)

    # ---- failure ----

    def _refuse(self) -> None:
        """Raise OSError if writes are blocked at present."""
        if self.removed:
            raise FileNotFoundError(errno.ENOENT, self.removed)
        if self.blocked:
            raise OSError(errno.ENOSPC, self.blocked)

    def _failed(self, error: OSError, now: int) -> None:
        code = errno.errorcode.get(error.errno or 0, "?")
        words = self.removed or self.blocked or _REASONS.get(error.errno or 0, "")
        if error.errno == errno.ENOSPC and lacks_inodes(self.log.directory):
            words = "the disk has no free inodes"
        if isinstance(error, NoDiskRoom):
            words = str(error)
        elif not words:
            words = _unknown(error)
        reason = f"{words} ({code})"
        again = bool(self.state.failures)
        self.state.failed(reason, read_only=again)
        self._pause_ns = min(max(self._pause_ns * 2, RETRY_FIRST_NS), RETRY_LAST_NS) if again else 0
        self._retry_at = now + self._pause_ns
        if self.state.failures == 2:
            log.error("log stopped: it accepts no records reason=%s directory=%s", reason, self.log.directory)
        elif not (again or self.blocked or self.removed):
            log.warning("log continued in a new segment reason=%s directory=%s", reason, self.log.directory)
        if again:
            self._send_away()

    def _send_away(self) -> None:
        for joined in list(self._joined.values()):
            if joined.logged_ring.absence is not None:
                self.log.drop(joined.ring_id)
                self._leave(joined)
                self._away.append(joined.logged_ring)
                joined.logged_ring.absence.is_away.set()

    def _take_back(self) -> None:
        """Log again the rings that have left.  Raises OSError: no room, or they may not return."""
        if self._away:
            self.log.require_room()
        for logged_ring in list(self._away):
            self._return(logged_ring)
            self._away.remove(logged_ring)

    def _return(self, logged_ring: LoggedRing) -> None:
        absence, name = logged_ring.absence, logged_ring.ring.name
        assert absence is not None
        absence.is_away.clear()
        try:
            if not absence.may_return():
                raise OSError(
                    errno.EBUSY, f"ring {name} has lost records that the disk lacks; free some space"
                )
            self.add(logged_ring)
        except RingError as error:
            absence.is_away.set()
            self._note_broken(name, error)
        except Exception:
            absence.is_away.set()
            raise

    def _recovered(self) -> None:
        if self.state.read_only:
            log.warning("log accepts records again directory=%s", self.log.directory)
        self.state.recovered()
        self._pause_ns = self._retry_at = 0


def _unknown(error: OSError) -> str:
    """Reason of an error without own words. MQTT clients get it, too, so it has no directory."""
    file = error.filename2 or error.filename
    cause = error.strerror or str(error)
    return f"{os.path.basename(file)}: {cause}; {remedy_of(error)}" if file else cause


def _behind(log_: Log, ring: Ring) -> tuple[Reader, list[Range]]:
    """A blocking reader of `ring`, and the records already read that the log does not have.

    It reads from the ring's oldest record on and does not seek.  A ring finds offsets by the first record of
    each chunk, so the last records in a full ring cannot be found once that first record was overwritten.
    For the same reason the chunk of the next record is held completely.
    """
    end = log_.ends().get(ring.name)
    reader = ring.reader(name="log", start="oldest", blocks_writer=True, local=True, for_log=True)
    if end is None or end.epoch < ring.epoch:
        return reader, []
    ring_end = ring.extremes().end_offset
    if end.epoch > ring.epoch or end.end_offset > ring_end:
        reader.close()
        raise EpochConflict(
            f"ring {ring.name} is of epoch {ring.epoch} and ends at offset {ring_end}, but the log "
            f"{log_.directory} holds it up to offset {end.end_offset} of epoch {end.epoch}; "
            f"create the ring again with an epoch above that and first_offset={end.end_offset}",
            name=ring.name,
            epoch=end.epoch,
        )
    if reader.offset > end.end_offset:
        log.warning(
            "records overwritten before they were logged ring=%s from=%d to=%d",
            ring.name,
            end.end_offset,
            reader.offset,
        )
    ahead: list[Range] = []
    while reader.offset < end.end_offset:
        try:
            ranges = reader.ranges(EXTENT_BYTES)
        except Overrun:  # a gap of damaged records: the log has them, or lacks them, too
            continue
        if not ranges:
            break
        news = [part for part in ranges if part.offset + part.count > end.end_offset]
        ahead = [from_offset(part, end.end_offset) for part in news]
    return reader, ahead
