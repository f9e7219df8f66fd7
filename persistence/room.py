"""The room of the next segment: a file made ready ahead of need.

Overwriting a file that has its blocks is faster than growing one, and cannot fail for want of room.  The file
is `prepared.tmp`; what it holds does not matter (zeros, or an earlier life: format.py, "seed"), only that its
blocks are there and on the disk.  Without one, a segment grows from nothing; so every error here is only a
loss of speed.

Threads: prepare() may run beside everything else; the lock is its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress

from persistence.files import Files

__all__ = ["PREPARED_NAME", "Room"]

PREPARED_NAME = "prepared.tmp"
GROWING_NAME = "growing.tmp"
FILL_BYTES = 1 << 20  # zeros written at a time
FILL_SYNC_BYTES = 4 << 20  # and synced: acks of the active segment wait behind that, so it is short


class Room:
    """At most one file of `segment_bytes` in `directory`, ready to become a segment."""

    def __init__(self, files: Files, directory: str, segment_bytes: int) -> None:
        self._files = files
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._path = os.path.join(directory, PREPARED_NAME)
        self._handle: int | None = None
        self._preparing = threading.Lock()

    @property
    def ready(self) -> bool:
        """Whether there is one."""
        return self._handle is not None

    def adopt(self) -> None:
        """Takes what an earlier process has left, if it is of the right size.  Raises OSError."""
        if PREPARED_NAME not in self._files.listdir(self._directory):
            return
        handle = self._files.open(self._path, create=True)
        if self._files.size(handle) == self._segment_bytes:
            self._handle = handle
        else:
            self._files.close(handle)
            self._files.unlink(self._path)

    def prepare(self, stopped: Callable[[], bool]) -> None:
        """Makes one, filled with zeros and synced.  Raises OSError.  `stopped` says when to leave it half
        done.
        """
        with self._preparing:
            if self.ready:
                return
            handle = self._files.open(self._path, create=True)
            filled = False
            try:
                filled = self._fill(handle, stopped)
            except OSError:
                with suppress(OSError):
                    self._files.unlink(self._path)
                raise
            finally:
                if not filled:
                    self._files.close(handle)
            if filled:
                self._handle = handle  # From here on it may be taken.

    def _fill(self, handle: int, stopped: Callable[[], bool]) -> bool:
        zeros = memoryview(bytes(min(FILL_BYTES, self._segment_bytes)))
        place = 0
        while place < self._segment_bytes and not stopped():
            place += self._files.pwritev(handle, [zeros[: self._segment_bytes - place]], place)
            if place % FILL_SYNC_BYTES == 0:
                self._files.fdatasync(handle)
        self._files.fdatasync(handle)
        return place >= self._segment_bytes

    def recycle(self, path: str, size: int) -> bool:
        """Makes a segment that is no longer wanted the next one's room.  False: it is of no use.  Raises
        OSError.
        """
        if self.ready or size < self._segment_bytes or not self._preparing.acquire(blocking=False):
            return False
        try:
            self._files.rename(path, self._path)
            self._files.dirsync(self._directory)
            self._handle = self._files.open(self._path, create=True)
        finally:
            self._preparing.release()
        return True

    def take(self) -> tuple[int, str]:
        """A handle and the name of its file: the one that is ready, or an empty one.  Raises OSError."""
        handle, self._handle = self._handle, None
        if handle is not None:
            return handle, self._path
        path = os.path.join(self._directory, GROWING_NAME)
        return self._files.open(path, create=True), path

    def close(self) -> None:
        """Leaves it to the next process."""
        if self._handle is not None:
            self._files.close(self._handle)
            self._handle = None
