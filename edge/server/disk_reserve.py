"""Disk reserve: a file that a start on a full disk removes, for the few files that it must write.

After a reboot the rings are new. Their epochs must be on the disk before they are used, otherwise offsets
would be given twice. So without the reserve a full disk would refuse the start also of streams that are only
in memory.

Owns the file `reserve` in the state directory. A start or a stop creates it again while the disk has room.
A disk that fills while the broker runs: persistence/maintenance/maintenance.py.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from edge.logging_setup import pairs
from persistence.durable_file import lacks_inodes
from persistence.files import FILE_MODE

log = logging.getLogger(__name__)

FILE_NAME = "reserve"
RESERVE_BYTES = 64 << 10
ROOM = 16  # a disk has room if that many reserves, and files, would fit


def use_reserve(state_dir: Path) -> None:
    """Remove the reserve if the disk is full, or has no inodes left."""
    path = state_dir / FILE_NAME
    try:
        free_bytes, is_without_inodes = _free_bytes(state_dir), lacks_inodes(state_dir)
        if free_bytes >= RESERVE_BYTES and not is_without_inodes:
            return
        path.unlink()
    except OSError:
        return  # the first file that cannot be written is reported
    lack = "has no free inodes; remove files" if is_without_inodes else "is full; free space"
    log.warning("disk reserve removed: the disk %s %s", lack, pairs(file=path, free_bytes=free_bytes))


def keep_reserve(state_dir: Path) -> None:
    """Create the reserve if it is missing or was not completed, and the disk has room."""
    path = state_dir / FILE_NAME
    try:
        disk = os.statvfs(state_dir)
        if _free_bytes(state_dir) < ROOM * RESERVE_BYTES or (disk.f_files and disk.f_favail < ROOM):
            return
        # O_NONBLOCK: a FIFO is an error
        flags = os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags, FILE_MODE)
        try:
            os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
        finally:
            os.close(descriptor)
    except OSError as error:
        log.warning("disk reserve not created %s", pairs(file=path, reason=error.strerror))


def _free_bytes(directory: Path) -> int:
    """Free bytes for this user."""
    disk = os.statvfs(directory)
    return disk.f_bavail * disk.f_frsize
