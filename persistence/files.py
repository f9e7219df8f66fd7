"""The calls that reach the disk: the only ones of this package, so that a test can stand in for the disk.

Owns nothing but the calls.  Every error of the operating system passes through as OSError: what becomes of it
is decided where the reason is known (writer.py).  Paths are strings; a handle is whatever open() returned.

What the rest may rely on, and a stand-in must therefore give or take away at a crash:
  * bytes are safe once fdatasync() of their handle has returned without an error, and no sooner; with them
    the size that reaches them;
  * after an fdatasync() that failed, nobody knows about anything written since the last one that did not,
    and a second fdatasync() that succeeds proves nothing about it;
  * a name (made, renamed or removed) is safe once dirsync() of its directory has returned.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal, Protocol

__all__ = ["IOV_MAX", "Files", "FreshFiles", "OsFiles", "StandIn", "size_of"]

IOV_MAX = 1024  # buffers in one pwritev: UIO_MAXIOV of Linux

_FILE_MODE = 0o640
_DIRECTORY_MODE = 0o750

Buffer = bytes | bytearray | memoryview
Advice = Literal["soon", "sparse", "done"]
_ADVICE: dict[Advice, int] = {
    "soon": os.POSIX_FADV_WILLNEED,
    "sparse": os.POSIX_FADV_RANDOM,
    "done": os.POSIX_FADV_DONTNEED,
}


class StandIn(Protocol):
    """Calls that C uses instead of the kernel's, to write a log."""

    handle: int  # of the active segment
    raised: BaseException | None  # by a call: C cannot carry it


class Files(Protocol):
    """What the log asks of a disk."""

    def makedirs(self, path: str) -> None:
        """The directory is there, with those above it, for owner and group only, and so is its name on the
        disk: what is synced in it later must not be lost with it.
        """

    def lock(self, path: str) -> int:
        """A handle that holds the lock of this file until closed.  Raises BlockingIOError: it is taken."""

    def open(self, path: str, *, create: bool = False) -> int:
        """A handle to read and, if `create`, to write; then an empty file is made where none is."""

    def close(self, handle: int) -> None:
        """The handle is gone."""

    def size(self, handle: int) -> int:
        """Bytes in the file."""

    def read(self, handle: int, length: int, position: int) -> bytes:
        """The bytes there; fewer only at the end of the file."""

    def advise(self, handle: int, length: int, position: int, advice: Advice) -> None:
        """These bytes (all from there, if `length` is 0) are wanted "soon", or "sparse" ones among them, or
        nobody wants them any more, "done": a word to the cache, and no more.
        """

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        """How many bytes went there; perhaps not all, at least one."""

    def fdatasync(self, handle: int) -> None:
        """What was written is on the disk."""

    def ftruncate(self, handle: int, length: int) -> None:
        """The file has that size; what lay beyond is zeros, should it grow again."""

    def rename(self, source: str, target: str) -> None:
        """The file has the other name, and what had that name before is gone."""

    def unlink(self, path: str) -> None:
        """The name is gone."""

    def dirsync(self, path: str) -> None:
        """Names in this directory are on the disk."""

    def listdir(self, path: str) -> list[str]:
        """The names in a directory."""

    def disk(self, path: str) -> tuple[int, int]:
        """Bytes that are free, for us, on the disk that a directory is on; and all that it has."""

    def stand_in(self, log: Any) -> StandIn | None:
        """Give an rb_log the calls of a disk that stands in for the kernel's; None: C calls the kernel."""


def size_of(files: Files, path: str) -> int:
    """Bytes in the file of that name; 0 when it cannot be opened."""
    with suppress(OSError):
        handle = files.open(path)
        try:
            return files.size(handle)
        finally:
            files.close(handle)
    return 0


class OsFiles:
    """The real thing: Linux files, 0640 in directories 0750."""

    def makedirs(self, path: str) -> None:
        """See Files."""
        above = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(above):
            self.makedirs(above)
        with suppress(FileExistsError):
            os.mkdir(path, _DIRECTORY_MODE)
        with suppress(PermissionError):  # Then somebody else made this directory, and long ago.
            self.dirsync(above)

    def lock(self, path: str) -> int:
        """See Files.  An flock: the kernel gives it back however its holder dies; a second one in this
        process waits, too, as it belongs to the open file and not to the process.
        """
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise
        return handle

    def open(self, path: str, *, create: bool = False) -> int:
        """See Files."""
        flags = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY
        return os.open(path, flags | os.O_CLOEXEC, _FILE_MODE)

    def close(self, handle: int) -> None:
        """See Files."""
        os.close(handle)

    def size(self, handle: int) -> int:
        """See Files."""
        return os.fstat(handle).st_size

    def read(self, handle: int, length: int, position: int) -> bytes:
        """See Files."""
        data = os.pread(handle, length, position)
        while len(data) < length and (more := os.pread(handle, length - len(data), position + len(data))):
            data += more
        return data

    def advise(self, handle: int, length: int, position: int, advice: Advice) -> None:
        """See Files."""
        with suppress(OSError):  # Some file systems take no advice.
            os.posix_fadvise(handle, position, length, _ADVICE[advice])

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        """See Files."""
        written = os.pwritev(handle, buffers, position)
        if written == 0:
            raise OSError(errno.ENOSPC, "the file takes no more bytes")
        return written

    def fdatasync(self, handle: int) -> None:
        """See Files."""
        os.fdatasync(handle)

    def ftruncate(self, handle: int, length: int) -> None:
        """See Files."""
        os.ftruncate(handle, length)

    def rename(self, source: str, target: str) -> None:
        """See Files."""
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        """See Files."""
        os.unlink(path)

    def dirsync(self, path: str) -> None:
        """See Files."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def listdir(self, path: str) -> list[str]:
        """See Files."""
        return os.listdir(path)

    def disk(self, path: str) -> tuple[int, int]:
        """See Files."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    def stand_in(self, log: Any) -> StandIn | None:
        """See Files."""
        del log
        return None


class FreshFiles(OsFiles):
    """Files that are read from the disk, not from memory, and that leave nothing there."""

    def open(self, path: str, *, create: bool = False) -> int:
        """See Files."""
        handle = super().open(path, create=create)
        self.advise(handle, 0, 0, "done")
        return handle

    def close(self, handle: int) -> None:
        """See Files."""
        self.advise(handle, 0, 0, "done")
        super().close(handle)
