"""zstd for drained files: of the standard library from Python 3.14 on, before that of backports.zstd, the
same module under another name.  It is loaded when the first file is compressed.
"""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Sequence
from typing import Any

from bridge.errors import BadName
from ringbuf.extras import install_extra

LEVEL = 1  # level 9 makes a fifth more of it, at an eighth of the speed
JOINED_MAX_BYTES = 1 << 20  # parts in one piece compress faster, by more than joining costs


@functools.cache
def _zstd() -> Any:
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise BadName(
        'compress = "zstd" needs zstd, which this Python (before 3.14) does not have',
        hint=install_extra("zstd"),
    )


def check_available() -> None:
    """Raises BadName, whose hint names the extra to install."""
    _zstd()


class _Idle(threading.local):
    """Idle compressor of a thread: to make one costs as much as compressing some 50 KiB."""

    compressor: Any = None


_idle = _Idle()


def compress_parts(parts: Sequence[bytes | memoryview]) -> bytes:
    """One zstd frame of all parts together.  Releases the GIL.  Raises BadName: zstd is not installed."""
    compressor, _idle.compressor = _idle.compressor or _zstd().ZstdCompressor(LEVEL), None
    if len(parts) > 1 and sum(map(len, parts)) <= JOINED_MAX_BYTES:
        parts = (b"".join(parts),)
    *before, last = parts
    frame = [compressor.compress(part) for part in before]
    frame.append(compressor.compress(last, compressor.FLUSH_FRAME))
    _idle.compressor = compressor  # not if it failed
    return frame[0] if len(frame) == 1 else b"".join(frame)
