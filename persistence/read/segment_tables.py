"""Segment tables of the log reader: the list of segments, with their extent tables and footers.

Owns the list, the tables read so far, and the known damage; reads no record.  A table is read on demand, and
the least recently used ones are discarded.  A segment removed by retention meanwhile is treated as absent.

Threads: any may read while the log thread publishes; `lock` is held only for look-ups in memory.
"""

from __future__ import annotations

import logging
import os
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from persistence.errors import FormatError, FutureFormat
from persistence.files import Files, opened
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

log = logging.getLogger(__name__)

DAMAGED_MAX = 1024  # damaged places in memory
FOOTERS_MAX = 256  # footers with the directory in memory: some KB each
RECENT = 4  # last segments, which may get a footer soon
TABLES_MAX = 8  # of sealed segments in memory; some MB each with single records


class ListedSegment:
    """One segment of the log, with its table if it was needed."""

    def __init__(self, base: int, table: SegmentTable | None = None, *, live: bool = False) -> None:
        self.base = base
        self.live = live  # this process writes it: its table is updated, not read
        self.ends_at: int | None = None  # position of the next one's begin
        self.opening = table.opening if table is not None else None  # the first catalogue
        self.table = table
        self.footer: Footer | None = None
        self.has_no_footer = False
        self.lost = ""  # cause if it is unreadable

    @property
    def name(self) -> str:
        """Name of its file."""
        return segment_name(self.base)


