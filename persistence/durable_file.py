"""Durable file: replaces a file as a whole, and frames content with a checksum.

Owns the steps that replace a file. After a crash between any two steps, the file NAME has either the complete
old content or the complete new content:

    NAME.tmp   written and synced
    rename     NAME.tmp to NAME
    dirsync    of the directory; then the new content survives a power cut

The next replacement overwrites NAME.tmp of a killed process. `shared` replacements have random temporary
names; a start of the broker removes those (edge/server/leftovers.py).

Owns two layouts, little-endian. The formats that use them define magic, version, checksum, kinds and bodies.

    byte  size  envelope: one body in a file
       0     8  magic
       8     4  version
      12     4  length     of the body
      16     4  checksum   of bytes 0 .. 16 and the body
      20    12  zeros
      32        body

    byte  size  frame: one of several bodies in a file
       0     4  length     of the body
       4     4  crc32c     of kind and body, seeded as the format says
       8     1  kind
       9        body

All calls to the disk are those of persistence/files.py, so that a test can cut the power at each of them.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from persistence.files import IOV_MAX, Buffer, Files
from ringbuf import crc32c

TEMPORARY_SUFFIX = ".tmp"
BUFFER_BYTES = 1 << 20  # collected in memory before a write

_HEADER = struct.Struct("<8sII")
_CHECKSUM = struct.Struct("<I12x")
_FRAME = struct.Struct("<IIc")

HEADER_BYTES = _HEADER.size + _CHECKSUM.size
FRAME_BYTES = _FRAME.size
WINDOW_BYTES = 1 << 20  # of a file of frames that is in memory


# ---- files ----


class UnreadableFile(OSError, ValueError):
    """A file that the disk cannot read, or a directory, a FIFO or a circle of links in its place: damage of
    the file, as invalid content, which is a ValueError.
    """


_UNREADABLE = {errno.EIO, errno.EISDIR, errno.ENXIO, errno.ELOOP, errno.EUCLEAN, errno.EBADMSG}


def is_unreadable(error: OSError) -> bool:
    """True if the disk cannot read a part of a file, or a file is in fact something else."""
    return error.errno in _UNREADABLE


def problem_of(error: OSError) -> str:
    """File and cause of an error; of a rename, the new name."""
    file, cause = error.filename2 or error.filename, error.strerror or str(error)
    return f"{file}: {cause}" if file else cause


def remedy_of(error: OSError) -> str:
    """Remedy for a file that cannot be read or replaced."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        is_full = not lacks_inodes(error.filename2 or error.filename)
        return "free space on that disk" if is_full else "remove files there: `df -i` shows no free inodes"
    if error.errno == errno.EROFS:
        return "mount that file system for writing; `dmesg` may have the cause"
    if error.errno == errno.EFBIG:
        return "raise the limit of file sizes: `ulimit -f`, or LimitFSIZE= of a service"
    if error.errno in (errno.EISDIR, errno.ENOTDIR, errno.ENXIO, errno.ELOOP):
        return "move or remove it"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "let the user of this process read and write it"
    if error.errno == errno.ENOMEM:
        return "raise the limit of memory: `ulimit -v`, or MemoryMax= of a service"
    return "repair, move or remove it"


def lacks_inodes(path: object) -> bool:
    """True if the file system of a file or directory has no inodes left: ENOSPC with free space.

    For a path that does not exist: that of the directory above. False if it is unknown, as for a descriptor.
    """
    if not isinstance(path, str | os.PathLike):
        return False
    place = Path(path)
    try:
        disk = os.statvfs(next(one for one in (place, *place.parents) if os.path.exists(one)))
    except (OSError, StopIteration):  # the user may not look into the working directory
        return False
    return disk.f_files > 0 and disk.f_favail == 0  # some file systems have no limit: 0 files


def read_file(files: Files, path: str, max_bytes: int | None = None) -> bytes:
    """Content of the file, at most `max_bytes` of it. Raises UnreadableFile, OSError."""
    try:
        return _content(files, path, max_bytes)
    except OSError as error:
        if is_unreadable(error):
            raise UnreadableFile(error.errno, error.strerror, path) from error
        raise


def _content(files: Files, path: str, max_bytes: int | None) -> bytes:
    handle = files.open(path)
    try:
        size = files.size(handle)
        return files.read(handle, size if max_bytes is None else min(size, max_bytes), 0)
    finally:
        files.close(handle)


def write_all(files: Files, handle: int, parts: Iterable[Buffer], place: int) -> int:
    """Write all parts in order from `place`. Return the position after the last byte. Raises OSError."""
    buffers = [part for part in parts if len(part)]
    for first in range(0, len(buffers), IOV_MAX):
        rest: Sequence[Buffer] = buffers[first : first + IOV_MAX]
        while rest:
            written = files.pwritev(handle, rest, place)
            place += written
            rest = _rest(rest, written)
    return place


def _rest(buffers: Sequence[Buffer], written: int) -> Sequence[Buffer]:
    """The rest of the buffers after a write that may be short."""
    for index, buffer in enumerate(buffers):
        if written < len(buffer):
            return [memoryview(buffer)[written:], *buffers[index + 1 :]]
        written -= len(buffer)
    return []


def move_file(files: Files, source: str, target: str) -> None:
    """Rename the file, and put the new name on the disk. Raises OSError."""
    files.rename(source, target)
    files.dirsync(os.path.dirname(target) or ".")


def replace_file(
    files: Files,
    path: str,
    parts: Iterable[Buffer],
    *,
    mode: int | None = None,
    shared: bool = False,
    sync_name: bool = True,
) -> None:
    """Replace the file by one with these parts. It survives a power cut when this returns.

    `mode`: permissions, see Files.open(). `shared`: several processes may replace the file at the same time.
    `sync_name=False`: the caller syncs the directory, or the file may be lost. Raises OSError.
    """
    with NewFile(files, path, mode=mode, shared=shared) as new:
        new.write(*parts)
        new.publish(sync_name=sync_name)


