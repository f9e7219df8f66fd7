"""Reading the log: records by ring and epoch, from an offset, a time or of a topic on, out of sealed segments
and of the one being written.

LogReader serves both sides.  The Log that writes feeds it what has been synced (publish()); in another
process it follows the files and sees what later extents prove.  So what is read is durable, whoever
reads.  It never writes.

Every range is verified when it is read: an extent by its checksum, its records by theirs.  What does not
verify is skipped and counted in `damaged`, and the rest is served: a caller sees the gap by the offsets.  A
segment that retention has taken meanwhile is simply no longer there.

Threads: any may read while the log thread publishes.  Every call may wait for the disk: none is for an event
loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from persistence.archive.store import Archive
from persistence.extents import Row
from persistence.facts import SegmentFacts, SegmentState, ring_facts
from persistence.files import Files
from persistence.scan import Damage, SegmentTable
from persistence.segment import Pending
from persistence.shelf import Shelf, Shelved
from persistence.stats import ReadStats
from persistence.verified import from_offset, from_time, record_spans, verified
from ringbuf import RECORD_HEADER_BYTES, Range

Result = TypeVar("Result")

__all__ = ["Epoch", "LogReader", "RingEnd", "from_offset"]

SEEK_BYTES = 64 << 10  # read at a time, to find a time or a topic


class Epoch(NamedTuple):
    """What the log holds of one epoch of a ring: first_offset <= offset < end_offset, perhaps with gaps."""

    epoch: int
    first_offset: int
    end_offset: int


class RingEnd(NamedTuple):
    """Where a ring ends in the log: the offset that comes next."""

    epoch: int
    end_offset: int


class LogReader:
    """The records of the log in `directory`."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self.archive = Archive(files, directory)  # of segments that are here no more
        self._shelf = Shelf(files, directory, self.archive.bases)
        self._counting = threading.Lock()
        self.stats = ReadStats()

    # ---- what is there ----

    @property
    def damaged(self) -> dict[tuple[str, int], Damage]:
        """Damaged places seen so far, by segment and place."""
        return self._shelf.damaged

    def refresh(self) -> None:
        """Looks what a writer in another process has made and proven since."""
        self._shelf.refresh()
        self.archive.refresh()  # Behind it: an archive is there before its segment goes.
        self._shelf.bound()

    def begin(self, base: int, table: SegmentTable, *, forget: bool = False) -> None:
        """See Shelf.begin()."""
        self._shelf.begin(base, table, forget=forget)

    def fed_by(self, pull: Callable[[], object]) -> None:
        """What calls publish() with all that is durable, before the live segment is looked at."""
        self._shelf.pull = pull

    def publish(self, items: Sequence[Pending], end: int) -> None:
        """See Shelf.publish()."""
        self._shelf.publish(items, end)

    def add_sealed(self, base: int, table: SegmentTable | None) -> None:
        """See Shelf.add_sealed()."""
        self._shelf.add_sealed(base, table)

    def remove(self, base: int) -> None:
        """That segment is about to go."""
        self._shelf.remove(base)

    def note(self, damage: Sequence[Damage]) -> None:
        """See Shelf.note()."""
        self._shelf.note(damage)

    def bases(self) -> list[int]:
        """Base positions of the segments, rising."""
        return [it.base for it in self._shelf.segments()]

    def segments(self) -> list[SegmentFacts]:
        """What each segment holds, rising, archived ones first.  Tables that are not at hand are read."""
        segments = self._shelf.segments()
        here = {it.base for it in segments}
        archived = [it for it in self.archive.segments() if it.base not in here]
        return archived + [self._facts(it) for it in segments]

    def segment(self, base: int) -> SegmentFacts | None:
        """What the segment at that log position holds; None: it has gone, or is archived."""
        return next((self._facts(it) for it in self._shelf.segments() if it.base == base), None)

    def epochs(self, ring_name: str) -> list[Epoch]:
        """What the log holds of a ring, in the order of the epochs."""
        return self._settled(lambda: self._epochs(ring_name))

    def _epochs(self, ring_name: str) -> list[Epoch]:
        spans = {epoch: (first, end) for epoch, first, end in self.archive.epochs(ring_name)}
        segments = self._shelf.segments()
        for index, shelved in enumerate(segments):
            here = self._shelf.entry(shelved, ring_name)
            after = self._shelf.entry(segments[index + 1], ring_name) if index + 1 < len(segments) else None
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
        segments = self._shelf.segments()
        table = self._shelf.table(segments[-1]) if segments else None
        if table is None:
            return {}
        with self._shelf.lock:
            return {it.name: RingEnd(it.epoch, it.next_offset) for it in table.catalogue.values()}

    # ---- reading ----

    def read(self, ring_name: str, epoch: int, offset: int, limit_bytes: int) -> list[Range]:
        """Runs of records from `offset` on, in order, about `limit_bytes` together: whole extents, at least
        one.

        The first begins at `offset` itself, or at the next record that the log has of this epoch.  Empty:
        there is none.  The bytes are the caller's own.  Raises OSError when the disk does not give them.
        """
        return self._settled(lambda: self._read_from(ring_name, epoch, offset, limit_bytes))

    def _read_from(self, ring_name: str, epoch: int, offset: int, limit_bytes: int) -> list[Range]:
        archived = self.archive.first_offset(ring_name, epoch, offset)
        if archived != offset:
            for shelved in self._from(ring_name, epoch, offset):
                ranges = self._read(shelved, ring_name, epoch, offset, limit_bytes)
                if ranges and (archived is None or ranges[0].offset <= archived):
                    ranges[0] = from_offset(ranges[0], offset)
                    return ranges
                if ranges:
                    break
        return (
            []
            if archived is None
            else self._counted(self.archive.read(ring_name, epoch, offset, limit_bytes))
        )

    def read_at(self, ring_name: str, epoch: int, position: int, limit_bytes: int) -> list[Range]:
        """As read(), from the extent on that holds the ring position, all of it, or from the next behind."""
        return self._settled(lambda: self._read_position(ring_name, epoch, position, limit_bytes))

    def _read_position(self, ring_name: str, epoch: int, position: int, limit_bytes: int) -> list[Range]:
        archived = self._counted(self.archive.read_at(ring_name, epoch, position, limit_bytes))
        if archived and (archived[0].position <= position or not self._has_older()):
            return archived
        for shelved in self._from_position(ring_name, epoch, position):
            rows = self._shelf.rows(shelved, ring_name, epoch)
            with self._shelf.lock:
                behind = rows is None or rows.end_position <= position
                offset = 0 if rows is None else rows.offset_at(position)
            if not behind and (ranges := self._read(shelved, ring_name, epoch, offset, limit_bytes)):
                return archived if archived and archived[0].position < ranges[0].position else ranges
        return archived

    def read_topic(
        self, ring_name: str, topic: str, epoch: int, offset: int, limit_bytes: int
    ) -> list[Range]:
        """Runs of records of one topic from `offset` on, and of no other, in order, about `limit_bytes`
        together, at least one record.

        Empty: there is none up to where the log ends now.  Otherwise as read().
        """
        key = topic.encode()
        return self._settled(lambda: self._read_topic(ring_name, key, epoch, offset, limit_bytes))

    def _read_topic(
        self, ring_name: str, key: bytes, epoch: int, offset: int, limit_bytes: int
    ) -> list[Range]:
        found, total = [], 0
        if not self._has_older():
            if archived := self.archive.read_topic(ring_name, key, epoch, offset, limit_bytes):
                return archived
            offset = max(offset, self.archive.end_offset(ring_name, epoch))
        for run in self._each(ring_name, epoch, offset):
            for part in _of_topic(run, key):
                found.append(part)
                total += len(part.view)
                if total >= limit_bytes:
                    return found
        return found

    def seek_time(self, ring_name: str, epoch: int, timestamp_ns: int) -> int:
        """The offset of the first record of that time or later; the end of what the log has of this epoch
        when all are earlier, 0 when it has nothing.

        Times are the wall clock's when a record was claimed.  Where that was set back, the first place
        counts at which it had got so far.
        """
        return self._settled(lambda: self._seek_time(ring_name, epoch, timestamp_ns))

    def _seek_time(self, ring_name: str, epoch: int, timestamp_ns: int) -> int:
        end = self.archive.end_offset(ring_name, epoch)
        archived = self.archive.seek_time(ring_name, epoch, timestamp_ns)
        if archived is not None and not self._has_older():
            return archived
        for shelved in self._shelf.segments():
            rows = self._shelf.rows(shelved, ring_name, epoch)
            if rows is None:
                continue
            with self._shelf.lock:
                end, offset = max(end, rows.end_offset), rows.find_time(timestamp_ns)
            while offset is not None and (
                ranges := self._read(shelved, ring_name, epoch, offset, SEEK_BYTES)
            ):
                ranges[0] = from_offset(ranges[0], offset)
                for it in ranges:
                    if (found := from_time(it, timestamp_ns)) is not None:
                        return found if archived is None else min(found, archived)
                    offset = it.offset + it.count
        return end if archived is None else archived

    # ---- inside ----

    def _settled(self, look: Callable[[], Result]) -> Result:
        """What `look` finds, once nothing has been archived while it looked: it might have missed that."""
        while True:
            before = self.archive.changes
            found = look()
            if before == self.archive.changes:
                return found

    def _counted(self, found: list[Range]) -> list[Range]:
        with self._counting:
            self.stats.archive_reads += bool(found)
            self.stats.archive_bytes += sum(len(it.view) for it in found)
        return found

    def _has_older(self) -> bool:
        """Whether a segment could not be archived, and is older than one that was."""
        segments, archived = self._shelf.segments(), self.archive.bases()
        return bool(segments and archived) and segments[0].base < archived[-1]

    def _facts(self, shelved: Shelved) -> SegmentFacts:
        table = self._shelf.table(shelved)
        damage = self._shelf.damage_of(shelved.name)
        size = 0
        try:
            with self._shelf.opened(shelved) as handle:
                size = self._files.size(handle)
        except FileNotFoundError:
            pass
        if table is None:
            reason = shelved.lost or "it has been removed"
            return SegmentFacts(shelved.base, size, size, "lost", 0, 0, (), damage, reason=reason)
        with self._shelf.lock:
            rings, end = ring_facts(table), table.end
        first = min((it.first_timestamp_ns for it in rings), default=0)
        last = max((it.last_timestamp_ns for it in rings), default=0)
        active = shelved is self._shelf.segments()[-1]
        state: SegmentState = "active" if active else "sealed"
        return SegmentFacts(shelved.base, end, size, state, first, last, rings, damage)

    def _each(self, ring_name: str, epoch: int, offset: int) -> Iterator[Range]:
        """Every run from `offset` on."""
        while ranges := self.read(ring_name, epoch, offset, SEEK_BYTES):
            yield from ranges
            offset = ranges[-1].offset + ranges[-1].count

    def _from(self, ring_name: str, epoch: int, offset: int) -> list[Shelved]:
        """The segments that can hold the offset, or one behind it."""
        segments = self._shelf.segments()
        first = 0
        for index in range(len(segments) - 1, 0, -1):
            entry = self._shelf.entry(segments[index], ring_name)
            if entry is not None and entry.epoch == epoch and entry.next_offset <= offset:
                first = index
                break
        return segments[first:]

    def _from_position(self, ring_name: str, epoch: int, position: int) -> list[Shelved]:
        """The segments that can hold the ring position, or one behind it: found by bisection."""
        segments = self._shelf.segments()
        low, high = 0, len(segments)
        while low < high:
            middle = at = (low + high) // 2
            while at < high and (rows := self._shelf.rows(segments[at], ring_name, epoch)) is None:
                at += 1
            if at < high and rows is not None and rows.end_position <= position:
                low = at + 1
            else:
                high = middle
        return segments[low:]

    def _spans(self, shelved: Shelved, ring_name: str) -> list[tuple[int, int, int]]:
        table = self._shelf.table(shelved)
        if table is None:
            return []
        with self._shelf.lock:
            ids = {ring_id for ring_id, it in table.catalogue.items() if it.name == ring_name}
            return [
                (epoch, rows.first_offset, rows.end_offset)
                for (ring_id, epoch), rows in table.rings.items()
                if ring_id in ids and len(rows)
            ]

    def _read(
        self, shelved: Shelved, ring_name: str, epoch: int, offset: int, limit_bytes: int
    ) -> list[Range]:
        table = self._shelf.table(shelved)
        if table is None:
            if not shelved.lost:
                self.archive.refresh()
            return []
        with self._shelf.lock:
            ids = [ring_id for ring_id, it in table.catalogue.items() if it.name == ring_name]
            found = [rows for ring_id in ids if (rows := table.rings.get((ring_id, epoch))) is not None]
            wanted: list[Row] = [row for rows in found for row in rows.from_offset(offset, limit_bytes)]
        ranges: list[Range] = []
        try:
            with self._shelf.opened(shelved) as handle:
                for row in wanted:
                    ranges += verified(self._files, handle, table, ring_name, epoch, row, self.note)
        except FileNotFoundError:
            pass
        if wanted and not ranges:
            self.archive.refresh()  # It may be there by now.
        kept = [it for it in ranges if it.offset + it.count > offset]
        with self._counting:
            self.stats.log_reads += bool(kept)
            self.stats.log_bytes += sum(len(it.view) for it in kept)
        return kept


def _of_topic(run: Range, key: bytes) -> Iterator[Range]:
    """The parts of a run that hold nothing but records of that topic, each as long as can be."""
    begin: int | None = None
    first = count = 0
    times: list[int] = []
    for at, span, fields in record_spans(run.view):
        name = run.view[at + RECORD_HEADER_BYTES : at + RECORD_HEADER_BYTES + fields[5]]
        if name == key:
            if begin is None:
                begin, first, count, times = at, fields[2], 0, []
            count += 1
            end = at + span
            times.append(fields[3])
        elif begin is not None:
            yield _part(run, begin, end, first, count, times)
            begin = None
    if begin is not None:
        yield _part(run, begin, end, first, count, times)


def _part(run: Range, begin: int, end: int, first: int, count: int, times: Sequence[int]) -> Range:
    return Range(run.position + begin, run.epoch, first, count, times[0], times[-1], run.view[begin:end])
