"""Archives of a log: records whose segments were archived and removed.

Owns the list of archives and a few decoded row groups.  Never writes.  Only the owner of the log removes
archives (remove()).

Damaged data is skipped: a reader sees the gap by the offsets, as with a damaged extent.  `unreadable` lists
damaged archives, ArchiveFile.damage the damaged row groups of one archive.  The first read that skips damage
logs it (damage_log.py).

An archive that the disk cannot read is not skipped, because the cause may pass: reads of records raise
OSError (salvaging_files.py).

Threads: any.  One thread reads at a time, because all share the decoded row groups.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from persistence.archive.archive_file import ArchiveFile
from persistence.archive.cache import Cache
from persistence.archive.damage_log import DamageLog
from persistence.archive.layout import GROUP_BYTES, RowGroup, archive_name, base_of_archive
from persistence.archive.library import release_unused
from persistence.durable_file import is_unreadable
from persistence.errors import ArchiveUnavailable, FormatError, is_process_limit
from persistence.files import Files
from persistence.segment.format import CatalogueEntry
from persistence.segment.segment_info import RingInfo, SegmentInfo
from persistence.segment.verified_reader import from_offset, from_time
from ringbuf import Range

CACHE_BYTES = 4 * GROUP_BYTES  # a reader that goes forward, and one that looks back


class _Span(NamedTuple):
    """Span of a ring and epoch in an archive: first <= offset < end, perhaps with gaps."""

    first: int
    end: int
    end_position: int  # in the ring
    base: int


class Archive:
    """The archives in `directory`, listed at the first use and by refresh()."""

    def __init__(self, files: Files, directory: str, cache_bytes: int = CACHE_BYTES) -> None:
        self.unreadable: dict[int, str] = {}  # by base, with the cause
        self._failing: dict[int, OSError] = {}  # those of them whose cause may pass
        self.reads = 0  # calls that found something here
        self.changes = 0  # raised whenever an archive comes or goes
        self._files = files
        self._directory = directory
        self._lock = threading.Lock()  # of the list; held for look-ups
        self._reading = threading.Lock()  # of the decoded row groups
        self._damage_log = DamageLog()
        self._cache = Cache(cache_bytes)
        self._bases: set[int] | None = None
        self._opened: dict[int, ArchiveFile] = {}
        self._spans: dict[tuple[str, int], list[_Span]] = {}

    def follow(self, other: Archive) -> None:
        """Log no damage that `other`, a reader of the same archives, has logged."""
        self._damage_log = other._damage_log

    # ---- list ----

    def refresh(self) -> None:
        """List the directory again.  Raises OSError."""
        with self._lock:
            before, self._bases = self._bases, None
            self.unreadable = {}  # the cause may have been a lack of descriptors
            self._failing = {}
            now = self._listed()
            for base in set(self._opened) - now:
                del self._opened[base]
            self.changes += before != now
            self._index()

    def add(self, base: int) -> None:
        """Add a new archive."""
        with self._lock:
            self._listed().add(base)
            self._opened.pop(base, None)
            self.unreadable.pop(base, None)
            self._failing.pop(base, None)
            self._damage_log.forget(base)
            self.changes += 1
            self._known()

    def remove(self, base: int) -> None:
        """Unlink an archive.  Raises OSError: it is still there."""
        with suppress(FileNotFoundError):
            self._files.unlink(self._path(base))
        with self._lock:
            self._listed().discard(base)
            self._opened.pop(base, None)
            self.unreadable.pop(base, None)
            self._failing.pop(base, None)
            self._damage_log.forget(base)
            self.changes += 1
            self._index()
        with self._reading:
            self._cache.forget(base)

    def forget(self) -> None:
        """Drop the decoded row groups."""
        with self._reading:
            self._cache.forget()
        release_unused()

    def all(self) -> list[ArchiveFile]:
        """Readable archives, in the order of the log."""
        with self._lock:
            here = self._known()
            return [here[base] for base in sorted(here)]

    def bases(self) -> list[int]:
        """Base positions of all archives, rising."""
        with self._lock:
            return sorted(self._listed())

    def end_position(self) -> int:
        """Log position at the end of the last archive; 0 without archives, or if it is unreadable."""
        with self._lock:
            last = max(self._listed(), default=None)
            archive = None if last is None else self._opened.get(last) or self._open(last)
            return 0 if archive is None else archive.base + archive.catalogue.end

    def last_catalogue(self) -> dict[int, CatalogueEntry]:
        """The catalogue at the end of the last readable archive; empty without one."""
        with self._lock:
            archives = map(self._open, sorted(self._listed(), reverse=True))
            last = next(filter(None, archives), None)
            return {} if last is None else dict(last.catalogue.closing)

    def add_damage(self, base: int, damage: Mapping[str, str]) -> None:
        """Note damaged parts that a scrub has found."""
        self._damage_log.report(base, self._path(base), damage)
        with self._lock:
            if (archive := self._known().get(base)) is not None:
                archive.damage.update(damage)

    @property
    def damaged_places(self) -> int:
        """Number of unreadable archives, and of damaged parts of others that were opened."""
        with self._lock:
            return len(self.unreadable) + sum(len(archive.damage) for archive in self._opened.values())

    def segments(self) -> list[SegmentInfo]:
        """Facts of each archive, rising, with unreadable ones."""
        segments = [_segment_info(archive) for archive in self.all()]
        with self._lock:
            unreadable = dict(self.unreadable)
        segments += [
            SegmentInfo(base, 0, 0, "lost", 0, 0, (), (), reason=why) for base, why in unreadable.items()
        ]
        return sorted(segments, key=lambda segment: segment.base)

    def info(self, base: int) -> SegmentInfo | None:
        """Facts of an archive; None: it is missing or unreadable."""
        with self._lock:
            archive = self._known().get(base)
        return None if archive is None else _segment_info(archive)

    def epochs(self, ring_name: str) -> list[tuple[int, int, int]]:
        """Epoch, first and end offset of the archived records of a ring, in the order of the log.

        Raises OSError: the disk cannot read an archive.
        """
        with self._lock:
            self._readable()
            spans = [(spans[0].base, epoch, spans[0].first, spans[-1].end)
                     for (name, epoch), spans in self._spans.items() if name == ring_name]  # fmt: skip
        return [(epoch, first, end) for _, epoch, first, end in sorted(spans)]

    def first_offset(self, ring_name: str, epoch: int, offset: int) -> int | None:
        """The first offset from `offset` on that an archive has, or None.  Raises OSError as epochs()."""
        with self._lock:
            here = self._readable()
            for span in self._spans.get((ring_name, epoch), ()):
                if span.end > offset:
                    groups = here[span.base].groups(ring_name, epoch)
                    return next(
                        max(group.first_offset, offset) for group in groups if group.end_offset > offset
                    )
            return None

    def end_offset(self, ring_name: str, epoch: int) -> int:
        """One more than the last offset of that epoch; 0: there is none.  Raises OSError as epochs()."""
        with self._lock:
            self._readable()
            spans = self._spans.get((ring_name, epoch))
            return spans[-1].end if spans else 0

    # ---- reading ----

    def read(self, ring_name: str, epoch: int, offset: int, limit_bytes: int) -> list[Range]:
        """Runs of records from `offset` on, or from the next one that an archive has: about `limit_bytes`, at
        least one record.  Empty: there is none.  Raises OSError, ArchiveUnavailable.
        """
        return self._from(
            ring_name, epoch, lambda span: span.end > offset,
            lambda file, handle: file.read(handle, self._cache, ring_name, epoch, offset, limit_bytes),
        )  # fmt: skip

    def read_topic(
        self, ring_name: str, topic: bytes, epoch: int, offset: int, limit_bytes: int
    ) -> list[Range]:
        """As read(), but only records of that topic."""
        return self._from(
            ring_name, epoch, lambda span: span.end > offset,
            lambda file, handle: file.read(handle, self._cache, ring_name, epoch, offset, limit_bytes, topic),
        )  # fmt: skip

    def read_at(self, ring_name: str, epoch: int, position: int, limit_bytes: int) -> list[Range]:
        """As read(), from the record that holds the ring position, or the next record after it."""

        def at(file: ArchiveFile, handle: int) -> list[Range]:
            offset = file.offset_at(handle, self._cache, ring_name, epoch, position)
            if offset is None:
                return []
            return file.read(handle, self._cache, ring_name, epoch, offset, limit_bytes)

        return self._from(ring_name, epoch, lambda span: span.end_position > position, at)

    def seek_time(self, ring_name: str, epoch: int, timestamp_ns: int) -> int | None:
        """The offset of the first record of that time or later; None: all are earlier."""

        def later(file: ArchiveFile, handle: int) -> list[Range]:
            for group in file.groups(ring_name, epoch):
                if group.last_timestamp_ns < timestamp_ns:
                    continue
                for run in file.read(handle, self._cache, ring_name, epoch, group.first_offset, group.bytes):
                    if (first := from_time(run, timestamp_ns)) is not None:
                        return [from_offset(run, first)]
            return []

        ranges = self._from(ring_name, epoch, lambda span: True, later)
        return ranges[0].offset if ranges else None

    # ---- inside: _lock is held, but in _from() ----

    def _listed(self) -> set[int]:
        """Bases of the archives, by their names."""
        if self._bases is None:
            bases = map(base_of_archive, self._files.listdir(self._directory))
            self._bases = {base for base in bases if base is not None}
        return self._bases

    def _known(self) -> dict[int, ArchiveFile]:
        """Readable archives; footers that are not in memory are read."""
        missing = self._listed() - self._opened.keys() - self.unreadable.keys()
        try:
            for base in sorted(missing):
                archive = self._open(base)
                if archive is not None:
                    self._opened[base] = archive
        finally:
            if missing:
                self._index()
        return self._opened

    def _readable(self) -> dict[int, ArchiveFile]:
        """As _known(), for records.  Raises OSError: an archive that the disk cannot read may have them."""
        for base in self._failing:
            self.unreadable.pop(base, None)
        self._failing.clear()
        here = self._known()
        for error in self._failing.values():
            raise error
        return here

    def _path(self, base: int) -> str:
        return os.path.join(self._directory, archive_name(base))

    def _open(self, base: int) -> ArchiveFile | None:
        try:
            archive = ArchiveFile.open(self._files, self._directory, base)
        except FileNotFoundError:
            return None
        except (ArchiveUnavailable, FormatError, OSError) as error:
            if is_process_limit(error):
                raise  # the records are there: a result without them would be wrong
            self.unreadable[base] = str(error)
            if isinstance(error, OSError) and is_unreadable(error):
                self._failing[base] = error
            if isinstance(error, FormatError):
                self._damage_log.report(base, self._path(base), {"footer": str(error)})
            return None
        self.unreadable.pop(base, None)
        return archive

    def _index(self) -> None:
        self._spans = {}
        here = self._opened
        for base in sorted(here):
            for ring in here[base].rings():
                groups = here[base].groups(*ring)
                span = _Span(groups[0].first_offset, groups[-1].end_offset, groups[-1].end_position, base)
                self._spans.setdefault(ring, []).append(span)

    def _from(
        self,
        ring_name: str,
        epoch: int,
        may: Callable[[_Span], bool],
        read: Callable[[ArchiveFile, int], list[Range]],
    ) -> list[Range]:
        """Ranges of the first archive for which `read` returns some; `may` selects the archives to try."""
        with self._lock:
            here = self._readable()
            spans = [span for span in self._spans.get((ring_name, epoch), ()) if may(span)]
            files = [here[span.base] for span in spans]
        for file in files:
            try:
                with self._reading, file.opened() as handle:
                    ranges = read(file, handle)
            except FileNotFoundError:
                continue
            finally:
                if file.damage:
                    self._damage_log.report(file.base, file.path, dict(file.damage))
            if ranges:
                with self._lock:
                    self.reads += 1
                return ranges
        return []


def _segment_info(file: ArchiveFile) -> SegmentInfo:
    """An archive as a segment."""
    rings = tuple(_ring_info(file.groups(*ring)) for ring in sorted(file.rings()))
    return SegmentInfo(
        file.base,
        file.catalogue.end,
        file.size,
        "archived",
        min((ring.first_timestamp_ns for ring in rings), default=0),
        max((ring.last_timestamp_ns for ring in rings), default=0),
        rings,
        (),
        indexed=True,
        reason="; ".join(f"{part}: {why}" for part, why in file.damage.items()),
    )


def _ring_info(groups: list[RowGroup]) -> RingInfo:
    return RingInfo(
        groups[0].ring,
        groups[0].epoch,
        groups[0].first_offset,
        groups[-1].end_offset,
        sum(group.records for group in groups),
        min(group.first_timestamp_ns for group in groups),
        max(group.last_timestamp_ns for group in groups),
        sum(group.bytes for group in groups),
    )
