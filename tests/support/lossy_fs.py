"""A file system that loses what a power cut may lose: SimFiles, mounted by FUSE for real processes.

    python -m tests.support.lossy_fs MOUNTPOINT

Obeys lines of JSON on standard input, a list of a word and its arguments, and answers each with a line:

    ["cut", seed]               the power goes, now: from here on every call fails with EIO
    ["boot"]                    the disk as the cut has left it, at work again
    ["fail", operation, errno, times]   the next calls of an operation fail ("" is any that changes something)
    ["room", bytes]             so many more bytes fit, null: no limit
    ["read_only", true]         whatever changes something fails with EROFS
    ["short", true]             some writes take a part of what they are given
    ["counts"]                  calls by operation since the start; also those that failed or were short

It ends when it is unmounted.  Nothing is cached in the kernel beyond an open file: attributes and names
asked for each time, so that a cut needs no new mount.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import stat
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, TypeVar, cast

import mfusepy

from tests.support.simfiles import SimFile, SimFiles

BLOCK_BYTES = 4096
DISK_BYTES = 1 << 30  # what statfs() tells when there is no limit


Call = TypeVar("Call", bound=Callable[..., Any])


def _guarded(call: Call) -> Call:
    """A call of the kernel: one at a time, and none of them after a cut."""

    @functools.wraps(call)
    def guarded(self: LossyFiles, *arguments: Any) -> Any:
        with self.calls:
            if self.after is not None and call.__name__ != "release":
                raise OSError(errno.EIO, "no power")
            try:
                return call(self, *arguments)
            except KeyError:  # A handle of before the cut, in the hands of a process that dies.
                raise OSError(errno.EIO, "no such handle") from None

    return cast(Call, guarded)


class LossyFiles(mfusepy.Operations):  # type: ignore[misc]
    """The calls of the kernel, on a SimFiles.  One lock: FUSE and the commands are two threads."""

    use_ns = True  # times are whole nanoseconds

    def __init__(self) -> None:
        self.random = Random(0)
        self.disk = SimFiles(self.random)
        self.after: SimFiles | None = None  # the disk after a cut, before the next boot
        self.counts: Counter[str] = Counter()
        self.calls = threading.RLock()
        self._failing: tuple[str, int, int] | None = None  # operation, errno, times
        self._read_only = False
        self._modes: dict[str, int] = {}
        self.disk.hook = self._before

    # ---- commands ----

    def command(self, word: str, *arguments: Any) -> object:
        """Obeys; what it answers can be JSON."""
        with self.calls:
            return getattr(self, f"do_{word}")(*arguments)

    def do_cut(self, seed: int) -> int:
        """The power is cut."""
        self.random.seed(seed)
        self.after = self.disk.crash(Random(seed))
        return len(self.after.names)

    def do_boot(self) -> int:
        """Continue with the content that the disk has kept."""
        assert self.after is not None
        self.disk, self.after = self.after, None
        self.disk.random = self.random
        self.disk.hook = self._before
        self.do_clear()
        return self.disk.used_bytes()

    def do_clear(self) -> int:
        """No call fails any more."""
        self._failing, self._read_only, self.disk.room_bytes = None, False, None
        self.disk.short_writes = False
        return 0

    def do_short(self, yes: bool) -> int:
        """Some writes are short."""
        self.disk.short_writes = yes
        return int(yes)

    def do_fail(self, operation: str, number: int, times: int) -> int:
        """The next ones fail."""
        self._failing = operation, number, times
        return times

    def do_room(self, more_bytes: int | None) -> int:
        """So many more fit."""
        used = self.disk.used_bytes()
        self.disk.room_bytes = None if more_bytes is None else used + more_bytes
        return used

    def do_read_only(self, yes: bool) -> int:
        """Nothing may be changed."""
        self._read_only = yes
        return int(yes)

    def do_counts(self) -> dict[str, int]:
        """Calls since the start, and faults."""
        return dict(self.counts)

    def _before(self, operation: str, path: str) -> None:
        """Before each call of SimFiles that changes something."""
        self.counts[operation] += 1
        if self._read_only:
            self.counts["failed"] += 1
            raise OSError(errno.EROFS, "read-only file system")
        if self._failing is not None and self._failing[0] in ("", operation):
            wanted, number, times = self._failing
            self._failing = (wanted, number, times - 1) if times > 1 else None
            self.counts["failed"] += 1
            raise OSError(number, os.strerror(number))

    # ---- names ----

    @_guarded
    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        file = self._file(path)
        kind, mode = (stat.S_IFDIR, 0o755) if file.directory else (stat.S_IFREG, 0o640)
        size = len(file.cache)
        return {
            "st_mode": kind | self._modes.get(path, mode),
            "st_nlink": 1,
            "st_size": size,
            "st_blocks": -(-size // 512),
            "st_uid": os.getuid(),
            "st_gid": os.getgid(),
            "st_mtime": time.time_ns(),
        }

    @_guarded
    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *self.disk.listdir(path.rstrip("/"))]

    @_guarded
    def mkdir(self, path: str, mode: int) -> int:
        if path in self.disk.names:
            raise OSError(errno.EEXIST, "there already")
        self.disk.mkdir(path)
        return 0

    @_guarded
    def rmdir(self, path: str) -> int:
        if self.disk.listdir(path):
            raise OSError(errno.ENOTEMPTY, "not empty")
        self.disk.unlink(path)
        return 0

    @_guarded
    def unlink(self, path: str) -> int:
        self.disk.unlink(path)
        return 0

    @_guarded
    def rename(self, old: str, new: str) -> int:
        if self._file(old).directory:
            raise OSError(errno.ENOSYS, "directories keep their names here")
        self.disk.rename(old, new)
        return 0

    @_guarded
    def chmod(self, path: str, mode: int) -> int:
        self._modes[path] = mode & 0o7777
        return 0

    @_guarded
    def chown(self, path: str, uid: int, gid: int) -> int:
        return 0

    @_guarded
    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        return 0

    @_guarded
    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        self.disk.dirsync(path.rstrip("/"))
        return 0

    # ---- files ----

    @_guarded
    def create(self, path: str, mode: int, fi: Any = None) -> int:
        self._modes[path] = mode & 0o7777
        return self.disk.open(path, create=True)

    @_guarded
    def open(self, path: str, flags: int) -> int:
        handle = self.disk.open(path)
        if flags & os.O_TRUNC:
            self.disk.ftruncate(handle, 0)
        return handle

    @_guarded
    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return self.disk.read(fh, size, offset)

    @_guarded
    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        written = self.disk.pwritev(fh, [data], offset)
        self.counts["short"] += written < len(data)
        return written

    @_guarded
    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        handle = self.disk.open(path) if fh is None else fh
        try:
            self.disk.ftruncate(handle, length)
        finally:
            if fh is None:
                self.disk.close(handle)
        return 0

    @_guarded
    def fsync(self, path: str, datasync: int, fh: int) -> int:
        self.disk.fdatasync(fh)
        return 0

    @_guarded
    def flush(self, path: str, fh: int) -> int:
        return 0

    @_guarded
    def release(self, path: str, fh: int) -> int:
        if self.disk.holds(fh):  # Else it was opened before the cut.
            self.disk.close(fh)
        return 0

    @_guarded
    def statfs(self, path: str) -> dict[str, int]:
        used = self.disk.used_bytes()
        room = self.disk.room_bytes
        free = max((DISK_BYTES if room is None else room) - used, 0) // BLOCK_BYTES
        blocks = free + -(-used // BLOCK_BYTES)
        return {"f_bsize": BLOCK_BYTES, "f_frsize": BLOCK_BYTES, "f_blocks": blocks, "f_bfree": free,
                "f_bavail": free, "f_files": 1 << 20, "f_ffree": 1 << 19, "f_namemax": 255}  # fmt: skip

    def _file(self, path: str) -> SimFile:
        if path == "/":
            return SimFile(directory=True)
        if path not in self.disk.names:
            raise OSError(errno.ENOENT, "no such file")
        return self.disk.names[path]


def obey(files: LossyFiles) -> None:
    """Commands, until there are no more."""
    for line in sys.stdin:
        print(json.dumps(files.command(*json.loads(line))), flush=True)


def main() -> None:
    """Mounts, and serves until it is unmounted."""
    files = LossyFiles()
    threading.Thread(target=obey, args=(files,), daemon=True).start()
    mfusepy.FUSE(
        files,
        sys.argv[1],
        foreground=True,
        nothreads=True,
        fsname="lossy",
        entry_timeout=0,
        attr_timeout=0,
        negative_timeout=0,
        ac_attr_timeout=0,
    )


if __name__ == "__main__":
    main()
