"""Selection: the records of a run that the topic filters of a group match, cut out in the broker.

Owns the filters as C takes them.  So a client, in whichever language, gets no record that it did not ask for.
No state between two calls; records that are left out are for the caller to mark as done.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from pyroaring import BitMap64

from edge.consumers.source import Found
from ringbuf.core import ffi, lib

__all__ = ["Selected", "Selection"]

MIN_RECORD_BYTES = 32

_allocate = ffi.new_allocator(should_clear_after_alloc=False)


@dataclass(frozen=True, slots=True)
class Selected:
    """Records of a run: `data` has those at `offsets`, in order.  All below `end` were looked at."""

    data: bytes
    offsets: BitMap64
    end: int
    corrupt: bool  # the record at `end` does not verify


class Selection:
    """Topic filters of one group.  Immutable; `filters` are valid (check_filter)."""

    def __init__(self, filters: Iterable[str]) -> None:
        parts = [it.encode() for it in filters]
        self.everything = b"#" in parts
        if self.everything:
            parts = []
        self.count = len(parts)
        self._filters = ffi.new("char[]", b"".join(parts))
        self._lengths = ffi.new("uint32_t[]", [len(it) for it in parts])

    def of(self, found: Found, done: BitMap64 | None) -> Selected:
        """The records of `found` that match and are not in `done`.  Releases the GIL."""
        data = _allocate("uint8_t[]", len(found.data))
        offsets = _allocate("uint64_t[]", len(found.data) // MIN_RECORD_BYTES)
        left_out = array("Q", done if done is not None else ())
        selection = ffi.new(
            "rb_selection *",
            {
                "filters": self._filters,
                "filter_lengths": self._lengths,
                "filters_count": self.count,
                "done": ffi.from_buffer("uint64_t[]", left_out),
                "done_count": len(left_out),
                "bytes": data,
                "offsets": offsets,
            },
        )
        result = lib.rb_records_select(
            ffi.from_buffer(found.data), len(found.data), found.epoch, found.offset, selection
        )
        kept = array("Q", bytes(ffi.buffer(offsets, 8 * selection.count)))
        return Selected(
            bytes(ffi.buffer(data, selection.length)),
            BitMap64(kept),
            int(selection.end_offset),
            result != lib.RB_OK,
        )
