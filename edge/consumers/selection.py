"""Selection: the records of a run that the topic filters of a group match, copied in the broker.

Owns the filters in the form for C. So a client, in any language, gets only records that it requested. No
state between two calls; the caller marks the other records as done.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from pyroaring import BitMap64

from edge.consumers.offset_sets import range_set
from edge.consumers.replay_clock import EVERYTHING_NS
from edge.consumers.ring_source import RingRecords
from ringbuf.native import ffi, lib

MIN_RECORD_BYTES = 32

_allocate = ffi.new_allocator(should_clear_after_alloc=False)


@dataclass(frozen=True, slots=True)
class Selected:
    """Selected records of a run, in order: all below `end`, except `passed`.

    Records in `passed` match no filter or are done (None: there are none). If `end` is before that of the
    run, the limit was reached, or the record at `end` is too late and has the time `next_ns`, or it is
    invalid.
    """

    data: bytes
    passed: BitMap64 | None
    end: int
    next_ns: int | None = None


class Scratch:
    """Memory for results of C, reused: allocation costs more than the work. One thread."""

    def __init__(self) -> None:
        self._size = 0

    def fit(self, size: int) -> None:
        """Make room for a run of `size` bytes."""
        if size > self._size:
            self._size = size
            self.data = _allocate("uint8_t[]", size)
            self.offsets = _allocate("uint64_t[]", size // MIN_RECORD_BYTES)


class Selection:
    """Topic filters of one group. Immutable; `filters` are valid (check_filter)."""

    def __init__(self, filters: Iterable[str]) -> None:
        parts = [data.encode() for data in filters]
        self.everything = b"#" in parts
        if self.everything:
            parts = []
        self.count = len(parts)
        self.size_bytes = sum(map(len, parts))
        self._filters = ffi.new("char[]", b"".join(parts))
        self._lengths = ffi.new("uint32_t[]", [len(data) for data in parts])

    def of(
        self,
        records: RingRecords,
        done: BitMap64 | None,
        scratch: Scratch,
        limit: int,
        until_ns: int = EVERYTHING_NS,
    ) -> Selected:
        """The first `limit` records of `records` that match and are not in `done`, up to the first of them
        with a time after `until_ns`. Releases the GIL.
        """
        scratch.fit(len(records.data))
        left_out = array("Q", done if done is not None else ())
        selection = ffi.new(
            "rb_selection *",
            {
                "filters": self._filters,
                "filter_lengths": self._lengths,
                "filters_count": self.count,
                "done": ffi.from_buffer("uint64_t[]", left_out),
                "done_count": len(left_out),
                "limit": limit,
                "until_ns": until_ns,
                "bytes": scratch.data,
                "offsets": scratch.offsets,
            },
        )
        lib.rb_records_select(
            ffi.from_buffer(records.data), len(records.data), records.epoch, records.offset, selection
        )
        end, next_ns = int(selection.end_offset), int(selection.next_ns) or None
        if selection.count == records.count:
            return Selected(bytes(records.data), None, end)
        offsets = array("Q", bytes(ffi.buffer(scratch.offsets, 8 * selection.count)))
        passed = range_set(records.offset, end) - BitMap64(offsets)
        return Selected(bytes(ffi.buffer(scratch.data, selection.length)), passed, end, next_ns)
