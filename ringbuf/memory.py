"""Mapping: one file of shared memory, mapped; and the locks on its bytes.

Owns the descriptor and the mapping.  Never interprets what is in the file.

A mapping outlives close() while a Record, Batch or memoryview still exports it: memory in hand is never
unmapped.

Locks are open file description locks (Linux): the kernel drops them when the process dies, however it dies,
and they say nothing about process numbers, which are used again, and differ between containers.
"""

import errno
import fcntl
import mmap
import os
import resource
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from ringbuf.core import ffi
from ringbuf.errors import RingError

_FLOCK: Final = struct.Struct("@hhqqi4x")
_MAP_LOCKED: Final = 0x2000  # the same on x86-64 and aarch64; absent from the mmap module
_MADV_HUGEPAGE: Final = getattr(mmap, "MADV_HUGEPAGE", 14)


class Mapping:
    """A file mapped whole.  `view` is its memory; `pointer` the same for C."""

    def __init__(self, descriptor: int, path: Path, memory: mmap.mmap, *, writable: bool) -> None:
        self.descriptor = descriptor
        self.path = path
        self.memory = memory
        self.writable = writable
        self.size = len(memory)
        self.view = memoryview(memory) if writable else memoryview(memory).toreadonly()
        self.pointer = ffi.from_buffer(memory)
        self._pid = os.getpid()

    @classmethod
    def create(
        cls, path: Path, size: int, mode: int, *, populate: bool, lock_memory: bool, huge_pages: bool
    ) -> Self:
        """A new file of `size` zero bytes, all allocated: a full tmpfs is ENOSPC here, not SIGBUS later."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            os.fchmod(descriptor, mode)  # whatever the umask
            os.posix_fallocate(descriptor, 0, size)
            flags = mmap.MAP_SHARED
            if populate:
                flags |= mmap.MAP_POPULATE  # else each first touch of a page costs microseconds
            if lock_memory:
                flags |= _MAP_LOCKED
            memory = mmap.mmap(descriptor, size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
            if huge_pages:
                memory.madvise(_MADV_HUGEPAGE)
        except OSError as error:
            os.close(descriptor)
            os.unlink(path)
            raise _explained(error, path, size, lock_memory=lock_memory) from error
        return cls(descriptor, path, memory, writable=True)

    @classmethod
    def open(cls, path: Path, *, writable: bool) -> Self:
        """An existing file.  Raises FileNotFoundError, PermissionError, or RingError if it is empty."""
        descriptor = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            if size == 0:
                raise RingError(f"{path}: is empty; remove it")
            prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
            memory = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED, prot=prot)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor, path, memory, writable=writable)

    @property
    def owner(self) -> int:
        """Uid of the file's owner."""
        return os.fstat(self.descriptor).st_uid

    def lock(self, byte: int) -> bool:
        """Take the lock on one byte of the file.  False: somebody else has it."""
        try:
            fcntl.fcntl(
                self.descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
            )
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def unlock(self, byte: int) -> None:
        """Give the lock on one byte back."""
        fcntl.fcntl(self.descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, byte, 1, 0))

    def close(self) -> None:
        """Close the descriptor, and with it every lock; unmap, unless records in hand need the memory."""
        if self.descriptor < 0:
            return
        if self._pid == os.getpid():  # mmap keeps a duplicate of the descriptor, and the locks are on both
            fcntl.fcntl(self.descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))
        os.close(self.descriptor)
        self.descriptor = -1
        self.pointer = ffi.NULL
        with suppress(BufferError):
            self.view.release()
        with suppress(BufferError):
            self.memory.close()


def _explained(error: OSError, path: Path, size: int, *, lock_memory: bool) -> OSError:
    """The same error with the remedy in its text."""
    if error.errno == errno.ENOSPC:
        why = f"no room for {size} bytes in {path.parent}; remount that tmpfs larger or lower capacity_bytes"
    elif lock_memory and error.errno in (errno.EAGAIN, errno.ENOMEM, errno.EPERM):
        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        why = f"{size} bytes may not be locked (limit {limit}); raise `ulimit -l` or LimitMEMLOCK="
    else:
        return error
    return OSError(error.errno, why, str(path))
