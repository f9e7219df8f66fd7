"""Records of a ring that is being written: copied, checked that they were not overwritten meanwhile.

Takes no slot of the cursor file and never delays the writer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path

from ringbuf import Range, Reader, Ring
from ringbuf.errors import Corrupt, OffsetGone, Overrun, RingError
from ringbuf.record import copied

READ_BYTES = 1 << 20


def visible_offsets(ring: Ring) -> range:
    """Offsets that the ring shows to readers: without those that wait for the log (`visible = "durable"`)."""
    extremes = ring.extremes()
    offsets = range(extremes.oldest_offset, extremes.end_offset)
    with ring.reader(with_slot=False) as reader:
        if not offsets or not _is_hidden(reader, offsets[-1]):
            return offsets
        return offsets[: bisect_left(offsets, True, key=lambda offset: _is_hidden(reader, offset))]


def _is_hidden(reader: Reader, offset: int) -> bool:
    try:
        reader.seek(offset)
        return not reader.ranges(1)
    except RingError:  # overwritten meanwhile, or damaged: the scan reports it
        return False


def ring_records(path: Path, epoch: int, first_offset: int, end_offset: int) -> Iterator[Range]:
    """Copies of runs of records with first_offset <= offset < end_offset, if they are there.

    The last run may extend beyond the end. Missing offsets were overwritten, or do not verify. Raises
    RingError, OSError.
    """
    with Ring.attach(path) as ring:
        if ring.epoch != epoch:
            return
        with ring.reader(start="oldest", with_slot=False, verify=True) as reader:
            at = first_offset
            while at < end_offset:
                runs = _copies(reader, at)
                if not runs:
                    return
                yield from runs
                at = runs[-1].offset + runs[-1].count


def _copies(reader: Reader, offset: int) -> list[Range]:
    """The runs at `offset`, or at the next offset that is readable; empty: no record follows."""
    while True:
        try:
            if reader.offset != offset:
                reader.seek(offset)
            found = reader.ranges(READ_BYTES)
        except OffsetGone as gone:
            if gone.nearest <= offset:
                return []
            offset = gone.nearest
            continue
        except Overrun:
            offset = max(reader.offset, offset)
            continue
        except Corrupt:
            if not reader.skip():
                return []
            offset = reader.offset
            continue
        runs = [_copy(run) for run in found]
        if not found or reader.holds(found[0].position):
            return runs


def _copy(run: Range) -> Range:
    memory = memoryview(bytearray(len(run.view)))
    copied(memory, run.view)
    return Range(
        run.position, run.epoch, run.offset, run.count, run.first_timestamp_ns, run.last_timestamp_ns, memory
    )
