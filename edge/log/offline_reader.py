"""Log reader for other processes: the rings of a broker's log, and their records from a place on.

Reads all logs of a log directory (persistence/read/directories.py), while a broker writes them or after it;
takes no lock and changes nothing.

Records come in the order of each ring, and merged by time for several rings. Records that the log no longer
has, because they were damaged or removed meanwhile, or that the disk cannot read, are skipped and counted:
`missing`. Only durable records are read; refresh() finds newer ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from edge.broker.subscription_tree import has_wildcard
from edge.errors import EdgeError, NoLog
from edge.log.log_place import LogPlace
from edge.mqtt.topic_filters import matches
from persistence import Epoch, LogReader, OsFiles
from persistence.durable_file import is_unreadable, problem_of, remedy_of
from persistence.read.directories import logs_in, may_have
from persistence.read.merged_reader import MergedReader, foreign_rings, rings_of
from persistence.segment.salvaging_files import SalvagingFiles
from persistence.segment.verified_reader import record_headers
from ringbuf import FLAG_PROPERTIES, RECORD_HEADER_BYTES, Range
from ringbuf.record import payload_position

READ_BYTES = 1 << 20  # approximate; at a time, of one ring
TOPICS_REMEMBERED = 65_536
GAPS_MAX = 20  # that are named
AS_BROKER = "run as the broker's user"


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record. `payload` is separate memory."""

    ring: str
    epoch: int
    offset: int
    timestamp_ns: int
    topic: bytes
    flags: int
    properties: bytes  # MQTT 5, wire form with its length at the beginning, or empty
    payload: memoryview


