"""Reserve: room in the runtime directory that only a checkpoint of sessions may use.

A checkpoint is a new file, and makes room in the journal.  Without room for it in a file system that is
full, the journal would fill, and no client would be served.  So a file keeps that room.  A checkpoint that
finds none is written over it, and the checkpoint that is replaced becomes the reserve: no room is free in
between, which somebody else could take.

Owns the file sessions.reserve.  What it contains means nothing.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["Reserve"]

RESERVE_NAME = "sessions.reserve"
BEYOND_BYTES = 64 << 10


class Reserve:
    """The file in one runtime directory.  One thread at a time."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / RESERVE_NAME

    def keep(self, checkpoint_bytes: int, path: Path | None = None) -> None:
        """Reserve room for a checkpoint that is a quarter longer; without room, keep what there is.

        `path`: of a checkpoint, which may become the reserve later; by default of the reserve.
        """
        wanted = checkpoint_bytes + max(BEYOND_BYTES, checkpoint_bytes // 4)
        with contextlib.suppress(OSError):
            descriptor = os.open(
                path or self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
            try:
                if os.fstat(descriptor).st_size < wanted:
                    os.posix_fallocate(descriptor, 0, wanted)
            finally:
                os.close(descriptor)

    def lend(self, to: Path) -> int:
        """Move the file to the path `to`: its size in bytes, 0: there is none.  Raises OSError."""
        try:
            self.path.replace(to)
        except FileNotFoundError:
            return 0
        return to.stat().st_size

    def take(self, replaced: Path) -> None:
        """Take the file that is about to be replaced.  Without one there is no reserve until keep()."""
        with contextlib.suppress(OSError):
            self.path.hardlink_to(replaced)

    def release(self) -> None:
        """Give the room back."""
        with contextlib.suppress(OSError):
            self.path.unlink()
