"""Free disk space: the floors of the broker, and the check before it allocates more.

Three steps.  Each is taken when less is free than the larger of a share and a number of bytes:

    warn        (100 - warn_percent) %        delete + 2 segments
    delete      (100 - delete_percent) %      read_only + 4 segments   the oldest segments are removed
    read_only   (100 - read_only_percent) %   RESERVE_BYTES            no records are accepted

The shares are of the disk, of which at most DISK_COUNTS_BYTES count.  The bytes protect a small disk: they
are limited to 3/4, 1/2 and 1/4 of it.  The reserve is for files that are not segments: checkpoints, the
retained store, offsets of consumers, archives, quarantine.  These leave LAST_BYTES of it free, or 1/32 of a
smaller disk.  Never acts: maintenance/maintenance.py takes the steps, and log/log.py begins no segment then.

The log allocates one segment at a time.  It begins or prepares a segment only if the reserve stays free
afterwards, so no message rate can outrun the check of the disk.  A segment is at most 1/32 of the disk
(segment_bytes_for()), because each log has three of them.
"""

from __future__ import annotations

import errno
from typing import Literal, NamedTuple

from persistence.files import Files

DISK_COUNTS_BYTES = 64 << 30  # of a disk: a tenth of a large disk is more than a log needs
RESERVE_BYTES = 32 << 20
LAST_BYTES = 4 << 20
SEGMENTS_OF_DISK = 32
SEGMENT_MIN_BYTES = 1 << 20
NEVER_PERCENT = 100  # above it, a step is never taken

DiskStep = Literal["ok", "warn", "delete", "read_only"]


class DiskRules(NamedTuple):
    """Disk use in percent at which each step is taken; 101: never.  RocketMQ has the same three steps."""

    warn_percent: int = 75
    delete_percent: int = 85
    read_only_percent: int = 95


class Floors(NamedTuple):
    """Free bytes below which each step is taken."""

    warn: int
    delete: int
    read_only: int


def floors(rules: DiskRules, total_bytes: int, segment_bytes: int = 0) -> Floors:
    """The floors for a disk of that size, whose log has segments of that size."""
    counted = min(total_bytes, DISK_COUNTS_BYTES)

    def at_least(percent: int, size: int, share: float) -> int:
        max_bytes = int(total_bytes * share)
        return max(counted * (100 - percent) // 100, min(size, max_bytes)) if percent <= NEVER_PERCENT else 0

    read_only = at_least(rules.read_only_percent, RESERVE_BYTES, 1 / 4)
    delete = at_least(rules.delete_percent, read_only + 4 * segment_bytes, 1 / 2)
    warn = at_least(rules.warn_percent, max(delete, read_only) + 2 * segment_bytes, 3 / 4)
    return Floors(warn, delete, read_only)


def disk_step(rules: DiskRules, free_bytes: int, total_bytes: int, segment_bytes: int = 0) -> DiskStep:
    """The step for a disk with that much free space."""
    floor = floors(rules, total_bytes, segment_bytes)
    if free_bytes <= floor.read_only and floor.read_only:
        return "read_only"
    if free_bytes <= floor.delete and floor.delete:
        return "delete"
    return "warn" if free_bytes <= floor.warn and floor.warn else "ok"


def segment_bytes_for(files: Files, directory: str, segment_bytes: int) -> int:
    """`segment_bytes`, or less on a small disk.  Raises OSError."""
    _, total_bytes = files.disk(directory)
    return min(segment_bytes, max(total_bytes // SEGMENTS_OF_DISK, SEGMENT_MIN_BYTES))


def require_room(files: Files, directory: str, size: int) -> None:
    """Require that `size` more bytes in that directory leave the last reserve of the disk free.

    For files that are not segments.  Raises OSError (ENOSPC).
    """
    free, total = files.disk(directory)
    if free - size < min(LAST_BYTES, total // SEGMENTS_OF_DISK):
        text = f"{free} bytes are free on the disk, too few for {size} more; free some space"
        raise OSError(errno.ENOSPC, text, directory)