class LogView:
    """All logs in `directory`. Raises NoLog; EdgeError: they cannot be read."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._readers: dict[Path, LogReader] = {}
        self._foreign: dict[Path, set[str]] = {}  # rings in the log of another ring: exchanged disks
        self._merged = MergedReader(self._of_ring)
        self.refresh()

    def refresh(self) -> None:
        """Find new logs and records."""
        for directory in self._there():
            reader = self._readers.get(directory) or LogReader(SalvagingFiles(OsFiles()), str(directory))
            try:
                reader.refresh()
            except FileNotFoundError:
                continue
            except PermissionError as error:
                raise EdgeError(f"log {directory}: {error.strerror}", hint=AS_BROKER) from error
            except OSError as error:
                raise _unreadable(directory, error) from error
            if directory not in self._readers:
                self._foreign[directory] = foreign_rings(self.directory, directory, reader)
            self._readers[directory] = reader
        if not any(reader.bases() or reader.archive.bases() for reader in self._readers.values()):
            hint = 'name its directory with --log; streams with durability "process" have no log'
            raise NoLog(f"there is no log in {self.directory}", hint=hint)

    def _there(self) -> Sequence[Path]:
        try:
            return logs_in(self.directory)
        except OSError as error:
            hint = "name the log's directory" if isinstance(error, NotADirectoryError) else AS_BROKER
            raise EdgeError(f"log {self.directory}: {error.strerror}", hint=hint) from error

    @property
    def readers(self) -> dict[Path, LogReader]:
        """Readers of the logs, by directory."""
        return dict(self._readers)

    def rings(self) -> list[str]:
        """Names of all rings in the logs. Raises EdgeError on a disk error, as all methods below."""
        with self._disk():
            return sorted({name for reader in self._readers.values() for name in rings_of(reader)})

    def short(self, directory: Path) -> str:
        """Name of a log for people: "." is the shared one."""
        return "." if directory == self.directory else directory.name

    def epochs(self, ring_name: str) -> list[Epoch]:
        """Epochs of a ring in the logs."""
        with self._disk():
            return self._merged.epochs(ring_name)

    def read(self, ring_name: str, epoch: int, offset: int, limit_bytes: int = READ_BYTES) -> list[Range]:
        """Runs of records; see LogReader.read()."""
        with self._disk():
            return self._merged.read(ring_name, epoch, offset, limit_bytes)

    def read_topic(
        self, ring_name: str, topic: str, epoch: int, offset: int, limit_bytes: int = READ_BYTES
    ) -> list[Range]:
        """Runs with only that topic; see LogReader.read_topic()."""
        with self._disk():
            return self._merged.read_topic(ring_name, topic, epoch, offset, limit_bytes)

    def seek_time(self, ring_name: str, epoch: int, timestamp_ns: int) -> int:
        """Offset of the first record of that time or later; the end of the epoch if there is none."""
        ends = []
        for reader in self._of_ring(ring_name):
            with self._disk():
                epochs = [info.end_offset for info in reader.epochs(ring_name) if info.epoch == epoch]
                offset = reader.seek_time(ring_name, epoch, timestamp_ns)
            ends.append((offset >= max(epochs, default=0), offset))
        candidates, behind = [at for out, at in ends if not out], [at for out, at in ends if out]
        return min(candidates) if candidates else max(behind, default=0)

    def damage(self) -> Iterator[tuple[str, str]]:
        """Place and description of each damaged part that was read so far."""
        for directory, reader in self._readers.items():
            lost = reader.lost
            yield from ((str(directory / name), reason) for name, reason in lost.items())
            for place in reader.damaged.values():
                if place.segment not in lost:
                    name = place.ring_name or "unknown"
                    where = f"{directory / place.segment} at {place.place}"
                    yield where, f"{place.length} damaged bytes of ring {name}"
            for archive in reader.archive.all():
                yield from ((f"{archive.path}, {part}", reason) for part, reason in archive.damage.items())

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise _unreadable(self.directory, error) from error

    def _of_ring(self, ring_name: str) -> Sequence[LogReader]:
        return [
            reader
            for place, reader in self.readers.items()
            if may_have(self.directory, place, ring_name) or ring_name in self._foreign[place]
        ]


def _unreadable(directory: Path, error: OSError) -> EdgeError:
    dmesg = "see the kernel's messages (dmesg), and `brim segments verify`"
    hint = remedy_of(error) if error.filename and is_unreadable(error) else dmesg
    return EdgeError(f"log {directory} cannot be read: {problem_of(error)}", hint=hint)


class ScanPosition:
    """Records of some rings from one place to another.

    `filters`: only topics that one of them matches; empty: all topics. Each records() continues after the
    previous one.
    """

    def __init__(
        self, view: LogView, rings: Sequence[str], first: LogPlace, end: LogPlace, filters: Sequence[str] = ()
    ) -> None:
        self.missing = 0  # records that are no longer in the log, counted if all topics are read
        self.gaps: list[tuple[str, int, int, int]] = []  # the first ones: ring, epoch, first and last offset
        self.passed = 0  # records that were examined, including those of other topics
        self._view = view
        self._filters = [topic_filter.encode() for topic_filter in filters]
        self._exact = filters[0] if len(filters) == 1 and not has_wildcard(filters[0]) else ""
        self._accepted: dict[bytes, bool] = {}
        self._first, self._end = first, end
        self._at: dict[str, tuple[int, int]] = {}  # by ring: epoch and offset of the next record
        self._rings = list(rings)

    def ahead(self) -> int:
        """Number of records from here to the end, of all topics, in the log as it is now."""
        total = 0
        for ring in self._rings:
            for epoch in self._view.epochs(ring):
                first, end = self._span(ring, epoch)
                total += max(0, end - first)
        return total

    def records(self) -> Iterator[LogRecord]:
        """Records that are in the log now."""
        every = [self._of_ring(ring) for ring in self._rings]
        return every[0] if len(every) == 1 else heapq.merge(*every, key=lambda record: record.timestamp_ns)

    def runs(self, ring: str) -> Iterator[Range]:
        """Runs of one ring as in the log, of all topics, cut at both ends."""
        for epoch in self._view.epochs(ring):
            first, end = self._span(ring, epoch)
            while first < end and (ranges := self._view.read(ring, epoch.epoch, first)):
                for run in ranges:
                    self._miss(ring, epoch.epoch, first, min(run.offset, end))
                    if run.offset >= end:
                        first = end
                        break
                    cut = _before(run, end)
                    first = cut.offset + cut.count
                    self.passed += cut.count
                    yield cut
                    self._at[ring] = epoch.epoch, first
            self._miss(ring, epoch.epoch, first, end)
            self._at[ring] = epoch.epoch, max(first, end)

    def _miss(self, ring: str, epoch: int, first: int, end: int) -> None:
        if first < end:
            self.missing += end - first
            if len(self.gaps) < GAPS_MAX:
                self.gaps.append((ring, epoch, first, end - 1))

    def _span(self, ring: str, epoch: Epoch) -> tuple[int, int]:
        """First offset, and the one after the last, of the remaining part of an epoch."""
        at_epoch, at = self._at.get(ring, (-1, 0))
        if epoch.epoch < at_epoch:
            return epoch.end_offset, epoch.end_offset
        first = (
            at if epoch.epoch == at_epoch else self._resolved(ring, epoch, self._first, epoch.first_offset)
        )
        return first, min(epoch.end_offset, self._resolved(ring, epoch, self._end, epoch.end_offset))

    def _resolved(self, ring: str, epoch: Epoch, place: LogPlace, default: int) -> int:
        if place.offset is not None:
            return max(place.offset, epoch.first_offset)
        if place.timestamp_ns is not None:
            return max(self._view.seek_time(ring, epoch.epoch, place.timestamp_ns), epoch.first_offset)
        return default

    def _of_ring(self, ring: str) -> Iterator[LogRecord]:
        if self._exact:
            yield from self._of_topic(ring)
            return
        for run in self.runs(ring):
            for record in _records(ring, run):
                if not self._filters or self._accepts(record.topic):
                    yield record

    def _of_topic(self, ring: str) -> Iterator[LogRecord]:
        for epoch in self._view.epochs(ring):
            first, end = self._span(ring, epoch)
            while first < end and (ranges := self._view.read_topic(ring, self._exact, epoch.epoch, first)):
                for run in ranges:
                    for record in _records(ring, run):
                        if record.offset < end:
                            yield record
                    self.passed += max(0, min(run.offset + run.count, end) - first)
                    first = run.offset + run.count
            self._at[ring] = epoch.epoch, max(first, end)

    def _accepts(self, topic: bytes) -> bool:
        accepted = self._accepted.get(topic)
        if accepted is None:
            if len(self._accepted) >= TOPICS_REMEMBERED:
                self._accepted.clear()
            name = topic.decode(errors="replace")
            accepted = any(matches(topic_filter.decode(), name) for topic_filter in self._filters)
            self._accepted[topic] = accepted
        return accepted


def _before(run: Range, end: int) -> Range:
    """The part of a run before the offset `end`, which must be after its first record."""
    if run.offset + run.count <= end:
        return run
    last_timestamp_ns = run.first_timestamp_ns
    for at, header in record_headers(run.view):
        if header.offset >= end:
            return Range(run.position, run.epoch, run.offset, end - run.offset,
                         run.first_timestamp_ns, last_timestamp_ns, run.view[:at])  # fmt: skip
        last_timestamp_ns = header.timestamp_ns
    raise AssertionError(f"offset {end} is not in {run}")


def _records(ring: str, run: Range) -> Iterator[LogRecord]:
    view = run.view
    for at, (length, _, offset, timestamp_ns, _, key_length, flags) in record_headers(view):
        key_end = at + RECORD_HEADER_BYTES + key_length
        properties = _properties(view, key_end) if flags & FLAG_PROPERTIES else b""
        begin = at + payload_position(key_length, len(properties))
        topic = bytes(view[at + RECORD_HEADER_BYTES : key_end])
        payload = view[begin : at + length]
        yield LogRecord(ring, run.epoch, offset, timestamp_ns, topic, flags, properties, payload)


def _properties(view: memoryview, at: int) -> bytes:
    """Properties with their length: up to four bytes of seven bits, the lowest first."""
    length = index = 0
    while True:
        byte = view[at + index]
        length |= (byte & 0x7F) << 7 * index
        index += 1
        if byte < 0x80:
            return bytes(view[at : at + index + length])
