"""Walking a segment in C (ringbuf/c/scan), piece by piece: its extents as an array, and rows made of it.

Owns the arrays that C fills, and grows them; decides nothing: what a place that does not verify means is
scan.py's.  One C call walks a megabyte; the interpreter is free meanwhile.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Any, NamedTuple

from persistence.extents import MARK_BYTES, ExtentRows
from persistence.files import Files
from persistence.format import ALIGN_BYTES
from ringbuf.core import ffi, lib

__all__ = ["BAD", "END", "LOOK", "FileBytes", "Group", "Walk", "read_around"]

END: int = lib.RB_WALK_END
BAD: int = lib.RB_WALK_BAD
LOOK: int = lib.RB_WALK_LOOK

READ_AHEAD_BYTES = 1 << 20  # in the cache of a core while it is walked
FORGET_BYTES = 16 << 20  # at a time: it may wait for all processors
EXTENTS_FIRST = 128
RECORDS_FIRST = 1 << 16
GROUPS_FIRST = 32
_SECTOR_BYTES = 512


class FileBytes:
    """The bytes of a file, read ahead: most extents are far shorter than a read should be.

    `once`: nobody wants them again soon, so they do not stay in memory.
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
        """Up to `length` bytes there; fewer only at the end."""
        length = min(length, self.end - place)
        if length <= 0:
            return memoryview(b"")
        if place < self.place or place + length > self.place + len(self.data):
            wanted = min(max(length, self._ahead_bytes), self.end - place)
            if self._once and place - self._forgotten >= FORGET_BYTES:
                self._files.advise(self._handle, place - self._forgotten, self._forgotten, "done")
                self._forgotten = place
            self.data = memoryview(read_around(self._files, self._handle, wanted, place))
            self.place = place
        begin = place - self.place
        return self.data[begin : begin + length]


def read_around(files: Files, handle: int, length: int, place: int) -> bytes:
    """The bytes there, with zeros where the disk does not give them: they are then damage like any other."""
    try:
        return files.read(handle, length, place)
    except OSError:
        data = bytearray()
        for at in range(place, place + length, _SECTOR_BYTES):
            wanted = min(_SECTOR_BYTES, place + length - at)
            try:
                data += files.read(handle, wanted, at)
            except OSError:
                data += bytes(wanted)
        return bytes(data)


class Group(NamedTuple):
    """Extents of one ring and epoch: order[first : first + length]."""

    ring_id: int
    epoch: int
    first: int
    length: int


