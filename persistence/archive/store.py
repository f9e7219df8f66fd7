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
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from persistence.archive.file import ArchiveFile, Cache
from persistence.archive.layout import archive_name, base_of_archive
from persistence.errors import ArchiveUnavailable, FormatError
from persistence.files import Files
from ringbuf import Range

__all__ = ["Archive", "ArchivedRing"]

CACHE_BYTES = 24 << 20  # two windows of records, with their heads: one who reads on, and one who looks back

Result = TypeVar("Result")


class ArchivedRing(NamedTuple):
    """What an archive holds of a ring and epoch: first_offset <= offset < end_offset, perhaps with gaps."""

    name: str
    epoch: int
    first_offset: int
    end_offset: int
    record_bytes: int  # as they stood in the ring


class Archive:
    """The archives in `directory`.  They are looked for once, and whenever refresh() is called."""

    def __init__(self, files: Files, directory: str, cache_bytes: int = CACHE_BYTES) -> None:
        self.unreadable: dict[int, str] = {}  # by base: why
        self.reads = 0  # calls that found something here
        self._files = files
        self._directory = directory
        self._lock = threading.Lock()
        self._cache = Cache(cache_bytes)
        self._files_by_base: dict[int, ArchiveFile] | None = None
        self._spans: dict[tuple[str, int], list[tuple[int, int, int]]] = {}  # first, end offset, base

    # ---- what is there ----

    def refresh(self) -> None:
        """Looks which archives there are.  Raises OSError."""
        with self._lock:
            self._list()

    def add(self, base: int) -> None:
        """An archive has been made."""
        with self._lock:
            here = self._known()
            found = self._open(base)
            if found is not None:
                here[base] = found
            self._index()

    def remove(self, base: int) -> None:
        """Unlinks an archive.  Raises OSError."""
        with self._lock:
            self._known().pop(base, None)
            self.unreadable.pop(base, None)
            self._cache.forget(base)
            self._index()
        self._files.unlink(os.path.join(self._directory, archive_name(base)))

    def forget(self) -> None:
        """Lets go of what has been decompressed."""
        with self._lock:
            self._cache.forget()

    def all(self) -> list[ArchiveFile]:
        """Those that can be read, in the order of the log."""
        with self._lock:
            here = self._known()
            return [here[base] for base in sorted(here)]

    def rings(self, file: ArchiveFile) -> list[ArchivedRing]:
        """What is in an archive."""
        found = []
        lengths: dict[tuple[str, int], int] = {}
        for window in file.footer.windows:
            for run in window.runs:
                ring = file.footer.rings[run.ring]
                lengths[ring] = lengths.get(ring, 0) + run.length
        for name, epoch in file.rings():
            runs = file.runs(name, epoch)
            span = runs[0].first_offset, runs[-1].end_offset
            found.append(ArchivedRing(name, epoch, *span, lengths[name, epoch]))
        return found

    def epochs(self, ring_name: str) -> list[tuple[int, int, int]]:
        """Epoch, first and end offset of what is there of a ring, in the order of the log."""
        with self._lock:
            self._known()
            spans = [(its[0][2], epoch, its[0][0], its[-1][1]) for (name, epoch), its in self._spans.items()
                     if name == ring_name]  # fmt: skip
        return [(epoch, first, end) for _, epoch, first, end in sorted(spans)]

    def first_offset(self, ring_name: str, epoch: int, offset: int) -> int | None:
        """The first offset from `offset` on that an archive has, or None."""
        with self._lock:
            self._known()
            for _, end, base in self._spans.get((ring_name, epoch), ()):
                if end > offset:
                    runs = self._known()[base].runs(ring_name, epoch)
                    return next(max(run.first_offset, offset) for run in runs if run.end_offset > offset)
            return None

    # ---- reading ----

    def read(self, ring_name: str, epoch: int, offset: int, limit_bytes: int) -> list[Range]:
        """Runs of records from `offset` on, or from the next one that an archive has: about `limit_bytes`, at
        least one record.  Empty: there is none.  Raises OSError, ArchiveUnavailable.
        """
        return self._from(
            ring_name, epoch, offset,
            lambda it, handle: it.read(handle, self._cache, ring_name, epoch, offset, limit_bytes),
        )  # fmt: skip

    def read_topic(
        self, ring_name: str, topic: bytes, epoch: int, offset: int, limit_bytes: int
    ) -> list[Range]:
        """As read(), but only records of that topic."""
        key = ring_name, epoch, topic
        return self._from(
            ring_name, epoch, offset,
            lambda it, handle: it.read_topic(handle, self._cache, key, offset, limit_bytes),
        )  # fmt: skip

    def read_at(self, ring_name: str, epoch: int, position: int, limit_bytes: int) -> list[Range]:
        """As read(), from the record that holds the ring position, or the next behind it."""

        def at(it: ArchiveFile, handle: int) -> list[Range]:
            offset = it.offset_at(handle, self._cache, ring_name, epoch, position)
            if offset is None:
                return []
            return it.read(handle, self._cache, ring_name, epoch, offset, limit_bytes)

        return self._from(ring_name, epoch, 0, at)

    # ---- inside; the lock is held ----

    def _known(self) -> dict[int, ArchiveFile]:
        return self._list() if self._files_by_base is None else self._files_by_base

    def _list(self) -> dict[int, ArchiveFile]:
        known = self._files_by_base or {}
        found: dict[int, ArchiveFile] = {}
        for base in sorted(
            it for it in map(base_of_archive, self._files.listdir(self._directory)) if it is not None
        ):
            it = known.get(base) or self._open(base)
            if it is not None:
                found[base] = it
        self._files_by_base = found
        self._index()
        return found

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
        here = self._files_by_base or {}
        for base in sorted(here):
            for ring in here[base].rings():
                runs = here[base].runs(*ring)
                span = runs[0].first_offset, runs[-1].end_offset, base
                self._spans.setdefault(ring, []).append(span)

    def _from(
        self, ring_name: str, epoch: int, offset: int, read: Callable[[ArchiveFile, int], list[Range]]
    ) -> list[Range]:
        """What the first archive gives that gives something."""
        with self._lock:
            here = self._known()
            for _, end, base in self._spans.get((ring_name, epoch), ()):
                if end <= offset or base not in here:
                    continue
                try:
                    with here[base].opened() as handle:
                        found = read(here[base], handle)
                except FileNotFoundError:
                    continue
                if found:
                    self.reads += 1
                    return found
            return []
