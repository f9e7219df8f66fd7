"""Format of a segment: header, extents, catalogue.  This is the only definition; little-endian.

A log is a directory of segments.  A **log position** is a byte position in the whole log: the base position
of a segment plus the position in its file.  A segment's name is its base position, 20 digits, and ".log".

    Segment, HEADER_PAGE_BYTES (4096), then extents up to the end of the log or the base of the next segment.
    **A segment ends where the next one begins**: the file's bytes beyond that are not part of the log.

Header, twice in the page, at 0 and at 2048, so that one damaged sector cannot destroy both; the rest is
zeros:

    byte  size  field
       0     8  magic            "BRIMSEGM" (a drained file has the same structure and its own magic)
       8     4  version          FORMAT_VERSION
      12     4  worker           which log thread wrote it: one log each
      16     8  base_position    as in the name
      24     4  generation       raised each time the log is opened for writing
      28     4  salt             random
      32     8  created_ns       wall clock, ns since 1970
      40    20  zeros
      60     4  crc32c           of bytes 0 .. 60, seeded with 0; also the **seed** of every extent below

Extent, at a multiple of 32: one run of complete records of one ring, as in the ring, after a header:

    byte  size  field
       0     4  length           of the body in bytes, a multiple of 32, never 0; 0: no extent here
       4     4  crc32c           of header bytes 8 .. 32, then of the whole body, from the segment's seed
       8     4  ring_id          0: a catalogue
      12     4  ring_epoch       seeds the records' own checksums; 0 in a catalogue
      16     8  ring_position    of the first record in the ring; 0 in a catalogue
      24     8  durable_position log position below which everything was synced when this was written
      32        body             in a run either each record is covered by its own checksum, or the run is a
                                 single record with flag UNCHECKED, which only this checksum covers

The checksum also covers the length: a wrong length adds other bytes to the checksum.  The seed invalidates
leftovers of an earlier use of a recycled file, and payloads that imitate an extent.

32 zero bytes are written after the last extent of each write and overwritten by the next write.  They
distinguish an intact end of the log from a torn one.

**Proof.**  A sync covers the whole file, and no record is shown or acknowledged before its sync has returned.
A valid extent with durable_position D therefore proves that everything below D was on the disk.  Damage below
D is bit rot, and costs the damaged record.  Damage that no valid extent after it proves is the torn tail of a
crash: no one was notified of it, and the log is cut there.  A segment is synced up to its end before the next
one gets its name.  A new segment is synced with its header and first catalogue before it gets its name.  A
name therefore proves everything below it.  When a log becomes idle or is closed, it writes a catalogue whose
only new content is its durable_position.

Catalogue: the extent of ring_id 0.  Body: msgpack {ring_id: [name, epoch, next_offset]}, then zeros, to a
multiple of 32.  next_offset is the offset of the ring's first record after this catalogue in the log.  The
first extent of a segment is the catalogue of every ring with records in the log.  Further catalogues add new
rings, or only prove.  They are written twice, one sector apart, so that no damaged sector destroys names or
proof.  Offsets of a ring and epoch continue without a gap unless a catalogue announces one.  ring_id is
crc32c(name), incremented past 0 and past ids of other names.  It stays the same for a name as long as the log
has it (so `ring_id % workers` is stable), and a flipped bit hardly yields another valid id.

Rule for changes: any change of these layouts raises FORMAT_VERSION and adds golden bytes under
tests/golden/persistence.  A reader keeps reading the version before.  The record format inside is defined in
ringbuf/c/base/record.h.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from persistence.errors import FormatError, FutureFormat
from ringbuf import crc32c

FORMAT_VERSION = 1
READ_VERSIONS = frozenset({1})  # the written version, and the one before
SEGMENT_MAGIC = b"BRIMSEGM"
HEADER_PAGE_BYTES = 4096
EXTENT_HEADER_BYTES = 32
ALIGN_BYTES = 32
CATALOGUE_RING_ID = 0

SEGMENT_SUFFIX = ".log"
_NAME_DIGITS = 20
LAST_ZEROS_MAX = 7  # of a number of 64 bits that is not 0

_SEGMENT = struct.Struct("<8sIIQIIQ20x")
_CRC = struct.Struct("<I")
_COPY_AT = HEADER_PAGE_BYTES // 2
_EXTENT = struct.Struct("<IIIIQQ")
_COVERED = struct.Struct("<IIQQ")  # header bytes 8 .. 32
_LENGTH_AND_CRC = struct.Struct("<II")

assert _SEGMENT.size + _CRC.size == 64
assert _EXTENT.size == EXTENT_HEADER_BYTES == _LENGTH_AND_CRC.size + _COVERED.size


class SegmentHeader(NamedTuple):
    """Content of a segment's header."""

    worker: int
    base_position: int
    generation: int
    salt: int
    created_ns: int
    magic: bytes = SEGMENT_MAGIC

    def pack(self) -> bytes:
        """The header page, HEADER_PAGE_BYTES long."""
        copy = self._pack_once()
        gap = bytes(_COPY_AT - len(copy))
        return copy + gap + copy + gap

    def _pack_once(self) -> bytes:
        fields = _SEGMENT.pack(
            self.magic,
            FORMAT_VERSION,
            self.worker,
            self.base_position,
            self.generation,
            self.salt,
            self.created_ns,
        )
        return fields + _CRC.pack(crc32c(fields))

    @property
    def seed(self) -> int:
        """Seed of the checksum of each extent of this segment."""
        return int.from_bytes(self._pack_once()[-4:], "little")

    @classmethod
    def unpack(cls, page: bytes, magic: bytes = SEGMENT_MAGIC) -> SegmentHeader:
        """The header in `page`, from a copy that is valid.

        Raises FormatError if neither copy is valid, FutureFormat if a later version wrote it.
        """
        foreign = ""
        newer = 0
        for at in (0, _COPY_AT):
            fields, crc = page[at : at + _SEGMENT.size], page[at + _SEGMENT.size : at + 64]
            if len(crc) < 4 or _CRC.unpack(crc)[0] != crc32c(fields):
                continue
            stored_magic, version, worker, base, generation, salt, created = _SEGMENT.unpack(fields)
            if stored_magic == magic and version in READ_VERSIONS:
                return cls(worker, base, generation, salt, created, magic)
            newer = version if stored_magic == magic and version > FORMAT_VERSION else newer
            foreign = f"; found magic {stored_magic!r}, version {version}"
        if newer:
            raise FutureFormat(
                f"segment format version {newer} is later than {FORMAT_VERSION}, the latest that this "
                "program reads; use the program that wrote it, or a later one"
            )
        raise FormatError(
            f"no header of magic {magic!r}, version {FORMAT_VERSION}, in {len(page)} bytes{foreign}"
        )