class Walk:
    """A walk over `data` from `place` on.  `topics`: the hash of each record's key, and its place, are
    collected, too.
    """

    def __init__(self, data: FileBytes, seed: int, place: int, *, topics: bool = False) -> None:
        self._data = data
        self._state = ffi.new("rb_walk *", {"place": place, "end": data.end, "seed": seed})
        self._extents = ffi.new("rb_extent[]", EXTENTS_FIRST)
        self._state.extent, self._state.extents_room = self._extents, EXTENTS_FIRST
        self._hashes = self._places = ffi.NULL
        if topics:
            self._make_room_for_records(RECORDS_FIRST)

    @property
    def place(self) -> int:
        """Where it goes on."""
        return int(self._state.place)

    @place.setter
    def place(self, place: int) -> None:
        self._state.place = place

    @property
    def durable_position(self) -> int:
        """The highest that an extent has claimed."""
        return int(self._state.durable_position)

    def __len__(self) -> int:
        return int(self._state.extents)

    def __getitem__(self, index: int) -> Any:
        """An rb_extent: its fields are those of ringbuf/c/scan/scan_api.h."""
        return self._extents[index]

    def run(self) -> int:
        """Walks on, up to END, BAD or LOOK (scan_api.h)."""
        while True:
            piece = self._piece()
            stop: int = lib.rb_extents_walk(ffi.from_buffer(piece), len(piece), self._data.place, self._state)
            if stop == lib.RB_WALK_FULL:
                self._make_room()
            elif stop != lib.RB_WALK_MORE or self._short(int(self._state.wanted_bytes)):
                return BAD if stop == lib.RB_WALK_MORE else stop

    def go_on_in(self, data: FileBytes) -> None:
        """Its file has become longer, or is open anew."""
        self._data, self._state.end = data, data.end

    def find(
        self, ring_id: int, epoch: int, key_hash: int, offset: int, behind: int, most: int
    ) -> array[int]:
        """Places of records with that hash, if it collects topics: of a ring and epoch, behind the place
        `behind`, rising, `most` of them; extents that end before `offset` are passed over.
        """
        places = ffi.new("uint64_t[]", most)
        count = lib.rb_walk_find(self._state, ring_id, epoch, key_hash, offset, behind, places, most)
        return array("Q", ffi.buffer(places, 8 * count)[:])

    def search(self, base: int) -> bool:
        """Goes to the next valid extent behind its place; False: there is none."""
        self.place += ALIGN_BYTES
        while True:
            piece = self._piece()
            found = lib.rb_extents_search(
                ffi.from_buffer(piece), len(piece), self._data.place, base, self._state
            )
            if found == lib.RB_WALK_LOOK:
                return True
            if found == lib.RB_WALK_MORE:
                if self._short(int(self._state.wanted_bytes)):
                    self.place += ALIGN_BYTES
            elif self._data.end - self.place < ALIGN_BYTES or self._short(ALIGN_BYTES):
                return False

    def below(self, end: int, first: int, last: int) -> int:
        """Of extents first .. last, which is the first one that does not end at or below the place `end`."""
        return bisect_right(range(last), end, first, key=self.end_of)

    def end_of(self, index: int) -> int:
        """The place behind an extent."""
        extent = self._extents[index]
        return int(extent.place + extent.length) + 32

    def groups(self, first: int, last: int) -> tuple[Any, list[Group]]:
        """Whole extents first .. last by ring and epoch, in the order in which they end; what order[] says
        counts from `first`.
        """
        count = last - first
        order = ffi.new("uint32_t[]", max(count, 1))
        scratch = ffi.new("uint32_t[]", max(count, 1))
        room = min(GROUPS_FIRST, max(count, 1))
        while True:
            slots_room = 1 << (2 * room).bit_length()
            slots, groups = ffi.new("uint32_t[]", slots_room), ffi.new("rb_group[]", room)
            made = lib.rb_extents_group(
                self._extents + first, count, order, scratch, slots, slots_room, groups, room
            )
            if made != lib.RB_FULL:
                break
            room *= 8
        found = [Group(it.ring_id, it.ring_epoch, it.first, it.count) for it in groups[0:made]]
        found.sort(key=lambda it: int(order[it.first + it.length - 1]))
        return order, found

    def gather(self, first: int, order: Any, group: Group, rows: ExtentRows) -> bool:
        """Appends the extents of a group to `rows`.  False: their offsets do not rise, and nothing is."""
        columns = rows.columns(group.length, MARK_BYTES)
        done = lib.rb_extents_gather(
            self._extents + first, order + group.first, group.length, columns.pointer
        )
        if done != lib.RB_OK:
            return False
        rows.extend(columns)
        return True

    def by_topic(self, order: Any, group: Group, records: int) -> tuple[array[int], array[int]]:
        """Topics of a group as pairs (hash, index of its first place), and the places / 32 of its `records`.

        `order` is of all extents, and the walk was told to collect topics.
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
        made = lib.rb_topics_split(ordered, count, topics, places)
        return (
            array("I", ffi.buffer(topics, 8 * made)[:]),
            array("I", ffi.buffer(places, 4 * count)[:]),
        )

    def _piece(self) -> memoryview:
        """The bytes at hand, with the place in them."""
        self._data.at(self.place, ALIGN_BYTES)
        return self._data.data

    def _short(self, wanted: int) -> bool:
        """Whether the file does not give `wanted` bytes from the place on, though it should."""
        return len(self._data.at(self.place, wanted)) < wanted

    def _make_room(self) -> None:
        state = self._state
        if state.extents == state.extents_room:
            room = 2 * int(state.extents_room)
            extents = ffi.new("rb_extent[]", room)
            ffi.memmove(extents, self._extents, state.extents * ffi.sizeof("rb_extent"))
            self._extents, state.extent, state.extents_room = extents, extents, room
        else:
            needed = int(state.records) + int(state.wanted_bytes) // ALIGN_BYTES
            self._make_room_for_records(max(2 * int(state.records_room), needed))

    def _make_room_for_records(self, room: int) -> None:
        state = self._state
        hashes, places = ffi.new("uint32_t[]", room), ffi.new("uint32_t[]", room)
        if state.records:
            ffi.memmove(hashes, self._hashes, 4 * state.records)
            ffi.memmove(places, self._places, 4 * state.records)
        self._hashes, self._places = hashes, places
        state.key_hash, state.record_place, state.records_room = hashes, places, room
