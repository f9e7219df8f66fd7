"""The segment that is being written.

Owns its file from the empty one, by way of a temporary name, to the last byte; knows nothing of rings, of
when to sync, or of what to do when the disk fails: every OSError passes through, and the segment is then
given up (log.py), for after it nobody knows what is in the file.

Invariants: the name appears after header and first catalogue are on the disk; `end` moves only behind bytes
that were handed over completely; 32 zero bytes stand at `end`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from persistence.files import IOV_MAX, Buffer, Files
from persistence.format import (
    CATALOGUE_RING_ID,
    EXTENT_HEADER_BYTES,
    HEADER_PAGE_BYTES,
    CatalogueEntry,
    SegmentHeader,
    pack_catalogue,
    pack_extent,
    segment_name,
)
from ringbuf import Range

__all__ = ["ActiveSegment", "Pending"]

EXTENTS_MOST = (IOV_MAX - 1) // 2  # of one pwritev: header and body each, and the zeros behind them
WRITE_MOST_BYTES = 8 << 20  # of one pwritev: bounds how long an ack waits behind it

_TERMINATOR = bytes(EXTENT_HEADER_BYTES)


class Pending:
    """An extent on its way to the disk: a run of a ring, or a catalogue.

    The view of a run is ring memory; whoever made it keeps it from being overwritten until its sync has
    returned.
    """

    __slots__ = ("body", "entries", "length", "place", "range", "ring_id")

    def __init__(
        self,
        ring_id: int,
        body: bytes | memoryview,
        *,
        range: Range | None = None,  # noqa: A002
        entries: dict[int, CatalogueEntry] | None = None,
        length: int | None = None,
    ) -> None:
        self.ring_id = ring_id
        self.body = body
        self.length = len(body) if length is None else length  # The body itself may be gone by now.
        self.range = range
        self.entries = entries or {}
        self.place = 0  # of its header in the file, once written

    @classmethod
    def run(cls, ring_id: int, found: Range) -> Pending:
        """A run of records of that ring."""
        return cls(ring_id, found.view, range=found)

    @classmethod
    def catalogue(cls, entries: dict[int, CatalogueEntry], room_bytes: int = 0) -> Pending:
        """News for readers of the log; takes at least `room_bytes`."""
        return cls(CATALOGUE_RING_ID, pack_catalogue(entries, room_bytes), entries=entries)

    @property
    def size(self) -> int:
        """Bytes it takes in the segment."""
        return EXTENT_HEADER_BYTES + self.length

    def header(self, seed: int, durable_position: int) -> bytes:
        """Its extent header."""
        if self.range is None:
            return pack_extent(seed, CATALOGUE_RING_ID, 0, 0, durable_position, self.body)
        return pack_extent(
            seed, self.ring_id, self.range.epoch, self.range.position, durable_position, self.body
        )


class ActiveSegment:
    """The last segment of a log, open for writing."""

    def __init__(self, files: Files, handle: int, path: str, header: SegmentHeader, opening: Pending) -> None:
        self._files = files
        self._handle = handle
        self._seed = header.seed
        self.path = path
        self.header = header
        self.opening = opening
        self.first_place = HEADER_PAGE_BYTES + opening.size  # behind the opening catalogue
        self.end = self.first_place

    @classmethod
    def begin(
        cls,
        files: Files,
        directory: str,
        temporary: str,
        handle: int,
        header: SegmentHeader,
        opening: Pending,
        carried: Sequence[Pending] = (),
    ) -> ActiveSegment:
        """Makes the file behind `handle`, named `temporary`, the segment that `header` says.

        `carried` is in it before it has its name: the segment before has these, too, and ends with that name.
        It is on the disk, name and all, when this returns.  The handle is the segment's from then on, and the
        caller's if this raises OSError.
        """
        path = os.path.join(directory, segment_name(header.base_position))
        segment = cls(files, handle, path, header, opening)
        opening.place = HEADER_PAGE_BYTES
        catalogue = opening.header(header.seed, header.base_position)
        page: list[Buffer] = [header.pack(), catalogue, opening.body, _TERMINATOR]
        segment._write_all(page, 0)
        for first in range(0, len(carried), EXTENTS_MOST):
            segment.write(carried[first : first + EXTENTS_MOST], header.base_position)
        files.fdatasync(handle)
        files.rename(temporary, path)
        files.dirsync(directory)
        return segment

    @property
    def handle(self) -> int:
        """Its file."""
        return self._handle

    @property
    def end_position(self) -> int:
        """The log position behind the last extent."""
        return self.header.base_position + self.end

    def position(self, place: int) -> int:
        """The log position of a place in this file."""
        return self.header.base_position + place

    def write(self, batch: Sequence[Pending], durable_position: int) -> int:
        """Appends them all, and says in each where it stands.  Bytes written, the zeros behind them not
        counted.

        At most EXTENTS_MOST of them.
        """
        assert len(batch) <= EXTENTS_MOST
        buffers: list[Buffer] = []
        end = self.end
        for item in batch:
            buffers += (item.header(self._seed, durable_position), item.body)
            item.place = end
            end += item.size
        buffers.append(_TERMINATOR)
        self._write_all(buffers, self.end)
        written = end - self.end
        self.end = end
        return written

    def sync(self) -> None:
        """Everything written is on the disk."""
        self._files.fdatasync(self._handle)

    def cut(self, place: int) -> None:
        """Gives back the room from `place` on."""
        self._files.ftruncate(self._handle, place)

    def size(self) -> int:
        """Bytes the file takes, the room behind `end` included."""
        return self._files.size(self._handle)

    def close(self) -> None:
        """The file is closed as it stands."""
        self._files.close(self._handle)

    def _write_all(self, buffers: list[Buffer], place: int) -> None:
        left = sum(map(len, buffers))
        while left:
            written = self._files.pwritev(self._handle, buffers, place)
            left -= written
            place += written
            if left:
                buffers = _rest(buffers, written)


def _rest(buffers: Sequence[Buffer], written: int) -> list[Buffer]:
    """What a short write has left."""
    for index, buffer in enumerate(buffers):
        if written < len(buffer):
            return [memoryview(buffer)[written:], *buffers[index + 1 :]]
        written -= len(buffer)
    return []
