"""Segment index of the log reader: the list of segments, and the tables needed so far.

Owns the list, the tables read so far, and the known damage; reads no record.  A table is read on demand, and
the least recently used ones are discarded.  A segment removed by retention meanwhile is treated as absent.

Threads: any may read while the log thread publishes; `lock` is held only for look-ups in memory.
"""

from __future__ import annotations

import logging
import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from persistence.errors import FormatError, FutureFormat
from persistence.files import Files
from persistence.segment import footer
from persistence.segment.extent_table import ExtentRows, Row
from persistence.segment.footer import Footer
from persistence.segment.format import EXTENT_HEADER_BYTES, CatalogueEntry, base_of_name, segment_name
from persistence.segment.scan import (
    DamagedRange,
    SegmentTable,
    follow_table,
    open_table,
    read_header,
    read_table,
)
from persistence.segment.segment_info import SegmentInfo, SegmentState, rings_of_footer, rings_of_table
from persistence.segment.writer import Pending

__all__ = ["IndexedSegment", "SegmentIndex"]

log = logging.getLogger(__name__)

DAMAGED_MAX = 1024  # damaged places in memory
FOOTERS_MAX = 256  # footers with the directory in memory: some KB each
RECENT = 4  # last segments, which may get a footer soon
TABLES_MAX = 8  # of sealed segments in memory; some MB each with single records


class IndexedSegment:
    """One segment of the log, with its table if it was needed."""

    def __init__(self, base: int, table: SegmentTable | None = None, *, live: bool = False) -> None:
        self.base = base
        self.live = live  # this process writes it: its table is updated, not read
        self.ends_at: int | None = None  # position of the next one's begin
        self.opening = table.opening if table is not None else None  # the first catalogue
        self.table = table
        self.footer: Footer | None = None
        self.bare = False  # has no valid footer
        self.lost = ""  # cause if it is unreadable

    @property
    def name(self) -> str:
        """Name of its file."""
        return segment_name(self.base)


