"""A disk in memory that loses what a real one may lose: the file calls of persistence/files.py, for crash
tests.

What it models
  * Every write dirties sectors, which are the device's blocks.  Until a sync of that file has returned, each
    dirty sector may, at a crash, hold what it held before or any version written since; sectors are whole,
    but independent: so writes that are under way together reach the disk in any order, or in part.
  * So is the size: the synced one, or any since.  Bytes that only the size says are there are zeros.
  * A truncated tail may come back at a crash, sector by sector, until it is synced.
  * Names of files and directories (made, renamed, removed) are lost at a crash in any subset until their
    directory is synced; with a directory goes what is in it.
  * A sync that fails has written any subset of the dirty sectors, and forgets the others: they read well as
    long as the machine is up, and no later sync writes them.
  * A write that fails may have written a part; any write may be short.
  * Several writes may be under way at once (submit, reap).  Each is done at any moment from the one to the
    other, so in any order; its memory must stay as it is meanwhile.
  * Room is limited, if `room_bytes` says so: a write that would take more fails with ENOSPC.

crash() makes the disk that the next start finds; this disk stays usable.  kill() is the death of the
process alone: the kernel keeps everything, locks are free.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from random import Random
from typing import Any

from persistence.files import Buffer
from tests.support.called_disk import CalledDisk

SECTOR_BYTES = 512

_HANDLES = count(3)  # of all disks: one that outlives its disk must not be another's


class PowerCut(BaseException):
    """Raised by a hook: the machine stops in the middle of what it does."""


class SimFile:
    """One file: what reads see, what is on the disk, and what is between."""

    def __init__(
        self, data: bytes = b"", *, directory: bool = False, sector_bytes: int = SECTOR_BYTES
    ) -> None:
        self.directory = directory
        self.sector_bytes = sector_bytes
        self.cache = bytearray(data)
        self.disk = bytearray(data)
        self.dirty: dict[int, list[bytes]] = {}  # by sector: its versions since the last sync
        self.sizes: list[int] = []  # since the last sync

    def write(self, data: bytes, position: int) -> None:
        if position > len(self.cache):
            self.cache += bytes(position - len(self.cache))
        self.cache[position : position + len(data)] = data
        self._touch(position, position + len(data))

    def truncate(self, size: int) -> None:
        before = len(self.cache)
        if size < before:
            del self.cache[size:]
            self._touch(size - 1 if size else 0, before)
        else:
            self.cache += bytes(size - before)
        self.sizes.append(size)

    def _touch(self, begin: int, end: int) -> None:
        for sector in range(begin // self.sector_bytes, -(-end // self.sector_bytes)):
            at = sector * self.sector_bytes
            version = bytes(self.cache[at : at + self.sector_bytes]).ljust(self.sector_bytes, b"\0")
            self.dirty.setdefault(sector, []).append(version)
        if not self.sizes or self.sizes[-1] != len(self.cache):
            self.sizes.append(len(self.cache))

    def sync(self) -> None:
        if self.dirty or self.sizes:
            size = self.sizes[-1] if self.sizes else len(self.disk)
            self._write_to(self.disk, {it: versions[-1] for it, versions in self.dirty.items()}, size)
            self.dirty, self.sizes = {}, []

    def copy(self) -> SimFile:
        """Another one like it: what the kernel keeps when a process dies."""
        other = SimFile(directory=self.directory, sector_bytes=self.sector_bytes)
        other.cache, other.disk = bytearray(self.cache), bytearray(self.disk)
        other.dirty = {sector: list(versions) for sector, versions in self.dirty.items()}
        other.sizes = list(self.sizes)
        return other

    def fail_to_sync(self, random: Random) -> None:
        """Put each dirty chunk on the disk or not, at random; no chunk is dirty afterwards."""
        self.disk = self.after_crash(random)
        self.dirty, self.sizes = {}, []

    def after_crash(self, random: Random) -> bytearray:
        """Content of the disk if the machine stops now."""
        if not self.dirty and not self.sizes:
            return self.disk
        luck = random.choice((0.0, 1.0, random.random()))
        written = {
            sector: random.choice(versions)
            for sector, versions in self.dirty.items()
            if luck == 1.0 or (luck > 0.0 and random.random() < luck)
        }
        size = random.choice([len(self.disk), *self.sizes]) if luck < 1.0 else len(self.cache)
        disk = bytearray(self.disk)
        self._write_to(disk, written, size)
        return disk

    def _write_to(self, disk: bytearray, sectors: Mapping[int, bytes], size: int) -> None:
        """Writes sectors to a disk's file, and makes it as long as it should be."""
        for sector, data in sectors.items():
            at = sector * self.sector_bytes
            if at > len(disk):
                disk += bytes(at - len(disk))
            disk[at : at + self.sector_bytes] = data
        if len(disk) < size:
            disk += bytes(size - len(disk))
        del disk[size:]


