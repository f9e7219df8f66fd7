"""Segment preallocator: keeps files ready for the next segments.

Overwriting a file with allocated blocks is faster than growing one, and cannot fail for lack of space.  The
content of the files does not matter (zeros, or an earlier use: format.py, "seed"); only their blocks must be
on the disk.  Without a prepared file, a segment grows from zero.  Every error here therefore costs only
speed.

One file is kept ready, and two after the first time that none was ready.  The fill has low priority: it
writes a little at a time, each part synced, with rests longer than the work while another file is ready.  The
active segment's syncs then rarely wait, and only briefly.

A removed segment becomes the next prepared file, and stops a fill in progress, because its blocks are
allocated.  In a log at its cap, each sealed segment causes a removal, so the fill waits for that briefly;
otherwise some MiB of zeros are written without use.  A shorter file is also accepted: segments that had to
grow end at their last write.  If they were always created from zero, all later ones would be, too.

Threads: prepare() and recycle() may run concurrently with take(); they share a lock of their own.  A taken
name is not reused before the next take(): by then it belongs to a segment, or is removed.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from persistence.durable_file import move_file
from persistence.files import Files

PREPARED_NAME = "prepared.tmp"
GROWING_NAME = "growing.tmp"
FILL_BYTES = 1 << 20  # zeros per write and sync
REST_SHARE = 3  # rest as a multiple of that time, while another file is ready
READY_MAX = 2
RECYCLED_SHARE = 2  # a file smaller than this part of a segment is not reused


class SegmentPreallocator:
    """At most READY_MAX files of `segment_bytes` in `directory`, ready to become segments."""

    def __init__(
        self, files: Files, directory: str, segment_bytes: int, rest: Callable[[float], object] = time.sleep
    ) -> None:
        self._files = files
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._rest = rest
        names = (PREPARED_NAME, *(f"prepared-{number}.tmp" for number in range(2, READY_MAX + 2)))
        self._names = [os.path.join(directory, name) for name in names]
        self._ready: list[tuple[int, str]] = []  # handle and path, the next one last
        self._preparing = threading.Lock()
        self._comes = threading.Event()  # set while a removed segment arrives: stops the fill
        self._most = 1
        self._taken = ""  # the last taken name

    @property
    def ready(self) -> int:
        """Number of prepared files."""
        return len(self._ready)

    @property
    def is_needed(self) -> bool:
        """True if prepare() would create a file."""
        return self.ready < self._most

    def adopt(self) -> None:
        """Take over the files of an earlier process that have the right size.  Raises OSError."""
        names = self._files.listdir(self._directory)
        for path in self._names:
            if os.path.basename(path) not in names or self.ready >= READY_MAX:
                continue
            handle = self._files.open(path, create=True)
            if self._files.size(handle) == self._segment_bytes and self._files.links(handle) == 1:
                self._ready.append((handle, path))
            else:
                self._files.close(handle)
                self._files.unlink(path)

    def prepare(self, stopped: Callable[[], bool], patience_s: float = 0.0) -> None:
        """Create one file, filled with zeros and synced, if one is needed.  Raises OSError.

        `stopped`: returns True to stop unfinished.  `patience_s`: time to wait for a removed segment to
        reuse.
        """
        if patience_s and self.is_needed and not stopped() and self._comes.wait(patience_s):
            return
        with self._preparing:
            is_recycled = patience_s and self.ready  # a file was recycled after the wait
            if is_recycled or not self.is_needed or self._comes.is_set():
                return
            path = self._free_name()
            with suppress(FileNotFoundError):  # of a recycle() that failed: a backup may have this file
                self._files.unlink(path)
            handle = self._files.open(path, create=True)
            filled = False
            try:
                filled = self._fill(handle, 0, lambda: stopped() or self._comes.is_set())
            except OSError:
                self._discard(path)
                raise
            finally:
                if not filled:
                    self._files.close(handle)
            if filled:
                self._ready.insert(0, (handle, path))  # from here on take() may use it

    def _fill(self, handle: int, place: int, stopped: Callable[[], bool]) -> bool:
        """Write zeros from `place` on.  False if stopped."""
        zeros = memoryview(bytes(min(FILL_BYTES, self._segment_bytes)))
        while place < self._segment_bytes and not stopped():
            started = time.monotonic()
            place += self._files.pwritev(handle, [zeros[: self._segment_bytes - place]], place)
            self._files.fdatasync(handle)
            if place < self._segment_bytes and self._ready:
                self._rest(REST_SHARE * (time.monotonic() - started))
        self._files.advise(handle, 0, 0, "done")
        return place >= self._segment_bytes

    def _discard(self, path: str) -> None:
        try:
            self._files.unlink(path)
        except OSError:
            return  # the next attempt removes it

    def _free_name(self) -> str:
        taken = {self._taken, *(path for _, path in list(self._ready))}
        return next(path for path in self._names if path not in taken)

    def recycle(self, path: str, size: int) -> bool:
        """Reuse the file of a removed segment, and fill its missing part.  False if it is not usable.

        A file with another name is not written again: a backup has it. Raises OSError.
        """
        if not self.is_needed or size < self._segment_bytes // RECYCLED_SHARE:
            return False
        self._comes.set()
        with self._preparing:
            self._comes.clear()
            if self.ready >= self._most:
                return False
            name = self._free_name()
            move_file(self._files, path, name)
            handle = self._files.open(name, create=True)
            if self._files.links(handle) > 1:  # after the rename: no further name can come
                self._files.close(handle)
                self._discard(name)
            elif self._topped_up(handle, name):
                self._ready.insert(0, (handle, name))
        return True

    def _topped_up(self, handle: int, name: str) -> bool:
        try:
            return self._fill(handle, self._files.size(handle), lambda: False)
        except OSError:  # disk full or failing: preparation is optional
            self._files.close(handle)
            self._discard(name)
            return False

    def take(self) -> tuple[int, str]:
        """A handle and the name of its file: a prepared one, or an empty one.  Raises OSError."""
        if self._ready:
            segment = self._ready[-1]
            self._taken = segment[1]  # in this order, so that its name is never free
            self._ready.pop()
            return segment
        if self._taken:
            self._most = READY_MAX
        self._taken = os.path.join(self._directory, GROWING_NAME)
        return self._files.open(self._taken, create=True), self._taken

    def close(self) -> None:
        """Close the files and leave them to the next process."""
        while self._ready:
            self._files.close(self._ready.pop()[0])
