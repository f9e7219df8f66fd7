"""Windows of records into columns and back: the compiled part (ringbuf/c/archive/) with its memory.

Owns the buffers that C fills, and nothing else: no files, no compression.  Each call works on a whole window
and releases the GIL.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

from persistence.archive.layout import BLOCK_BYTES, PAGE_BYTES, Run
from persistence.errors import FormatError
from ringbuf import Range
from ringbuf.core import ffi, lib

__all__ = [
    "Columns",
    "Keys",
    "NamePage",
    "Needed",
    "Wanted",
    "WindowColumns",
    "page_names",
    "page_windows",
]

NAME_MOST_BYTES = 65535 + 10  # of a page
RANKS_MOST = 1 << 30  # of one archive: each costs a reader 8 bytes while it opens a window
RECORDS_MOST = 1 << 30  # of one window


class Columns(NamedTuple):
    """A window as it is compressed: memory of its own."""

    head: memoryview
    body: memoryview
    cuts: list[int]  # where each block of the body ends
    first_timestamp_ns: int  # the earliest
    last_timestamp_ns: int  # the latest


class NamePage(NamedTuple):
    """A page of names."""

    data: bytes
    names: int
    first_name: bytes


class Keys:
    """The topics of a segment: enter() every run, then rank(), then split() every window."""

    def __init__(self, seed: int | None = None) -> None:
        seed = int.from_bytes(os.urandom(8), "little") if seed is None else seed
        pointer = lib.rb_keys_new(seed)
        if pointer == ffi.NULL:
            raise MemoryError("no memory for the topics of a segment")
        self._keys = ffi.gc(pointer, lib.rb_keys_free)
        self.ranks = 0

    def enter(self, records: memoryview, epoch: int, window: int) -> None:
        """Takes the keys of a run of records that is in that window.  Raises FormatError: one is damaged."""
        result = lib.rb_keys_enter(self._keys, ffi.from_buffer(records), len(records), epoch, window)
        if result == lib.RB_INVALID:
            raise MemoryError("no memory for the topics of a segment")
        if result != lib.RB_OK:
            raise FormatError("a record whose checksum does not hold")

    def rank(self) -> None:
        """Nothing is entered from here on."""
        self.ranks = lib.rb_keys_rank(self._keys)

    def pages(self) -> Iterator[NamePage]:
        """The names, by rank."""
        room = PAGE_BYTES + NAME_MOST_BYTES
        page, length, first = bytearray(room), ffi.new("uint64_t *"), 0
        while first < self.ranks:
            memory = ffi.from_buffer(page)
            count = lib.rb_keys_page(self._keys, first, memory, PAGE_BYTES, length)
            if not count:  # the first is longer than that
                count = lib.rb_keys_page(self._keys, first, memory, room, length)
            data = bytes(page[: length[0]])
            yield NamePage(data, count, next(page_names(data, count)))
            first += count

    def split(
        self, records: memoryview, runs: Sequence[Run], epochs: Sequence[int], block_bytes: int = BLOCK_BYTES
    ) -> Columns:
        """The columns of a window, whose runs lie one behind the other in `records`.  Raises FormatError."""
        count = sum(run.records for run in runs)
        head, body = bytearray(count * lib.RB_ARCHIVE_HEAD_BYTES), bytearray(len(records))
        scratch = ffi.new("uint64_t[]", 2 * count + self.ranks + 1)
        cuts = ffi.new("uint64_t[]", len(records) // block_bytes + 2)
        out = ffi.new("rb_archive_columns *")
        out.scratch, out.cuts = scratch, cuts
        out.head, out.body = ffi.from_buffer(head), ffi.from_buffer(body)
        result = lib.rb_archive_split(
            self._keys, self.ranks, ffi.from_buffer(records), _runs(runs, epochs), len(runs), count,
            block_bytes, out,
        )  # fmt: skip
        if result != lib.RB_OK:
            raise FormatError("records that are not what their extents say")
        filled = memoryview(body)[: out.body_bytes]
        times = out.first_timestamp_ns, out.last_timestamp_ns
        return Columns(memoryview(head), filled, list(cuts[0 : out.cut_count]), *times)


def page_names(data: bytes, count: int) -> Iterator[bytes]:
    """The names of a page, in their order.  Raises FormatError."""
    place = count * lib.RB_ARCHIVE_NAME_BYTES
    begin = 0
    for end in _name_ends(data, count):
        yield data[place + begin : place + end]
        begin = end


def page_windows(data: bytes, count: int, index: int) -> int:
    """The windows that the name of that index is in: bit n for window n modulo 64."""
    return sum(data[(2 + i) * count + index] << 8 * i for i in range(8))


def _name_ends(data: bytes, count: int) -> Any:
    ends = ffi.new("uint32_t[]", count)
    if lib.rb_archive_name_ends(ffi.from_buffer(data), len(data), count, ends) != lib.RB_OK:
        raise FormatError("a page of names that is none")
    return ends


def _runs(runs: Sequence[Run], epochs: Sequence[int]) -> Any:
    found = ffi.new("rb_archive_run[]", len(runs))
    for it, run, epoch in zip(found, runs, epochs, strict=True):
        it.length, it.count, it.first_offset = run.length, run.records, run.first_offset
        it.position, it.epoch = run.position, epoch
    return found


class Wanted(NamedTuple):
    """Records of a window: first <= record < end, in record order; of one key, if `rank` is not negative."""

    first: int
    end: int
    rank: int = -1


class Needed(NamedTuple):
    """What it takes to restore some of them."""

    wanted: Wanted  # up to the limit
    records: int
    bytes: int
    blocks: list[int]
    pages: list[int]


class WindowColumns:
    """The head of a window, opened: restores any of its records out of the blocks that they need."""

    def __init__(
        self,
        head: bytes,
        runs: Sequence[Run],
        epochs: Sequence[int],
        cuts: Sequence[int],
        page_ends: Sequence[int],
    ) -> None:
        """`page_ends`: the rank behind the last name of each page.  Raises FormatError."""
        self.runs = runs
        self.epochs = epochs
        records = sum(run.records for run in runs)
        ranks = page_ends[-1] if page_ends else 0
        if len(head) != records * lib.RB_ARCHIVE_HEAD_BYTES or max(ranks, records) > RECORDS_MOST:
            raise FormatError(f"a head of {len(head)} bytes for {records} records")
        self._window = window = ffi.new("rb_archive_window *")
        self._kept = [
            ffi.from_buffer(head), _runs(runs, epochs), ffi.new("uint64_t[]", list(cuts)),
            ffi.new("uint64_t[]", list(page_ends)), ffi.new("uint32_t[]", records),
            ffi.new("uint64_t[]", records + 1), ffi.new("uint64_t[]", records),
        ]  # fmt: skip
        window.records, window.ranks, window.run_count = records, ranks, len(runs)
        window.cut_count, window.page_count = len(cuts), len(page_ends)
        (window.head, window.runs, window.cuts, window.pages, window.order, window.bodies,
         window.positions) = self._kept  # fmt: skip
        if lib.rb_archive_open(window, ffi.new("uint64_t[]", ranks + 1)) != lib.RB_OK:
            raise FormatError("a head whose columns do not fit its runs")

    @property
    def records(self) -> int:
        """How many there are."""
        return int(self._window.records)

    def position(self, record: int) -> int:
        """Where a record stood in its ring."""
        return int(self._window.positions[record])

    def needs(self, wanted: Wanted, limit_bytes: int) -> Needed:
        """Which blocks and pages it takes to restore what fits into `limit_bytes`, at least one record."""
        window = self._window
        blocks, pages = bytearray(window.cut_count), bytearray(window.page_count)
        found = ffi.new("rb_archive_needed *")
        lib.rb_archive_needs(
            window, ffi.new("rb_archive_wanted *", wanted), limit_bytes, ffi.from_buffer(blocks),
            ffi.from_buffer(pages), found,
        )  # fmt: skip
        return Needed(
            wanted._replace(end=found.end),
            found.records,
            found.bytes,
            [index for index, marked in enumerate(blocks) if marked],
            [index for index, marked in enumerate(pages) if marked],
        )

    def restore(
        self, needed: Needed, blocks: Mapping[int, bytes], pages: Mapping[int, tuple[bytes, int]]
    ) -> list[Range]:
        """The records, as they stood in the ring, in ranges over memory of their own.

        `blocks` and `pages` (with their counts of names), decompressed, by index.  Raises FormatError.
        """
        window = self._window
        kept: list[Any] = []

        def pointers(kind: str, count: int, items: Mapping[int, Any]) -> Any:
            array = ffi.new(kind, max(count, 1))
            for index, item in items.items():
                array[index] = item
            kept.append(array)
            return array

        parts = ffi.new("rb_archive_parts *")
        ends = {index: _name_ends(data, count) for index, (data, count) in pages.items()}
        held = {index: ffi.from_buffer(data) for index, data in blocks.items()}
        names = {index: ffi.from_buffer(data) for index, (data, _) in pages.items()}
        parts.blocks = pointers("const uint8_t *[]", window.cut_count, held)
        parts.pages = pointers("const uint8_t *[]", window.page_count, names)
        parts.name_ends = pointers("const uint32_t *[]", window.page_count, ends)
        out = bytearray(needed.bytes)
        stretches = ffi.new("rb_archive_stretch[]", max(needed.records, 1))
        count = lib.rb_archive_restore(
            window, ffi.new("rb_archive_wanted *", needed.wanted), parts, ffi.from_buffer(out), len(out),
            stretches, needed.records,
        )  # fmt: skip
        if count < 0:
            raise FormatError("columns of a window that do not fit each other")
        view = memoryview(out).toreadonly()
        return [self._range(stretches[index], view) for index in range(count)]

    def _range(self, it: Any, view: memoryview) -> Range:
        return Range(
            it.position,
            self.epochs[it.run],
            it.first_offset,
            it.count,
            it.first_timestamp_ns,
            it.last_timestamp_ns,
            view[it.place : it.place + it.length],
        )

    @classmethod
    def of(cls, columns: Columns, runs: Sequence[Run], epochs: Sequence[int], ranks: int) -> Self:
        """The window that split() has just made, with all names in one page."""
        return cls(bytes(columns.head), runs, epochs, columns.cuts, [ranks])
