"""Reader: a cursor over a ring, for loops, for asyncio, and for raw ranges.

The synchronous part is the C type it extends; this adds what runs once per batch.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from ringbuf.bell import Bell
from ringbuf.constants import HEADER_BYTES
from ringbuf.core import Batch, CReader, Record, ffi, lib
from ringbuf.errors import RingClosed
from ringbuf.memory import Mapping
from ringbuf.registry import Seat, Unseated

RANGES_MOST = 1024  # as many as one pwritev takes (IOV_MAX)
LAPS_MOST = 64  # in a row, before a reader that only counts them finds nothing


@dataclass(frozen=True, slots=True)
class Range:
    """A run of whole records of one ring and epoch, contiguous, without padding: what an extent holds.

    Either every record is covered by its own checksum, or it is one record whose payload is not
    (FLAG_UNCHECKED).  `view` is the memory itself: of a ring, valid until the reader releases it or, if it
    does not gate, until the writer comes round; look with holds().
    """

    position: int  # of the first byte, in the ring
    epoch: int
    offset: int  # of the first record
    count: int
    first_timestamp_ns: int
    last_timestamp_ns: int
    view: memoryview


class Reader(CReader):
    """A cursor over a ring.  Made by Ring.reader().

    Iteration waits for records and never ends; `async for` does so without a thread of its own (Bell).  A
    reader belongs to one thread or one event loop at a time.
    """

    _mapping: Mapping
    _seat: Seat | Unseated
    _epoch: int

    def _take(self, mapping: Mapping, seat: Seat | Unseated, epoch: int) -> Self:
        self._mapping, self._seat, self._epoch = mapping, seat, epoch
        return self

    @property
    def slot(self) -> int:
        """Number of its slot, in the cursor file or (own=True) in the ring's header; -1: it has none."""
        return self._seat.slot

    def close(self) -> None:
        """Free the slot.  Records still in hand stay readable memory.

        A thread that waits with this reader gets RingClosed within half a second, a task at once.  A reader
        to which no reference is left, nor to a record of it, is closed by itself.
        """
        super().close()
        self._seat.leave()
        Bell.closed(self)

    def __del__(self) -> None:
        if hasattr(self, "_seat"):
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ranges(self, limit_bytes: int, limit: int = RANGES_MOST) -> list[Range]:
        """Raw runs of records from the cursor on: at most `limit`, about `limit_bytes` together.

        At least one record if one is there, else an empty list.  Moves the cursor; a gating reader goes on
        holding the memory until release(position).  Raises Overrun, Evicted, Corrupt.
        """
        limit = min(limit, RANGES_MOST)
        found = ffi.new("rb_range[]", limit)
        for _ in range(LAPS_MOST):
            count = self._ranges(limit_bytes, ffi.buffer(found))
            if count >= 0:
                return [self.range_of(it) for it in found[0:count]]
            self._raise(count)  # but for an overrun that is only counted
        return []

    def skip(self) -> bool:
        """After Corrupt: move the cursor to the next record that verifies, or to the end of the ring.

        Records that are passed over count as lost.  False: nothing is ahead.
        """
        return bool(self._skip() == lib.RB_OVERRUN)

    @property
    def is_stuck(self) -> bool:
        """True if the ring ends further on, although no record stands at the cursor."""
        return bool(lib.rb_reader_is_stuck(ffi.cast("rb_reader *", self.address)))

    def follow(self, trail: Any) -> None:
        """See Ring.followed_by()."""
        self._trail = trail  # Kept as long as C has its address.
        lib.rb_reader_trail(ffi.cast("rb_reader *", self.address), trail)

    def raise_for(self, code: int) -> None:
        """Raises what a result of C means (ringbuf_api.h): Overrun, Evicted, Corrupt."""
        self._raise(code)

    def range_of(self, found: Any) -> Range:
        """A Range of what C has found in this ring: an rb_range, or what has its fields."""
        mask = self._mapping.size - HEADER_BYTES - 1
        begin = HEADER_BYTES + (found.position & mask)
        return Range(
            found.position,
            self._epoch,
            found.first_offset,
            found.count,
            found.first_timestamp_ns,
            found.last_timestamp_ns,
            self._mapping.view[begin : begin + found.length],
        )

    async def arrival(self) -> None:
        """Wait, without blocking the event loop, until there is something to read.

        Raises RingClosed when the reader is closed, also by another task or thread meanwhile.
        """
        loop = asyncio.get_running_loop()
        arrived: asyncio.Future[None] = loop.create_future()

        def arrive() -> None:
            if not arrived.done():
                arrived.set_result(None)

        def ring() -> None:
            with suppress(RuntimeError):  # the loop has closed meanwhile
                loop.call_soon_threadsafe(arrive)

        bell = Bell.of_process()
        bell.watch(self, ring)
        try:
            await arrived
        finally:
            bell.unwatch(self, ring)
        if not self.open:
            raise RingClosed("reader")

    async def batches(self, limit: int = 256) -> AsyncIterator[Batch]:
        """Batches of 1 to `limit` records, as they come, without end."""
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
