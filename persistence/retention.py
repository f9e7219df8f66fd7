"""Which segments a log keeps: the newest that fit in its bytes.

Owns the choice; what becomes of a segment that goes is Log.remove()'s.  Runs off the log thread, whenever a
segment has been sealed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from persistence.log import Log

__all__ = ["keep_within"]

SEGMENT_COSTS_BYTES = 64 << 10  # a file of less counts as that much: crashes in a loop make many small ones


def keep_within(log: Log, retain_bytes: int) -> None:
    """Lets the oldest segments go while all together, the active one at its full size, take more than
    `retain_bytes`; 0 keeps everything.

    Raises OSError: that segment, and those behind it, are there after the next start.
    """
    sealed = log.sealed()
    total = sum(max(size, SEGMENT_COSTS_BYTES) for size in sealed.values()) + log.segment_bytes
    for base in sorted(sealed):
        if not retain_bytes or total <= retain_bytes:
            return
        total -= max(sealed[base], SEGMENT_COSTS_BYTES)
        log.remove(base)
