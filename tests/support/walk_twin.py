"""The walk of ringbuf/c/scan/verify_extents.c once more, in plain Python: the oracle of its tests, and a
place where a mistake can be planted.

Takes the place of `lib` in persistence.segment.scan_native; what it does not do itself, the compiled one
does.
"""

from typing import Any

from persistence.segment.format import EXTENT_HEADER_BYTES, ExtentHeader, extent_checks, unpack_extent
from ringbuf.constants import FLAGS_CRITICAL
from ringbuf.errors import Corrupt
from ringbuf.native import ffi, lib
from ringbuf.record import RecordHeader, decode


class WalkTwin:
    """`checks`: whether checksums of extents are looked at."""

    def __init__(self, *, checks: bool = True) -> None:
        self._checks = checks

    def __getattr__(self, name: str) -> Any:
        return getattr(lib, name)

    def rb_extents_walk(self, pointer: Any, length: int, begin: int, walk: Any) -> int:
        """See scan_api.h."""
        data = bytes(ffi.buffer(pointer, length))
        while True:
            at = walk.place - begin
            if walk.end - walk.place < EXTENT_HEADER_BYTES:
                return int(lib.RB_WALK_END)
            walk.wanted_bytes = EXTENT_HEADER_BYTES
            if length - at < EXTENT_HEADER_BYTES:
                return int(lib.RB_WALK_MORE)
            header = unpack_extent(data, at)
            if not _could_be(header, walk.end - walk.place):
                return int(lib.RB_WALK_BAD)
            walk.wanted_bytes = EXTENT_HEADER_BYTES + header.length
            if length - at < walk.wanted_bytes:
                return int(lib.RB_WALK_MORE)
            collects = walk.key_hash != ffi.NULL
            if walk.extents == walk.extents_capacity or (
                collects and walk.records_capacity - walk.records < header.length // 32
            ):
                return int(lib.RB_WALK_FULL)
            body = data[at + EXTENT_HEADER_BYTES : at + walk.wanted_bytes]
            if not self._verifies(walk.seed, header, body):
                return int(lib.RB_WALK_BAD)
            if not self._enter(walk, header, body):
                return int(lib.RB_WALK_LOOK)

    def rb_extents_search(self, pointer: Any, length: int, begin: int, base: int, walk: Any) -> int:
        """See scan_api.h."""
        data = bytes(ffi.buffer(pointer, length))
        while walk.end - walk.place >= EXTENT_HEADER_BYTES:
            at = walk.place - begin
            if length - at < EXTENT_HEADER_BYTES:
                return int(lib.RB_WALK_END)
            header = unpack_extent(data, at)
            durable = header.durable_position
            if _could_be(header, walk.end - walk.place) and base <= durable <= base + walk.place:
                walk.wanted_bytes = EXTENT_HEADER_BYTES + header.length
                if length - at < walk.wanted_bytes:
                    return int(lib.RB_WALK_MORE)
                if self._verifies(walk.seed, header, data[at + 32 : at + walk.wanted_bytes]):
                    return int(lib.RB_WALK_LOOK)
            walk.place += 32
        return int(lib.RB_WALK_END)

    def _verifies(self, seed: int, header: ExtentHeader, body: bytes) -> bool:
        return not self._checks or extent_checks(seed, header, body)

    def _enter(self, walk: Any, header: ExtentHeader, body: bytes) -> bool:
        extent = walk.extent[walk.extents]
        ffi.memmove(ffi.addressof(extent), bytes(ffi.sizeof("rb_extent")), ffi.sizeof("rb_extent"))
        walk.extents += 1
        extent.place, extent.length, extent.record = walk.place, header.length, walk.records
        extent.ring_id, extent.ring_epoch = header.ring_id, header.ring_epoch
        extent.ring_position = header.ring_position
        extent.durable_position = header.durable_position
        if header.ring_id:
            _enter_records(walk, extent, body)
        walk.place += EXTENT_HEADER_BYTES + header.length
        walk.durable_position = max(walk.durable_position, header.durable_position)
        return bool(extent.whole)


def _could_be(header: ExtentHeader, room: int) -> bool:
    return 0 < header.length <= room - EXTENT_HEADER_BYTES and header.length % 32 == 0


def _enter_records(walk: Any, extent: Any, body: bytes) -> None:
    at = 0
    times: list[int] = []
    collected: list[tuple[int, int]] = []
    while at < len(body):
        try:
            record, its_span = decode(body[at:], extent.ring_epoch)
        except Corrupt:
            break
        if (
            record.flags & FLAGS_CRITICAL
            or at + its_span > len(body)
            or (times and record.offset != extent.first_offset + len(times))
        ):
            break
        if not times:
            extent.first_offset = record.offset
        times.append(record.timestamp_ns)
        key_hash = RecordHeader.of(body, at).key_hash
        collected.append((key_hash, (extent.place + EXTENT_HEADER_BYTES + at) // 32))
        at += its_span
    extent.count = len(times)
    extent.earliest_ns = min(times, default=2**64 - 1)
    extent.latest_ns = max(times, default=0)
    extent.whole = at == len(body) and extent.first_offset + len(times) < 2**64
    if extent.whole and walk.key_hash != ffi.NULL:
        for key_hash, place in collected:
            walk.key_hash[walk.records], walk.record_place[walk.records] = key_hash, place
            walk.records += 1
