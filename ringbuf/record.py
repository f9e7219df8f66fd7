"""Records as bytes: a scan in C, and an encoder and decoder in Python.

c/base/record.h defines the format.  encode() and decode() implement it again in Python, as the reference for
tests and for tools that need no speed.  Never used on a hot path.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from ringbuf.constants import FLAG_PROPERTIES, FLAG_UNCHECKED, RECORD_ALIGN, RECORD_HEADER_BYTES
from ringbuf.errors import Corrupt
from ringbuf.native import ffi, lib

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Scan(Struct, frozen=True):
    """Result of a scan of records; `good_bytes` is the position of the first bad record, or the end."""

    count: int
    good_bytes: int
    first_offset: int
    last_offset: int
    first_timestamp_ns: int
    last_timestamp_ns: int
    bad_length: int  # bytes of the bad record if its header is plausible, otherwise 0


class Decoded(NamedTuple):
    """One record, copied out of its bytes."""

    offset: int
    timestamp_ns: int
    key: bytes
    flags: int
    properties: bytes  # in wire form, including their length, or empty
    payload: bytes


class RecordHeader(NamedTuple):
    """Fields of a record's header, in the order of struct rb_record."""

    length: int  # of the record, without the padding to 32 bytes that follows it
    crc: int
    offset: int
    timestamp_ns: int
    key_hash: int
    key_length: int
    flags: int

    @classmethod
    def of(cls, data: Buffer, at: int = 0) -> RecordHeader:
        """The header at byte `at` of `data`, which is not checked.  Raises struct.error if it is cut."""
        return cls._make(_HEADER.unpack_from(data, at))


def _layout() -> struct.Struct:
    """The layout of struct rb_record, as compiled."""
    fields = ffi.typeof("rb_record").fields
    assert tuple(name for name, _ in fields) == RecordHeader._fields
    layout = struct.Struct(
        "<" + "".join({2: "H", 4: "I", 8: "Q"}[ffi.sizeof(item.type)] for _, item in fields)
    )
    assert layout.size == RECORD_HEADER_BYTES, "struct rb_record has no padding"
    return layout


_HEADER: Final = _layout()
CHECKED_FROM: Final[int] = ffi.offsetof("rb_record", "offset")  # the checksum covers all that follows


def crc32c(data: Buffer, seed: int = 0) -> int:
    """CRC-32C of `data`, continued from `seed` (0 to begin).  Releases the GIL."""
    with memoryview(data) as view:
        return int(lib.rb_crc32c_of(seed, ffi.from_buffer(view), view.nbytes))


def crc32(data: Buffer, seed: int = 0) -> int:
    """CRC-32 as in zlib, continued from `seed` (0 to begin), but faster.  Releases the GIL."""
    import zlib  # for archives and drained files only

    crc = ffi.new("uint32_t *", seed)
    with memoryview(data) as view, view.cast("B") as flat:
        taken = lib.rb_crc32_fold(crc, ffi.from_buffer(flat), flat.nbytes)
        return zlib.crc32(flat[taken:], crc[0])


def copied(to: memoryview, data: Buffer) -> None:
    """Copy `data` to the start of `to`.  Releases the GIL."""
    with memoryview(data) as view:
        assert view.nbytes <= to.nbytes
        lib.rb_copy(ffi.from_buffer(to, require_writable=True), ffi.from_buffer(view), view.nbytes)


def span(length: int) -> int:
    """Number of bytes that a record of `length` occupies in a ring or segment."""
    return -(-length // RECORD_ALIGN) * RECORD_ALIGN


def scan_records(data: Buffer, epoch: int) -> Scan:
    """Scan a run of records (32-aligned, no padding records) up to the first one that does not verify.

    Any bytes are safe to scan.  The run is complete if good_bytes == len(data).  Releases the GIL.
    """
    scan = ffi.new("rb_scan *")
    with memoryview(data) as view:
        lib.rb_scan_records(ffi.from_buffer(view), view.nbytes, epoch, scan)
    return Scan(
        scan.count,
        scan.good_bytes,
        scan.first_offset,
        scan.last_offset,
        scan.first_timestamp_ns,
        scan.last_timestamp_ns,
        scan.bad_length,
    )


def bytes_of_records(data: Buffer, epoch: int, first_offset: int, count: int) -> int:
    """Number of bytes of the first `count` records of a run that begins at `first_offset`.

    A run with fewer records counts completely.  Raises Corrupt if a record does not verify.  Releases the
    GIL.
    """
    sizes = ffi.new("rb_decode_sizes *")
    with memoryview(data) as view:
        result = lib.rb_decode_measure(
            ffi.from_buffer(view), view.nbytes, epoch, first_offset, count, view.nbytes, sizes
        )
    if result != lib.RB_OK:
        raise Corrupt(f"the record with offset {first_offset + sizes.rows} does not verify")
    return int(sizes.consumed_bytes)


def payload_position(key_length: int, properties_length: int) -> int:
    """Position of the payload, from byte 0 of the record."""
    return -(-(RECORD_HEADER_BYTES + key_length + properties_length) // 8) * 8


def encode(
    offset: int,
    payload: bytes,
    *,
    epoch: int,
    key: bytes = b"",
    timestamp_ns: int = 0,
    flags: int = 0,
    properties: bytes = b"",
) -> bytes:
    """One record with its padding to 32 bytes, as a writer leaves it in the ring."""
    if properties:
        flags |= FLAG_PROPERTIES
    begin = payload_position(len(key), len(properties))
    body = (key + properties).ljust(begin - RECORD_HEADER_BYTES, b"\0") + payload
    length = RECORD_HEADER_BYTES + len(body)
    fields = length, 0, offset, timestamp_ns, crc32c(key), len(key), flags
    covered = body[: begin - RECORD_HEADER_BYTES] if flags & FLAG_UNCHECKED else body
    crc = crc32c(_HEADER.pack(*fields)[CHECKED_FROM:] + covered, epoch)
    return (_HEADER.pack(length, crc, *fields[2:]) + body).ljust(span(length), b"\0")


def _properties_length(data: bytes) -> int:
    value = 0
    for i, byte in enumerate(data[:4]):
        value |= (byte & 0x7F) << 7 * i
        if not byte & 0x80:
            return value + i + 1
    raise Corrupt("the properties' length has no end within 4 bytes")


def decode(data: bytes, epoch: int) -> tuple[Decoded, int]:
    """The record at the start of `data`, and the bytes it occupies.  Raises Corrupt."""
    if len(data) < RECORD_HEADER_BYTES:
        raise Corrupt(f"{len(data)} bytes are less than a record header of {RECORD_HEADER_BYTES}")
    length, crc, offset, timestamp_ns, _, key_length, flags = RecordHeader.of(data)
    if not RECORD_HEADER_BYTES + key_length <= length <= len(data):
        raise Corrupt(f"a record length of {length} does not fit the {len(data)} bytes at hand")
    after_key = RECORD_HEADER_BYTES + key_length
    properties_length = _properties_length(data[after_key:length]) if flags & FLAG_PROPERTIES else 0
    begin = payload_position(key_length, properties_length)
    if begin > length:
        raise Corrupt(f"the payload would begin at {begin}, behind the record's end at {length}")
    if crc32c(data[CHECKED_FROM : begin if flags & FLAG_UNCHECKED else length], epoch) != crc:
        raise Corrupt(f"the checksum of the record with offset {offset} does not hold")
    return (
        Decoded(
            offset,
            timestamp_ns,
            data[RECORD_HEADER_BYTES:after_key],
            flags,
            data[after_key : after_key + properties_length],
            data[begin:length],
        ),
        span(length),
    )
