"""Footers for newly sealed segments: when one may be written, and protection against a reused file.

A footer is written only after an end that is known for certain: the next segment begins there, or recovery
put the end there.  Until then the segment waits.  While a footer is written, the file keeps its name.  When
on_indexed is called, the footer is on the disk.

Building one reads the segment again and sorts its records, which costs as much as writing them.  Next to a
busy log this is therefore paced to a fiftieth of the time, latest segment first.  The remaining segments get
a footer when there is less to do, or are removed before.

Threads: add() and write() from one background thread; removing() from any.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from persistence.errors import FormatError
from persistence.files import Files
from persistence.read.log_reader import LogReader
from persistence.segment import footer
from persistence.segment.format import segment_name
from persistence.segment.quarantine import copy_to_quarantine

log = logging.getLogger(__name__)

WAITING_MAX = 64  # segments; beyond, the oldest get no footer
REST_SHARE = 49  # if paced, rest time as a multiple of work time


class FooterBuilder:
    """Writes footers of the segments of the log in `directory`."""

    def __init__(self, files: Files, directory: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._files = files
        self._directory = directory
        self.on_indexed: list[Callable[[int], object]] = []  # called with each segment that got a footer
        self._clock_s = clock_s
        self._rests_until = 0.0
        self._waiting: list[int] = []
        self._keeps = threading.Lock()  # held while files must keep their names
        self._gone: set[int] = set()  # waiting segments removed meanwhile

    def add(self, base: int) -> None:
        """Queue a sealed segment; it gets its footer when its end is known."""
        self._waiting.append(base)
        del self._waiting[:-WAITING_MAX]
        self._gone.intersection_update(self._waiting)

    def write(self, reader: LogReader, *, paced: bool = False) -> float | None:
        """Write the footers of all queued segments with a known end; `paced`: of one, unless it must rest.

        Returns the seconds until it can continue; None: not before another add().

        A disk error is logged, and the segment gets no footer.
        """
        for base, end in self._ends(reader):
            started = self._clock_s()
            if paced and started < self._rests_until:
                return self._rests_until - started
            try:
                self._write(reader, base, end)
            except (FormatError, OSError) as error:
                is_gone = base in self._gone or isinstance(error, FileNotFoundError)
                level = logging.DEBUG if is_gone else logging.WARNING
                log.log(level, "no footer segment=%s reason=%s", segment_name(base), error)
            with suppress(ValueError):  # add() has dropped it: too many wait
                self._waiting.remove(base)  # only now: add() forgets removals of segments not in the queue
            finished = self._clock_s()
            self._rests_until = finished + REST_SHARE * (finished - started)
        return None

    def _ends(self, reader: LogReader) -> list[tuple[int, int]]:
        """Queued segments with a known end, latest first.  Removed segments leave the queue."""
        bases, known = set(reader.bases()), []
        for base in reversed(self._waiting.copy()):
            end = reader.tables.end_of(base)
            if end is not None:
                known.append((base, end))
            elif base not in bases:
                self._waiting.remove(base)
        return known

    @contextmanager
    def removing(self, base: int) -> Iterator[None]:
        """Context in which the file of a segment may lose its name."""
        with self._keeps:
            self._gone.add(base)
            yield

    def _write(self, reader: LogReader, base: int, end: int) -> None:
        if footer.there(self._files, self._directory, base, end):
            return
        content = self._made(reader, base, end)
        if content is None:
            return
        with self._keeps:
            if base not in self._gone:
                footer.put(self._files, self._directory, base, end, content)
        reader.tables.footer_written(base)
        for call in self.on_indexed:
            call(base)

    def _made(self, reader: LogReader, base: int, end: int) -> bytes | None:
        """The footer of a segment.

        New damage is recorded and copied to quarantine, because a start does not always read the last
        segment.
        """
        name = segment_name(base)
        handle = self._files.open(os.path.join(self._directory, name))
        try:
            table, content = footer.examine(self._files, handle, name, end)
        finally:
            self._files.close(handle)
        if base in self._gone:  # its file may be reused for another segment: not damage
            return None
        news = [damage for damage in table.damage if (damage.segment, damage.place) not in reader.damaged]
        for damage in news:
            refused = copy_to_quarantine(self._files, self._directory, damage)
            if refused:
                log.error("damaged bytes not copied segment=%s place=%d %s", name, damage.place, refused)
        reader.tables.add_damage(news)
        return content
