"""Access to a file that a command replaces: owner, group and mode of the earlier file."""

from __future__ import annotations

import os
import stat
from contextlib import suppress


def keep_access(earlier: os.stat_result, descriptor: int) -> None:
    """Give an open file the owner, group and mode of `earlier`, which it will replace.

    Without root the owner is this user. A group that is not one of this user loses its rights, and the bits
    set-user-ID and set-group-ID are not kept for another user.
    """
    mode = stat.S_IMODE(earlier.st_mode)
    try:
        os.fchown(descriptor, earlier.st_uid, earlier.st_gid)
    except PermissionError:
        mode &= ~(stat.S_ISUID | stat.S_ISGID)
        with suppress(PermissionError):
            os.fchown(descriptor, -1, earlier.st_gid)
        if os.fstat(descriptor).st_gid != earlier.st_gid:
            mode &= ~stat.S_IRWXG
    os.fchmod(descriptor, mode)
