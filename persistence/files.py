"""System calls to the disk: the only ones of this package, so that a test can replace the disk.

Owns only the calls.  Every error of the operating system passes through as OSError and is handled by the code
that knows the cause (log_writer.py).  Paths are strings; a handle is the value that open() returned.

Guarantees that other code relies on, and that a replacement must give or break at a crash:
  * Bytes are safe after fdatasync() of their handle has returned without an error, and not before; also the
    size of the file up to them.
  * After a failed fdatasync(), the state of everything written since the last successful one is unknown.  A
    second fdatasync() that succeeds proves nothing about it.
  * A name (created, renamed or removed) is safe after dirsync() of its directory has returned.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, Protocol

IOV_MAX = 1024  # buffers in one pwritev: UIO_MAXIOV of Linux

FILE_MODE = 0o640
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
    raised: BaseException | None  # exception of a call, which C cannot pass


class Files(Protocol):
    """Disk operations that the log needs."""

    def makedirs(self, path: str) -> None:
        """Create the directory and its parents, for owner and group only, and sync their names.

        Files synced in the directory later must not be lost with its name.
        """

    def lock(self, path: str) -> int:
        """A handle that holds the lock of this file until closed.  Raises BlockingIOError if it is taken."""

    def open(self, path: str, *, create: bool = False, mode: int | None = None) -> int:
        """A handle for reading; with `create` also for writing, and a missing file is created empty.

        `mode`: with `create`, the exact permissions, also of a file that exists.  None: 0640 less the umask,
        and a file that exists keeps its permissions.  Raises OSError; ENXIO: a FIFO, socket or device.
        """

    def close(self, handle: int) -> None:
        """Close the handle."""

    def size(self, handle: int) -> int:
        """Size of the file in bytes."""

    def links(self, handle: int) -> int:
        """Number of hard links of the file."""

    def read(self, handle: int, length: int, position: int) -> bytes:
        """The bytes at `position`; fewer only at the end of the file."""

    def advise(self, handle: int, length: int, position: int, advice: Advice) -> None:
        """Give the page cache a hint about these bytes (all from `position` on, if `length` is 0).

        "soon": needed soon.  "sparse": some of them are needed.  "done": not needed any more.
        """

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        """Write the buffers at `position`; return the number of bytes written, at least 1, maybe not all."""

    def fdatasync(self, handle: int) -> None:
        """Put all written bytes on the disk."""

    def ftruncate(self, handle: int, length: int) -> None:
        """Set the size of the file.  Bytes beyond it are zeros if the file grows again."""

    def rename(self, source: str, target: str) -> None:
        """Rename the file.  An existing file with the new name is replaced."""

    def unlink(self, path: str) -> None:
        """Remove the name."""

    def dirsync(self, path: str) -> None:
        """Put the names of this directory on the disk."""

    def listdir(self, path: str) -> list[str]:
        """The names in a directory."""

    def disk(self, path: str) -> tuple[int, int]:
        """Free bytes for this user on the directory's disk, and its total bytes."""

    def stand_in(self, log: Any) -> StandIn | None:
        """Give an rb_log the calls of a disk that stands in for the kernel's; None: C calls the kernel."""


def size_of(files: Files, path: str) -> int:
    """Size of the file in bytes; 0 if it cannot be opened."""
    with suppress(OSError):
        handle = files.open(path)
        try:
            return files.size(handle)
        finally:
            files.close(handle)
    return 0


@contextmanager
def opened(files: Files, path: str) -> Iterator[int]:
    """A handle to read from.  Any OSError in the block gets the path of the file."""
    handle = files.open(path)
    try:
        yield handle
    except OSError as error:
        error.filename = error.filename or path
        raise
    finally:
        files.close(handle)


class OsFiles:
    """Linux files, with mode 0640 in directories with mode 0750."""

    def makedirs(self, path: str) -> None:
        """See Files."""
        above = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(above):
            self.makedirs(above)
        with suppress(FileExistsError):
            os.mkdir(path, _DIRECTORY_MODE)
        with suppress(PermissionError):  # another user created this directory, long ago
            self.dirsync(above)

    def lock(self, path: str) -> int:
        """See Files.  Uses flock: the kernel releases it in any case when the holder dies.

        A second lock in this process also fails, because the lock belongs to the open file, not to the
        process.
        """
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise
        return handle

    def open(self, path: str, *, create: bool = False, mode: int | None = None) -> int:
        """See Files."""
        # without O_NONBLOCK, the open of a FIFO waits for its writer
        flags = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY | os.O_NONBLOCK
        handle = os.open(path, flags | os.O_CLOEXEC, FILE_MODE if mode is None else mode)
        found = os.fstat(handle).st_mode
        if not stat.S_ISREG(found):
            os.close(handle)
            code = errno.EISDIR if stat.S_ISDIR(found) else errno.ENXIO
            raise OSError(code, "not a regular file", path)
        if create and mode is not None and stat.S_IMODE(found) != mode:
            with suppress(PermissionError):  # the file of another user
                os.fchmod(handle, mode)
        return handle

    def close(self, handle: int) -> None:
        """See Files."""
        os.close(handle)

    def size(self, handle: int) -> int:
        """See Files."""
        return os.fstat(handle).st_size

    def links(self, handle: int) -> int:
        """See Files."""
        return os.fstat(handle).st_nlink

    def read(self, handle: int, length: int, position: int) -> bytes:
        """See Files."""
        data = os.pread(handle, length, position)
        while len(data) < length and (more := os.pread(handle, length - len(data), position + len(data))):
            data += more
        return data

    def advise(self, handle: int, length: int, position: int, advice: Advice) -> None:
        """See Files."""
        with suppress(OSError):  # some file systems accept no hints
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
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize

    def stand_in(self, log: Any) -> StandIn | None:
        """See Files."""
        del log
        return None


class FreshFiles(OsFiles):
    """Files that are read from the disk instead of the page cache, and leave no pages there."""

    def open(self, path: str, *, create: bool = False, mode: int | None = None) -> int:
        """See Files."""
        handle = super().open(path, create=create, mode=mode)
        self.advise(handle, 0, 0, "done")
        return handle

    def close(self, handle: int) -> None:
        """See Files."""
        self.advise(handle, 0, 0, "done")
        super().close(handle)
