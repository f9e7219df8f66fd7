"""Check of a file that is read again while clients are served: the read of a FIFO or device has no end."""

from __future__ import annotations

import errno
import stat
from pathlib import Path


def require_regular(file: Path) -> None:
    """Raise OSError if there is no regular file of that name."""
    mode = file.stat().st_mode
    if not stat.S_ISREG(mode):
        code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(code, "not a regular file", str(file))
