"""The archives of a log: what LogReader asks for records that no segment has any more.

Owns which archives there are, a few decompressed parts, and the numbers that tell how much compression saves.
Never writes; removing is for who owns the log (remove()).

What is damaged is left out and remembered, here for a whole archive, by ArchiveFile.damage for parts: a
reader sees the gap by the offsets, as with a damaged extent.

Threads: any; one reads at a time, since they share what is decompressed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from persistence.archive.file import ArchiveFile, Cache
from persistence.archive.layout import WINDOW_BYTES, archive_name, base_of_archive
from persistence.errors import ArchiveUnavailable, FormatError
from persistence.facts import RingFacts, SegmentFacts
from persistence.files import Files
from persistence.verified import from_offset, from_time
from ringbuf import Range

__all__ = ["Archive"]

CACHE_BYTES = 24 << 20  # two windows of records, with their heads: one who reads on, and one who looks back


class _Span(NamedTuple):
    """What an archive holds of a ring and epoch: first <= offset < end, perhaps with gaps."""

    first: int
    end: int
    end_position: int  # in the ring
    base: int


class Archive:
    """The archives in `directory`.  They are looked for once, and whenever refresh() is called."""

    def __init__(self, files: Files, directory: str, cache_bytes: int = CACHE_BYTES) -> None:
        self.unreadable: dict[int, str] = {}  # by base: why
        self.reads = 0  # calls that found something here
        self.changes = 0  # raised whenever an archive comes or goes
        self._files = files
        self._directory = directory
        self._lock = threading.Lock()  # of what there is; held for look-ups
        self._reading = threading.Lock()  # of what has been decompressed
        self._cache = Cache(cache_bytes)
        self._bases: set[int] | None = None
        self._opened: dict[int, ArchiveFile] = {}
        self._spans: dict[tuple[str, int], list[_Span]] = {}

    # ---- what is there ----

    def refresh(self) -> None:
        """Looks which archives there are.  Raises OSError."""
        with self._lock:
            before, self._bases = self._bases, None
            now = self._listed()
            for base in set(self._opened) - now:
                del self._opened[base]
            self.unreadable = {}  # Perhaps only for want of descriptors.
            self.changes += before != now
            self._index()

    def add(self, base: int) -> None:
        """An archive has been made."""
        with self._lock:
            self._listed().add(base)
            self._opened.pop(base, None)
            self.unreadable.pop(base, None)
            self._known()
            self.changes += 1

    def remove(self, base: int) -> None:
        """Unlinks an archive.  Raises OSError: it is there yet."""
        with suppress(FileNotFoundError):
            self._files.unlink(os.path.join(self._directory, archive_name(base)))
        with self._lock:
            self._listed().discard(base)
            self._opened.pop(base, None)
            self.unreadable.pop(base, None)
            self.changes += 1
            self._index()
        with self._reading:
            self._cache.forget(base)

    def forget(self) -> None:
        """Lets go of what has been decompressed."""
        with self._reading:
            self._cache.forget()

    def all(self) -> list[ArchiveFile]:
        """Those that can be read, in the order of the log."""
        with self._lock:
            here = self._known()
            return [here[base] for base in sorted(here)]

    def bases(self) -> list[int]:
        """Base positions of all of them, rising."""
        with self._lock:
            return sorted(self._listed())

    def end_position(self) -> int:
        """The log position where the last of them ends; 0: there is none."""
        with self._lock:
            last = max(self._listed(), default=None)
            found = None if last is None else self._opened.get(last) or self._open(last)
            return 0 if found is None else found.base + found.footer.end

    def note(self, base: int, damage: Mapping[str, str]) -> None:
        """Somebody has found these parts damaged."""
        with self._lock:
            if (found := self._known().get(base)) is not None:
                found.damage.update(damage)

    @property
    def damaged_places(self) -> int:
        """Archives that cannot be read, and damaged parts of the others."""
        with self._lock:
            return len(self.unreadable) + sum(len(it.damage) for it in self._known().values())

    def segments(self) -> list[SegmentFacts]:
        """What each archive holds, rising; also of those that cannot be read."""
        found = [_facts(it) for it in self.all()]
        with self._lock:
            unreadable = dict(self.unreadable)
        found += [
            SegmentFacts(base, 0, 0, "lost", 0, 0, (), (), reason=why) for base, why in unreadable.items()
        ]
        return sorted(found, key=lambda it: it.base)

    def facts(self, base: int) -> SegmentFacts | None:
        """What one of them holds; None: it is not there, or cannot be read."""
        with self._lock:
            found = self._known().get(base)
        return None if found is None else _facts(found)

    def epochs(self, ring_name: str) -> list[tuple[int, int, int]]:
        """Epoch, first and end offset of what is there of a ring, in the order of the log."""
        with self._lock:
            self._known()
            spans = [(its[0].base, epoch, its[0].first, its[-1].end)
                     for (name, epoch), its in self._spans.items() if name == ring_name]  # fmt: skip
        return [(epoch, first, end) for _, epoch, first, end in sorted(spans)]

    def first_offset(self, ring_name: str, epoch: int, offset: int) -> int | None:
        """The first offset from `offset` on that an archive has, or None."""
        with self._lock:
            here = self._known()
            for span in self._spans.get((ring_name, epoch), ()):
                if span.end > offset:
                    runs = here[span.base].runs(ring_name, epoch)
                    return next(max(run.first_offset, offset) for run in runs if run.end_offset > offset)
            return None

    def end_offset(self, ring_name: str, epoch: int) -> int:
        """One more than the last offset of that epoch; 0: there is none."""
        with self._lock:
            self._known()
            spans = self._spans.get((ring_name, epoch))
            return spans[-1].end if spans else 0

    # ---- reading ----

    def read(self, ring_name: str, epoch: int, offset: int, limit_bytes: int) -> list[Range]:
        """Runs of records from `offset` on, or from the next one that an archive has: about `limit_bytes`, at
        least one record.  Empty: there is none.  Raises OSError, ArchiveUnavailable.
        """
        return self._from(
            ring_name, epoch, lambda span: span.end > offset,
            lambda it, handle: it.read(handle, self._cache, ring_name, epoch, offset, limit_bytes),
        )  # fmt: skip

    def read_topic(
        self, ring_name: str, topic: bytes, epoch: int, offset: int, limit_bytes: int
    ) -> list[Range]:
        """As read(), but only records of that topic."""
        key = ring_name, epoch, topic
        return self._from(
            ring_name, epoch, lambda span: span.end > offset,
            lambda it, handle: it.read_topic(handle, self._cache, key, offset, limit_bytes),
        )  # fmt: skip

    def read_at(self, ring_name: str, epoch: int, position: int, limit_bytes: int) -> list[Range]:
        """As read(), from the record that holds the ring position, or the next behind it."""

        def at(it: ArchiveFile, handle: int) -> list[Range]:
            offset = it.offset_at(handle, self._cache, ring_name, epoch, position)
            if offset is None:
                return []
            return it.read(handle, self._cache, ring_name, epoch, offset, limit_bytes)

        return self._from(ring_name, epoch, lambda span: span.end_position > position, at)

    def seek_time(self, ring_name: str, epoch: int, timestamp_ns: int) -> int | None:
        """The offset of the first record of that time or later; None: all are earlier."""

        def later(it: ArchiveFile, handle: int) -> list[Range]:
            for offset in it.not_before(ring_name, epoch, timestamp_ns):
                for found in it.read(handle, self._cache, ring_name, epoch, offset, WINDOW_BYTES):
                    if (first := from_time(found, timestamp_ns)) is not None:
                        return [from_offset(found, first)]
            return []

        found = self._from(ring_name, epoch, lambda span: True, later)
        return found[0].offset if found else None

    # ---- inside: _lock is held, but in _from() ----

    def _listed(self) -> set[int]:
        """Bases of the archives, by their names."""
        if self._bases is None:
            found = map(base_of_archive, self._files.listdir(self._directory))
            self._bases = {base for base in found if base is not None}
        return self._bases

    def _known(self) -> dict[int, ArchiveFile]:
        """Those that can be read: their footers are, when somebody asks for the first time."""
        missing = self._listed() - self._opened.keys() - self.unreadable.keys()
        for base in sorted(missing):
            found = self._open(base)
            if found is not None:
                self._opened[base] = found
        if missing:
            self._index()
        return self._opened

    def _open(self, base: int) -> ArchiveFile | None:
        try:
            found = ArchiveFile.open(self._files, os.path.join(self._directory, archive_name(base)))
            if found.base != base:
                raise FormatError(f"it says that it is of {found.base}")
        except FileNotFoundError:
            return None
        except (ArchiveUnavailable, FormatError, OSError) as error:
            self.unreadable[base] = str(error)
            return None
        self.unreadable.pop(base, None)
        return found

    def _index(self) -> None:
        self._spans = {}
        here = self._opened
        for base in sorted(here):
            for ring in here[base].rings():
                runs = here[base].runs(*ring)
                span = _Span(runs[0].first_offset, runs[-1].end_offset, runs[-1].end_position, base)
                self._spans.setdefault(ring, []).append(span)

    def _from(
        self,
        ring_name: str,
        epoch: int,
        may: Callable[[_Span], bool],
        read: Callable[[ArchiveFile, int], list[Range]],
    ) -> list[Range]:
        """What the first archive gives that gives something, of those that may."""
        with self._lock:
            here = self._known()
            spans = [it for it in self._spans.get((ring_name, epoch), ()) if may(it)]
            files = [here[it.base] for it in spans]
        for file in files:
            try:
                with self._reading, file.opened() as handle:
                    found = read(file, handle)
            except FileNotFoundError:
                continue
            if found:
                with self._lock:
                    self.reads += 1
                return found
        return []


def _facts(file: ArchiveFile) -> SegmentFacts:
    """An archive as a segment."""
    lengths: dict[tuple[str, int], int] = {}
    times: dict[tuple[str, int], tuple[int, int]] = {}
    for window in file.footer.windows:
        for run in window.runs:
            ring = file.footer.rings[run.ring]
            first, last = times.get(ring, (window.first_timestamp_ns, window.last_timestamp_ns))
            lengths[ring] = lengths.get(ring, 0) + run.length
            times[ring] = min(first, window.first_timestamp_ns), max(last, window.last_timestamp_ns)
    rings = []
    for ring in sorted(file.rings()):
        runs = file.runs(*ring)
        records = sum(run.end_offset - run.first_offset for run in runs)
        rings.append(
            RingFacts(*ring, runs[0].first_offset, runs[-1].end_offset, records, *times[ring], lengths[ring])
        )
    return SegmentFacts(
        file.base,
        file.footer.end,
        file.size,
        "archived",
        min((it.first_timestamp_ns for it in rings), default=0),
        max((it.last_timestamp_ns for it in rings), default=0),
        tuple(rings),
        (),
        indexed=True,
        reason="; ".join(f"{part}: {why}" for part, why in file.damage.items()),
    )
