"""A disk with bad sectors, which may pass."""

import errno
import os
from pathlib import Path

from persistence.files import OsFiles


class BadDisk(OsFiles):
    """Reads of bytes `first` to `last` of one file fail with EIO, until pass_over()."""

    def __init__(self) -> None:
        self._bad: tuple[Path, int, int] | None = None

    def break_at(self, path: Path, first: int, last: int) -> None:
        """Let reads of these bytes fail."""
        self._bad = path, first, last

    def pass_over(self) -> None:
        """Let all reads succeed."""
        self._bad = None

    def read(self, handle: int, length: int, position: int) -> bytes:
        """See Files."""
        if self._bad is not None:
            path, first, last = self._bad
            if (
                position <= last
                and position + length > first
                and Path(os.readlink(f"/proc/self/fd/{handle}")) == path
            ):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read(handle, length, position)
