"""Rings that other processes write, on their way to the log: copied out, checked, and only then believed.

LogWriter hands the kernel the ring's own memory, which this process writes and can promise to leave alone.
Nothing can be promised of a ring whose writer is another process: it may overwrite what it was asked to keep,
on purpose or because it evicted us.  So a run is copied first, then it is seen whether the ring still held
it, then every record is verified; the copy is what is written, and written again after a failure.  The
ring's room is given back when the copy is in the kernel's hands: this process may be killed before, and then
the ring must still have it, if its writer heeds the log.  It is not kept until a sync, since what a power cut
takes it takes from the ring as well.

What such a ring has lost before it was read, because it overwrites or because the log was too slow for longer
than its queue timeout, is counted, and the log says where the ring goes on.  It has no durable word: nobody
waits for it.

One thread, as LogWriter, whose rounds and failures these are; they are Python's, since they copy anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from persistence.log import Log
from persistence.writer import LogWriter, Source
from ringbuf import Range, Reader, Ring, scan_records
from ringbuf.bell import READERS_MOST, Sleeper
from ringbuf.errors import Corrupt, Evicted, OffsetGone, Overrun
from ringbuf.ring import Extremes

__all__ = ["CopiedRing", "ForeignWriter"]

log = logging.getLogger(__name__)

ATTEMPTS = 4  # a ring that laps us that often in a row waits for the next round


class CopiedRing:
    """What LogWriter needs of a ring, of one that is attached to read.

    `gating`: its writer waits for the log, up to its queue timeout, and evicts it then.
    """

    def __init__(self, ring: Ring, *, gating: bool) -> None:
        self.ring = ring
        self.gating = gating
        self.name, self.epoch, self.capacity_bytes = ring.name, ring.epoch, ring.capacity_bytes
        self.lost = 0  # records that the log will never have

    @property
    def pointer(self) -> Any:
        """See Ring."""
        return self.ring.pointer

    @property
    def cursors_pointer(self) -> Any:
        """See Ring."""
        return self.ring.cursors_pointer

    def extremes(self) -> Extremes:
        """See Ring; with the end that readers find, which a writer that was killed may not have told."""
        found = self.ring.extremes()
        with self.ring.reader(name="log", overrun="count", seated=False) as reader:
            while reader.ranges(1 << 20):
                pass
            return found._replace(end_position=reader.cursor, end_offset=reader.offset)

    def durable(self, position: int) -> None:
        """Nobody is told: the header is another process's."""

    def rings(self, bell: object, index: int) -> None:
        """Nothing rings a bell of this process: readers sleep on the ring (ForeignWriter.run())."""

    def followed_by(self, reader: Reader) -> None:
        """Its writer leaves no trail here: each record is looked at."""

    def reader(self, **_: object) -> CopyingReader:
        """From the oldest record on."""
        return CopyingReader(self)

    def source(self, source: Source) -> Source:
        """`source`, with this in the place of its ring."""
        return source._replace(ring=cast(Ring, self))


class CopyingReader:
    """What LogWriter needs of a reader: ranges() gives copies, verified, that nobody can change."""

    def __init__(self, ring: CopiedRing) -> None:
        self._ring = ring
        self._reader = self._opened()

    @property
    def address(self) -> int:
        """See Reader."""
        return self._reader.address

    @property
    def offset(self) -> int:
        """Of the next record."""
        return self._reader.offset

    @property
    def cursor(self) -> int:
        """Position of the next record."""
        return self._reader.cursor

    def ranges(self, limit_bytes: int, limit: int = 64) -> list[Range]:
        """See Reader.ranges(); what was lost before the first is counted.  Raises Corrupt."""
        for _ in range(ATTEMPTS):
            try:
                found = self._reader.ranges(limit_bytes, limit)
            except Overrun as error:
                self._ring.lost += error.lost
                continue
            except Evicted:
                self._begin_again()
                continue
            copies = [replace(it, view=memoryview(bytes(it.view))) for it in found]
            if found and not self._reader.holds(found[0].position):
                self._ring.lost += sum(it.count for it in found)
                continue
            return [_verified(self._ring.name, it) for it in copies]
        return []

    def release(self, position: int) -> None:
        """Done when it was written."""

    @property
    def lost(self) -> int:
        """See Reader: counted by the ring."""
        return 0

    @property
    def is_stuck(self) -> bool:
        """See Reader: its writer may be hostile, and whoever waits for it waits in vain."""
        return False

    def skip(self) -> bool:
        """See Reader: a ring that another process damages is left."""
        return False

    def written(self) -> None:
        """The log has a copy of all that was read."""
        self._reader.release(self._reader.cursor)

    def raise_for(self, result: int) -> None:
        """See Reader."""
        self._reader.raise_for(result)

    def close(self) -> None:
        """See Reader."""
        self._reader.close()

    def _opened(self) -> Reader:
        return self._ring.ring.reader(name="log", start="oldest", gating=self._ring.gating)

    def _begin_again(self) -> None:
        """After an eviction: a new slot, at the next record that is left."""
        wanted = self._reader.offset
        self._reader.close()
        self._reader = self._opened()
        try:
            self._reader.seek(wanted)
        except OffsetGone as gone:
            self._ring.lost += max(gone.nearest - wanted, 0)


def _verified(name: str, found: Range) -> Range:
    scan = scan_records(found.view, found.epoch)
    if (scan.first_offset, scan.count, scan.good_bytes) != (found.offset, found.count, len(found.view)):
        raise Corrupt(f"ring {name}: {found.count} records from offset {found.offset} on do not verify")
    return found


class ForeignWriter(LogWriter):
    """Brings records of CopiedRings into a log of its own.  See LogWriter."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self._sleeper = Sleeper()
        self._rings: dict[str, CopiedRing] = {}
        self._next: dict[str, int] = {}  # offset that continues what was taken, by ring

    def add(self, source: Source) -> None:
        """See LogWriter.add(); the ring is a CopiedRing, and may be written all the time."""
        ring = cast(CopiedRing, source.ring)
        super().add(source)
        self._rings[ring.name] = ring

    def lost(self) -> dict[str, int]:
        """Records that were gone before the log could read them, by ring; any thread."""
        return {name: ring.lost for name, ring in list(self._rings.items()) if ring.lost}

    def status(self) -> dict[str, object]:
        """See LogWriter."""
        return {**super().status(), "lost_records": sum(self.lost().values())}

    def run(self) -> None:
        """See LogWriter."""
        pause_ns = self.step()
        if pause_ns:
            self._sleeper.sleep(self.readers()[:READERS_MOST], pause_ns / 1e9)

    def call(self) -> None:
        """See LogWriter."""
        super().call()
        self._sleeper.ring()

    def _enter(self, now: int) -> bool:
        return False  # C would write the ring's own memory.

    def _written(self) -> None:
        for joined in self._joined.values():
            cast(CopyingReader, joined.reader).written()

    def _append(self, name: str, epoch: int, ring_id: int, ranges: Sequence[Range]) -> None:
        for it in ranges:
            if self._next.get(name, it.offset) != it.offset:
                log.warning("records lost before they were logged ring=%s before=%d", name, it.offset)
                self.log.join(name, epoch, it.offset)
            self._next[name] = it.offset + it.count
            self.log.append(ring_id, [it])
