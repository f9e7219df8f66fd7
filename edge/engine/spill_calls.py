"""Spill calls of the C engine: the file of record copies (ringbuf/c/mqtt/out/spill_file.h)."""

from __future__ import annotations

from typing import Protocol


class SpillEngine(Protocol):
    """The part of edge.engine.engine.Engine that opens, closes and feeds the spill file."""

    def set_ring_name(self, ring: int, ring_name: bytes, epoch: int, /) -> None:
        """Set the name and epoch of a ring. Copies of records of a ring without a name stay on the heap."""

    def spill_open(self, descriptor: int, epochs: tuple[int, ...], /) -> int | None:
        """Use this file. Returns the number of copies in it; the engine then closes the descriptor.

        `epochs`: of journals that the file may belong to, the current one first. None: the file belongs to
        another journal, or is damaged. The caller keeps file and descriptor then, and also after an OSError.
        """

    def spill_close(self) -> int:
        """Stop changing the file. Returns the bytes of copies that sessions still need."""
