"""What of a log may wait: segments that are sealed, and room for those to come.

Owns the list of sealed segments and who is told of them, and the prepared room.  Log is made of it; it never
touches the active segment.

Threads: tend() and remove() are for any but the log's, one at a time; the rest is the log thread's.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from persistence.files import Files, size_of
from persistence.format import segment_name
from persistence.indexing import Indexer
from persistence.reading import LogReader
from persistence.room import Room
from persistence.segment import ActiveSegment
from persistence.stats import LogStats

__all__ = ["Tended"]

log = logging.getLogger(__name__)

GOING_S = 0.2  # at most, until a segment has gone that is to go: zeros would be work done twice
RECENT = 4  # segments that a process which was killed may not have told of


class Tended:
    """The part of a Log that is tended beside its writing."""

    reader: LogReader
    retain_bytes: int
    _stats: LogStats
    _lock: int | None
    _active: ActiveSegment | None

    def __init__(self, files: Files, directory: str, segment_bytes: int) -> None:
        self.files = files
        self.directory = directory
        self.segment_bytes = segment_bytes
        self._indexer = Indexer(files, directory)
        self.on_indexed = self._indexer.on_indexed  # told of each segment that has been given a footer
        self.on_indexed.append(self._size_again)
        self.on_sealed: list[Callable[[int], object]] = [self._indexer.add]
        self._room = Room(files, directory, segment_bytes)
        self.floor: Callable[[int], int] | None = None  # of a disk's bytes, those that stay free; None: none
        self._sizes: dict[int, int] = {}  # of sealed segments, by base
        self._sizing = threading.Lock()  # over _sizes
        self._sealed: queue.SimpleQueue[int] = queue.SimpleQueue()  # and on_sealed does not know yet

    def sealed(self) -> dict[int, int]:
        """Bytes that the file of each sealed segment takes, its footer too, by base position.  From any
        thread.
        """
        with self._sizing:
            return dict(self._sizes)

    def remove(self, base: int) -> None:
        """Lets a sealed segment go; its file becomes room for the next one, if one is wanted.

        From any thread but the log's.  What holds its records open reads on, or finds the file used again.
        Raises OSError: the segment may be there yet, and this may be called again.
        """
        with self._sizing:
            size = self._sizes.get(base)
        if size is None:
            return
        path = os.path.join(self.directory, segment_name(base))
        recycled = False
        with self._indexer.gone(base), suppress(FileNotFoundError):  # An earlier try may have got as far.
            recycled = self._room.recycle(path, size)
            if not recycled:
                self.files.unlink(path)
        if not recycled:
            self.files.dirsync(self.directory)  # Else a crash could bring it back without those removed next.
        self.reader.remove(base)
        with self._sizing:
            self._sizes.pop(base, None)
        self._stats.segments_removed += 1

    def has_room(self, size: int) -> bool:
        """True if `size` bytes more leave free what `floor` says.  Also where the disk does not answer: the
        write will say why.
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
    def wants_tending(self) -> bool:
        """Whether tend() would do something."""
        return not self._sealed.empty() or self.wants_prepared

    def tend(self, stopped: Callable[[], bool] = lambda: False, *, paced: bool = False) -> float | None:
        """What is not urgent: tells `on_sealed` of segments that are whole, writes their footers, all or
        `paced` (indexing.py), and prepares the next one's room.  Seconds until there are more to write; None:
        not by itself.

        In another thread than the rest, or between two calls of it.  Raises OSError from prepare(); what
        `on_sealed` raises is logged, and stops nothing.
        """
        while not self._sealed.empty() and not stopped():
            self._tell(self._sealed.get())
        pause_s = None if stopped() else self._indexer.write(self.reader, paced=paced)
        self.prepare(stopped, paced=paced)
        return pause_s

    def _tell(self, base: int) -> None:
        for call in list(self.on_sealed):
            try:
                call(base)
            except Exception as error:  # noqa: BLE001  One that fails must not keep the others from it.
                log.warning("sealed segment=%s reason=%r", segment_name(base), error)

    def _one_goes(self) -> bool:
        """Whether another segment makes one go at the latest, whose file is room then."""
        with self._sizing:
            return 0 < self.retain_bytes < sum(self._sizes.values()) + 2 * self.segment_bytes

    @property
    def wants_prepared(self) -> bool:
        """Whether prepare() would do something."""
        if self._active is None or self._lock is None or not self._room.wanted:
            return False
        if not self.has_room(self.segment_bytes):
            return False
        return not self._room.ready or not self._one_goes()

    def prepare(self, stopped: Callable[[], bool] = lambda: False, *, paced: bool = False) -> None:
        """See Room.prepare().  May run in another thread than the rest; `paced`: others let segments go
        meanwhile.
        """
        if self.wants_prepared:
            self._room.prepare(stopped, GOING_S if paced and self._one_goes() else 0.0)

    def _found_sealed(self, bases: Sequence[int]) -> None:
        """What a start has found: of the last one nobody was told, and perhaps not of some before it."""
        names = {base: os.path.join(self.directory, segment_name(base)) for base in bases}
        self._sizes = {base: size_of(self.files, path) for base, path in names.items()}
        for base in bases[-RECENT:]:
            self._sealed.put(base)

    def _size_again(self, base: int) -> None:
        size = size_of(self.files, os.path.join(self.directory, segment_name(base)))
        with self._sizing:
            if base in self._sizes and size:
                self._sizes[base] = size

    def _shelve(self, base: int, size: int) -> None:
        with self._sizing:
            self._sizes[base] = size
        self._sealed.put(base)
