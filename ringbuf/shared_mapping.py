"""Shared mapping: one file in shared memory, and the locks on its bytes.

Owns the descriptor and the mapping.  Never interprets the content of the file.

A mapping outlives close() while a Record, Batch or memoryview still exports it.  Memory in use is never
unmapped.

Locks are open file description locks (Linux).  The kernel drops them when the process dies in any way.  They
do not depend on process numbers, which are reused and differ between containers.

The locks belong to a description that nothing else duplicates, because mmap keeps a duplicate of its
descriptor for as long as the memory is in use.  A forked child closes its copy at once and so never holds a
lock of its parent.  In the child, only memory that was in use before the fork stays usable.
"""

import errno
import fcntl
import mmap
import os
import resource
import stat
import struct
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from ringbuf.errors import NotARing, RingClosed, RingError
from ringbuf.free_memory import free_memory_bytes
from ringbuf.native import ffi, lib

_FLOCK: Final = struct.Struct("@hhqqi4x")
_MAP_LOCKED: Final = 0x2000  # the same on x86-64 and aarch64; absent from the mmap module
_MADV_HUGEPAGE: Final = getattr(mmap, "MADV_HUGEPAGE", 14)
_MADV_POPULATE_WRITE: Final = 23  # Linux 5.14


class _Descriptor:
    """An open file, closed with the last reference.

    A call of another thread holds a reference, so that the number cannot mean another file during the call.
    """

    def __init__(self, number: int) -> None:
        self.number = number

    def close(self) -> None:
        """Close the file at once, even if other references exist."""
        number, self.number = self.number, -1
        if number >= 0:
            os.close(number)

    __del__ = close


class _Memory(mmap.mmap):
    """Mapped pages of a file.  The guard (c/ring/sigbus_guard.c) is removed before the pages are unmapped."""

    guard: int | None = None
    file: _Descriptor | None = None

    def __del__(self, unguard: Callable[[int], object] = lib.rb_unguard) -> None:
        if self.guard is not None:
            unguard(self.guard)


_CLOSED: Final = _Memory(-1, 1)
_CLOSED.close()


class PrivateMemory:
    """Zeros of this process with the interface of a Mapping that SlotTable uses: no other process has it."""

    descriptor = 0  # open as long as the object exists

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.pointer: Any = ffi.from_buffer(self.memory)

    def lock(self, byte: int) -> bool:
        """True: only this process reserves slots here."""
        del byte
        return True

    def unlock(self, byte: int) -> None:
        """No effect."""


