"""The compressor: the standard library's from Python 3.14 on, before that backports.zstd, the same under
another name.

Owns one decision: it is loaded when the first archive is written or read, so that whoever has none needs
neither.
"""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Sequence
from typing import Any

from persistence.errors import ArchiveUnavailable, FormatError

__all__ = ["check_available", "compress", "compress_parts", "decompress"]

LEVEL = 1  # 565 MB/s where level 9 does 74, for four fifths of its ratio: archiving must keep up with ingest
JOINED_MOST_BYTES = 1 << 20  # parts in one piece compress faster than one by one, by more than joining costs


@functools.cache
def _zstd() -> Any:
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise ArchiveUnavailable(
        "archives want zstd, which this Python (before 3.14) does not have; run: pip install 'brim[archive]'"
    )


def check_available() -> None:
    """Raises ArchiveUnavailable, which says what to install."""
    _zstd()


class _Contexts(threading.local):
    """Compressors that stand between two frames, by level: to make one costs as much as some 50 KiB."""

    def __init__(self) -> None:
        self.idle: dict[int, Any] = {}


_contexts = _Contexts()


def compress(data: bytes | memoryview, level: int = LEVEL) -> bytes:
    """One zstd frame.  Releases the GIL.  Raises ArchiveUnavailable."""
    return compress_parts((data,), level)


def compress_parts(parts: Sequence[bytes | memoryview], level: int = LEVEL) -> bytes:
    """One zstd frame of all parts together.  Releases the GIL.  Raises ArchiveUnavailable."""
    compressor = _contexts.idle.pop(level, None) or _zstd().ZstdCompressor(level)
    if len(parts) > 1 and sum(map(len, parts)) <= JOINED_MOST_BYTES:
        parts = (b"".join(parts),)
    *before, last = parts
    frame = [compressor.compress(part) for part in before]
    frame.append(compressor.compress(last, compressor.FLUSH_FRAME))
    _contexts.idle[level] = compressor  # not if it failed
    return frame[0] if len(frame) == 1 else b"".join(frame)


def decompress(data: bytes | memoryview, length: int) -> bytes:
    """What one frame holds, which must be `length` bytes.  Releases the GIL.

    Never makes more than that, whatever the frame says.  Raises FormatError, ArchiveUnavailable.
    """
    zstd = _zstd()
    decompressor = zstd.ZstdDecompressor()
    try:
        # One byte more, so that a frame that holds more is not taken for one that ends there.
        found: bytes = decompressor.decompress(data, length + 1)
    except zstd.ZstdError as error:
        raise FormatError(f"a frame of {len(data)} bytes that zstd cannot read: {error}") from error
    if len(found) != length or not decompressor.eof:
        raise FormatError(f"a frame that holds {len(found)} bytes or more, not {length}")
    return found
