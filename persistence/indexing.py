"""Footers for segments as they are sealed: when one may be made, and that it never meets another life of its
file.

A footer is written only behind an end that is known for sure: because the next segment begins there, or
because recovery put it there.  Until then the segment waits.  While one is written the file keeps its name.
Whoever is told of one finds it on the disk.

Making one reads the segment again and sorts its records: as much work as it was to write them.  So whoever
does it beside a busy log does it paced, for a fiftieth of the time, the latest segment first; what that
leaves is done when there is less to do, or has gone by then.

Threads: add() and write() from one that has time; gone() from any.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from persistence import footer
from persistence.errors import FormatError
from persistence.files import Files
from persistence.format import segment_name
from persistence.quarantine import keep_aside
from persistence.reading import LogReader

__all__ = ["Indexer"]

log = logging.getLogger(__name__)

WAITING_MOST = 64  # segments; of more at a time the oldest go without
REST_SHARE = 49  # paced, it rests so many times as long as it has worked


class Indexer:
    """Puts footers behind the segments of the log in `directory`."""

    def __init__(self, files: Files, directory: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._files = files
        self._directory = directory
        self.on_indexed: list[Callable[[int], object]] = []  # told of each segment whose file has grown by it
        self._clock_s = clock_s
        self._rests_until = 0.0
        self._waiting: list[int] = []
        self._keeps = threading.Lock()  # files keep their names
        self._gone: set[int] = set()  # of those that wait, removed meanwhile

    def add(self, base: int) -> None:
        """A segment is whole: it gets its footer once it is known where it ends."""
        self._waiting.append(base)
        del self._waiting[:-WAITING_MOST]
        self._gone.intersection_update(self._waiting)

    def write(self, reader: LogReader, *, paced: bool = False) -> float | None:
        """Writes footers for all that wait and whose end is known; `paced`: for one, unless it rests.

        Seconds until it goes on; None: not before another add().

        What the disk refuses is logged, and the segment does without.
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
            with suppress(ValueError):  # add() has dropped it meanwhile: too many wait
                self._waiting.remove(base)  # not before: add() forgets the removal of those that do not wait
            finished = self._clock_s()
            self._rests_until = finished + REST_SHARE * (finished - started)
        return None

    def _ends(self, reader: LogReader) -> list[tuple[int, int]]:
        """Those that wait and have an end, the latest first; who has gone waits no more."""
        bases, known = set(reader.bases()), []
        for base in reversed(self._waiting.copy()):
            end = reader.end_of(base)
            if end is not None:
                known.append((base, end))
            elif base not in bases:
                self._waiting.remove(base)
        return known

    @contextmanager
    def gone(self, base: int) -> Iterator[None]:
        """Within this, the file of a segment may lose its name."""
        with self._keeps:
            self._gone.add(base)
            yield

    def _write(self, reader: LogReader, base: int, end: int) -> None:
        if footer.there(self._files, self._directory, base, end):
            return
        made = self._made(reader, base, end)
        if made is None:
            return
        with self._keeps:
            if base not in self._gone:
                footer.put(self._files, self._directory, base, end, made)
        reader.indexed(base)
        for call in self.on_indexed:
            call(base)

    def _made(self, reader: LogReader, base: int, end: int) -> bytes | None:
        """The footer of a segment.  What is found to be damaged is noted and kept aside: a start has not
        always read the last segment.
        """
        name = segment_name(base)
        handle = self._files.open(os.path.join(self._directory, name))
        try:
            table, made = footer.examine(self._files, handle, name, end)
        finally:
            self._files.close(handle)
        if base in self._gone:  # its file may be in use for another segment: that is no damage
            return None
        news = [it for it in table.damage if (it.segment, it.place) not in reader.damaged]
        for damage in news:
            refused = keep_aside(self._files, self._directory, damage)
            if refused:
                log.error("damaged bytes not copied segment=%s place=%d %s", name, damage.place, refused)
        reader.note(news)
        return made
