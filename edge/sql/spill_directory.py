"""Spill directory: temporary files of a query that needs more memory than its limit.

    TMPDIR/brim-sql-*   of one query, mode 0700, locked (flock) while its process lives

Each query has its own, because DuckDB uses the same file names in each, and removes files of other processes
there. Leftovers of processes that were killed are removed by the next query of the same user.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "brim-sql-"
_open: set[Path] = set()  # of this process


@contextmanager
def spill_directory() -> Iterator[Path]:
    """A new directory, removed at the end. Raises OSError."""
    while True:
        directory = Path(tempfile.mkdtemp(prefix=PREFIX))
        with suppress(FileNotFoundError):  # another query took it for a leftover before it was locked
            handle = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(handle, fcntl.LOCK_EX)
            if directory.exists():
                break
            os.close(handle)
    _open.add(directory)
    try:
        _remove_leftovers(directory.parent)
        yield directory
    finally:
        _remove(directory)
        os.close(handle)


def remove_all() -> None:
    """Remove the directories of this process, which is about to end."""
    for directory in tuple(_open):
        _remove(directory)


def _remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    _open.discard(directory)


def _remove_leftovers(parent: Path) -> None:
    for directory in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if directory in _open or directory.lstat().st_uid != os.geteuid():
                continue
            handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
            finally:
                os.close(handle)
