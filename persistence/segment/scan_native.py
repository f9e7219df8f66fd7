"""Native scan of a segment (ringbuf/c/scan), in pieces: its extents as an array, and rows made of them.

Owns the arrays that C fills, and grows them.  Decides nothing: scan.py handles places that do not verify.
One C call scans a megabyte without the interpreter's lock.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Any, NamedTuple

from persistence.files import Files
from persistence.segment.extent_table import MARK_BYTES, ExtentRows
from persistence.segment.format import ALIGN_BYTES
from ringbuf.native import ffi, lib

END: int = lib.RB_WALK_END
BAD: int = lib.RB_WALK_BAD
LOOK: int = lib.RB_WALK_LOOK

READ_AHEAD_BYTES = 1 << 20  # fits in the cache of a core during the scan
FORGET_BYTES = 16 << 20  # per call, which may wait for all processors
EXTENTS_FIRST = 128
RECORDS_FIRST = 1 << 16
GROUPS_FIRST = 32


class FileBytes:
    """The bytes of a file, read ahead, because most extents are far shorter than an efficient read.

    `once`: the bytes are not needed again soon, so no pages are left in the cache.
    """

    def __init__(
        self, files: Files, handle: int, end: int, ahead_bytes: int = 0, *, once: bool = False
    ) -> None:
        self._files, self._handle = files, handle
        self._ahead_bytes = ahead_bytes or READ_AHEAD_BYTES
        self._once, self._forgotten = once, 0
        self.end = end
        self.place = 0
        self.data = memoryview(b"")

    def at(self, place: int, length: int) -> memoryview:
        """Up to `length` bytes at `place`; fewer only at the end."""
        length = min(length, self.end - place)
        if length <= 0:
            return memoryview(b"")
        if place < self.place or place + length > self.place + len(self.data):
            read_bytes = min(max(length, self._ahead_bytes), self.end - place)
            if self._once and place - self._forgotten >= FORGET_BYTES:
                self._files.advise(self._handle, place - self._forgotten, self._forgotten, "done")
                self._forgotten = place
            self.data = memoryview(self._files.read(self._handle, read_bytes, place))
            self.place = place
        begin = place - self.place
        return self.data[begin : begin + length]


class ExtentGroup(NamedTuple):
    """Extents of one ring and epoch: order[first : first + length]."""

    ring_id: int
    epoch: int
    first: int
    length: int


class Walk:
    """A scan of `data` from `place` on.  `topics`: also collect the key hash and position of each record."""

    def __init__(self, data: FileBytes, seed: int, place: int, *, topics: bool = False) -> None:
        self._data = data
        self._state = ffi.new("rb_walk *", {"place": place, "end": data.end, "seed": seed})
        self._extents = ffi.new("rb_extent[]", EXTENTS_FIRST)
        self._state.extent, self._state.extents_capacity = self._extents, EXTENTS_FIRST
        self._hashes = self._places = ffi.NULL
        if topics:
            self._make_room_for_records(RECORDS_FIRST)

    @property
    def place(self) -> int:
        """Position at which the scan continues."""
        return int(self._state.place)

    @place.setter
    def place(self, place: int) -> None:
        self._state.place = place

    @property
    def durable_position(self) -> int:
        """Highest durable position in an extent."""
        return int(self._state.durable_position)

    def __len__(self) -> int:
        return int(self._state.extents)

    def __getitem__(self, index: int) -> Any:
        """An rb_extent; its fields are described in ringbuf/c/scan/scan_api.h."""
        return self._extents[index]

    def run(self) -> int:
        """Continue the scan up to END, BAD or LOOK (scan_api.h)."""
        while True:
            piece = self._piece()
            stop: int = lib.rb_extents_walk(ffi.from_buffer(piece), len(piece), self._data.place, self._state)
            if stop == lib.RB_WALK_FULL:
                self._make_room()
            elif stop != lib.RB_WALK_MORE or self._short(int(self._state.wanted_bytes)):
                return BAD if stop == lib.RB_WALK_MORE else stop

    def continue_in(self, data: FileBytes) -> None:
        """Continue in the file after it has grown or was opened again."""
        self._data, self._state.end = data, data.end

    def find(
        self, ring_id: int, epoch: int, key_hash: int, offset: int, behind: int, limit: int
    ) -> array[int]:
        """Positions of records with that key hash, if topics are collected.

        Of a ring and epoch, after the position `behind`, rising, at most `limit` of them. Extents that end
        before `offset` are skipped.
        """
        places = ffi.new("uint64_t[]", limit)
        count = lib.rb_walk_find(self._state, ring_id, epoch, key_hash, offset, behind, places, limit)
        return array("Q", ffi.buffer(places, 8 * count)[:])

    def search(self, base: int) -> bool:
        """Move to the next valid extent after the current place; False if there is none."""
        self.place += ALIGN_BYTES
        while True:
            piece = self._piece()
            outcome = lib.rb_extents_search(
                ffi.from_buffer(piece), len(piece), self._data.place, base, self._state
            )
            if outcome == lib.RB_WALK_LOOK:
                return True
            if outcome == lib.RB_WALK_MORE:
                if self._short(int(self._state.wanted_bytes)):
                    self.place += ALIGN_BYTES
            elif self._data.end - self.place < ALIGN_BYTES or self._short(ALIGN_BYTES):
                return False

    def below(self, end: int, first: int, last: int) -> int:
        """Index of the first of extents first .. last that does not end at or below position `end`."""
        return bisect_right(range(last), end, first, key=self.end_of)

    def end_of(self, index: int) -> int:
        """Position after an extent."""
        extent = self._extents[index]
        return int(extent.place + extent.length) + 32

    def groups(self, first: int, last: int) -> tuple[Any, list[ExtentGroup]]:
        """Whole extents first .. last by ring and epoch, by their ends; order[] counts from `first`."""
        count = last - first
        order = ffi.new("uint32_t[]", max(count, 1))
        scratch = ffi.new("uint32_t[]", max(count, 1))
        room = min(GROUPS_FIRST, max(count, 1))
        while True:
            slots_room = 1 << (2 * room).bit_length()
            slots, groups = ffi.new("uint32_t[]", slots_room), ffi.new("rb_group[]", room)
            group_count = lib.rb_extents_group(
                self._extents + first, count, order, scratch, slots, slots_room, groups, room
            )
            if group_count != lib.RB_FULL:
                break
            room *= 8
        groups_found = [
            ExtentGroup(group.ring_id, group.ring_epoch, group.first, group.count)
            for group in groups[0:group_count]
        ]
        groups_found.sort(key=lambda group: int(order[group.first + group.length - 1]))
        return order, groups_found

    def gather(self, first: int, order: Any, group: ExtentGroup, rows: ExtentRows) -> bool:
        """Append the extents of a group to `rows`; False: their offsets do not rise, none is appended."""
        columns = rows.columns(group.length, MARK_BYTES)
        done = lib.rb_extents_gather(
            self._extents + first, order + group.first, group.length, columns.pointer
        )
        if done != lib.RB_OK:
            return False
        rows.extend(columns)
        return True

    def by_topic(self, order: Any, group: ExtentGroup, records: int) -> tuple[array[int], array[int]]:
        """Topics of a group as pairs (hash, index of first position), and positions / 32 of `records`.

        `order` covers all extents, and the scan must collect topics.
        """
        room = max(records, 1)
        ordered, scratch = ffi.new("uint64_t[]", room), ffi.new("uint64_t[]", room)
        count = lib.rb_topics_sort(
            self._extents,
            order + group.first,
            group.length,
            self._hashes,
            self._places,
            ordered,
            scratch,
            room,
        )
        assert count >= 0
        topics, places = ffi.new("uint32_t[]", 2 * room), ffi.new("uint32_t[]", room)
        topic_count = lib.rb_topics_split(ordered, count, topics, places)
        return (
            array("I", ffi.buffer(topics, 8 * topic_count)[:]),
            array("I", ffi.buffer(places, 4 * count)[:]),
        )

    def _piece(self) -> memoryview:
        """The bytes in memory that include the current place."""
        self._data.at(self.place, ALIGN_BYTES)
        return self._data.data

    def _short(self, length: int) -> bool:
        """True if the file ends less than `length` bytes after the current place."""
        return len(self._data.at(self.place, length)) < length

    def _make_room(self) -> None:
        state = self._state
        if state.extents == state.extents_capacity:
            room = 2 * int(state.extents_capacity)
            extents = ffi.new("rb_extent[]", room)
            ffi.memmove(extents, self._extents, state.extents * ffi.sizeof("rb_extent"))
            self._extents, state.extent, state.extents_capacity = extents, extents, room
        else:
            needed = int(state.records) + int(state.wanted_bytes) // ALIGN_BYTES
            self._make_room_for_records(max(2 * int(state.records_capacity), needed))

    def _make_room_for_records(self, room: int) -> None:
        state = self._state
        hashes, places = ffi.new("uint32_t[]", room), ffi.new("uint32_t[]", room)
        if state.records:
            ffi.memmove(hashes, self._hashes, 4 * state.records)
            ffi.memmove(places, self._places, 4 * state.records)
        self._hashes, self._places = hashes, places
        state.key_hash, state.record_place, state.records_capacity = hashes, places, room
