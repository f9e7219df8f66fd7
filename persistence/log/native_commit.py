"""Native commit: the queue of a log's extents, its water marks, and its writes, in C (ringbuf/c/log/log.h).

Owns every mark between a record in a ring and a record on the disk: queued, written and synced extents, the
end of the active segment, the durable position, and the proven one.  C takes records from rings, writes and
syncs them, and publishes durable positions.  Python appends catalogues and copied records to the same queue.

Never creates, seals or removes a segment, and never decides about a failure.  Each call returns a result
code; for RB_LOG_FULL and RB_LOG_FAILED the log (log.py) ends the segment and enters the next one.  That
segment gets everything that is not synced.

Synced extents are passed to the log's reader when the live segment is read, not at once: very many small
extents would cost more there than on the disk.  If a segment ends with many unread ones, its table is
discarded, and read from the file on demand.

Threads: pull(), waiting() and the numbers are for any thread; everything else belongs to the thread that
writes.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

from persistence.files import Files
from persistence.read.log_reader import LogReader
from persistence.segment.format import EXTENT_HEADER_BYTES
from persistence.segment.scan import SegmentTable
from persistence.segment.writer import ActiveSegment, Pending
from ringbuf import Range, Reader
from ringbuf.native import ffi, lib

log = logging.getLogger(__name__)

STEP_BYTES = 1 << 20  # taken and written before the next part, so that the disk works meanwhile
SPIN_NS = 50_000  # same as a reader's
ROWS_AT_ONCE = 512
ROWS_MAX = 256  # of a segment that has ended: more are read from its file on demand

_EMPTY = memoryview(b"")


class NativeCommit:
    """The C side of the log in `directory`.  Without a segment until enter()."""

    def __init__(self, files: Files, directory: str, reader: LogReader) -> None:
        self.wakeup: Any = ffi.gc(lib.rb_wakeup_new(), lib.rb_wakeup_free)
        self.c: Any = ffi.gc(lib.rb_log_new(self.wakeup), lib.rb_log_free)
        if self.c == ffi.NULL:
            raise MemoryError("no memory for the queue of a log")
        self.block_bytes = 0  # block size of direct I/O; 0: not requested; below 0: refused
        self.one_by_one = ""  # cause of synchronous direct writes; "": asynchronous
        self._directory = directory
        self._reader = reader
        self._rings: dict[int, tuple[Reader, Any]] = {}  # by ring id, with their rb_log_ring
        self.lock = threading.RLock()  # protects the next three, and the changes of take_synced()
        self._appended: dict[int, Pending] = {}  # by append_number, until take_synced()
        self._last_number = 0  # append_number of the last extent of append()
        self._pulled = 0  # extents that the reader has, or reads from a file
        self._disk = files.stand_in(self.c)
        self.c.spin_ns = SPIN_NS
        self.c.step_bytes = STEP_BYTES
        self.c.write_bytes = STEP_BYTES

    # ---- water marks ----

    @property
    def durable_position(self) -> int:
        """Log position below which everything is on the disk."""
        return int(self.c.durable_position)

    @property
    def is_proven(self) -> bool:
        """True if the durable position is written in the log, too."""
        return bool(self.c.proven == self.c.durable_position)

    @property
    def end(self) -> int:
        """Position in the file after the last written extent of the active segment."""
        return int(self.c.end)

    @property
    def queued(self) -> int:
        """Number of extents that are not durable yet."""
        return int(self.c.extents_queued - self.c.extents_synced)

    @property
    def next_bytes(self) -> int:
        """Size of the first extent that the next segment gets; 0 if none waits."""
        if not self.queued:
            return 0
        return EXTENT_HEADER_BYTES + int(lib.rb_log_waiting(self.c, self.c.extents_synced).length)

    @property
    def is_synced(self) -> bool:
        """True if every written extent is durable."""
        return bool(self.c.extents_written == self.c.extents_synced)

    @property
    def is_written(self) -> bool:
        """True if every extent of the queue is written."""
        return bool(self.c.extents_queued == self.c.extents_written)

    @property
    def has_appended(self) -> bool:
        """True if an extent of append() is not durable yet."""
        return bool(self._appended) and next(reversed(self._appended)) > self.c.synced_append

    # ---- segments ----

    def start(self, reader: LogReader, position: int, *, is_proven: bool) -> None:
        """Begin at `position`, where a recovery found the end of the log."""
        self._reader = reader
        reader.tables.pull = self.pull
        self._rest_at(position)
        self.c.proven = position if is_proven else 0

    def enter(self, active: ActiveSegment, table: SegmentTable, room: int, *, direct: bool) -> None:
        """Write to this new segment, up to `room` bytes, everything that is not durable."""
        in_bulk = int(self.c.extents_synced) - self._pulled > ROWS_MAX
        if not in_bulk:
            self.pull()
        c = self.c
        with self.lock:
            self._reader.tables.begin(active.header.base_position, table, forget=in_bulk)
            self._pulled = int(c.extents_synced)
            c.descriptor, c.seed, c.capacity = active.handle, active.header.seed, room
            c.base, c.end, c.first_place = active.header.base_position, active.end, active.first_place
            c.durable_position, c.proven = active.end_position, active.header.base_position
            lib.rb_log_enter(c)
        if self._disk is not None:
            self._disk.handle = active.handle
        if direct:
            self._go_direct()

    def leave(self, position: int | None = None) -> None:
        """End the segment; what it has beyond the durable position is written to the next one.

        `position`: the new durable position, if the segment had no records.
        """
        lib.rb_log_end(self.c)
        if position is not None:
            self._rest_at(position)

    def close(self) -> None:
        """Forget what waits: queued extents keep the memory of rings mapped."""
        self.leave()
        with self.lock:
            self._appended = {}
            self.c.extents_queued = self.c.extents_synced
            self.c.unsynced_bytes = 0

    def _rest_at(self, position: int) -> None:
        """Set the durable position, without a segment."""
        self.c.base = self.c.durable_position = self.c.proven = position

    def _go_direct(self) -> None:
        block = lib.rb_log_direct(self.c)
        if block < 0 and self.block_bytes >= 0:
            reason = os.strerror(-block)
            log.info("log writes use the page cache reason=%s directory=%s", reason, self._directory)
        self.block_bytes = block
        refused = -lib.rb_log_one_by_one(self.c)
        reason = f"{os.strerror(refused)} ({errno.errorcode.get(refused, refused)})" if refused else ""
        if reason and reason != self.one_by_one:
            text = "log writes one chunk at a time: no asynchronous I/O %s directory=%s"
            log.warning(text, f"reason={reason!r}", self._directory)
        self.one_by_one = reason

    # ---- the queue ----

    def add(self, reader: Reader, ring: Any, *, copied: bool) -> None:
        """Add a ring, as an rb_log_ring that must be kept until remove().

        `copied`: its records come by append(); otherwise rounds take them.
        """
        self._rings[ring.ring_id] = reader, ring
        if not copied:
            lib.rb_log_add(self.c, ring)

    def remove(self, ring: Any) -> None:
        """Remove a ring.  Its records that are still in the queue stay there; their memory stays mapped."""
        reader, _ = self._rings.pop(ring.ring_id)
        lib.rb_log_remove(self.c, ring)
        waiting = range(self.c.extents_synced, self.c.extents_queued)
        extents = [lib.rb_log_waiting(self.c, number) for number in waiting]
        if not any(extent.ring == ring for extent in extents):
            return
        with self.lock:  # numbers rise in the order of the queue, so all are given again
            for extent in extents:
                item = self._appended.pop(extent.append_number, None)
                if extent.ring == ring:
                    extent.ring = ffi.NULL
                    item = item or Pending.run(extent.ring_id, reader.range_of(extent))
                if item is not None:
                    extent.append_number = self._add(item)

    def append(
        self,
        items: Sequence[Pending],
        ring: Any = ffi.NULL,
        now_ns: int = 0,
        passed: tuple[int, int] | None = None,
    ) -> None:
        """Queue extents, whose memory must not change until they are durable.

        `ring`: the rb_log_ring that they are of; its durable position then follows.  `passed`: position and
        offset in the ring that are durable with a catalogue.
        """
        extents = ffi.new("rb_log_extent[]", len(items))
        with self.lock:
            for extent, item in zip(extents, items, strict=True):
                _fill(extent, item)
                extent.append_number = self._add(item)
                extent.ring = ring
                if passed is not None:
                    extent.ring_end, extent.offset_end = passed
            if not lib.rb_log_append(self.c, extents, len(items), now_ns):
                raise MemoryError("no memory for the queue of a log")

    def _add(self, item: Pending) -> int:
        self._last_number += 1
        self._appended[self._last_number] = item
        return self._last_number

    def drop(self, ring_id: int) -> None:
        """Discard the waiting records of a ring.  Only without a segment."""
        with self.lock:
            lib.rb_log_drop(self.c, ring_id)
            waiting = range(self.c.extents_synced, self.c.extents_queued)
            numbers = {lib.rb_log_waiting(self.c, number).append_number for number in waiting}
            self._appended = {
                key: item
                for key, item in self._appended.items()
                if key in numbers or key <= self.c.synced_append
            }

    # ---- writing; each call returns a result code ----

    def write(self) -> int:
        """Pass the queue to the kernel."""
        code = self._checked(lib.rb_log_write(self.c))
        return code if code != lib.RB_LOG_DONE else self._checked(lib.rb_log_flush(self.c))

    def flush(self) -> int:
        """Pass the written extents to the kernel."""
        return self._checked(lib.rb_log_flush(self.c))

    def sync(self, now_ns: int = 0) -> int:
        """Put everything written on the disk."""
        return self._checked(lib.rb_log_sync(self.c, now_ns))

    def prove(self, catalogues: Sequence[Pending] = ()) -> int:
        """Write the proof of the end, in these catalogues if given.  Only if nothing waits."""
        extents = ffi.new("rb_log_extent[]", len(catalogues))
        for extent, item in zip(extents, catalogues, strict=True):
            _fill(extent, item)
        return self._checked(lib.rb_log_prove(self.c, extents, len(catalogues)))

    def round(self, now_ns: int, *, take: bool, sync: bool) -> int:
        """Run one round."""
        return self._checked(lib.rb_log_round(self.c, now_ns, take, sync))

    def run(self, timeout_ns: int) -> int:
        """Run rounds and sleep until Python must act."""
        return self._checked(lib.rb_log_run(self.c, timeout_ns))

    def pause_ns(self, now_ns: int) -> int:
        """Time until the next round is due."""
        return int(lib.rb_log_pause_ns(self.c, now_ns))

    def error(self) -> OSError:
        """The disk's error, after RB_LOG_FAILED."""
        return OSError(self.c.error, os.strerror(self.c.error))

    def _checked(self, code: int) -> int:
        if self._disk is not None and self._disk.raised is not None:
            raised, self._disk.raised = self._disk.raised, None
            raise raised
        return code

    # ---- results ----

    def ends(self, *, taken: bool) -> dict[int, tuple[int, int]]:
        """Epoch and end offset of the rings' durable records, or of all `taken` ones, by ring id."""
        rings = [ring for _, ring in list(self._rings.values())]
        return {
            ring.ring_id: (ring.epoch, ring.taken_offset if taken else ring.durable_offset) for ring in rings
        }

    def take_synced(self, apply: Callable[[Pending], object]) -> None:
        """Call `apply` for the extents of append() that have become durable since, and release them."""
        if not self._appended or next(iter(self._appended)) > self.c.synced_append:
            return
        self.pull()
        with self.lock:
            for number in list(takewhile(lambda number: number <= self.c.synced_append, self._appended)):
                apply(self._appended.pop(number))

    def waiting(self) -> list[Pending]:
        """The extents of append() that take_synced() has not released, in their order."""
        return list(self._appended.values())

    def pull(self) -> None:
        """Pass synced extents to the log's reader."""
        some, end = ffi.new("rb_log_extent[]", ROWS_AT_ONCE), ffi.new("uint64_t *")
        with self.lock:
            while count := lib.rb_log_synced(self.c, self._pulled, some, ROWS_AT_ONCE, end):
                self._reader.tables.publish([self._row_of(some[index]) for index in range(count)], end[0])
                self._pulled += count

    def _row_of(self, extent: Any) -> Pending:
        """An extent for the reader, which needs no bytes."""
        item = self._appended.get(extent.append_number)
        if item is None:
            times = extent.first_timestamp_ns, extent.last_timestamp_ns
            synced_range = Range(
                extent.position, extent.epoch, extent.first_offset, extent.count, *times, _EMPTY
            )
            item = Pending(extent.ring_id, _EMPTY, range=synced_range, length=extent.length)
        item.place = extent.place
        return item


def _fill(extent: Any, item: Pending) -> None:
    extent.body = ffi.from_buffer("uint8_t[]", item.body)
    extent.length, extent.ring_id = item.length, item.ring_id
    records = item.range
    if records is None:
        return
    extent.position, extent.epoch = records.position, records.epoch
    extent.first_offset, extent.count = records.offset, records.count
    extent.first_timestamp_ns, extent.last_timestamp_ns = (
        records.first_timestamp_ns,
        records.last_timestamp_ns,
    )
    extent.ring_end, extent.offset_end = records.position + item.length, records.offset + records.count
