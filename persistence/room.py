"""The room of the next segments: files made ready ahead of need.

Overwriting a file that has its blocks is faster than growing one, and cannot fail for want of room.  What the
files hold does not matter (zeros, or an earlier life: format.py, "seed"), only that their blocks are there
and on the disk.  Without one, a segment grows from nothing; so every error here is only a loss of speed.

One file is kept ready, and two from when there was none once.  Filling one gives way: a little at a time,
each synced, with rests that are longer than the work while another is there, so that the acks of the active
segment wait behind little, and seldom.

A segment that goes is the next room, and ends a fill that is under way, for it has its blocks.  In a log at
its cap each segment that is sealed makes one go, so that is waited for a little: else zeros are begun with
each, some MiB in vain.  Also one that is shorter is taken: segments that had to grow end where their last
write did, and if they were made again from nothing each time, so would be those after them, for ever.

Threads: prepare() and recycle() may run beside take(); their lock is their own.  A name that was taken is not
given again before the next is taken: by then it is a segment's, or gone.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from persistence.files import Files

__all__ = ["PREPARED_NAME", "Room"]

PREPARED_NAME = "prepared.tmp"
GROWING_NAME = "growing.tmp"
FILL_BYTES = 1 << 20  # zeros written at a time, and synced
REST_SHARE = 3  # so many times as long as that took, while another room is there
READY_MOST = 2
RECYCLED_SHARE = 2  # what has less than this part of a segment is not worth its blocks


class Room:
    """At most READY_MOST files of `segment_bytes` in `directory`, ready to become segments."""

    def __init__(
        self, files: Files, directory: str, segment_bytes: int, rest: Callable[[float], object] = time.sleep
    ) -> None:
        self._files = files
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._rest = rest
        names = (PREPARED_NAME, *(f"prepared-{number}.tmp" for number in range(2, READY_MOST + 2)))
        self._names = [os.path.join(directory, name) for name in names]
        self._ready: list[tuple[int, str]] = []  # handle and path, the next one last
        self._preparing = threading.Lock()
        self._comes = threading.Event()  # a segment that is no longer wanted, while zeros are being written
        self._most = 1
        self._taken = ""  # the name that was taken last

    @property
    def ready(self) -> int:
        """How many there are."""
        return len(self._ready)

    @property
    def wanted(self) -> bool:
        """Whether prepare() would make one."""
        return self.ready < self._most

    def adopt(self) -> None:
        """Takes what an earlier process has left, if it is of the right size.  Raises OSError."""
        found = self._files.listdir(self._directory)
        for path in self._names:
            if os.path.basename(path) not in found or self.ready >= READY_MOST:
                continue
            handle = self._files.open(path, create=True)
            if self._files.size(handle) == self._segment_bytes:
                self._ready.append((handle, path))
            else:
                self._files.close(handle)
                self._files.unlink(path)

    def prepare(self, stopped: Callable[[], bool], patience_s: float = 0.0) -> None:
        """Makes one, filled with zeros and synced, if one is wanted.  Raises OSError.  `stopped` says when to
        leave it half done; `patience_s`: how long a segment may take to go whose file would do.
        """
        if patience_s and self.wanted and not stopped() and self._comes.wait(patience_s):
            return
        with self._preparing:
            came = patience_s and self.ready  # While nobody waited for it.
            if came or not self.wanted or self._comes.is_set():
                return
            path = self._free_name()
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
                self._ready.insert(0, (handle, path))  # From here on it may be taken.

    def _fill(self, handle: int, place: int, stopped: Callable[[], bool]) -> bool:
        """Zeros from `place` on.  False: it was stopped."""
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
            return  # It is overwritten by the next attempt.

    def _free_name(self) -> str:
        taken = {self._taken, *(path for _, path in list(self._ready))}
        return next(path for path in self._names if path not in taken)

    def recycle(self, path: str, size: int) -> bool:
        """Makes a segment that is no longer wanted the next one's room; what it lacks is filled.  False: it
        is of no use.  Raises OSError.
        """
        if not self.wanted or size < self._segment_bytes // RECYCLED_SHARE:
            return False
        self._comes.set()
        with self._preparing:
            self._comes.clear()
            if self.ready >= self._most:
                return False
            name = self._free_name()
            self._files.rename(path, name)
            self._files.dirsync(self._directory)
            handle = self._files.open(name, create=True)
            if self._topped_up(handle, name):
                self._ready.insert(0, (handle, name))
        return True

    def _topped_up(self, handle: int, name: str) -> bool:
        try:
            return self._fill(handle, self._files.size(handle), lambda: False)
        except OSError:  # The disk is full, or fails: it can do without this.
            self._files.close(handle)
            self._discard(name)
            return False

    def take(self) -> tuple[int, str]:
        """A handle and the name of its file: one that is ready, or an empty one.  Raises OSError."""
        if self._ready:
            found = self._ready[-1]
            self._taken = found[1]  # In this order, or its name would be free for a moment.
            self._ready.pop()
            return found
        if self._taken:
            self._most = READY_MOST
        self._taken = os.path.join(self._directory, GROWING_NAME)
        return self._files.open(self._taken, create=True), self._taken

    def close(self) -> None:
        """Leaves them to the next process."""
        while self._ready:
            self._files.close(self._ready.pop()[0])
