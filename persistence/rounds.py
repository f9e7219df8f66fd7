"""Native commit: rounds of LogWriter in C, without Python (ringbuf/c/log/log.h).

Owns the state shared by both sides: an rb_log that borrows the active segment of a Log while the Log itself
has nothing to write.  It returns the segment with the records that are not durable yet.  The bytes are the
same as those of the Python steps; a test compares them.

Settled extents are passed to the log's reader when the live segment is read, not at once: very many small
extents would cost more there than on the disk.  If a segment ends with many unread ones, its table is
discarded, and read from the file on demand.

Invariants: while the segment is lent, no other code writes it; extents that were taken back are in the log's
queue, in their order, and in no other place.

Threads: enter(), round(), run() and leave() belong to the log thread; pull() and the numbers are for any
thread.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from typing import TYPE_CHECKING, Any

from persistence.format import CatalogueEntry
from persistence.segment import ActiveSegment, Pending
from ringbuf import Range, Reader
from ringbuf.core import ffi, lib

if TYPE_CHECKING:
    from persistence.log import Log
    from persistence.scan import SegmentTable

__all__ = ["Rounds"]

log = logging.getLogger(__name__)

STEP_BYTES = 1 << 20  # taken and written before the next part, so that the disk works meanwhile
SPIN_NS = 50_000  # same as a reader's
ROWS_AT_ONCE = 512
ROWS_MOST = 256  # of a segment that has ended: more are read from its file on demand

_EMPTY = memoryview(b"")


class Rounds:
    """The C side of one log."""

    def __init__(self, log_: Log, bell: Any) -> None:
        self.c: Any = ffi.gc(lib.rb_log_new(bell), lib.rb_log_free)
        if self.c == ffi.NULL:
            raise MemoryError("no memory for the rounds of a log")
        self.lent = False
        self.block_bytes = 0  # block size of direct I/O; 0: not requested; below 0: refused
        self.one_by_one = ""  # cause of synchronous direct writes; "": asynchronous
        self._log = log_
        self._bell = bell  # referenced as long as C has its address
        self._readers: dict[int, tuple[Reader, Any]] = {}  # by ring id, with their rb_log_ring
        self._pulling = threading.Lock()
        self._pulled = 0  # extents of this segment that the reader knows
        self._disk = log_.files.stand_in(self.c)
        self.c.spin_ns = SPIN_NS
        self.c.step_bytes = STEP_BYTES
        self.c.write_bytes = STEP_BYTES

    def add(self, reader: Reader, ring: Any) -> None:
        """Add a ring, as an rb_log_ring that must be kept until remove()."""
        self._readers[ring.ring_id] = reader, ring
        lib.rb_log_add(self.c, ring)

    def remove(self, ring: Any) -> None:
        """Remove a ring.  No record of it may be waiting.  Takes the segment back first."""
        self.leave()
        del self._readers[ring.ring_id]
        lib.rb_log_remove(self.c, ring)

    # ---- lending ----

    def enter(self, now_ns: int) -> bool:
        """Borrow the active segment.  False if there is none, or the log has something to write itself."""
        if self.lent:
            return True
        active = self._log.lendable()
        if active is None:
            return False
        self._set(active)
        with self._pulling:
            lib.rb_log_enter(self.c, now_ns)
            self._pulled = 0
        self.lent = True
        return True

    def go_on(self) -> None:
        """Borrow the next segment after RB_LOG_FULL, with the extents that did not fit in the last one.

        Raises OSError; the log must then write these itself.
        """
        c, log_ = self.c, self._log
        assert self.lent
        assert c.extents_written == c.extents_settled
        self.lent = False
        log_.take_back(c.end, c.durable_position, c.proven, [], 0)
        try:
            active = log_.next_segment()
        except OSError:
            log_.requeue(self._waiting())
            raise
        self._set(active)
        with self._pulling:
            lib.rb_log_go_on(c)
            self._pulled = 0
        self.lent = True

    def _set(self, active: ActiveSegment) -> None:
        c = self.c
        c.descriptor, c.seed = active.handle, active.header.seed
        c.base, c.end, c.room = active.header.base_position, active.end, self._log.segment_bytes
        c.first_place = active.first_place
        c.durable_position, c.proven = self._log.durable_position, self._log.proven
        if self._disk is not None:
            self._disk.handle = active.handle
        if self._log.direct:
            self._go_direct()

    def _go_direct(self) -> None:
        block = lib.rb_log_direct(self.c)
        if block < 0 and self.block_bytes >= 0:
            reason = os.strerror(-block)
            log.info("log goes through the page cache reason=%s directory=%s", reason, self._log.directory)
        self.block_bytes = block
        self._tell_one_by_one(-lib.rb_log_one_by_one(self.c))

    def _tell_one_by_one(self, refused: int) -> None:
        reason = f"{os.strerror(refused)} ({errno.errorcode.get(refused, refused)})" if refused else ""
        if reason and reason != self.one_by_one:
            text = (
                "log writes one chunk after the other, the kernel gives no asynchronous I/O %s directory=%s"
            )
            log.warning(text, f"reason={reason!r}", self._log.directory)
        self.one_by_one = reason

    def leave(self, *, ends: bool = False) -> None:
        """Return the segment, with the records that are not durable.  `ends`: it gets no more writes."""
        if not self.lent:
            return
        c = self.c
        failed = False
        if not ends:
            self.pull()
            failed = self._checked(lib.rb_log_leave(c)) < 0
        self.lent = False
        written = c.extents_written - c.extents_settled
        self._log.take_back(c.end, c.durable_position, c.proven, self._waiting(), written)
        if failed:  # unsynced records are written to another segment
            self._log.fail(sync=False)

    def round(self, now_ns: int, *, sync: bool) -> int:
        """Run one round in the lent segment.  Returns its result code."""
        return self._checked(lib.rb_log_round(self.c, now_ns, sync))

    def run(self, timeout_ns: int) -> int:
        """Run rounds and sleep until Python must act.  Returns the result code."""
        return self._checked(lib.rb_log_run(self.c, timeout_ns))

    def error(self) -> OSError:
        """The disk's error."""
        return OSError(self.c.error, os.strerror(self.c.error))

    def _checked(self, code: int) -> int:
        if self._disk is not None and self._disk.raised is not None:
            raised, self._disk.raised = self._disk.raised, None
            raise raised
        return code

    def _waiting(self) -> list[Pending]:
        found: list[Pending] = []
        some = ffi.new("rb_log_extent[]", ROWS_AT_ONCE)
        while count := lib.rb_log_waiting(self.c, len(found), some, ROWS_AT_ONCE):
            found += [self._pending(some[index]) for index in range(count)]
        return found

    def _pending(self, extent: Any) -> Pending:
        reader, _ = self._readers[extent.ring_id]
        item = Pending.run(extent.ring_id, reader.range_of(extent))
        item.place = extent.place
        return item

    # ---- results ----

    def entries(self, known: dict[int, CatalogueEntry], *, taken: bool) -> dict[int, CatalogueEntry]:
        """`known` with the new ends from rounds: of durable records, or of all `taken` ones."""
        for ring_id, (_, ring) in list(self._readers.items()):  # runs over many rings, once per segment
            entry, end = known.get(ring_id), ring.taken_offset if taken else ring.durable_offset
            if entry is not None and end > entry.next_offset:
                known[ring_id] = CatalogueEntry(entry.name, entry.epoch, end)
        return known

    def begin(self, base: int, table: SegmentTable) -> None:
        """See LogReader.begin().  Settled extents belong to the segment before."""
        in_bulk = int(self.c.extents_settled) - self._pulled > ROWS_MOST
        if not in_bulk:
            self.pull()
        with self._pulling:
            self._log.reader.begin(base, table, forget=in_bulk)
            self._pulled = int(self.c.extents_settled)

    def pull(self) -> None:
        """Pass settled extents to the log's reader.  From any thread."""
        some, end = ffi.new("rb_log_extent[]", ROWS_AT_ONCE), ffi.new("uint64_t *")
        with self._pulling:
            while count := lib.rb_log_settled(self.c, self._pulled, some, ROWS_AT_ONCE, end):
                self._log.reader.publish([_settled(some[index]) for index in range(count)], end[0])
                self._pulled += count


def _settled(extent: Any) -> Pending:
    """An extent for the reader, which needs no bytes."""
    times = extent.first_timestamp_ns, extent.last_timestamp_ns
    facts = Range(extent.position, extent.epoch, extent.first_offset, extent.count, *times, _EMPTY)
    item = Pending(extent.ring_id, _EMPTY, range=facts, length=extent.length)
    item.place = extent.place
    return item
