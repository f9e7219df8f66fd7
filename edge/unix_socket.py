"""File of a listening Unix socket. It outlives its process: a killed broker leaves it.

Owns the rules for its removal: a file to which a process listens, or which another process has replaced
meanwhile, stays. Never listens, and never touches a file that is not a socket.
"""

from __future__ import annotations

import errno
import socket
import stat
from contextlib import suppress
from pathlib import Path

FileId = tuple[int, int]  # device and inode


def file_id(path: Path) -> FileId:
    """Identity of the file at `path`. Raises OSError."""
    status = path.lstat()
    return status.st_dev, status.st_ino


def is_socket(path: Path) -> bool | None:
    """True if the file at `path` is a socket. None: there is no such file, or it cannot be looked up."""
    try:
        return stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return None  # bind() reports the reason


def remove_unserved(path: Path) -> bool:
    """Remove the socket at `path`. False: a process listens there. Raises OSError if that is unknown."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return True
        except OSError as error:
            if error.errno != errno.EAGAIN:  # a full backlog: a process listens
                raise
    return False


def remove_own(path: Path, own: FileId) -> None:
    """Remove the file at `path` unless it is of another process now."""
    with suppress(OSError):  # the file or its directory is gone
        if file_id(path) == own:
            path.unlink()
