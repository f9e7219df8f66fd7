"""Topic index of segments without a footer: the active one, and those that wait for their footer.

Owns, for the few most recently queried such segments, the key hash and position of each record in file order:
8 bytes per record.  They are collected at the first query by a scan in C, which is continued when the segment
has grown.  Records found this way are verified like all others.  A segment with any damage has no such index,
and is read completely instead.

Threads: any; one scan at a time.
"""

from __future__ import annotations

import threading
from array import array

from persistence.errors import FormatError
from persistence.read.by_topic import TopicRead, by_places
from persistence.read.segment_tables import ListedSegment, SegmentTables
from persistence.segment.format import CATALOGUE_RING_ID, HEADER_PAGE_BYTES
from persistence.segment.scan import SegmentTable
from persistence.segment.scan_native import END, LOOK, FileBytes, Walk
from ringbuf import Range, crc32c

WALKS_MAX = 4
WALKED_MAX_BYTES = 256 << 20  # of a segment: its smallest records have 64 bytes, so 32 MiB of memory
PLACES_AT_ONCE = 1024


class TopicWalks:
    """Scans of segments that have no footers."""

    def __init__(self, tables: SegmentTables) -> None:
        self._tables = tables
        self._walks: dict[tuple[int, int], Walk | None] = {}  # by base and seed, most recently used last
        self._walking = threading.Lock()

    def read(
        self, segment: ListedSegment, ring_name: str, epoch: int, key: bytes, offset: int, limit_bytes: int
    ) -> list[Range] | None:
        """Runs of records with that key in a segment, from `offset` on, about `limit_bytes`; None if unknown.

        Raises OSError.
        """
        table = self._tables.table(segment)
        if table is None or table.end > WALKED_MAX_BYTES:
            return None
        with self._tables.lock:
            end = table.end
            ids = [ring_id for ring_id, entry in table.catalogue.items() if entry.name == ring_name]
        ranges: list[Range] = []
        try:
            with self._tables.opened(segment) as handle:
                for ring_id in ids:
                    request = TopicRead(ring_id, epoch, key, array("Q"), offset, limit_bytes)
                    runs = self._read(segment, table, handle, end, ring_name, request)
                    if runs is None:
                        return None
                    ranges += runs
        except FileNotFoundError:
            return None
        except FormatError:
            with self._walking:
                self._walks[_life(table)] = None
            return None
        return ranges

    def _read(
        self,
        segment: ListedSegment,
        table: SegmentTable,
        handle: int,
        end: int,
        ring_name: str,
        request: TopicRead,
    ) -> list[Range] | None:
        ranges: list[Range] = []
        behind, left = 0, request.limit_bytes
        while True:
            with self._walking:
                walk = self._walked(table, handle, end)
                if walk is None:
                    return None
                key_hash = crc32c(request.key)
                places = walk.find(
                    request.ring_id, request.epoch, key_hash, request.offset, behind, PLACES_AT_ONCE
                )
            here = request._replace(places=places, limit_bytes=left)
            runs = by_places(self._tables, segment, handle, end, ring_name, here)
            ranges += runs
            left -= sum(len(run.view) for run in runs)
            if len(places) < PLACES_AT_ONCE or left <= 0:
                return ranges
            behind = places[-1]

    def _walked(self, table: SegmentTable, handle: int, end: int) -> Walk | None:
        """A scan of that segment up to position `end`; None if an earlier part is damaged."""
        life = _life(table)
        data = FileBytes(self._tables.files, handle, end)
        if life not in self._walks:
            walk: Walk | None = Walk(data, table.seed, HEADER_PAGE_BYTES, topics=True)
        else:
            walk = self._walks.pop(life)
        if walk is not None and walk.place < end:
            walk.continue_in(data)
            while (stop := walk.run()) == LOOK and walk[len(walk) - 1].ring_id == CATALOGUE_RING_ID:
                continue
            if stop != END:
                walk = None
        self._walks[life] = walk
        while len(self._walks) > WALKS_MAX:
            del self._walks[next(iter(self._walks))]
        return walk


def _life(table: SegmentTable) -> tuple[int, int]:
    """Identity of a segment's use of its file, which may be reused for another segment."""
    return table.header.base_position, table.seed
