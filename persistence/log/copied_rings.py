"""Copied rings: records of other processes' rings are copied and verified before they are logged.

LogWriter passes the ring's own memory to the kernel, because this process writes the ring and keeps the
memory unchanged.  Another process gives no such guarantee: it may overwrite records on purpose, or because it
evicted the log's reader.  A run is therefore first copied.  Then the reader checks that the ring still had
it, and every record is verified.  The copy is written, and written again after a failure.

The ring's memory is released when the copy is with the kernel, not before: this process may be killed, and
then the ring must still have the records, if its writer waits for the log.  It is not kept until a sync,
because a power cut destroys the ring, too.

Records that the ring lost before they were read are counted: it overwrites, or the log was slower than the
queue timeout.  The log then records the next offset of the ring.  No durable position is published: no
publisher waits for it.

One thread, as LogWriter, which provides rounds and failure handling.  Python copies the records, and appends
the copies to the queue of the log; its writes use the page cache, so a written copy outlives this process.
"""

from __future__ import annotations

import logging
from typing import Any, cast

from msgspec.structs import replace

from persistence.log.log import Log
from persistence.log.log_writer import EXTENT_BYTES, ROUND_BYTES, JoinedRing, LoggedRing, LogWriter
from ringbuf import Range, Reader, Ring, scan_records
from ringbuf.errors import Corrupt, Evicted, OffsetGone, Overrun, RingError
from ringbuf.native import ffi
from ringbuf.reader_wakeup import Sleeper
from ringbuf.ring import Extremes

log = logging.getLogger(__name__)

ATTEMPTS = 4  # overruns in a row after which a ring waits for the next round


class CopiedRing:
    """A ring, attached for reading, with the interface that LogWriter needs.

    `blocks_writer`: its writer waits for the log up to its queue timeout, and then evicts it.
    """

    def __init__(self, ring: Ring, *, blocks_writer: bool) -> None:
        self.ring = ring
        self.blocks_writer = blocks_writer
        self.name, self.epoch = ring.name, ring.epoch
        self.capacity_bytes, self.chunk_bytes = ring.capacity_bytes, ring.chunk_bytes
        self.lost = 0  # records that the log will never have

    @property
    def pointers(self) -> tuple[Any, Any, Any]:
        """NULL: the header belongs to another process, and gets no durable position."""
        return ffi.NULL, ffi.NULL, ffi.NULL

    def extremes(self) -> Extremes:
        """See Ring.  The end is the one that readers find; a killed writer may not have published it."""
        extremes = self.ring.extremes()
        with self.ring.reader(name="log", overrun="count", with_slot=False) as reader:
            while reader.ranges(1 << 20):
                pass
            return extremes._replace(end_position=reader.cursor, end_offset=reader.offset)

    def durable(self, position: int) -> None:
        """No effect: the header belongs to another process."""

    def set_wakeup(self, wakeup: object, index: int) -> None:
        """No effect: no thread is signalled; readers sleep on the ring (CopiedRingsWriter.run())."""

    def followed_by(self, reader: Reader) -> None:
        """No effect: its writer keeps no commit index here; each record is read."""

    def reader(self, **_: object) -> CopyingReader:
        """A reader from the oldest record on."""
        return CopyingReader(self)

    def logged(self, logged_ring: LoggedRing) -> LoggedRing:
        """`logged_ring` with this object as its ring."""
        return logged_ring._replace(ring=cast(Ring, self))