class _Write:
    """One that is under way."""

    def __init__(self, handle: int, data: memoryview, position: int) -> None:
        self.handle, self.data, self.position = handle, data, position
        self.given = bytes(data)
        self.result: int | OSError | None = None  # once it is done


class SimFiles:
    """The calls.  `hook(operation, path)` comes before each that changes something; it may raise.

    An OSError raised by the hook at "fdatasync" or "pwritev" has the effects above; elsewhere the call does
    nothing.  A directory that was not made here always exists.
    """

    def __init__(
        self, random: Random, files: dict[str, SimFile] | None = None, block_bytes: int = SECTOR_BYTES
    ) -> None:
        self.random = random
        self.block_bytes = block_bytes  # of the device: written whole or not at all
        self.chunk_bytes = 4096  # of one of several writes at a time
        self._under_way: dict[int, _Write] = {}  # by slot
        self.names: dict[str, SimFile] = dict(files or {})
        self.synced: dict[str, SimFile] = dict(files or {})  # names on the disk
        self.pending: list[tuple[str, str, SimFile]] = []  # of the others: removed name, new name, file
        self.hook: Callable[[str, str], None] | None = None
        self.short_writes = False
        self.free_bytes, self.total_bytes = 1 << 40, 1 << 41
        self.room_bytes: int | None = None
        self.operations = 0
        self._handles: dict[int, tuple[str, SimFile]] = {}
        self._locked: dict[int, str] = {}

    # ---- what may happen to it ----

    def crash(self, random: Random | None = None) -> SimFiles:
        """The disk after a power cut at this moment."""
        random = random or self.random
        names = dict(self.synced)
        luck = random.choice((0.0, 1.0, random.random()))
        for removed, new, file in self.pending:
            if luck == 1.0 or random.random() < luck:
                _rename(names, removed, new, file)
        made = {name for name, file in self.names.items() if file.directory} | {
            new for _, new, file in self.pending if file.directory
        }
        gone = {name + "/" for name in made if name not in names}
        files: dict[str, SimFile] = {}
        for name, file in names.items():
            if not (gone and any(name.startswith(lost) for lost in gone)):
                files[name] = self._file(bytes(file.after_crash(random)), directory=file.directory)
        return SimFiles(random, files, self.block_bytes)

    def kill(self) -> SimFiles:
        """The same disk after the death of the process that used it."""
        other = SimFiles(self.random, block_bytes=self.block_bytes)
        copies: dict[int, SimFile] = {}
        for file in {id(it): it for it in (*self.names.values(), *self.synced.values())}.values():
            copies[id(file)] = file.copy()
        other.names = {name: copies[id(file)] for name, file in self.names.items()}
        other.synced = {name: copies[id(file)] for name, file in self.synced.items()}
        other.pending = [
            (removed, new, copies.get(id(file)) or self._file(bytes(file.cache)))
            for removed, new, file in self.pending
        ]
        return other

    def contents(self) -> list[tuple[str, bytes, bytes]]:
        """Each name with what is read and what is on the disk, sorted."""
        return sorted((name, bytes(file.cache), bytes(file.disk)) for name, file in self.names.items())

    def flip(self, path: str, bit: int) -> None:
        """Rot: one bit of a file, on the disk and in what is read."""
        file = self.names[path]
        for data in (file.cache, file.disk):
            if bit // 8 < len(data):
                data[bit // 8] ^= 1 << bit % 8

    def _file(self, data: bytes = b"", *, directory: bool = False) -> SimFile:
        return SimFile(data, directory=directory, sector_bytes=self.block_bytes)

    # ---- persistence.files.Files ----

    def makedirs(self, path: str) -> None:
        parts = path.strip("/").split("/")
        for path_ in ("/" + "/".join(parts[:depth]) for depth in range(1, len(parts) + 1)):
            if path_ not in self.names:
                self.mkdir(path_)
                self.dirsync(path_.rpartition("/")[0])
        self.dirsync(path.rpartition("/")[0])

    def mkdir(self, path: str) -> None:
        """As os.mkdir(): its name is not on the disk yet."""
        self._before("mkdir", path)
        self.names[path] = self._file(directory=True)
        self.pending.append(("", path, self.names[path]))

    def lock(self, path: str) -> int:
        if path in self._locked.values():
            raise BlockingIOError(errno.EAGAIN, "locked")
        handle = self.open(path, create=True)
        self._locked[handle] = path
        return handle

    def open(self, path: str, *, create: bool = False, mode: int | None = None) -> int:
        if path not in self.names:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            self._before("open", path)
            self.names[path] = self._file()
            self.pending.append(("", path, self.names[path]))
        handle = next(_HANDLES)
        self._handles[handle] = path, self.names[path]
        return handle

    def close(self, handle: int) -> None:
        del self._handles[handle]
        self._locked.pop(handle, None)

    def holds(self, handle: int) -> bool:
        """True if the handle is open here."""
        return handle in self._handles

    def size(self, handle: int) -> int:
        return len(self._handles[handle][1].cache)

    def links(self, handle: int) -> int:
        """Always one: nothing links files here."""
        del handle
        return 1

    def read(self, handle: int, length: int, position: int) -> bytes:
        return bytes(self._handles[handle][1].cache[position : position + length])

    def advise(self, handle: int, length: int, position: int, advice: str) -> None:
        """There is no cache to advise."""

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        path, file = self._handles[handle]
        data = b"".join(buffers)
        try:
            self._before("pwritev", path)
            self._check_room(file, position + len(data))
        except OSError:
            file.write(data[: self.random.randrange(max(len(data), 1))], position)
            raise
        if self.short_writes and self.random.random() < 0.1:
            whole = not (len(data) | position) % self.block_bytes
            least = self.block_bytes if whole else 1
            data = data[: self.random.randrange(least, len(data) + 1) // least * least]
        file.write(data, position)
        return len(data)

    def submit(self, handle: int, data: memoryview, position: int, slot: int) -> None:
        """See QueuedFiles."""
        assert slot not in self._under_way
        write = self._under_way[slot] = _Write(handle, data, position)
        if self.random.random() < 0.5:
            self._do(write)

    def reap(self) -> int:
        """See QueuedFiles."""
        return self.random.choice(list(self._under_way))

    def result(self, slot: int) -> int:
        """See QueuedFiles."""
        write = self._under_way.pop(slot)
        if write.data != write.given:
            raise AssertionError("bytes have changed during their write")
        if write.result is None:
            self._do(write)
        if isinstance(write.result, OSError):
            raise write.result
        assert write.result is not None
        return write.result

    def _do(self, write: _Write) -> None:
        try:
            write.result = self.pwritev(write.handle, [write.given], write.position)
        except OSError as error:
            write.result = error

    def fdatasync(self, handle: int) -> None:
        path, file = self._handles[handle]
        try:
            self._before("fdatasync", path)
        except OSError:
            file.fail_to_sync(self.random)
            raise
        file.sync()

    def ftruncate(self, handle: int, length: int) -> None:
        path, file = self._handles[handle]
        self._before("ftruncate", path)
        file.truncate(length)

    def rename(self, source: str, target: str) -> None:
        if source not in self.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        self._before("rename", source)
        file = self.names[source]
        _rename(self.names, source, target, file)
        self.pending.append((source, target, file))

    def unlink(self, path: str) -> None:
        if path not in self.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        self._before("unlink", path)
        self.pending.append((path, "", self.names.pop(path)))

    def dirsync(self, path: str) -> None:
        self._before("dirsync", path)
        here: list[tuple[str, str, SimFile]] = []
        elsewhere: list[tuple[str, str, SimFile]] = []
        for it in self.pending:
            (here if (it[1] or it[0]).rpartition("/")[0] == path else elsewhere).append(it)
        for removed, new, file in here:
            _rename(self.synced, removed, new, file)
        self.pending = elsewhere

    def listdir(self, path: str) -> list[str]:
        return [name.rpartition("/")[2] for name in self.names if name.rpartition("/")[0] == path]

    def used_bytes(self) -> int:
        """Size of all files together."""
        return sum(len(file.cache) for file in self.names.values())

    def _check_room(self, file: SimFile, size: int) -> None:
        more = size - len(file.cache)
        if self.room_bytes is not None and more > 0 and self.used_bytes() + more > self.room_bytes:
            raise OSError(errno.ENOSPC, "no space left on device")

    def disk(self, path: str) -> tuple[int, int]:
        return self.free_bytes, self.total_bytes

    def stand_in(self, log: Any) -> CalledDisk:
        return CalledDisk(self, log)

    def _before(self, operation: str, path: str) -> None:
        self.operations += 1
        if self.hook is not None:
            self.hook(operation, path)


def _rename(names: dict[str, SimFile], removed: str, new: str, file: SimFile) -> None:
    if names.get(removed) is file:
        del names[removed]
    if new:
        names[new] = file
