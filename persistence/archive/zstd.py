"""The compressor: the standard library's from Python 3.14 on, before that backports.zstd, the same under
another name.

Owns one decision: it is loaded when the first archive is written or read, so that whoever has none needs
neither.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable
from typing import Any

from persistence.errors import ArchiveUnavailable, FormatError

__all__ = ["check_available", "compress", "compress_parts", "decompress"]

LEVEL = 1  # 565 MB/s where level 9 does 74, for four fifths of its ratio: archiving must keep up with ingest


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


def compress(data: bytes | memoryview, level: int = LEVEL) -> bytes:
    """One zstd frame.  Releases the GIL.  Raises ArchiveUnavailable."""
    compressed: bytes = _zstd().compress(data, level)
    return compressed


def compress_parts(parts: Iterable[bytes | memoryview], level: int = LEVEL) -> bytes:
    """One zstd frame of all parts together.  Releases the GIL.  Raises ArchiveUnavailable."""
    compressor = _zstd().ZstdCompressor(level)
    return b"".join([*(compressor.compress(part) for part in parts), compressor.flush()])


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
