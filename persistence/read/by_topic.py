"""Records of one topic: from mixed runs, and from a sealed segment by its footer's positions.

Records found are verified like all others, and their keys compared.  If a position has no matching record,
the footer is wrong or the record is damaged: FormatError.  The caller then reads the segment, which shows the
cause.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import NamedTuple

from persistence.errors import FormatError
from persistence.files import Files
from persistence.read.segment_tables import ListedSegment, SegmentTables
from persistence.segment.extent_table import ExtentRows, Row
from persistence.segment.scan_native import FileBytes
from persistence.segment.verified_reader import record_headers, verified
from ringbuf import FLAG_UNCHECKED, RECORD_HEADER_BYTES, Range, crc32c, scan_records
from ringbuf.record import RecordHeader, span

READ_BYTES = 4096  # per read: records of a topic are mostly far apart


def of_topic(run: Range, key: bytes) -> Iterator[Range]:
    """The parts of a verified run with only records of that key, each as long as possible."""
    part: _SegmentPart | None = None
    for at, header in record_headers(run.view):
        begin = at + RECORD_HEADER_BYTES
        if run.view[begin : begin + header.key_length] != key:
            if part is not None:
                yield part.range(run.epoch)
            part = None
        elif part is None:
            part = _SegmentPart.of(run, at, header)
        else:
            part = part.joined(span(header.length), header.timestamp_ns)
    if part is not None:
        yield part.range(run.epoch)


class _SegmentPart(NamedTuple):
    """Consecutive records, in the file and in `data`."""

    data: memoryview
    at: int
    length: int
    position: int  # in the ring
    offset: int
    records: int
    first_timestamp_ns: int
    last_timestamp_ns: int

    @classmethod
    def of(cls, run: Range, at: int, header: RecordHeader) -> _SegmentPart:
        """The record at byte `at` of a run."""
        length, time = span(header.length), header.timestamp_ns
        return cls(run.view, at, length, run.position + at, header.offset, 1, time, time)

    def joined(self, length: int, timestamp_ns: int) -> _SegmentPart:
        """The part with one more record."""
        return self._replace(
            length=self.length + length, records=self.records + 1, last_timestamp_ns=timestamp_ns
        )

    def is_followed_by(self, other: _SegmentPart) -> bool:
        """True if `other` follows directly."""
        return (
            self.data is other.data
            and self.at + self.length == other.at
            and self.position + self.length == other.position
            and self.offset + self.records == other.offset
        )

    def range(self, epoch: int) -> Range:
        """The part as a Range for readers."""
        view = self.data[self.at : self.at + self.length]
        times = self.first_timestamp_ns, self.last_timestamp_ns
        return Range(self.position, epoch, self.offset, self.records, *times, view)


def topic_by_footer(
    tables: SegmentTables,
    segment: ListedSegment,
    ring_name: str,
    epoch: int,
    key: bytes,
    offset: int,
    limit_bytes: int,
) -> list[Range] | None:
    """Runs of records with that key in a segment, from `offset` on, about `limit_bytes`.

    None if it has no usable footer, or was removed.  Raises OSError.
    """
    footer = tables.footer(segment)
    if footer is None:
        return None
    ranges: list[Range] = []
    try:
        with tables.opened(segment) as handle:
            for group in footer.groups_of(ring_name, epoch):
                places = footer.places(tables.files, handle, group, crc32c(key))
                if places:
                    request = TopicRead(group.ring_id, epoch, key, places, offset, limit_bytes)
                    tables.files.advise(handle, footer.end, 0, "sparse")
                    ranges += by_places(tables, segment, handle, footer.end, ring_name, request)
    except FormatError:
        tables.ignore_footer(segment)
        return None
    except FileNotFoundError:
        return None
    return ranges


def by_places(
    tables: SegmentTables, segment: ListedSegment, handle: int, end: int, ring_name: str, request: TopicRead
) -> list[Range]:
    """Runs of the records at given positions of a segment, whose log ends at `end`, that have the key.

    Raises FormatError if a position has no record that matches the footer, OSError.
    """
    table, epoch = tables.table(segment), request.epoch
    rows = None if table is None else table.rings.get((request.ring_id, epoch))
    if table is None or rows is None:
        return []
    files = tables.files
    return _in_segment(
        files,
        handle,
        end,
        rows,
        request,
        lambda row: verified(files, handle, table, ring_name, epoch, row, tables.add_damage),
    )


class TopicRead(NamedTuple):
    """Query of one topic in a segment."""

    ring_id: int
    epoch: int
    key: bytes
    places: array[int]  # positions of records whose keys have its hash
    offset: int
    limit_bytes: int


def _in_segment(
    files: Files,
    handle: int,
    end: int,
    rows: ExtentRows,
    request: TopicRead,
    whole: Callable[[Row], list[Range]],
) -> list[Range]:
    """Runs of records of a topic from an offset on, up to about the limit, at least one record if any exists.

    `whole` reads a complete row, for records that only their extent covers.  Raises FormatError, OSError.
    """
    first = rows.find(request.offset)
    if first == len(rows):
        return []
    # including the place before: a place that damage has moved there is detected when it is read
    places = request.places[max(bisect_left(request.places, rows[first].place) - 1, 0) :]
    parts: list[_SegmentPart] = []
    total = 0
    data = FileBytes(files, handle, end, READ_BYTES)
    for part in _parts(data, request, rows, places, whole):
        if part.offset < request.offset:
            continue
        if parts and parts[-1].is_followed_by(part):
            parts[-1] = parts[-1].joined(part.length, part.last_timestamp_ns)
        else:
            parts.append(part)
        total += part.length
        if total >= request.limit_bytes:
            break
    return [part.range(request.epoch) for part in parts]


def _parts(
    data: FileBytes,
    request: TopicRead,
    rows: ExtentRows,
    places: array[int],
    whole: Callable[[Row], list[Range]],
) -> Iterator[_SegmentPart]:
    """Each record at `places` that has the key."""
    for place in places:
        index = rows.find_place(place)
        if index is None:
            raise FormatError(f"no run of records is at {place}, where a footer says one is")
        row = rows[index]
        head = data.at(place, RECORD_HEADER_BYTES)
        if len(head) < RECORD_HEADER_BYTES:
            raise FormatError(f"the file ends before the record at {place}")
        length, _, offset, time, key_hash, key_length, flags = RecordHeader.of(head)
        room = span(length)
        if length < RECORD_HEADER_BYTES or place + room > row.place + row.length:
            raise FormatError(f"the record at {place} does not end within its run")
        if flags & FLAG_UNCHECKED:
            view, at = _alone(row, whole), 0
        else:
            view = data.at(place, room)
            at = place - data.place
            if scan_records(view, request.epoch).count != 1:
                raise FormatError(f"the record at {place} does not verify")
        if key_hash != crc32c(request.key) or not 0 <= offset - row.first_offset < row.count:
            raise FormatError(f"the record at {place} differs from the footer")
        if view[RECORD_HEADER_BYTES : RECORD_HEADER_BYTES + key_length] == request.key:
            memory = view if flags & FLAG_UNCHECKED else data.data
            position = row.ring_position + place - row.place
            yield _SegmentPart(memory, at, room, position, offset, 1, time, time)


def _alone(row: Row, whole: Callable[[Row], list[Range]]) -> memoryview:
    ranges = whole(row)
    if len(ranges) != 1 or ranges[0].count != 1:
        raise FormatError(f"the record at {row.place} does not verify")
    return ranges[0].view
