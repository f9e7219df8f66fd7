"""Reserve: space in the runtime directory that only a snapshot of sessions may use.

A snapshot is a new file, and frees the journal. In a full file system the snapshot would fail, the
journal would fill, and no client would be served. A reserve file therefore occupies that space. A snapshot
without other space overwrites it, and the replaced snapshot becomes the reserve. No space is free in
between that another process could take.

Owns the file sessions.reserve. Its content has no meaning.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

RESERVE_NAME = "sessions.reserve"
BEYOND_BYTES = 64 << 10


class Reserve:
    """The reserve file of one runtime directory. One thread at a time."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / RESERVE_NAME

    def keep(self, snapshot_bytes: int, path: Path | None = None) -> None:
        """Reserve space for a snapshot that is a quarter longer. If there is no space, the file stays as it
        is.

        `path`: a snapshot that may become the reserve later; by default the reserve itself.
        """
        reserve_bytes = snapshot_bytes + max(BEYOND_BYTES, snapshot_bytes // 4)
        with contextlib.suppress(OSError):
            descriptor = os.open(
                path or self.path,
                os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK,  # fails for a FIFO
                0o600,
            )
            try:
                if os.fstat(descriptor).st_size < reserve_bytes:
                    os.posix_fallocate(descriptor, 0, reserve_bytes)
            finally:
                os.close(descriptor)

    def lend(self, to: Path) -> int:
        """Move the file to `to`; return its size in bytes, 0 if there is no reserve. Raises OSError."""
        try:
            self.path.replace(to)
        except FileNotFoundError:
            return 0
        return to.stat().st_size

    def take(self, replaced: Path) -> None:
        """Keep the file to be replaced as the reserve; after a failure there is none until keep()."""
        with contextlib.suppress(OSError):
            self.path.hardlink_to(replaced)

    def release(self) -> None:
        """Remove the file, which frees its space."""
        with contextlib.suppress(OSError):
            self.path.unlink()
