"""Deferred log work: index sealed segments, preallocate the next one.

Owns the list of sealed segments, its callbacks, and the prepared files.  Log inherits from it.  It never
touches the active segment.

Threads: run_maintenance() and remove() may run in any thread except the log's, one at a time; the rest
belongs to the log thread.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from persistence.files import Files, size_of
from persistence.log.footer_builder import FooterBuilder
from persistence.log.preallocate import SegmentPreallocator
from persistence.read.log_reader import LogReader
from persistence.segment.format import segment_name
from persistence.segment.writer import ActiveSegment
from persistence.stats import LogStats

log = logging.getLogger(__name__)

REMOVAL_WAIT_S = 0.2  # longest wait for the removal of a segment, whose file saves writing zeros
RECENT = 4  # segments that a killed process may not have reported


class SealedSegments:
    """Part of a Log with work that is independent of its writing."""

    reader: LogReader
    retain_bytes: int
    _stats: LogStats
    _lock: int | None
    _active: ActiveSegment | None

    def __init__(self, files: Files, directory: str, segment_bytes: int) -> None:
        self.files = files
        self.directory = directory
        self.segment_bytes = segment_bytes
        self._indexer = FooterBuilder(files, directory)
        self.on_indexed = self._indexer.on_indexed  # called with each segment that got a footer
        self.on_indexed.append(self._size_again)
        self.on_sealed: list[Callable[[int], object]] = [self._indexer.add]
        self._preallocator = SegmentPreallocator(files, directory, segment_bytes)
        # bytes to keep free, for a disk of that size; None: no limit
        self.floor: Callable[[int], int] | None = None
        self._sizes: dict[int, int] = {}  # of sealed segments, by base
        self._sizing = threading.Lock()  # protects _sizes
        self._sealed: queue.SimpleQueue[int] = queue.SimpleQueue()  # not yet reported to on_sealed

    def sealed(self) -> dict[int, int]:
        """File size of each sealed segment in bytes, including its footer, by base position; any thread."""
        with self._sizing:
            return dict(self._sizes)

    def remove(self, base: int) -> None:
        """Remove a sealed segment; its file becomes the next prepared one if needed.

        From any thread except the log's.  Readers with the file open continue, or find the file reused.
        Raises OSError: the segment may still exist, and this may be called again.
        """
        with self._sizing:
            size = self._sizes.get(base)
        if size is None:
            return
        path = os.path.join(self.directory, segment_name(base))
        recycled = False
        with (
            self._indexer.removing(base),
            suppress(FileNotFoundError),
        ):  # an earlier attempt removed it
            recycled = self._preallocator.recycle(path, size)
            if not recycled:
                self.files.unlink(path)
        if not recycled:
            # otherwise it could reappear after a crash, without later ones
            self.files.dirsync(self.directory)
        self.reader.tables.remove(base)
        with self._sizing:
            self._sizes.pop(base, None)
        self._stats.segments_removed += 1

    def has_room(self, size: int) -> bool:
        """True if `size` more bytes keep the disk's `floor` free.

        Also True if the disk gives no answer: the write will report the cause.
        """
        if self.floor is None:
            return True
        try:
            free_bytes, total_bytes = self.files.disk(self.directory)
        except OSError:
            return True
        floor = self.floor(total_bytes)
        return not floor or free_bytes - size >= floor

    @property
    def needs_maintenance(self) -> bool:
        """True if run_maintenance() has work."""
        return not self._sealed.empty() or self.needs_preallocation

    def run_maintenance(
        self, stopped: Callable[[], bool] = lambda: False, *, paced: bool = False
    ) -> float | None:
        """Do deferred work: report sealed segments to `on_sealed`, write footers, prepare the next file.

        `paced`: limit the footers as in footer_builder.py.  Returns the seconds until more footers are due;
        None: none without new segments.

        Runs in another thread than the rest, or between two calls of it.  Raises OSError from prepare().
        Exceptions of `on_sealed` are logged, and do not stop the rest.
        """
        while not self._sealed.empty() and not stopped():
            self._notify_sealed(self._sealed.get())
        pause_s = None if stopped() else self._indexer.write(self.reader, paced=paced)
        self.prepare(stopped, paced=paced)
        return pause_s

    def _notify_sealed(self, base: int) -> None:
        for call in list(self.on_sealed):
            try:
                call(base)
            except Exception as error:  # noqa: BLE001  a failing callback must not stop the others
                log.warning(
                    "callback for a sealed segment failed segment=%s reason=%r", segment_name(base), error
                )

    def _removal_is_near(self) -> bool:
        """True if the next segment at the latest causes a removal, whose file is then reused."""
        with self._sizing:
            return 0 < self.retain_bytes < sum(self._sizes.values()) + 2 * self.segment_bytes

    @property
    def needs_preallocation(self) -> bool:
        """True if prepare() has work."""
        if self._active is None or self._lock is None or not self._preallocator.is_needed:
            return False
        if not self.has_room(self.segment_bytes):
            return False
        return not self._preallocator.ready or not self._removal_is_near()

    def prepare(self, stopped: Callable[[], bool] = lambda: False, *, paced: bool = False) -> None:
        """See SegmentPreallocator.prepare().  May run in another thread than the rest.

        `paced`: other code removes segments meanwhile.
        """
        if self.needs_preallocation:
            self._preallocator.prepare(stopped, REMOVAL_WAIT_S if paced and self._removal_is_near() else 0.0)

    def _found_sealed(self, bases: Sequence[int]) -> None:
        """Queue the segments found at a start; the last ones may not have been reported."""
        names = {base: os.path.join(self.directory, segment_name(base)) for base in bases}
        self._sizes = {base: size_of(self.files, path) for base, path in names.items()}
        for base in bases[-RECENT:]:
            self._sealed.put(base)

    def _size_again(self, base: int) -> None:
        size = size_of(self.files, os.path.join(self.directory, segment_name(base)))
        with self._sizing:
            if base in self._sizes and size:
                self._sizes[base] = size

    def _add_sealed(self, base: int, size: int) -> None:
        with self._sizing:
            self._sizes[base] = size
        self._sealed.put(base)
