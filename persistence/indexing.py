"""Footers for segments as they are sealed: when one may be made, and that it never meets another life of its
file.

A footer is written only behind an end that is known for sure: because the next segment begins there, or
because recovery put it there.  Until then the segment waits.  While one is written the file keeps its name.
Whoever is told of one finds it on the disk.

Threads: sealed() from one that has time; gone() from any.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from persistence import footer
from persistence.errors import FormatError
from persistence.files import Files
from persistence.format import segment_name
from persistence.reading import LogReader

__all__ = ["Indexer"]

log = logging.getLogger(__name__)

WAITING_MOST = 64  # segments; of more at a time the oldest go without


class Indexer:
    """Puts footers behind the segments of the log in `directory`."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self.on_indexed: list[Callable[[int], object]] = []  # told of each segment whose file has grown by it
        self._waiting: list[int] = []
        self._keeps = threading.Lock()  # files keep their names
        self._gone: set[int] = set()  # of those that wait, removed meanwhile

    def sealed(self, reader: LogReader, base: int) -> None:
        """A segment is whole: it gets its footer, now or when it is known where it ends.

        What the disk refuses is logged, and the segment does without.
        """
        self._waiting.append(base)
        del self._waiting[:-WAITING_MOST]
        self._gone.intersection_update(self._waiting)
        for waiting in list(self._waiting):
            end = reader.end_of(waiting)
            if end is None and waiting in reader.bases():
                continue
            self._waiting.remove(waiting)
            if end is None:
                continue
            try:
                self._write(reader, waiting, end)
            except (FormatError, OSError) as error:
                log.warning("no footer segment=%s reason=%s", segment_name(waiting), error)

    @contextmanager
    def gone(self, base: int) -> Iterator[None]:
        """Within this, the file of a segment may lose its name."""
        with self._keeps:
            self._gone.add(base)
            yield

    def _write(self, reader: LogReader, base: int, end: int) -> None:
        if footer.there(self._files, self._directory, base, end):
            return
        made = footer.made(self._files, self._directory, base, end)
        if made is None:
            return
        with self._keeps:
            if base not in self._gone:
                footer.put(self._files, self._directory, base, end, made)
        reader.indexed(base)
        for call in self.on_indexed:
            call(base)