class SegmentIndex:
    """The segments of the log in `directory`, rising."""

    def __init__(
        self, files: Files, directory: str, archived: Callable[[], Sequence[int]] = lambda: ()
    ) -> None:
        """`archived`: returns the bases of segments that are archived."""
        self.files = files
        self.directory = directory
        self._archived = archived
        self.lock = threading.Lock()  # protects the list and the live table
        self.damaged: dict[tuple[str, int], DamagedRange] = {}  # by segment and place
        self._noting = threading.Lock()  # protects `damaged`
        self._loading = threading.Lock()  # held while a table is read from a file
        self.pull: Callable[[], object] | None = None  # calls publish() with the pending items
        self._segments: list[IndexedSegment] = []
        self._used: list[IndexedSegment] = []  # with a table, most recently used last
        self._footed: list[IndexedSegment] = []  # with a footer, most recently used last

    # ---- list of segments ----

    def refresh(self) -> None:
        """Read the state that a writer in another process has created and proven since."""
        names = self.files.listdir(self.directory)
        bases = sorted(base for base in map(base_of_name, names) if base is not None)
        with self.lock:
            known = {shelved.base: shelved for shelved in self._segments}
            last = self._segments[-1] if self._segments else None
            self._segments = [known.get(base) or IndexedSegment(base) for base in bases]
            for recent in self._segments[-RECENT:]:
                recent.bare = False  # it may have a footer now
            self._bound()
        if last is not None and last.ends_at is not None:
            last.table = None  # it has been sealed: its end is proven
        if self._segments:
            self._follow(self._segments[-1])

    def begin(self, base: int, table: SegmentTable, *, forget: bool = False) -> None:
        """Make the segment at `base` the target of publish(); it replaces an empty one with that base.

        `forget`: publish() did not get all of the segment before, which must be read from its file.
        """
        with self.lock:
            self._segments = [segment for segment in self._segments if segment.base < base]
            before = self._segments[-1] if self._segments else None
            self._segments.append(IndexedSegment(base, table, live=True))
            self._bound()
            if before is not None:
                before.live = False
                if forget:
                    before.table = None
                else:
                    self._used.append(before)
        self._forget()

    def publish(self, items: Sequence[Pending], end: int) -> None:
        """Add these items, durable and in this order, to the live segment, which ends at position `end`."""
        with self.lock:
            table = self._segments[-1].table
            assert table is not None
            for item in items:
                if item.range is None:
                    table.announce(item.entries)
                else:
                    place = item.place + EXTENT_HEADER_BYTES
                    records = item.range
                    row = Row(records.offset, records.count, place, item.length, records.position, whole=True)
                    times = records.first_timestamp_ns, records.last_timestamp_ns
                    table.add(item.ring_id, records.epoch, row, (min(times), max(times)), {})
            table.end = end
            self._segments[-1].opening = table.opening

    def add_sealed(self, base: int, table: SegmentTable | None, ends_at: int | None = None) -> None:
        """Add a sealed segment after the known ones, with its `table` or perhaps with its end."""
        with self.lock:
            self._segments.append(IndexedSegment(base, table))
            self._segments[-1].ends_at = ends_at
            if table is not None:
                self._used.append(self._segments[-1])
                self._segments[-1].ends_at = table.end
            self._bound()

    def remove(self, base: int) -> None:
        """Forget that segment, which is about to be removed."""
        with self.lock:
            self._segments = [segment for segment in self._segments if segment.base != base]
            self._used = [entry for entry in self._used if entry.base != base]
            self._footed = [entry for entry in self._footed if entry.base != base]

    def note(self, damage: Sequence[DamagedRange]) -> None:
        """Count and report new damaged places.  With very many, the oldest are forgotten."""
        with self._noting:
            news = [place for place in damage if (place.segment, place.place) not in self.damaged]
            for place in damage:
                self.damaged[place.segment, place.place] = place
            while len(self.damaged) > DAMAGED_MAX:
                del self.damaged[next(iter(self.damaged))]

        for place in news:
            lost = ",".join(f"{first}-{end - 1}" for first, end in place.lost) or "unknown"
            where = os.path.join(self.directory, place.segment)
            text = "log damage found segment=%s place=%d bytes=%d ring=%s records_kept=%d lost=%s"
            log.error(text, where, place.place, place.length, place.ring_name or "unknown", place.kept, lost)

    def damage_of(self, name: str) -> tuple[DamagedRange, ...]:
        """Known damaged places of one segment."""
        with self._noting:
            return tuple(place for place in self.damaged.values() if place.segment == name)

    def segments(self) -> list[IndexedSegment]:
        """All current segments, rising."""
        with self.lock:
            return list(self._segments)

    def bound(self) -> None:
        """Set the end of each segment to the begin of the next one, after refresh()."""
        with self.lock:
            self._bound()

    def _bound(self) -> None:
        bases = sorted({*(segment.base for segment in self._segments), *self._archived()})
        for segment in self._segments[:-1]:
            segment.ends_at = bases[bisect_right(bases, segment.base)] - segment.base

    # ---- content ----

    def rows(self, shelved: IndexedSegment, ring_name: str, epoch: int) -> ExtentRows | None:
        """Rows of a ring and epoch in the table of a segment; None if there are none."""
        table = self.table(shelved)
        if table is None:
            return None
        with self.lock:
            for ring_id, entry in table.catalogue.items():
                rows = table.rings.get((ring_id, epoch)) if entry.name == ring_name else None
                if rows is not None and len(rows):
                    return rows
        return None

    def footer(self, shelved: IndexedSegment) -> Footer | None:
        """The footer of a sealed segment; None without a valid one, or if not sealed."""
        if shelved.footer is None and not (shelved.bare or shelved.lost or shelved.live):
            with suppress(FileNotFoundError), self.opened(shelved) as handle:
                self._look_for_footer(shelved, handle)
        return shelved.footer

    def distrust(self, shelved: IndexedSegment) -> None:
        """Ignore its footer, whose content proved wrong."""
        shelved.footer, shelved.bare = None, True

    def indexed(self, base: int) -> None:
        """Note that a footer has been written."""
        for shelved in self.segments():
            if shelved.base == base:
                shelved.bare = False

    def end_of(self, base: int) -> int | None:
        """Position of the log's end in a sealed segment if known for certain, or None.

        The next segment begins there, or recovery set the end.
        """
        for shelved in self.segments():
            if shelved.base == base and not shelved.live:
                return shelved.ends_at
        return None

    def entry(self, shelved: IndexedSegment, ring_name: str) -> CatalogueEntry | None:
        """Entry of a ring in the first catalogue of a segment."""
        if shelved.opening is None and not shelved.lost:
            try:
                with self.opened(shelved) as handle:
                    shelved.opening = open_table(self.files, handle, shelved.name).opening
            except FileNotFoundError:
                return None
            except FormatError as error:
                self._lose(shelved, error)
        if shelved.opening is None:
            return None
        return next((entry for entry in shelved.opening.values() if entry.name == ring_name), None)

    def table(self, shelved: IndexedSegment) -> SegmentTable | None:
        """The whole table of a segment, from memory or from its file; None if it is removed or lost."""
        if shelved.live and self.pull is not None:
            self.pull()
        table = shelved.table
        if table is None and not shelved.lost:
            with self._loading:  # a thread that waited finds the table loaded
                table = shelved.table or self._load(shelved)
            self._forget()
        return table

    @contextmanager
    def opened(self, shelved: IndexedSegment) -> Iterator[int]:
        """A handle to its file.  Raises FileNotFoundError if retention has removed it."""
        handle = self.files.open(os.path.join(self.directory, shelved.name))
        try:
            yield handle
        finally:
            self.files.close(handle)

    def _load(self, shelved: IndexedSegment) -> SegmentTable | None:
        try:
            with self.opened(shelved) as handle:
                table = self._indexed_table(shelved, handle) or self._walked_table(shelved, handle)
        except FileNotFoundError:
            return None
        except FormatError as error:
            self._lose(shelved, error)
            return None
        self.note(table.damage)
        shelved.table = table
        self._used.append(shelved)
        return table

    def _indexed_table(self, shelved: IndexedSegment, handle: int) -> SegmentTable | None:
        """The table from its footer; None if the segment must be scanned."""
        self._look_for_footer(shelved, handle)
        if shelved.footer is None:
            return None
        try:
            return shelved.footer.table(self.files, handle, shelved.name)
        except (FormatError, OSError):
            self.distrust(shelved)
            return None

    def _walked_table(self, shelved: IndexedSegment, handle: int) -> SegmentTable:
        table = read_table(self.files, handle, shelved.name, ends_at=shelved.ends_at)
        if table.damage:
            known = self._known(shelved)
            table = read_table(self.files, handle, shelved.name, ends_at=shelved.ends_at, known=known)
        return table

    def _look_for_footer(self, shelved: IndexedSegment, handle: int) -> None:
        if shelved.footer is not None or shelved.bare or shelved.live or shelved.ends_at is None:
            return
        try:
            table = footer.read(self.files, handle, read_header(self.files, handle), shelved.ends_at)
        except FormatError as error:
            self._lose(shelved, error)
            return
        shelved.bare = table is None
        if table is not None:
            with self.lock:
                shelved.footer = table
                self._footed.append(shelved)
                while len(self._footed) > FOOTERS_MAX:
                    self._footed.pop(0).footer = None

    def _known(self, shelved: IndexedSegment) -> dict[int, CatalogueEntry]:
        """Catalogue entries of the neighbouring segments."""
        segments = self.segments()
        index = segments.index(shelved) if shelved in segments else 0
        known: dict[int, CatalogueEntry] = {}
        for beside in segments[max(index - 1, 0) : index] + segments[index + 1 : index + 2]:
            self.entry(beside, "")
            if beside.opening is not None:
                known.update(beside.opening)
        return known

    def _lose(self, shelved: IndexedSegment, error: FormatError) -> None:
        shelved.lost = str(error)
        if not isinstance(error, FutureFormat):
            self.note([DamagedRange(shelved.name, 0, shelved.ends_at or 0, "", 0)])

    def _forget(self) -> None:
        """Discard the least recently used tables."""
        with self.lock:
            while len(self._used) > TABLES_MAX:
                shelved = self._used.pop(0)
                if not shelved.live and shelved is not self._segments[-1]:
                    shelved.table = None

    def _follow(self, shelved: IndexedSegment) -> None:
        if shelved.live or shelved.lost:
            return
        try:
            with self.opened(shelved) as handle:
                if shelved.table is None:
                    shelved.table = open_table(self.files, handle, shelved.name)
                with self.lock:
                    follow_table(self.files, handle, shelved.table)
                self.note(shelved.table.damage)
        except FileNotFoundError:
            return
        except FormatError as error:
            self._lose(shelved, error)

    def info_of(self, shelved: IndexedSegment) -> SegmentInfo:
        """Facts of a segment: from its footer, or from its table, which is read if it is not in memory."""
        base = shelved.base
        footer = self.footer(shelved)
        table = self.table(shelved) if footer is None else None
        damage = self.damage_of(shelved.name)
        size = 0
        with suppress(FileNotFoundError), self.opened(shelved) as handle:
            size = self.files.size(handle)
        state: SegmentState
        if footer is not None:
            rings, end, state = rings_of_footer(footer), footer.end, "flushed"
        elif table is not None:
            state = "active" if shelved is self.segments()[-1] else "sealed"
            with self.lock:
                rings, end = rings_of_table(table), table.end
        else:
            reason = shelved.lost or "it has been removed"
            return SegmentInfo(base, size, size, "lost", 0, 0, (), damage, reason=reason)
        first = min((ring.first_timestamp_ns for ring in rings), default=0)
        last = max((ring.last_timestamp_ns for ring in rings), default=0)
        return SegmentInfo(base, end, size, state, first, last, rings, damage, indexed=footer is not None)