class SegmentTables:
    """The segments of the log in `directory`, rising."""

    def __init__(
        self,
        files: Files,
        directory: str,
        archived: Callable[[], Sequence[int]],
        on_removed: Callable[[], object],
    ) -> None:
        """`archived`: returns the bases of segments that are archived.

        `on_removed`: called when the file of a listed segment is missing, which may be archived now.
        """
        self.files = files
        self.directory = directory
        self._archived = archived
        self._on_removed = on_removed
        self.lock = threading.Lock()  # protects the list and the live table
        self.damaged: dict[tuple[str, int], DamagedRange] = {}  # by segment and place
        self._damage_lock = threading.Lock()  # protects `damaged`
        self._loading = threading.Lock()  # held while a table is read from a file
        self.pull: Callable[[], object] | None = None  # calls publish() with the pending items
        self._segments: list[ListedSegment] = []
        self._used: list[ListedSegment] = []  # with a table, most recently used last
        self._with_footer: list[ListedSegment] = []  # with a footer, most recently used last

    # ---- list of segments ----

    def refresh(self) -> None:
        """Read the state that a writer in another process has created and proven since."""
        names = self.files.listdir(self.directory)
        bases = sorted(base for base in map(base_of_name, names) if base is not None)
        with self.lock:
            known = {segment.base: segment for segment in self._segments}
            last = self._segments[-1] if self._segments else None
            self._segments = [known.get(base) or ListedSegment(base) for base in bases]
            for recent in self._segments[-RECENT:]:
                recent.has_no_footer = False  # it may have a footer now
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
            while self._segments and self._segments[-1].base >= base:
                self._segments.pop()
            before = self._segments[-1] if self._segments else None
            self._segments.append(ListedSegment(base, table, live=True))
            if before is not None:
                archived = (other for other in self._archived() if other > before.base)
                before.ends_at = min(archived, default=base) - before.base
                before.live = False
                if forget:
                    before.table = None
                else:
                    self._used.append(before)
        self._discard_tables()

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
        """Add a sealed segment after the known ones, with its `table` or perhaps with its end.

        Call bound() after the last one.
        """
        with self.lock:
            self._segments.append(ListedSegment(base, table))
            self._segments[-1].ends_at = ends_at
            if table is not None:
                self._used.append(self._segments[-1])
                self._segments[-1].ends_at = table.end

    def follow(self, other: SegmentTables) -> None:
        """List the segments of `other`, with its live one and its damage.

        Tables of other segments are read again: the files of `other` may not show what can be read.
        """
        self.lock, self.pull = other.lock, other.pull
        self.damaged, self._damage_lock = other.damaged, other._damage_lock
        for segment in other.segments():
            known = segment if segment.live else ListedSegment(segment.base)
            known.ends_at = segment.ends_at
            self._segments.append(known)

    def lost(self) -> dict[str, str]:
        """Cause for each segment of which nothing can be read, by name."""
        return {segment.name: segment.lost for segment in self.segments() if segment.lost}

    def remove(self, base: int) -> None:
        """Forget that segment, which is about to be removed."""
        with self.lock:
            self._segments = [segment for segment in self._segments if segment.base != base]
            self._used = [entry for entry in self._used if entry.base != base]
            self._with_footer = [entry for entry in self._with_footer if entry.base != base]

    def add_damage(self, damage: Sequence[DamagedRange]) -> None:
        """Count and report new damaged places.  With very many, the oldest are forgotten."""
        with self._damage_lock:
            new_damage = [place for place in damage if (place.segment, place.place) not in self.damaged]
            for place in damage:
                self.damaged[place.segment, place.place] = place
            while len(self.damaged) > DAMAGED_MAX:
                del self.damaged[next(iter(self.damaged))]

        for place in new_damage:
            lost = ",".join(f"{first}-{end - 1}" for first, end in place.lost) or "unknown"
            where = os.path.join(self.directory, place.segment)
            text = "log damage found segment=%s place=%d bytes=%d ring=%s records_kept=%d lost=%s"
            log.error(text, where, place.place, place.length, place.ring_name or "unknown", place.kept, lost)

    def damage_of(self, name: str) -> tuple[DamagedRange, ...]:
        """Known damaged places of one segment."""
        with self._damage_lock:
            return tuple(place for place in self.damaged.values() if place.segment == name)

    def segments(self) -> list[ListedSegment]:
        """All current segments, rising."""
        with self.lock:
            return list(self._segments)

    def segment(self, base: int) -> ListedSegment | None:
        """The segment at that log position."""
        with self.lock:
            index = bisect_left(self._segments, base, key=lambda segment: segment.base)
            found = self._segments[index : index + 1]
        return found[0] if found and found[0].base == base else None

    def bound(self) -> None:
        """Set the end of each segment to the begin of the next one, after refresh() or add_sealed()."""
        with self.lock:
            self._bound()

    def _bound(self) -> None:
        bases = sorted({*(segment.base for segment in self._segments), *self._archived()})
        for segment in self._segments[:-1]:
            segment.ends_at = bases[bisect_right(bases, segment.base)] - segment.base

    # ---- content ----

    def rows(self, segment: ListedSegment, ring_name: str, epoch: int) -> ExtentRows | None:
        """Rows of a ring and epoch in the table of a segment; None if there are none."""
        table = self.table(segment)
        if table is None:
            return None
        with self.lock:
            for ring_id, entry in table.catalogue.items():
                rows = table.rings.get((ring_id, epoch)) if entry.name == ring_name else None
                if rows is not None and len(rows):
                    return rows
        return None

    def footer(self, segment: ListedSegment) -> Footer | None:
        """The footer of a sealed segment; None without a valid one, or if not sealed."""
        if segment.footer is None and not (segment.has_no_footer or segment.lost or segment.live):
            with suppress(FileNotFoundError, FormatError), self.opened(segment) as handle:
                self._look_for_footer(segment, handle)
        return segment.footer

    def ignore_footer(self, segment: ListedSegment) -> None:
        """Ignore its footer, whose content proved wrong."""
        segment.footer, segment.has_no_footer = None, True

    def footer_written(self, base: int) -> None:
        """Look for the footer of that segment again: it has been written."""
        if (segment := self.segment(base)) is not None:
            segment.has_no_footer = False

    def end_of(self, base: int) -> int | None:
        """Position of the log's end in a sealed segment if known for certain, or None.

        The next segment begins there, or recovery set the end.
        """
        segment = self.segment(base)
        return None if segment is None or segment.live else segment.ends_at

    def entry(self, segment: ListedSegment, ring_name: str) -> CatalogueEntry | None:
        """Entry of a ring in the first catalogue of a segment."""
        if segment.opening is None and not segment.lost:
            try:
                with self.opened(segment) as handle:
                    segment.opening = open_table(self.files, handle, segment.name).opening
            except FileNotFoundError:
                return None
            except FormatError as error:
                self._mark_lost(segment, error)
        if segment.opening is None:
            return None
        return next((entry for entry in segment.opening.values() if entry.name == ring_name), None)

    def table(self, segment: ListedSegment) -> SegmentTable | None:
        """The whole table of a segment, from memory or from its file; None if it is removed or lost."""
        if segment.live and self.pull is not None:
            self.pull()
        table = segment.table
        if table is None and not segment.lost:
            with self._loading:  # a thread that waited finds the table loaded
                table = segment.table or self._load(segment)
            self._discard_tables()
        return table

    @contextmanager
    def opened(self, segment: ListedSegment) -> Iterator[int]:
        """A handle to its file.  Raises FileNotFoundError: it has been removed, and is perhaps archived."""
        try:
            with opened(self.files, os.path.join(self.directory, segment.name)) as handle:
                yield handle
        except FileNotFoundError:
            self._on_removed()
            raise

    def _load(self, segment: ListedSegment) -> SegmentTable | None:
        try:
            with self.opened(segment) as handle:
                table = self._indexed_table(segment, handle) or self._walked_table(segment, handle)
        except FileNotFoundError:
            return None
        except FormatError as error:
            self._mark_lost(segment, error)
            return None
        self.add_damage(table.damage)
        segment.table = table
        self._used.append(segment)
        return table

    def _indexed_table(self, segment: ListedSegment, handle: int) -> SegmentTable | None:
        """The table from its footer; None if the segment must be scanned."""
        self._look_for_footer(segment, handle)
        if segment.footer is None:
            return None
        try:
            return segment.footer.table(self.files, handle, segment.name)
        except (FormatError, OSError):
            self.ignore_footer(segment)
            return None

    def _walked_table(self, segment: ListedSegment, handle: int) -> SegmentTable:
        table = read_table(self.files, handle, segment.name, ends_at=segment.ends_at)
        if table.damage:
            known = self._known(segment)
            table = read_table(self.files, handle, segment.name, ends_at=segment.ends_at, known=known)
        return table

    def _look_for_footer(self, segment: ListedSegment, handle: int) -> None:
        if segment.footer is not None or segment.has_no_footer or segment.live or segment.ends_at is None:
            return
        try:
            table = footer.read(self.files, handle, read_header(self.files, handle), segment.ends_at)
        except FormatError as error:
            self._mark_lost(segment, error)
            return
        segment.has_no_footer = table is None
        if table is not None:
            with self.lock:
                segment.footer = table
                self._with_footer.append(segment)
                while len(self._with_footer) > FOOTERS_MAX:
                    self._with_footer.pop(0).footer = None

    def _known(self, segment: ListedSegment) -> dict[int, CatalogueEntry]:
        """Catalogue entries of the neighbouring segments."""
        segments = self.segments()
        index = segments.index(segment) if segment in segments else 0
        known: dict[int, CatalogueEntry] = {}
        for neighbour in segments[max(index - 1, 0) : index] + segments[index + 1 : index + 2]:
            self.entry(neighbour, "")
            if neighbour.opening is not None:
                known.update(neighbour.opening)
        return known

    def _mark_lost(self, segment: ListedSegment, error: FormatError) -> None:
        segment.lost = str(error)
        if not isinstance(error, FutureFormat):
            self.add_damage([DamagedRange(segment.name, 0, segment.ends_at or 0, "", 0)])

    def _discard_tables(self) -> None:
        """Discard the least recently used tables."""
        with self.lock:
            while len(self._used) > TABLES_MAX:
                segment = self._used.pop(0)
                if not segment.live and segment is not self._segments[-1]:
                    segment.table = None

    def _follow(self, segment: ListedSegment) -> None:
        if segment.live or segment.lost:
            return
        try:
            with self.opened(segment) as handle:
                if segment.table is None:
                    segment.table = open_table(self.files, handle, segment.name)
                with self.lock:
                    follow_table(self.files, handle, segment.table)
                self.add_damage(segment.table.damage)
        except FileNotFoundError:
            return
        except FormatError as error:
            self._mark_lost(segment, error)

    def info_of(self, segment: ListedSegment) -> SegmentInfo | None:
        """State and rings of a segment, from its footer or from its table, which is read if necessary.

        None: its file has been removed.
        """
        base = segment.base
        footer = self.footer(segment)
        table = self.table(segment) if footer is None else None
        damage = self.damage_of(segment.name)
        size = 0
        with suppress(FileNotFoundError, FormatError), self.opened(segment) as handle:
            size = self.files.size(handle)
        state: SegmentState
        if footer is not None:
            rings, end, state = rings_of_footer(footer), footer.end, "flushed"
        elif table is not None:
            with self.lock:
                state = "active" if segment is self._segments[-1] else "sealed"
                rings, end = rings_of_table(table), table.end
        elif segment.lost:
            return SegmentInfo(base, size, size, "lost", 0, 0, (), damage, reason=segment.lost)
        else:
            return None
        first = min((ring.first_timestamp_ns for ring in rings), default=0)
        last = max((ring.last_timestamp_ns for ring in rings), default=0)
        return SegmentInfo(base, end, size, state, first, last, rings, damage, indexed=footer is not None)
