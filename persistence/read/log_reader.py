"""Log reader: records by ring and epoch, from an offset, a time or of one topic.

Reads sealed segments and the one being written.

LogReader serves both sides.  In the writing process, the Log passes `tables` the synced records.  In
another process it follows the files and returns records that later extents prove durable.  Every reader
therefore returns only durable records.  It never writes.

Every range is verified when it is read: an extent by its checksum, its records by theirs.  Data that does not
verify is skipped and counted in `damaged`, and the rest is returned; callers detect the gap by the offsets.
A segment removed by retention meanwhile is treated as absent.  What the disk cannot read is an OSError, and
nothing is skipped, because the cause may pass; salvaging() returns a reader that skips it.

Threads: any thread may read while the log thread publishes.  Every call may wait for the disk, so none is for
an event loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from time import monotonic
from typing import NamedTuple, TypeVar

from persistence.archive.archive_reader import Archive
from persistence.archive.layout import archive_name
from persistence.errors import FormatError
from persistence.files import Files
from persistence.read.by_topic import of_topic, topic_by_footer
from persistence.read.segment_tables import ListedSegment, SegmentTables
from persistence.read.topic_walks import TopicWalks
from persistence.segment.extent_table import Row
from persistence.segment.format import EXTENT_HEADER_BYTES
from persistence.segment.salvaging_files import SalvagingFiles
from persistence.segment.scan import DamagedRange
from persistence.segment.segment_info import SegmentInfo
from persistence.segment.verified_reader import from_offset, from_time, verified
from persistence.stats import ReadStats
from ringbuf import Range

Result = TypeVar("Result")

SEEK_BYTES = 64 << 10  # per read, in the search for a time or a topic
SALVAGING_S = 30.0  # time for which a reader leaves out records that the disk could not read
READ_AHEAD_FROM_BYTES = 64 << 10  # smaller reads are rarely continued
READ_AHEAD_MAX_BYTES = 4 << 20


class Epoch(NamedTuple):
    """Records of one epoch of a ring in the log: first_offset <= offset < end_offset, perhaps with gaps."""

    epoch: int
    first_offset: int
    end_offset: int


class RingEnd(NamedTuple):
    """End of a ring in the log: the next offset."""

    epoch: int
    end_offset: int


class LogReader:
    """The records of the log in `directory`."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self.archive = Archive(files, directory)  # of segments that are archived
        self.tables = SegmentTables(files, directory, self.archive.bases, self.archive.refresh)
        self._topic_walks = TopicWalks(self.tables)
        self._salvaging: tuple[LogReader | None, float] = (None, 0.0)  # and its end, monotonic s
        self._counting = threading.Lock()
        self.stats = ReadStats()

    # ---- content ----

    @property
    def damaged(self) -> dict[tuple[str, int], DamagedRange]:
        """Damaged places seen so far, by segment and place."""
        return self.tables.damaged

    @property
    def lost(self) -> dict[str, str]:
        """Cause for each segment and archive of which nothing can be read, by its file; those seen so far."""
        archives = {archive_name(base): reason for base, reason in self.archive.unreadable.items()}
        return self.tables.lost() | archives

    def refresh(self) -> None:
        """Read the state that a writer in another process has created and proven since."""
        self.tables.refresh()
        self.archive.refresh()  # after it: an archive exists before its segment is removed
        self.tables.bound()

    def salvaging(self) -> LogReader:
        """A reader of this log that leaves out what the disk cannot read (salvaging_files.py).

        It has the segments and the live table of this one, and is kept until a segment comes or goes, at
        most SALVAGING_S: the disk may read again what it has left out.
        """
        bases, now_s = self.bases(), monotonic()
        kept, until_s = self._salvaging
        if kept is None or kept.bases() != bases or now_s >= until_s:
            kept = LogReader(SalvagingFiles(self._files), self.tables.directory)
            kept.tables.follow(self.tables)
            kept.archive.follow(self.archive)
            self._salvaging = kept, now_s + SALVAGING_S
        return kept

    def bases(self) -> list[int]:
        """Base positions of the segments, rising."""
        return [segment.base for segment in self.tables.segments()]

    def segments(self) -> list[SegmentInfo]:
        """Facts of each segment, rising, archived ones first.  Reads tables that are not in memory."""
        infos = [self.tables.info_of(segment) for segment in self.tables.segments()]
        here = {info.base for info in infos if info is not None}
        archived = [segment for segment in self.archive.segments() if segment.base not in here]
        return archived + [info for info in infos if info is not None]

    def segment(self, base: int) -> SegmentInfo | None:
        """Facts of the segment at that log position; None if it is removed or archived."""
        segment = self.tables.segment(base)
        return None if segment is None else self.tables.info_of(segment)

    def epochs(self, ring_name: str) -> list[Epoch]:
        """Records of a ring in the log, in the order of the epochs."""
        return self._retried(lambda: self._epochs(ring_name))

    def _epochs(self, ring_name: str) -> list[Epoch]:
        spans = {epoch: (first, end) for epoch, first, end in self.archive.epochs(ring_name)}
        segments = self.tables.segments()
        for index, segment in enumerate(segments):
            here = self.tables.entry(segment, ring_name)
            after = self.tables.entry(segments[index + 1], ring_name) if index + 1 < len(segments) else None
            if here is not None and after is not None and here.epoch == after.epoch:
                ring_spans = [(here.epoch, here.next_offset, after.next_offset)]
            else:
                ring_spans = self._spans(segment, ring_name)
            for epoch, first, end in ring_spans:
                if end > first:
                    spans[epoch] = (min(first, spans.get(epoch, (first, end))[0]), end)
        return [Epoch(epoch, first, end) for epoch, (first, end) in spans.items()]

    def ends(self) -> dict[str, RingEnd]:
        """End of each ring in the log's last catalogue."""
        segments = self.tables.segments()
        table = self.tables.table(segments[-1]) if segments else None
        if table is None:
            return {}
        with self.tables.lock:
            return {entry.name: RingEnd(entry.epoch, entry.next_offset) for entry in table.catalogue.values()}

    # ---- reading ----

    def read(self, ring_name: str, epoch: int, offset: int, limit_bytes: int) -> list[Range]:
        """Runs of records from `offset` on, in order, about `limit_bytes`, at least one whole extent.

        The first begins at `offset`, or at the next record of this epoch in the log.  Empty if there is none.
        The caller owns the bytes.  Raises OSError if the disk fails.
        """
        return self._retried(lambda: self._read_from(ring_name, epoch, offset, limit_bytes))

    def _read_from(self, ring_name: str, epoch: int, offset: int, limit_bytes: int) -> list[Range]:
        archived = self.archive.first_offset(ring_name, epoch, offset)
        if archived != offset:
            ranges = self._in_segments(ring_name, epoch, offset, limit_bytes)
            if archived is None or (ranges and ranges[0].offset <= archived):
                return ranges
        from_archive = self.archive.read(ring_name, epoch, offset, limit_bytes)
        if from_archive and from_archive[0].offset == archived:
            return self._counted(from_archive)
        # The archive is damaged at this offset: segments between and behind the archives may have the next.
        ranges = self._in_segments(ring_name, epoch, offset, limit_bytes)
        if not from_archive or (ranges and ranges[0].offset < from_archive[0].offset):
            return ranges
        return self._counted(from_archive)

    def _in_segments(self, ring_name: str, epoch: int, offset: int, limit_bytes: int) -> list[Range]:
        for segment in self._from(ring_name, epoch, offset):
            if ranges := self._read(segment, ring_name, epoch, offset, limit_bytes):
                ranges[0] = from_offset(ranges[0], offset)
                return ranges
        return []

    def read_at(self, ring_name: str, epoch: int, position: int, limit_bytes: int) -> list[Range]:
        """As read(), from the extent on that has the ring position, completely, or from the next one."""
        return self._retried(lambda: self._read_position(ring_name, epoch, position, limit_bytes))

    def _read_position(self, ring_name: str, epoch: int, position: int, limit_bytes: int) -> list[Range]:
        archived = self._counted(self.archive.read_at(ring_name, epoch, position, limit_bytes))
        if archived and (archived[0].position <= position or not self._has_older()):
            return archived
        for segment in self._from_position(ring_name, epoch, position):
            rows = self.tables.rows(segment, ring_name, epoch)
            with self.tables.lock:
                behind = rows is None or rows.end_position <= position
                offset = 0 if rows is None else rows.offset_at(position)
            if not behind and (ranges := self._read(segment, ring_name, epoch, offset, limit_bytes)):
                return archived if archived and archived[0].position < ranges[0].position else ranges
        return archived

    def read_topic(
        self, ring_name: str, topic: str, epoch: int, offset: int, limit_bytes: int
    ) -> list[Range]:
        """Runs of records of one topic, from `offset` on, about `limit_bytes`, at least one record.

        Empty if the log has none up to its current end.  Otherwise as read().
        """
        key = topic.encode()
        return self._retried(lambda: self._read_topic(ring_name, key, epoch, offset, limit_bytes))

    def _read_topic(
        self, ring_name: str, key: bytes, epoch: int, offset: int, limit_bytes: int
    ) -> list[Range]:
        if self._has_older():
            parts = (part for run in self._each(ring_name, epoch, offset) for part in of_topic(run, key))
            return _up_to(limit_bytes, parts)
        if archived := self.archive.read_topic(ring_name, key, epoch, offset, limit_bytes):
            return archived
        offset = max(offset, self.archive.end_offset(ring_name, epoch))
        segments = self._from(ring_name, epoch, offset)
        looks = (self._of_topic(segment, ring_name, epoch, key, offset, limit_bytes) for segment in segments)
        return _up_to(limit_bytes, (part for look in looks for part in look))

    def seek_time(self, ring_name: str, epoch: int, timestamp_ns: int) -> int:
        """Offset of the first record of that time or later.

        The end of the epoch in the log if all records are earlier, 0 if the log has none.  Times are the wall
        clock at the claim of a record.  If the clock was set back, the first place with that time counts.
        """
        return self._retried(lambda: self._seek_time(ring_name, epoch, timestamp_ns))

    def _seek_time(self, ring_name: str, epoch: int, timestamp_ns: int) -> int:
        end = self.archive.end_offset(ring_name, epoch)
        archived = self.archive.seek_time(ring_name, epoch, timestamp_ns)
        if archived is not None and not self._has_older():
            return archived
        for segment in self.tables.segments():
            latest = self._latest(segment, ring_name, epoch)
            if latest is not None and latest[1] < timestamp_ns:
                end = max(end, latest[0])
                continue
            rows = self.tables.rows(segment, ring_name, epoch)
            if rows is None:
                continue
            with self.tables.lock:
                end, offset = max(end, rows.end_offset), rows.find_time(timestamp_ns)
            while offset is not None and (
                ranges := self._read(segment, ring_name, epoch, offset, SEEK_BYTES)
            ):
                ranges[0] = from_offset(ranges[0], offset)
                for part in ranges:
                    if (offset_found := from_time(part, timestamp_ns)) is not None:
                        return offset_found if archived is None else min(offset_found, archived)
                    offset = part.offset + part.count
        return end if archived is None else archived

    # ---- internal ----

    def _retried(self, read: Callable[[], Result]) -> Result:
        """Result of `read`, repeated if a segment was archived meanwhile, which it might have missed."""
        while True:
            before = self.archive.changes
            result = read()
            if before == self.archive.changes:
                return result

    def _counted(self, ranges: list[Range]) -> list[Range]:
        with self._counting:
            self.stats.archive_reads += bool(ranges)
            self.stats.archive_bytes += sum(len(part.view) for part in ranges)
        return ranges

    def _has_older(self) -> bool:
        """True if a segment could not be archived and is older than an archived one."""
        segments, archived = self.tables.segments(), self.archive.bases()
        return bool(segments and archived) and segments[0].base < archived[-1]

    def _latest(self, segment: ListedSegment, ring_name: str, epoch: int) -> tuple[int, int] | None:
        """End of a ring in a segment and its latest time there, from the footer; (0, -1) without records.

        None without a footer.
        """
        footer = self.tables.footer(segment)
        if footer is None:
            return None
        groups = footer.groups_of(ring_name, epoch)
        ends, times = [group.end_offset for group in groups], [group.latest_ns for group in groups]
        return max(ends, default=0), max(times, default=-1)

    def _each(self, ring_name: str, epoch: int, offset: int) -> Iterator[Range]:
        """All runs from `offset` on."""
        while ranges := self.read(ring_name, epoch, offset, SEEK_BYTES):
            yield from ranges
            offset = ranges[-1].offset + ranges[-1].count

    def _of_topic(
        self, segment: ListedSegment, ring_name: str, epoch: int, key: bytes, offset: int, limit_bytes: int
    ) -> Iterator[Range]:
        """Runs of records with that key in one segment, in order: about the limit, or all of them."""
        read_ranges = topic_by_footer(self.tables, segment, ring_name, epoch, key, offset, limit_bytes)
        if read_ranges is None:
            read_ranges = self._topic_walks.read(segment, ring_name, epoch, key, offset, limit_bytes)
        if read_ranges is not None:
            self._count(read_ranges)
            yield from read_ranges
            return
        while ranges := self._read(segment, ring_name, epoch, offset, SEEK_BYTES):
            ranges[0] = from_offset(ranges[0], offset)
            for run in ranges:
                yield from of_topic(run, key)
            offset = ranges[-1].offset + ranges[-1].count

    def _count(self, ranges: Sequence[Range]) -> None:
        with self._counting:
            self.stats.log_reads += bool(ranges)
            self.stats.log_bytes += sum(len(part.view) for part in ranges)

    def _from(self, ring_name: str, epoch: int, offset: int) -> list[ListedSegment]:
        """The segments that can have the offset or a later one, found by bisection."""
        segments = self.tables.segments()
        first, low, high = 0, 1, len(segments)
        while low < high:
            middle = at = (low + high) // 2
            while at < high and (entry := self.tables.entry(segments[at], ring_name)) is None:
                at += 1
            if at < high and entry is not None and entry[1:] <= (epoch, offset):
                first, low = at, at + 1
            else:
                high = middle
        return segments[first:]

    def _from_position(self, ring_name: str, epoch: int, position: int) -> list[ListedSegment]:
        """The segments that can have the ring position or a later one, found by bisection."""
        segments = self.tables.segments()
        low, high = 0, len(segments)
        while low < high:
            middle = at = (low + high) // 2
            while at < high and (rows := self.tables.rows(segments[at], ring_name, epoch)) is None:
                at += 1
            if at < high and rows is not None and rows.end_position <= position:
                low = at + 1
            else:
                high = middle
        return segments[low:]

    def _spans(self, segment: ListedSegment, ring_name: str) -> list[tuple[int, int, int]]:
        table = self.tables.table(segment)
        if table is None:
            return []
        with self.tables.lock:
            ids = {ring_id for ring_id, entry in table.catalogue.items() if entry.name == ring_name}
            return [
                (epoch, rows.first_offset, rows.end_offset)
                for (ring_id, epoch), rows in table.rings.items()
                if ring_id in ids and len(rows)
            ]

    def _read(
        self, segment: ListedSegment, ring_name: str, epoch: int, offset: int, limit_bytes: int
    ) -> list[Range]:
        """Runs of one segment; empty if it has none from `offset` on that verifies."""
        table = self.tables.table(segment)
        while table is not None:
            with self.tables.lock:
                ids = [ring_id for ring_id, entry in table.catalogue.items() if entry.name == ring_name]
                tables = [rows for ring_id in ids if (rows := table.rings.get((ring_id, epoch))) is not None]
                wanted_rows: list[Row] = [
                    row for rows in tables for row in rows.from_offset(offset, limit_bytes)
                ]
            ranges: list[Range] = []
            there = False
            with suppress(FileNotFoundError, FormatError), self.tables.opened(segment) as handle:
                self._read_ahead(handle, wanted_rows, limit_bytes)
                for row in wanted_rows:
                    ranges += verified(
                        self._files, handle, table, ring_name, epoch, row, self.tables.add_damage
                    )
                there = True
            if not there:
                return []
            remaining = [part for part in ranges if part.offset + part.count > offset]
            if remaining or not wanted_rows:
                self._count(remaining)
                return remaining
            offset = max(row.first_offset + row.count for row in wanted_rows)  # all of it was damaged
        return []

    def _read_ahead(self, handle: int, rows: Sequence[Row], limit_bytes: int) -> None:
        """Start to fetch these rows from the disk, and the next ones for callers that continue."""
        if rows and limit_bytes >= READ_AHEAD_FROM_BYTES:
            begin = rows[0].place - EXTENT_HEADER_BYTES
            end = max(row.place + row.length for row in rows)
            self._files.advise(handle, end - begin + min(limit_bytes, READ_AHEAD_MAX_BYTES), begin, "soon")


def _up_to(limit_bytes: int, parts: Iterator[Range]) -> list[Range]:
    """The first parts that together reach the limit."""
    ranges: list[Range] = []
    for part in parts:
        ranges.append(part)
        limit_bytes -= len(part.view)
        if limit_bytes <= 0:
            break
    return ranges
