"""Active segment: the segment being written.

Owns its file from the empty one, under a temporary name, to the last byte.  It knows nothing of rings, of the
time of syncs, or of the reaction to disk failures.  Every OSError passes through, and the segment is then
ended (log/log.py), because the content of the file is unknown.

Invariants: the name appears after header and first catalogue are on the disk; `end` advances only past bytes
that were written completely; 32 zero bytes are at `end`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from persistence.durable_file import move_file, write_all
from persistence.files import IOV_MAX, Buffer, Files
from persistence.segment.format import (
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

EXTENTS_MAX = (IOV_MAX - 1) // 2  # per pwritev: header and body each, then zeros

_TERMINATOR = bytes(EXTENT_HEADER_BYTES)


class Pending:
    """An extent not yet on the disk: a run of a ring, or a catalogue.

    The view of a run is ring memory.  Its creator prevents it from being overwritten until its sync has
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
        self.length = len(body) if length is None else length  # the body itself may be released already
        self.range = range
        self.entries = entries or {}
        self.place = 0  # position of its header in the file, once written

    @classmethod
    def run(cls, ring_id: int, part: Range) -> Pending:
        """A run of records of that ring."""
        return cls(ring_id, part.view, range=part)

    @classmethod
    def catalogue(cls, entries: dict[int, CatalogueEntry], room_bytes: int = 0) -> Pending:
        """A catalogue with new entries; takes at least `room_bytes`."""
        return cls(CATALOGUE_RING_ID, pack_catalogue(entries, room_bytes), entries=entries)

    @property
    def size(self) -> int:
        """Number of bytes in the segment."""
        return EXTENT_HEADER_BYTES + self.length

    def header(self, seed: int, durable_position: int) -> bytes:
        """The extent header."""
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
        self.first_place = HEADER_PAGE_BYTES + opening.size  # after the opening catalogue
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
        """Turn the file of `handle`, named `temporary`, into the segment of `header`.

        `carried` is written before the segment gets its name: the segment before also has these records, and
        ends with that name.  File and name are on the disk on return.  The segment then owns the handle; if
        this raises OSError, the caller does.
        """
        path = os.path.join(directory, segment_name(header.base_position))
        segment = cls(files, handle, path, header, opening)
        opening.place = HEADER_PAGE_BYTES
        catalogue = opening.header(header.seed, header.base_position)
        page: list[Buffer] = [header.pack(), catalogue, opening.body, _TERMINATOR]
        write_all(files, handle, page, 0)
        for first in range(0, len(carried), EXTENTS_MAX):
            segment.write(carried[first : first + EXTENTS_MAX], header.base_position)
        files.fdatasync(handle)
        move_file(files, temporary, path)
        return segment

    @property
    def handle(self) -> int:
        """The file's handle."""
        return self._handle

    @property
    def end_position(self) -> int:
        """The log position after the last extent."""
        return self.header.base_position + self.end

    def position(self, place: int) -> int:
        """The log position of a position in this file."""
        return self.header.base_position + place

    def write(self, batch: Sequence[Pending], durable_position: int) -> int:
        """Append all items, and set the position of each.  At most EXTENTS_MAX of them.

        Returns the number of bytes written, without the zeros after them.
        """
        assert len(batch) <= EXTENTS_MAX
        buffers: list[Buffer] = []
        end = self.end
        for item in batch:
            buffers += (item.header(self._seed, durable_position), item.body)
            item.place = end
            end += item.size
        buffers.append(_TERMINATOR)
        write_all(self._files, self._handle, buffers, self.end)
        written = end - self.end
        self.end = end
        return written

    def sync(self) -> None:
        """Put everything written on the disk."""
        self._files.fdatasync(self._handle)

    def cut(self, place: int) -> None:
        """Release the space from `place` on."""
        self._files.ftruncate(self._handle, place)

    def size(self) -> int:
        """Size of the file, including the space after `end`."""
        return self._files.size(self._handle)

    def close(self) -> None:
        """Close the file."""
        self._files.close(self._handle)