class NewFile:
    """File under a temporary name, which publish() makes the file `path`. One thread at a time.

    At the end of a `with` block the file is closed; without publish() it is removed.
    """

    def __init__(
        self,
        files: Files,
        path: str,
        *,
        mode: int | None = None,
        shared: bool = False,
        overwrites: bool = False,
    ) -> None:
        """Create the file. `mode`: permissions, see Files.open(). `shared`: see replace_file().

        `overwrites`: a file with the temporary name keeps its space and is overwritten. Raises OSError.
        """
        self.path = path
        unique = f".{os.urandom(8).hex()}" if shared else ""
        self.temporary = f"{path}{unique}{TEMPORARY_SUFFIX}"
        self.size = 0  # bytes given to write()
        self.may_be_named = False  # True from the moment at which `path` may be this file
        self._files = files
        self._waiting: list[Buffer] = []
        self._written = 0
        if not overwrites:
            with suppress(FileNotFoundError):
                files.unlink(self.temporary)
        self.handle = files.open(self.temporary, create=True, mode=mode)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, *parts: Buffer) -> None:
        """Append the parts, which must not change before publish(). Raises OSError."""
        self._waiting += parts
        self.size += sum(map(len, parts))
        if self.size - self._written >= BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the parts that wait in memory. Raises OSError, which names the file."""
        try:
            self._written = write_all(self._files, self.handle, self._waiting, self._written)
        except OSError as error:
            error.filename = error.filename or self.path
            raise
        self._waiting.clear()

    def publish(self, *, sync: bool = True, sync_name: bool = True) -> None:
        """Give the file its name. With `sync` and `sync_name` it survives a power cut on return.

        Raises OSError: the name is still that of the old file, unless `may_be_named`.
        """
        self.flush()
        if sync:
            self._files.fdatasync(self.handle)
        self.may_be_named = True
        if sync and sync_name:
            move_file(self._files, self.temporary, self.path)
        else:
            self._files.rename(self.temporary, self.path)

    def detach(self) -> int:
        """The handle, which the caller closes from now on."""
        handle, self.handle = self.handle, -1
        return handle

    def close(self) -> None:
        """Close the file. Remove it if it was not renamed: it takes space. May be called twice."""
        if self.handle >= 0:
            self._files.close(self.detach())
            with suppress(OSError):
                self._files.unlink(self.temporary)


# ---- content ----


class Envelope(NamedTuple):
    """Envelope of one format: packs a body, and verifies it."""

    magic: bytes  # 8
    version: int  # of new files
    checksum: Callable[[Buffer, int], int] = crc32c

    def pack(self, body: bytes) -> bytes:
        """Content of a file with this body."""
        head = _HEADER.pack(self.magic, self.version, len(body))
        return head + _CHECKSUM.pack(self._checksum(head, body)) + body

    def unpack(self, data: bytes) -> tuple[int, bytes]:
        """Version and body of a file, of any version. Raises ValueError: damage."""
        if len(data) < HEADER_BYTES:
            raise ValueError(f"{len(data)} bytes have no header")
        body = data[HEADER_BYTES:]
        magic, version, length = _HEADER.unpack_from(data)
        if (magic, length) != (self.magic, len(body)):
            raise ValueError(f"magic {magic!r}, {length} of {len(body)} bytes")
        checksum = self._checksum(data[: _HEADER.size], body)
        if data[_HEADER.size : HEADER_BYTES] != _CHECKSUM.pack(checksum):
            raise ValueError("the checksum does not hold")
        return version, body

    def body(self, data: bytes) -> bytes:
        """Body of a file of this version. Raises ValueError: damage, or another version."""
        version, body = self.unpack(data)
        if version != self.version:
            raise ValueError(f"version {version} of magic {self.magic!r}, not {self.version}")
        return body

    def _checksum(self, head: bytes, body: bytes) -> int:
        return self.checksum(body, self.checksum(head, 0))


def pack_frame(kind: bytes, body: Buffer, seed: int = 0) -> bytes:
    """Header of a frame; the body follows it."""
    return _FRAME.pack(len(body), crc32c(body, crc32c(kind, seed)), kind)


def frames_of_file(
    files: Files, handle: int, size: int, place: int = 0, seed: int = 0
) -> Iterator[tuple[bytes, memoryview, int]]:
    """Yield the frames of an open file of that size as frames_in(), with WINDOW_BYTES in memory at a time, or
    one frame that is longer. Raises OSError.
    """
    window_bytes = WINDOW_BYTES
    while place < size:
        data = memoryview(files.read(handle, min(window_bytes, size - place), place))
        used = 0
        for kind, body, used in frames_in(data, seed=seed):
            yield kind, body, place + used
        frame_bytes = FRAME_BYTES + _FRAME.unpack_from(data)[0] if len(data) >= FRAME_BYTES else 0
        if not used and not len(data) < frame_bytes <= size - place:
            return  # damaged, or cut off
        place, window_bytes = place + used, WINDOW_BYTES if used else frame_bytes


def frames_in(data: memoryview, place: int = 0, seed: int = 0) -> Iterator[tuple[bytes, memoryview, int]]:
    """Yield kind, body and end position of each frame from `place` on, up to the first invalid frame."""
    while place + FRAME_BYTES <= len(data):
        length, crc, kind = _FRAME.unpack_from(data, place)
        end = place + FRAME_BYTES + length
        body = data[place + FRAME_BYTES : end]
        if len(body) < length or crc32c(body, crc32c(kind, seed)) != crc:
            return
        yield kind, body, end
        place = end