class Mapping:
    """A mapping of a whole file or of its beginning.  `view` is the memory; `pointer` is the same for C.

    Any thread may call close() while others use the mapping.  These hold the memory or get RingClosed.
    """

    _all: ClassVar["weakref.WeakSet[Mapping]"] = weakref.WeakSet()

    def __init__(self, opened: int, path: Path, memory: _Memory, *, writable: bool) -> None:
        mode = os.O_RDWR if writable else os.O_RDONLY
        number = os.open(f"/proc/self/fd/{opened}", mode | os.O_CLOEXEC)
        self._opened: _Descriptor | None = _Descriptor(number)
        self.path = path
        self.memory = memory
        self.forked = False
        self.size = len(memory)
        self.view = memoryview(memory) if writable else memoryview(memory).toreadonly()
        self._pointer: Any = ffi.from_buffer(memory)
        if _others_may_shorten(os.fstat(number)):
            memory.guard = lib.rb_guard(self._pointer, self.size)
            if memory.guard < 0:
                raise RingError(f"{path}: {lib.RB_GUARDS} such files are mapped already; close some rings")
        Mapping._all.add(self)

    @classmethod
    def create(
        cls, path: Path, size: int, mode: int, *, populate: bool, lock_memory: bool, huge_pages: bool
    ) -> Self:
        """A new file of `size` allocated zero bytes: a full tmpfs gives ENOSPC here, not SIGBUS later."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            os.fchmod(descriptor, mode)  # the umask must not reduce it
            check_free_memory(path, size)
            if huge_pages:
                _allocate_huge(descriptor, size)
            os.posix_fallocate(descriptor, 0, size)
            flags = mmap.MAP_SHARED
            if populate:
                flags |= mmap.MAP_POPULATE  # otherwise each first touch of a page costs microseconds
            if lock_memory:
                flags |= _MAP_LOCKED
            memory = _Memory(descriptor, size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
            return cls(descriptor, path, memory, writable=True)
        except OSError as error:
            os.unlink(path)
            if explained := _explained(error, path, size, lock_memory=lock_memory):
                raise explained from error
            raise
        finally:
            os.close(descriptor)

    @classmethod
    def open(cls, path: Path, *, writable: bool, size_most: int | None = None) -> Self:
        """Map an existing file, or its first `size_most` bytes.

        Raises FileNotFoundError, PermissionError, or NotARing if it is empty.
        """
        # without O_NONBLOCK, the open of a FIFO waits for its writer; the size of a FIFO is 0
        descriptor = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            size = os.fstat(descriptor).st_size
            if size == 0:
                raise NotARing(f"{path}: is empty; remove it")
            size = min(size, size_most or size)
            prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
            memory = _Memory(descriptor, size, flags=mmap.MAP_SHARED, prot=prot)
            return cls(descriptor, path, memory, writable=writable)
        finally:
            os.close(descriptor)

    @property
    def descriptor(self) -> int:
        """Number of the file descriptor; -1 after close() or after a fork."""
        opened = self._opened
        return -1 if opened is None else opened.number

    @property
    def pointer(self) -> Any:
        """The memory for C; valid as long as this object is referenced.  Raises RingClosed."""
        pointer = self._pointer
        if pointer is None:
            raise RingClosed(f"{self.path}")
        return pointer

    def populate(self, begin: int, length: int) -> None:
        """Touch the pages of this range for writing; the content stays. No effect before Linux 5.14."""
        with suppress(OSError, ValueError):  # ValueError: the mapping was closed
            self.memory.madvise(_MADV_POPULATE_WRITE, begin, length)

    def patch(self, at: int, patch: bytes, *, restore: bool) -> None:
        """Register `patch`: it is written at byte `at` if the file is found shortened.

        `restore`: write into the file, which gets its length back and stays shared; otherwise into private
        memory.  No effect for a file that no other user may shorten.
        """
        guard = self.memory.guard
        if guard is None:
            return
        if restore:
            # A new description, because a duplicate would keep the locks of this one.
            same = f"/proc/self/fd/{self.descriptor}"
            self.memory.file = _Descriptor(os.open(same, os.O_RDWR | os.O_CLOEXEC))
        number = -1 if self.memory.file is None else self.memory.file.number
        lib.rb_guard_patch(guard, number, at, patch, len(patch))

    def restore(self) -> None:
        """Give a shortened file its length back, if patch(restore=True) was called."""
        guard, opened = self.memory.guard, self._opened
        if guard is not None and opened is not None and os.fstat(opened.number).st_size < self.size:
            lib.rb_guard_restore(guard)

    @property
    def faults(self) -> int:
        """Number of times that the file was found shortened by another process."""
        guard = self.memory.guard
        return 0 if guard is None else int(lib.rb_guard_faults(guard))

    @property
    def is_lost(self) -> bool:
        """True if the memory is private zeros, because another process has shortened the file."""
        guard = self.memory.guard
        return guard is not None and bool(lib.rb_guard_lost(guard))

    @property
    def owner(self) -> int:
        """Uid of the file's owner."""
        return os.fstat(self.descriptor).st_uid

    def lock(self, byte: int) -> bool:
        """Take the lock on one byte of the file; False: another holder has it. Raises RingClosed."""
        opened = self._opened
        if opened is None:
            raise RingClosed(f"{self.path}")
        try:
            fcntl.fcntl(opened.number, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def unlock(self, byte: int) -> None:
        """Release the lock on one byte.  No effect after close()."""
        opened = self._opened
        if opened is not None and opened.number >= 0:
            fcntl.fcntl(opened.number, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, byte, 1, 0))

    def close(self) -> None:
        """Close the descriptor, which releases every lock.  Unmap the memory as soon as no record uses it."""
        opened, self._opened = self._opened, None
        if opened is None:
            return
        del opened
        self._pointer = None
        with suppress(BufferError):
            self.view.release()
        # Records in use keep the memory.  The last reference removes the guard and unmaps.
        self.view, self.memory = memoryview(b""), _CLOSED

    @classmethod
    def forget_in_child(cls) -> None:
        """Close the parent's locks in a forked child."""
        for mapping in cls._all:
            if mapping._opened is not None:
                mapping._opened.close()
            mapping._opened, mapping.forked = None, True


os.register_at_fork(after_in_child=Mapping.forget_in_child)


def _others_may_shorten(file: os.stat_result) -> bool:
    """True if a user who cannot stop this process may write the file."""
    return bool(file.st_mode & (stat.S_IWGRP | stat.S_IWOTH)) or file.st_uid not in (os.geteuid(), 0)


def check_free_memory(path: Path, size: int) -> None:
    """Raise OSError (ENOMEM) if a file of `size` would take memory that is not free."""
    free = free_memory_bytes(path.parent)
    if size > free:
        reason = f"{size} bytes are more than the free memory ({free} bytes); lower capacity_bytes"
        raise OSError(errno.ENOMEM, reason, str(path))


def _allocate_huge(descriptor: int, size: int) -> None:
    """Touch all pages through a mapping with MADV_HUGEPAGE; other ways of allocation give small pages.

    Pages stay ordinary if tmpfs offers no huge ones or Linux is older than 5.14.
    """
    os.ftruncate(descriptor, size)
    with mmap.mmap(descriptor, size) as memory, suppress(OSError):
        memory.madvise(_MADV_HUGEPAGE)
        memory.madvise(_MADV_POPULATE_WRITE)


def _explained(error: OSError, path: Path, size: int, *, lock_memory: bool) -> OSError | None:
    """The same error with the remedy in its text; None: no remedy is known."""
    if error.errno == errno.ENOSPC:
        why = f"no room for {size} bytes in {path.parent}; remount that tmpfs larger or lower capacity_bytes"
    elif lock_memory and error.errno in (errno.EAGAIN, errno.ENOMEM, errno.EPERM):
        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        why = f"{size} bytes may not be locked (limit {limit}); raise `ulimit -l` or LimitMEMLOCK="
    else:
        return None
    return OSError(error.errno, why, str(path))
