"""Lock of a directory: admits one broker, backup or restore at a time.

An flock on `brim.lock`, which the kernel releases however its holder ends. The file has the process id for
people; no decision depends on it. It is never removed: a lock on a removed file excludes no other broker.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import Self

from edge.errors import DirectoryBusy, EdgeError

LOCK_NAME = "brim.lock"
RESTORING_NAME = "restore-incomplete"  # in a state directory whose restore has not ended


class DirectoryLock:
    """Lock of a broker on `directory`, or of the verb `holder`, held from construction to close().

    The lock file has the process and the verb of its holder.  Raises DirectoryBusy, with both; EdgeError: a
    restore was interrupted, or the lock is not a regular file.
    """

    def __init__(self, directory: Path, holder: str = "") -> None:
        self.directory = directory
        file = directory / LOCK_NAME
        self._fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            self.close()
            raise EdgeError(f"{file} is not a regular file", hint="remove it, then start the broker again")
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            found = os.pread(self._fd, 32, 0)
            self.close()
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise _busy(directory, found) from error
        with contextlib.suppress(OSError):  # a full disk: then others get no name of this process
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()} {holder}\n".encode(), 0)
        if (directory / RESTORING_NAME).exists():
            self.close()
            hint = f"rm -r {directory} and the log directory, then brim restore again"
            raise EdgeError(f"{directory} is incomplete: its restore was interrupted", hint=hint)

    def close(self) -> None:
        """Release the lock. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _busy(directory: Path, found: bytes) -> DirectoryBusy:
    """The error for the contents of a lock file."""
    words = found.decode("ascii", "replace").split()
    pid = int(words[0]) if words and words[0].isdecimal() else 0
    verb = words[1] if words[1:] in (["backup"], ["restore"]) else ""
    if verb:
        text, hint = f"is in use by brim {verb}", "wait for its end, then try again"
    else:
        text = "is in use by another broker"
        hint = "stop that one, or give this one its own runtime_dir and state_dir"
    return DirectoryBusy(f"{directory} {text} (pid {pid or 'not yet known'})", pid=pid, verb=verb, hint=hint)