class CopyingReader:
    """A reader with the interface that LogWriter needs; ranges() returns verified private copies."""

    def __init__(self, ring: CopiedRing) -> None:
        self._ring = ring
        self._reader = self._opened()

    @property
    def address(self) -> int:
        """See Reader."""
        return self._reader.address

    @property
    def offset(self) -> int:
        """Offset of the next record."""
        return self._reader.offset

    @property
    def cursor(self) -> int:
        """Position of the next record."""
        return self._reader.cursor

    def ranges(self, limit_bytes: int, limit: int = 64) -> list[Range]:
        """See Reader.ranges().  Records lost before the first are counted.  Raises Corrupt."""
        for _ in range(ATTEMPTS):
            try:
                ranges = self._reader.ranges(limit_bytes, limit)
            except Overrun as error:
                self._ring.lost += error.lost
                continue
            except Evicted:
                self._begin_again()
                continue
            copies = [replace(part, view=memoryview(bytes(part.view))) for part in ranges]
            if ranges and not self._reader.holds(ranges[0].position):
                self._ring.lost += sum(part.count for part in ranges)
                continue
            return [_verified(self._ring.name, part) for part in copies]
        return []

    def release(self, position: int) -> None:
        """No effect: written() releases the records."""

    @property
    def lost(self) -> int:
        """See Reader.  The ring counts the losses."""
        return 0

    def skip(self) -> bool:
        """See Reader.  Always False: a ring that another process damages is abandoned."""
        return False

    def written(self) -> None:
        """Release everything read: the log has a copy."""
        self._reader.release(self._reader.cursor)

    def raise_for(self, result: int) -> None:
        """See Reader."""
        self._reader.raise_for(result)

    def close(self) -> None:
        """See Reader."""
        self._reader.close()

    def _opened(self) -> Reader:
        return self._ring.ring.reader(name="log", start="oldest", blocks_writer=self._ring.blocks_writer)

    def _begin_again(self) -> None:
        """Take a new slot after an eviction, at the next record that is left."""
        offset = self._reader.offset
        self._reader.close()
        self._reader = self._opened()
        try:
            self._reader.seek(offset)
        except OffsetGone as error:
            self._ring.lost += max(error.nearest - offset, 0)


def _verified(name: str, part: Range) -> Range:
    scan = scan_records(part.view, part.epoch)
    if (scan.first_offset, scan.count, scan.good_bytes) != (part.offset, part.count, len(part.view)):
        raise Corrupt(f"ring {name}: {part.count} records from offset {part.offset} on do not verify")
    return part


class CopiedRingsWriter(LogWriter):
    """Writes records of CopiedRings to a log.  See LogWriter."""

    copies = True

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        log.direct = False
        self._sleeper = Sleeper()
        self._rings: dict[str, CopiedRing] = {}
        self._next: dict[str, int] = {}  # next expected offset, by ring

    def add(self, logged_ring: LoggedRing) -> None:
        """See LogWriter.add().  The ring is a CopiedRing; its writer may be active."""
        ring = cast(CopiedRing, logged_ring.ring)
        super().add(logged_ring)
        self._rings[ring.name] = ring

    def lost(self) -> dict[str, int]:
        """Number of records lost before the log read them, by ring.  From any thread."""
        return {name: ring.lost for name, ring in list(self._rings.items()) if ring.lost}

    def status(self) -> dict[str, object]:
        """See LogWriter."""
        return {**super().status(), "lost_records": sum(self.lost().values())}

    def step(self, *, sync: bool = False) -> int:
        """See LogWriter."""
        pause_ns = super().step(sync=sync)
        if self.log.commit.is_written:
            for joined in self._joined.values():
                cast(CopyingReader, joined.reader).written()
        return pause_ns

    def run(self) -> None:
        """See LogWriter."""
        pause_ns = self.step()
        if pause_ns:
            self._sleeper.sleep(self.readers(), pause_ns / 1e9)

    def call(self) -> None:
        """See LogWriter."""
        super().call()
        self._sleeper.ring()

    def _take(self, now: int) -> None:
        """Append copies of the rings' records, in turns, so that a busy ring does not block others."""
        total = 0
        busy = [joined for joined in self._joined.values() if not joined.leaving]
        while busy and total < ROUND_BYTES:
            taken = [self._take_from(joined, now) for joined in busy]
            total += sum(taken)
            busy = [joined for joined, length in zip(busy, taken, strict=True) if length >= EXTENT_BYTES]

    def _take_from(self, joined: JoinedRing, now: int) -> int:
        """Append copies of a ring's next records.  Returns the bytes."""
        name, epoch = joined.ring.name, joined.ring.epoch
        try:
            ranges = joined.reader.ranges(EXTENT_BYTES)
        except RingError as error:
            self._break(joined, error)
            return 0
        for part in ranges:
            if self._next.get(name, part.offset) != part.offset:
                log.warning("records lost before they were logged ring=%s before=%d", name, part.offset)
                self.log.join(name, epoch, part.offset)
            self._next[name] = part.offset + part.count
            self.log.append(joined.ring_id, [part], joined.c, now)
        return sum(len(part.view) for part in ranges)
