"""Reading the log: records by ring, epoch and offset, out of sealed segments and of the one being written.

LogReader serves both sides.  The Log that writes feeds it what has been synced (publish()); in another
process it follows the files and sees what later extents prove.  So what is read is durable, whoever
reads.  It never writes.

Every range is verified when it is read: an extent by its checksum, its records by theirs.  What does not
verify is skipped and counted in `damaged`, and the rest is served: a caller sees the gap by the offsets.  A
segment that retention has taken meanwhile is simply no longer there.

Threads: any may read while the log thread publishes; the lock is held for look-ups in memory only.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from persistence.errors import FormatError
from persistence.extents import ExtentRows, Row
from persistence.files import Files
from persistence.format import (
    EXTENT_HEADER_BYTES,
    CatalogueEntry,
    base_of_name,
    extent_verifies,
    segment_name,
    unpack_extent,
)
from persistence.salvage import Window, runs_of
from persistence.scan import (
    Damage,
    SegmentTable,
    follow_table,
    open_table,
    read_around,
    read_header,
    read_table,
)
from persistence.segment import Pending
from persistence.stats import ReadStats
from ringbuf import RECORD_ALIGN, Range, scan_records
from ringbuf.record import HEADER as RECORD

__all__ = ["Epoch", "LogReader", "RingEnd", "from_offset"]

DAMAGED_MOST = 1024  # places remembered
TABLES_MOST = 8  # of sealed segments, kept in memory; some MB each when records come one by one


class Epoch(NamedTuple):
    """What the log holds of one epoch of a ring: first_offset <= offset < end_offset, perhaps with gaps."""

    epoch: int
    first_offset: int
    end_offset: int


class RingEnd(NamedTuple):
    """Where a ring ends in the log: the offset that comes next."""

    epoch: int
    end_offset: int


class Shelved:
    """One segment of the log, with as much of its table as has been needed."""

    def __init__(self, base: int, table: SegmentTable | None = None, *, live: bool = False) -> None:
        self.base = base
        self.live = live  # this process writes it: its table is fed, not read
        self.ends_at: int | None = None  # place where the next one begins
        self.opening: SegmentTable | None = table  # header and first catalogue
        self.table = table
        self.lost = False  # no header: nothing in it can be told

    @property
    def name(self) -> str:
        """Its file."""
        return segment_name(self.base)


class LogReader:
    """The records of the log in `directory`."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._lock = threading.Lock()  # of the list and of the live table
        self._noting = threading.Lock()  # of what is damaged
        self._loading = threading.Lock()  # of tables that are read from files
        self._segments: list[Shelved] = []
        self._used: list[Shelved] = []  # with a table, the latest last
        self.damaged: dict[tuple[str, int], Damage] = {}  # by segment and place
        self.stats = ReadStats()

    # ---- what is there ----

    def refresh(self) -> None:
        """Looks what a writer in another process has made and proven since."""
        names = self._files.listdir(self._directory)
        bases = sorted(base for base in map(base_of_name, names) if base is not None)
        with self._lock:
            known = {shelved.base: shelved for shelved in self._segments}
            last = self._segments[-1] if self._segments else None
            self._segments = [known.get(base) or Shelved(base) for base in bases]
            self._bound()
        if last is not None and last.ends_at is not None:
            last.table = None  # It has been sealed: its end is proven now.
        if self._segments:
            self._follow(self._segments[-1])

    def begin(self, base: int, table: SegmentTable) -> None:
        """The segment at `base` is the one that publish() goes to; it replaces an empty one of that base."""
        with self._lock:
            self._segments = [it for it in self._segments if it.base < base]
            if self._segments:
                self._segments[-1].live = False
                self._used.append(self._segments[-1])
            self._segments.append(Shelved(base, table, live=True))
            self._bound()
        self._forget()

    def publish(self, items: Sequence[Pending], end: int) -> None:
        """The live segment holds these now, durably and in this order, and ends at the place `end`."""
        with self._lock:
            table = self._segments[-1].table
            assert table is not None
            for item in items:
                if item.range is None:
                    table.announce(item.entries)
                else:
                    place = item.place + EXTENT_HEADER_BYTES
                    it = item.range
                    row = Row(it.offset, it.count, place, len(item.body), it.position, whole=True)
                    table.add(item.ring_id, it.epoch, row, {})
            table.end = end

    def add_sealed(self, base: int, table: SegmentTable | None) -> None:
        """A segment behind the ones known, whole; `table` if it has been read already."""
        with self._lock:
            self._segments.append(Shelved(base, table))
            if table is not None:
                self._used.append(self._segments[-1])
                self._segments[-1].ends_at = table.end
            self._bound()

    def remove(self, base: int) -> None:
        """That segment is about to go."""
        with self._lock:
            self._segments = [it for it in self._segments if it.base != base]

    def note(self, damage: Sequence[Damage]) -> None:
        """Counts damaged places, each once, and forgets the first when there are very many."""
        with self._noting:
            for it in damage:
                self.damaged[it.segment, it.place] = it
            while len(self.damaged) > DAMAGED_MOST:
                del self.damaged[next(iter(self.damaged))]

    def bases(self) -> list[int]:
        """Base positions of the segments, rising."""
        with self._lock:
            return [it.base for it in self._segments]

    def _bound(self) -> None:
        for before, after in zip(self._segments, self._segments[1:], strict=False):
            before.ends_at = after.base - before.base

    # ---- reading ----

    def read(self, ring_name: str, epoch: int, offset: int, limit_bytes: int) -> list[Range]:
        """Runs of records from `offset` on, in order, about `limit_bytes` together: whole extents, at least
        one.

        The first begins at `offset` itself, or at the next record that the log has of this epoch.  Empty:
        there is none.  The bytes are the caller's own.  Raises OSError when the disk does not give them.
        """
        for shelved in self._from(ring_name, epoch, offset):
            ranges = self._read(shelved, ring_name, epoch, offset, limit_bytes)
            if ranges:
                ranges[0] = from_offset(ranges[0], offset)
                return ranges
        return []

    def read_at(self, ring_name: str, epoch: int, position: int, limit_bytes: int) -> list[Range]:
        """As read(), from the extent on that holds the ring position, all of it, or from the next behind."""
        for shelved in self._from_position(ring_name, epoch, position):
            rows = self._rows(shelved, ring_name, epoch)
            with self._lock:
                behind = rows is None or rows.end_position <= position
                offset = 0 if rows is None else rows.offset_at(position)
            if not behind and (ranges := self._read(shelved, ring_name, epoch, offset, limit_bytes)):
                return ranges
        return []

    def epochs(self, ring_name: str) -> list[Epoch]:
        """What the log holds of a ring, in the order of the epochs."""
        spans: dict[int, tuple[int, int]] = {}
        with self._lock:
            segments = list(self._segments)
        for index, shelved in enumerate(segments):
            here = self._entry(shelved, ring_name)
            after = self._entry(segments[index + 1], ring_name) if index + 1 < len(segments) else None
            if here is not None and after is not None and here.epoch == after.epoch:
                found = [(here.epoch, here.next_offset, after.next_offset)]
            else:
                found = self._spans(shelved, ring_name)
            for epoch, first, end in found:
                if end > first:
                    spans[epoch] = (min(first, spans.get(epoch, (first, end))[0]), end)
        return [Epoch(epoch, first, end) for epoch, (first, end) in spans.items()]

    def ends(self) -> dict[str, RingEnd]:
        """For each ring that the log remembers, where it ends."""
        with self._lock:
            last = self._segments[-1] if self._segments else None
        table = None if last is None else self._table(last)
        if table is None:
            return {}
        with self._lock:
            return {it.name: RingEnd(it.epoch, it.next_offset) for it in table.catalogue.values()}

    # ---- inside ----

    def _from(self, ring_name: str, epoch: int, offset: int) -> list[Shelved]:
        """The segments that can hold the offset, or one behind it."""
        with self._lock:
            segments = list(self._segments)
        first = 0
        for index in range(len(segments) - 1, 0, -1):
            entry = self._entry(segments[index], ring_name)
            if entry is not None and entry.epoch == epoch and entry.next_offset <= offset:
                first = index
                break
        return segments[first:]

    def _from_position(self, ring_name: str, epoch: int, position: int) -> list[Shelved]:
        """The segments that can hold the ring position, or one behind it: found by bisection."""
        with self._lock:
            segments = list(self._segments)
        low, high = 0, len(segments)
        while low < high:
            middle = at = (low + high) // 2
            while at < high and (rows := self._rows(segments[at], ring_name, epoch)) is None:
                at += 1
            if at < high and rows is not None and rows.end_position <= position:
                low = at + 1
            else:
                high = middle
        return segments[low:]

    def _rows(self, shelved: Shelved, ring_name: str, epoch: int) -> ExtentRows | None:
        """What the table of a segment says of a ring and epoch; None: nothing."""
        table = self._table(shelved)
        if table is None:
            return None
        with self._lock:
            for ring_id, it in table.catalogue.items():
                if it.name == ring_name and len(rows := table.rings.get((ring_id, epoch), ())):
                    assert isinstance(rows, ExtentRows)
                    return rows
        return None

    def _entry(self, shelved: Shelved, ring_name: str) -> CatalogueEntry | None:
        """What the first catalogue of a segment says of a ring."""
        if shelved.opening is None and not shelved.lost:
            try:
                with self._opened(shelved) as handle:
                    shelved.opening = open_table(self._files, handle, shelved.name)
            except FileNotFoundError:
                return None
            except FormatError:
                self._lose(shelved)
        if shelved.opening is None:
            return None
        return next((it for it in shelved.opening.opening.values() if it.name == ring_name), None)

    def _spans(self, shelved: Shelved, ring_name: str) -> list[tuple[int, int, int]]:
        table = self._table(shelved)
        if table is None:
            return []
        with self._lock:
            ids = {ring_id for ring_id, it in table.catalogue.items() if it.name == ring_name}
            return [
                (epoch, rows.first_offset, rows.end_offset)
                for (ring_id, epoch), rows in table.rings.items()
                if ring_id in ids and len(rows)
            ]

    def _table(self, shelved: Shelved) -> SegmentTable | None:
        """The whole table of a segment, from memory or from its file; None when it has gone, or is lost."""
        table = shelved.table
        if table is None and not shelved.lost:
            with self._loading:  # Whoever waited for it finds the table there.
                table = shelved.table or self._load(shelved)
            self._forget()
        return table

    def _load(self, shelved: Shelved) -> SegmentTable | None:
        try:
            with self._opened(shelved) as handle:
                table = read_table(self._files, handle, shelved.name, ends_at=shelved.ends_at)
                if table.damage:
                    known = self._known(shelved)
                    table = read_table(
                        self._files, handle, shelved.name, ends_at=shelved.ends_at, known=known
                    )
        except FileNotFoundError:
            return None
        except FormatError:
            self._lose(shelved)
            return None
        self.note(table.damage)
        shelved.table = table
        self._used.append(shelved)
        return table

    def _known(self, shelved: Shelved) -> dict[int, CatalogueEntry]:
        """What the segments beside this one say of the rings."""
        with self._lock:
            segments = list(self._segments)
        index = segments.index(shelved) if shelved in segments else 0
        known: dict[int, CatalogueEntry] = {}
        for beside in segments[max(index - 1, 0) : index] + segments[index + 1 : index + 2]:
            self._entry(beside, "")
            if beside.opening is not None:
                known.update(beside.opening.opening)
        return known

    def _lose(self, shelved: Shelved) -> None:
        shelved.lost = True
        self.note([Damage(shelved.name, 0, shelved.ends_at or 0, "", 0)])

    def _forget(self) -> None:
        """Lets go of the tables that have been used least lately."""
        with self._lock:
            while len(self._used) > TABLES_MOST:
                shelved = self._used.pop(0)
                if not shelved.live and shelved is not self._segments[-1]:
                    shelved.table = None

    def _follow(self, shelved: Shelved) -> None:
        if shelved.live or shelved.lost:
            return
        try:
            with self._opened(shelved) as handle:
                if shelved.table is None:
                    shelved.table = open_table(self._files, handle, shelved.name)
                with self._lock:
                    follow_table(self._files, handle, shelved.table)
        except FileNotFoundError:
            return
        except FormatError:
            self._lose(shelved)

    def _read(
        self, shelved: Shelved, ring_name: str, epoch: int, offset: int, limit_bytes: int
    ) -> list[Range]:
        table = self._table(shelved)
        if table is None:
            return []
        with self._lock:
            ids = [ring_id for ring_id, it in table.catalogue.items() if it.name == ring_name]
            found = [rows for ring_id in ids if (rows := table.rings.get((ring_id, epoch))) is not None]
            wanted = [row for rows in found for row in rows.from_offset(offset, limit_bytes)]
        ranges: list[Range] = []
        try:
            with self._opened(shelved) as handle:
                for row in wanted:
                    ranges += self._verified(handle, table, ring_name, epoch, row)
        except FileNotFoundError:
            return []
        kept = [it for it in ranges if it.offset + it.count > offset]
        with self._noting:
            self.stats.log_reads += bool(kept)
            self.stats.log_bytes += sum(len(it.view) for it in kept)
        return kept

    def _verified(
        self, handle: int, table: SegmentTable, ring_name: str, epoch: int, row: Row
    ) -> list[Range]:
        """The run as it stands in the file now, or what is left of it."""
        ahead = EXTENT_HEADER_BYTES if row.whole else 0
        data = memoryview(read_around(self._files, handle, ahead + row.length, row.place - ahead))
        body = data[ahead:]
        if len(data) == ahead + row.length:
            scan = scan_records(body, epoch)
            found = (scan.first_offset, scan.count, scan.good_bytes)
            same = found == (row.first_offset, row.count, row.length)
            if same and (not row.whole or extent_verifies(table.seed, unpack_extent(data), data)):
                times = scan.first_timestamp_ns, scan.last_timestamp_ns
                return [Range(row.ring_position, epoch, row.first_offset, row.count, *times, body)]
        if self._gone(handle, table):
            return []
        window = Window(row.first_offset, row.first_offset + row.count)
        kept = [_range(body, epoch, row, run) for run in runs_of(body, epoch, window)]
        self.note([Damage(table.name, row.place - ahead, len(data), ring_name, sum(it.count for it in kept))])
        return kept

    def _gone(self, handle: int, table: SegmentTable) -> bool:
        """Whether the file has another life by now: its name was given away, and its room used again."""
        try:
            return read_header(self._files, handle) != table.header
        except FormatError:
            return False

    @contextmanager
    def _opened(self, shelved: Shelved) -> Iterator[int]:
        handle = self._files.open(os.path.join(self._directory, shelved.name))
        try:
            yield handle
        finally:
            self._files.close(handle)


def _range(body: memoryview, epoch: int, row: Row, run: tuple[int, int, int, int]) -> Range:
    at, length, first_offset, count = run
    scan = scan_records(body[at : at + length], epoch)
    times = scan.first_timestamp_ns, scan.last_timestamp_ns
    return Range(row.ring_position + at, epoch, first_offset, count, *times, body[at : at + length])


def from_offset(found: Range, offset: int) -> Range:
    """The part of a run that begins at `offset`, which it holds, or all of it if that lies before."""
    at, number = 0, found.offset
    while number < offset:
        at += -(-RECORD.unpack_from(found.view, at)[0] // RECORD_ALIGN) * RECORD_ALIGN
        number += 1
    if at == 0:
        return found
    first_timestamp_ns = RECORD.unpack_from(found.view, at)[3]
    return Range(found.position + at, found.epoch, offset, found.offset + found.count - offset,
                 first_timestamp_ns, found.last_timestamp_ns, found.view[at:])  # fmt: skip
