"""File copy of a backup: a hard link, shared blocks, or a copy, with the checksum of the bytes in the copy.

A hard link costs no space and no time, and has the same bytes as the log's own file. So only files that are
never written again are linked. Shared blocks (reflink: btrfs, XFS) are independent of the original.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from io import BufferedReader, FileIO
from pathlib import Path
from typing import BinaryIO

from edge.backup.manifest import BackupFile
from edge.delayed.store import read_only
from persistence.files import OsFiles

CHUNK_BYTES = 4 << 20
FICLONE = 0x40049409  # of ioctl_ficlone(2); the module fcntl of Python 3.11 does not name it

Advance = Callable[[float], object]


def copy_file(
    source: Path, root: Path, name: str, advance: Advance, *, limit: int | None = None, links: bool = False
) -> BackupFile:
    """Copy `source` to root/name, which must not exist, and sync it.

    `limit`: copy only so many bytes. `links`: a hard link is allowed. Raises OSError.
    """
    target = root / name
    target.parent.mkdir(parents=True, exist_ok=True)
    if links and limit is None and _linked(source, target):
        return _entry(target, name, advance)
    try:
        with _opened(source) as reader, target.open("xb") as writer:
            os.fchmod(writer.fileno(), os.fstat(reader.fileno()).st_mode & 0o777)
            if _shares_blocks(reader, writer, limit):
                os.fsync(writer.fileno())
                return _entry(target, name, advance)
            size, digest = _copied(reader, writer, limit, advance)
            writer.flush()
            os.fsync(writer.fileno())
    except OSError as error:
        error.filename = error.filename or f"{source} to {target}"
        raise
    return BackupFile(name, size, digest)


def copy_database(source: Path, root: Path, name: str, advance: Advance) -> BackupFile:
    """Copy an SQLite file as of one moment to root/name, and sync it. Raises sqlite3.Error, OSError.

    Opened for writing, SQLite would move the write-ahead log of a killed broker into the file, and damage to
    that log, which the next start reports, would be gone.
    """
    target = root / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with read_only(source) as database:
        database.execute("VACUUM INTO ?", (str(target),))
    with target.open("rb+") as file:
        os.fchmod(file.fileno(), source.stat().st_mode & 0o777)
        os.fsync(file.fileno())
    return _entry(target, name, advance)


def _opened(path: Path) -> BufferedReader:
    """Open a regular file to read: a FIFO would wait for its writer. Raises OSError."""
    return BufferedReader(FileIO(OsFiles().open(str(path))))


def checksum(path: Path, advance: Advance) -> tuple[int, str]:
    """Size and SHA-256 of a file. Raises OSError."""
    digest, size = hashlib.sha256(), 0
    with _opened(path) as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
            advance(len(chunk))
    return size, digest.hexdigest()


def _entry(target: Path, name: str, advance: Advance) -> BackupFile:
    return BackupFile(name, *checksum(target, advance))


def _linked(source: Path, target: Path) -> bool:
    """Link the file; False on another file system, or if the kernel protects the file from it."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        return False
    return True


def _shares_blocks(reader: BinaryIO, writer: BinaryIO, limit: int | None) -> bool:
    """Clone the file, cut to `limit`; False if the file system cannot."""
    with suppress(OSError):
        fcntl.ioctl(writer.fileno(), FICLONE, reader.fileno())
        if limit is not None:
            os.ftruncate(writer.fileno(), limit)
        return True
    return False


def _copied(reader: BinaryIO, writer: BinaryIO, limit: int | None, advance: Advance) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    while chunk := reader.read(CHUNK_BYTES if limit is None else min(CHUNK_BYTES, limit - size)):
        writer.write(chunk)
        digest.update(chunk)
        size += len(chunk)
        advance(len(chunk))
    return size, digest.hexdigest()
