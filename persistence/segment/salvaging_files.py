"""Files for readers that must not wait for a disk: a part that the disk cannot read counts as damage.

Sectors that cannot be read are zeros, so that the records around them are found.  A directory or a FIFO is a
file without a valid format.  Without this class a disk error is an OSError, which may pass: a reader that can
wait reads again, and loses nothing.
"""

from __future__ import annotations

from typing import Any

from persistence.durable_file import is_unreadable, problem_of, remedy_of
from persistence.errors import FormatError
from persistence.files import Files

SECTOR_BYTES = 512
KERNEL = "see the kernel's messages (dmesg)"


class SalvagingFiles:
    """Files without the parts that the disk cannot read; other calls are passed on unchanged."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def open(self, path: str, *, create: bool = False, mode: int | None = None) -> int:
        """See Files.  Raises FormatError: the file cannot be read."""
        try:
            return self._files.open(path, create=create, mode=mode)
        except OSError as error:
            if not is_unreadable(error):
                raise
            raise FormatError(f"{problem_of(error)}; {remedy_of(error)}") from error

    def read(self, handle: int, length: int, position: int) -> bytes:
        """See Files.  Sectors that cannot be read are zeros.

        Raises FormatError: all sectors of the first read, which has the header.
        """
        try:
            return self._files.read(handle, length, position)
        except OSError as error:
            length = min(length, self._files.size(handle) - position)
            sectors = [
                self._sector(handle, at, position + length)
                for at in range(position, position + length, SECTOR_BYTES)
            ]
            if position == 0 and not any(map(any, sectors)):
                raise FormatError(f"cannot be read: {error.strerror}; {KERNEL}") from error
            return b"".join(sectors)

    def _sector(self, handle: int, at: int, end: int) -> bytes:
        length = min(SECTOR_BYTES, end - at)
        try:
            return self._files.read(handle, length, at)
        except OSError:
            return bytes(length)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)
