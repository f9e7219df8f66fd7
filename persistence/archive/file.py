"""One archive: its index in memory, and records out of it, by offset, ring position or topic.

Owns what is read of one file, and nothing between calls but the index: what is decompressed goes through a
Cache that its caller owns (store.py).  Never writes.

Invariant: every byte is checked against its checksum before it is believed.  What fails costs the records
that need it: those of a block, of a page of names, or of a window; the rest is restored, and `damage` says
what is not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import NamedTuple

from persistence.archive.columns import Needed, Wanted, WindowColumns, page_names, page_windows
from persistence.archive.layout import (
    HEADER_BYTES,
    TRAILER_BYTES,
    Footer,
    Frame,
    Trailer,
    WindowEntry,
    unpack_header,
)
from persistence.errors import FormatError
from persistence.files import Files
from persistence.format import SegmentHeader
from ringbuf import Range, crc32c

__all__ = ["ArchiveFile", "Cache", "RunFacts"]

WINDOW_BITS = 64  # of a name


class Cache:
    """What has been decompressed lately, up to `limit_bytes`: least lately used goes first."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.misses = 0
        self._items: OrderedDict[tuple[int, str, int], tuple[object, int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: tuple[int, str, int]) -> object | None:
        """What was put under that key, if it is still there."""
        found = self._items.get(key)
        if found is None:
            self.misses += 1
            return None
        self._items.move_to_end(key)
        return found[0]

    def put(self, key: tuple[int, str, int], item: object, length: int) -> None:
        """Keeps it, unless it is larger than all that may be kept."""
        if length > self.limit_bytes or key in self._items:
            return
        self._items[key] = (item, length)
        self._bytes += length
        while self._bytes > self.limit_bytes:
            self._bytes -= self._items.popitem(last=False)[1][1]

    def forget(self, base: int | None = None) -> None:
        """Lets go of what is of that archive, or of everything."""
        for key in [key for key in self._items if base is None or key[0] == base]:
            self._bytes -= self._items.pop(key)[1]


class RunFacts(NamedTuple):
    """A run and where it is."""

    window: int
    first_record: int  # of the window
    first_offset: int
    end_offset: int
    position: int
    end_position: int


class ArchiveFile:
    """The archive at `path`, of which header and footer have been read."""

    def __init__(self, files: Files, path: str, size: int, header: SegmentHeader, footer: Footer) -> None:
        self.path = path
        self.size = size
        self.header = header
        self.footer = footer
        self.seed = int.from_bytes(_header_crc(header), "little")
        self._files = files
        self.damage: dict[str, str] = {}  # by part: why it is left out of what is read
        self._page_ends = [page.end for page in footer.pages]
        self._runs: dict[tuple[str, int], list[RunFacts]] = {}
        for number, window in enumerate(footer.windows):
            record = 0
            for run in window.runs:
                facts = RunFacts(number, record, run.first_offset, run.first_offset + run.records,
                                 run.position, run.position + run.length)  # fmt: skip
                self._runs.setdefault(footer.rings[run.ring], []).append(facts)
                record += run.records

    @classmethod
    def open(cls, files: Files, path: str) -> ArchiveFile:
        """Raises FormatError: it is none, or damaged where it matters; FileNotFoundError, OSError."""
        handle = files.open(path)
        try:
            size = files.size(handle)
            if size < HEADER_BYTES + TRAILER_BYTES:
                raise FormatError(f"an archive of {size} bytes")
            header = unpack_header(files.read(handle, HEADER_BYTES, 0))
            last = files.read(handle, TRAILER_BYTES, size - TRAILER_BYTES)
            trailer = Trailer.unpack(last, size)
            packed = files.read(handle, trailer.footer.length, trailer.footer.place)
            seed = int.from_bytes(_header_crc(header), "little")
            return cls(files, path, size, header, trailer.open(packed, last, seed))
        finally:
            files.close(handle)

    @contextmanager
    def opened(self) -> Iterator[int]:
        """A handle to read from."""
        handle = self._files.open(self.path)
        try:
            yield handle
        finally:
            self._files.close(handle)

    # ---- what is there ----

    @property
    def base(self) -> int:
        """The log position of the segment."""
        return self.header.base_position

    def rings(self) -> list[tuple[str, int]]:
        """Name and epoch of each ring that has records here."""
        return list(self._runs)

    def runs(self, ring_name: str, epoch: int) -> list[RunFacts]:
        """The runs of a ring and epoch, rising."""
        return self._runs.get((ring_name, epoch), [])

    # ---- reading ----

    def read(
        self, handle: int, cache: Cache, ring_name: str, epoch: int, offset: int, limit_bytes: int
    ) -> list[Range]:
        """Records from `offset` on, or from the next one there is, about `limit_bytes`, at least one; in
        order.  Empty: there is none.
        """
        runs = self.runs(ring_name, epoch)
        index = bisect_right(runs, offset, key=lambda run: run.end_offset)
        return self._from_runs(handle, cache, runs[index:], offset, limit_bytes)

    def read_topic(
        self, handle: int, cache: Cache, key: tuple[str, int, bytes], offset: int, limit_bytes: int
    ) -> list[Range]:
        """As read(), but only records of one topic: `key` is ring name, epoch and topic."""
        ring_name, epoch, topic = key
        rank, windows = self.find(handle, cache, topic)
        runs = [
            run
            for run in self.runs(ring_name, epoch)
            if run.end_offset > offset and windows >> run.window % WINDOW_BITS & 1
        ]
        return self._from_runs(handle, cache, runs, offset, limit_bytes, rank) if rank >= 0 else []

    def offset_at(self, handle: int, cache: Cache, ring_name: str, epoch: int, position: int) -> int | None:
        """The first offset that is not before the ring position, or None: all are.  Of a damaged window the
        first that it had: who reads from there on gets what is left.
        """
        for run in self.runs(ring_name, epoch):
            if run.end_position <= position:
                continue
            try:
                columns = self._columns(handle, cache, run.window)
            except FormatError as error:
                self._note(f"window {run.window}", error)
                return run.first_offset
            low, high = run.first_record, run.first_record + run.end_offset - run.first_offset
            at = bisect_right(range(low, high), position, key=columns.position)
            if at and columns.position(low) <= position:
                at -= 1  # the record that holds the position
            return run.first_offset + at
        return None

    def not_before(self, ring_name: str, epoch: int, timestamp_ns: int) -> Iterator[int]:
        """First offsets of runs that may hold a record of that time or later."""
        for run in self.runs(ring_name, epoch):
            if self.footer.windows[run.window].last_timestamp_ns >= timestamp_ns:
                yield run.first_offset

    def find(self, handle: int, cache: Cache, topic: bytes) -> tuple[int, int]:
        """The rank of a topic and the windows that it may be in (bit n: window n modulo 64); -1: in none, or
        its page is damaged.
        """
        pages = self.footer.pages
        index = bisect_right(pages, topic, key=lambda page: page.first_name) - 1
        if index < 0:
            return -1, 0
        first = pages[index - 1].end if index else 0
        count = pages[index].end - first
        try:
            data = self._frame(handle, cache, "page", index, pages[index].frame)
            names = list(page_names(data, count))
        except FormatError as error:
            self._note(f"page {index}", error)
            return -1, 0
        at = bisect_right(names, topic) - 1
        if names[at] != topic:
            return -1, 0
        return first + at, page_windows(data, count, at)

    def names(self, handle: int, cache: Cache) -> Iterator[bytes]:
        """Every topic, in the order of the bytes."""
        first = 0
        for index, page in enumerate(self.footer.pages):
            yield from page_names(self._frame(handle, cache, "page", index, page.frame), page.end - first)
            first = page.end

    # ---- whole windows: proving ----

    def window_records(self, handle: int, index: int) -> list[Range]:
        """All records of a window that can be restored; `damage` says which part is in the way of others."""
        entry = self.footer.windows[index]
        try:
            return self._restore(handle, Cache(0), index, Wanted(0, entry.records), entry.length)[1]
        except FormatError as error:
            self._note(f"window {index}", error)
            return []

    def check(self, handle: int, index: int) -> int:
        """Restores a window and compares it with what was archived; bytes that were read.

        What does not hold is in `damage` then.
        """
        entry = self.footer.windows[index]
        crc = self.seed
        for found in self.window_records(handle, index):
            crc = crc32c(found.view, crc)
        part = f"window {index}"
        if crc != entry.crc and not any(f"{known} ".startswith(f"{part} ") for known in self.damage):
            self._note(part, FormatError("it does not restore what was archived"))
        return entry.head.length + sum(block.length for block in entry.blocks)

    # ---- inside ----

    def _from_runs(
        self, handle: int, cache: Cache, runs: list[RunFacts], offset: int, limit_bytes: int, rank: int = -1
    ) -> list[Range]:
        """What of these runs is not before `offset`, until about `limit_bytes`."""
        found: list[Range] = []
        for run in runs:
            first = run.first_record + max(offset - run.first_offset, 0)
            wanted = Wanted(first, run.first_record + run.end_offset - run.first_offset, rank)
            try:
                ranges, more = self._some(handle, cache, run.window, wanted, limit_bytes)
            except FormatError as error:
                self._note(f"window {run.window}", error)
                continue
            found += ranges
            limit_bytes -= sum(len(it.view) for it in ranges)
            if more or limit_bytes <= 0:
                break
        return found

    def _some(
        self, handle: int, cache: Cache, index: int, wanted: Wanted, limit_bytes: int
    ) -> tuple[list[Range], bool]:
        """The first of the wanted records, if any is whole; and whether there are more behind them."""
        while True:
            needed, ranges = self._restore(handle, cache, index, wanted, limit_bytes)
            more = needed.wanted.end < wanted.end
            if ranges or not more:
                return ranges, more
            wanted = wanted._replace(first=needed.wanted.end)

    def _restore(
        self, handle: int, cache: Cache, index: int, wanted: Wanted, limit_bytes: int
    ) -> tuple[Needed, list[Range]]:
        """What fits of those records, without what damage has taken."""
        columns = self._columns(handle, cache, index)
        needed = columns.needs(wanted, max(limit_bytes, 1))
        entry = self.footer.windows[index]
        blocks, pages = {}, {}
        for number in needed.blocks:
            with self._noted(f"window {index} block {number}"):
                blocks[number] = self._frame(handle, cache, f"{index}", number, entry.blocks[number])
        for number in needed.pages:
            first = self._page_ends[number - 1] if number else 0
            with self._noted(f"page {number}"):
                data = self._frame(handle, cache, "page", number, self.footer.pages[number].frame)
                pages[number] = data, self._page_ends[number] - first
        return needed, columns.restore(needed, blocks, pages)

    @contextmanager
    def _noted(self, part: str) -> Iterator[None]:
        try:
            yield
        except FormatError as error:
            self._note(part, error)

    def _note(self, part: str, error: FormatError) -> None:
        self.damage[part] = str(error)

    def _columns(self, handle: int, cache: Cache, index: int) -> WindowColumns:
        key = (self.base, "head", index)
        found = cache.get(key)
        if isinstance(found, WindowColumns):
            return found
        entry = self.footer.windows[index]
        head = entry.head.open(self._read(handle, entry.head), self.seed)
        cuts = list(accumulate(block.plain_length for block in entry.blocks))
        columns = WindowColumns(head, entry.runs, self._epochs(entry), cuts, self._page_ends)
        cache.put(key, columns, len(head) * 2)
        return columns

    def _epochs(self, entry: WindowEntry) -> list[int]:
        return [self.footer.rings[run.ring][1] for run in entry.runs]

    def _frame(self, handle: int, cache: Cache, kind: str, number: int, frame: Frame) -> bytes:
        key = (self.base, kind, number)
        found = cache.get(key)
        if isinstance(found, bytes):
            return found
        data = frame.open(self._read(handle, frame), self.seed)
        cache.put(key, data, len(data))
        return data

    def _read(self, handle: int, frame: Frame) -> bytes:
        if frame.place + frame.length > self.size:
            raise FormatError(f"a frame that would end behind the {self.size} bytes of {self.path}")
        return self._files.read(handle, frame.length, frame.place)


def _header_crc(header: SegmentHeader) -> bytes:
    return header.pack()[HEADER_BYTES - 4 : HEADER_BYTES]
