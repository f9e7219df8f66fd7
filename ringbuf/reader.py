"""Reader: a cursor over a ring, for loops, for asyncio, and for raw ranges.

The C type that it extends has the synchronous part.  This class adds calls that run once per batch.
"""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Self

from msgspec import Struct

from ringbuf.constants import HEADER_BYTES
from ringbuf.errors import RingClosed
from ringbuf.native import Batch, CReader, Record, ffi, lib
from ringbuf.reader_slots import NoSlot, ReaderSlot
from ringbuf.reader_wakeup import WakeupThread
from ringbuf.shared_mapping import Mapping

RANGES_MAX = 1024  # the limit of one pwritev (IOV_MAX)
LAPS_MAX = 64  # overruns in a row before a reader with overrun="count" returns nothing


class Range(Struct, frozen=True):
    """A contiguous run of complete records of one ring and epoch, without padding: the content of one extent.

    Either every record is covered by its own checksum, or the run is one record whose payload is not covered
    (FLAG_UNCHECKED).  `view` is the ring's memory.  It is valid until the reader releases it.  If the reader
    does not gate, it is valid until the writer overwrites it; check with holds().
    """

    position: int  # of the first byte, in the ring
    epoch: int
    offset: int  # of the first record
    count: int
    first_timestamp_ns: int
    last_timestamp_ns: int
    view: memoryview


class Reader(CReader):
    """A cursor over a ring, created by Ring.reader().

    Iteration waits for records and never ends.  `async for` does the same without a thread of its own.
    A reader belongs to one thread or one event loop at a time.
    """

    _mapping: Mapping
    _slot: ReaderSlot | NoSlot
    _epoch: int

    def _take(self, mapping: Mapping, slot: ReaderSlot | NoSlot, epoch: int) -> Self:
        self._mapping, self._slot, self._epoch = mapping, slot, epoch
        return self

    @property
    def slot(self) -> int:
        """Number of the reader's slot in the cursor file or, with local=True, in private memory; -1: none."""
        return self._slot.slot

    def close(self) -> None:
        """Free the slot.  Records still in use stay readable.

        A thread that waits with this reader gets RingClosed within half a second, a task at once.  A reader
        closes itself when neither it nor one of its records is referenced any more.
        """
        super().close()
        self._slot.leave()
        WakeupThread.closed(self)

    def __del__(self) -> None:
        if hasattr(self, "_slot"):
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ranges(self, limit_bytes: int, limit: int = RANGES_MAX) -> list[Range]:
        """Raw runs of records from the cursor on: at most `limit`, about `limit_bytes` together.

        Returns at least one record if the ring has one, otherwise an empty list.  Moves the cursor.  A
        blocking reader keeps the memory until release(position).  Raises Overrun, Evicted, Corrupt.
        """
        limit = min(limit, RANGES_MAX)
        ranges = ffi.new("rb_range[]", limit)
        for _ in range(LAPS_MAX):
            count = self._ranges(limit_bytes, ffi.buffer(ranges))
            if count >= 0:
                return [self.range_of(part) for part in ranges[0:count]]
            self._raise(count)  # returns only for an overrun that is counted
        return []

    def skip(self) -> bool:
        """Move the cursor, after Corrupt, to the next record that verifies, or to the end of the ring.

        Skipped records count as lost.  False if no record follows.
        """
        return bool(self._skip_damage() == lib.RB_OVERRUN)

    def follow(self, commit_index: Any) -> None:
        """Use the writer's commit index `commit_index`; see Ring.followed_by()."""
        self._commit_index = commit_index  # referenced as long as C has its address
        lib.rb_reader_commit_index(ffi.cast("rb_reader *", self.address), commit_index)

    def raise_for(self, code: int) -> None:
        """Raise the error of a result code of C (ringbuf_api.h): Overrun, Evicted, Corrupt."""
        self._raise(code)

    def range_of(self, part: Any) -> Range:
        """A Range from an rb_range of this ring, or from an object with the same fields."""
        mask = self._mapping.size - HEADER_BYTES - 1
        begin = HEADER_BYTES + (part.position & mask)
        return Range(
            part.position,
            self._epoch,
            part.first_offset,
            part.count,
            part.first_timestamp_ns,
            part.last_timestamp_ns,
            self._mapping.view[begin : begin + part.length],
        )

    async def arrival(self) -> None:
        """Wait, without blocking the event loop, until there is something to read.

        Raises RingClosed if the reader is closed, also by another task or thread during the wait.
        """
        import asyncio  # takes longer to import than all of this package

        loop = asyncio.get_running_loop()
        arrived: asyncio.Future[None] = loop.create_future()

        def arrive() -> None:
            if not arrived.done():
                arrived.set_result(None)

        def wake() -> None:
            with suppress(RuntimeError):  # the loop was closed during the wait
                loop.call_soon_threadsafe(arrive)

        wakeup = WakeupThread.of_process()
        wakeup.watch(self, wake)
        try:
            await arrived
        finally:
            wakeup.unwatch(self, wake)
        if not self.open:
            raise RingClosed("reader")

    async def batches(self, limit: int = 256) -> AsyncIterator[Batch]:
        """Batches of 1 to `limit` records in order of arrival, without end."""
        while True:
            batch = self.read_many(limit)
            if len(batch) > 0:
                yield batch
            else:
                del batch
                await self.arrival()

    async def __aiter__(self) -> AsyncIterator[Record]:
        async for batch in self.batches():
            for record in batch:
                yield record