class ExtentHeader(NamedTuple):
    """The 32 bytes before a run of records."""

    length: int
    crc: int
    ring_id: int
    ring_epoch: int
    ring_position: int
    durable_position: int


def pack_extent(
    seed: int,
    ring_id: int,
    ring_epoch: int,
    ring_position: int,
    durable_position: int,
    body: bytes | memoryview,
) -> bytes:
    """The header of an extent with that body."""
    covered = _COVERED.pack(ring_id, ring_epoch, ring_position, durable_position)
    return _LENGTH_AND_CRC.pack(len(body), crc32c(body, crc32c(covered, seed))) + covered


def unpack_extent(buffer: bytes | memoryview, at: int = 0) -> ExtentHeader:
    """The header at byte `at`, unchecked."""
    return ExtentHeader(*_EXTENT.unpack_from(buffer, at))


def extent_checks(seed: int, header: ExtentHeader, body: bytes | memoryview) -> bool:
    """True if header and body are as written, in this segment and this use of its file."""
    covered = _COVERED.pack(header.ring_id, header.ring_epoch, header.ring_position, header.durable_position)
    return len(body) == header.length and crc32c(body, crc32c(covered, seed)) == header.crc


def extent_verifies(seed: int, header: ExtentHeader, extent: memoryview) -> bool:
    """True if an extent verifies, given in its form in the file, with the header before its body."""
    covered = extent[_LENGTH_AND_CRC.size :]
    return len(extent) == EXTENT_HEADER_BYTES + header.length and crc32c(covered, seed) == header.crc


class CatalogueEntry(NamedTuple):
    """A ring in the catalogue: its current epoch, and the next offset."""

    name: str
    epoch: int
    next_offset: int


_CATALOGUE = msgspec.msgpack.Decoder(dict[int, CatalogueEntry])


def ring_id_of(name: str, taken: Mapping[int, str]) -> int:
    """Id for the ring `name` in a log in which `taken` has the names of used ids."""
    ring_id = crc32c(name.encode()) or 1
    while taken.get(ring_id, name) != name:
        ring_id = (ring_id + 1) % 2**32 or 1
    return ring_id


def pack_catalogue(entries: Mapping[int, CatalogueEntry], room_bytes: int = 0) -> bytes:
    """The body of a catalogue extent, a multiple of 32 bytes, never empty; the extent fills `room_bytes`."""
    body = msgspec.msgpack.encode(dict(entries))
    body += bytes(max(room_bytes - EXTENT_HEADER_BYTES - len(body), 0))
    return body + bytes(-len(body) % ALIGN_BYTES)


def unpack_catalogue(body: bytes | memoryview) -> dict[int, CatalogueEntry]:
    """The entries that pack_catalogue() packed.

    Raises FormatError for any other content: files from elsewhere may have valid checksums.
    """
    content = bytes(body).rstrip(b"\0")
    failure: Exception | None = None
    # The last number may end with zeros, as the padding does. Only one number of zeros completes the map.
    for zeros in range(LAST_ZEROS_MAX + 1):
        try:
            return _CATALOGUE.decode(content + bytes(zeros))
        except (msgspec.DecodeError, RecursionError) as error:
            failure = failure or error
    raise FormatError(f"a catalogue of {len(body)} bytes that is no map of rings: {failure}") from failure


def segment_name(base_position: int, suffix: str = SEGMENT_SUFFIX) -> str:
    """The file name of the segment that begins at that log position; `suffix`: of its archive."""
    return f"{base_position:0{_NAME_DIGITS}d}{suffix}"


def base_of_name(name: str, suffix: str = SEGMENT_SUFFIX) -> int | None:
    """The base position in a file name; None if the name is not that of a segment, or has another suffix."""
    digits = name.removesuffix(suffix)
    if digits == name or len(digits) != _NAME_DIGITS or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits)
