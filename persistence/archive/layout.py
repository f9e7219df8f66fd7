"""The bytes of an archive: one sealed segment, compressed.  Defined here and nowhere else; little-endian.

An archive is named by the base position of its segment, 20 digits, ".archive".  It holds every record of the
segment, bit by bit; what only the segment's own layout says (extents, their checksums) is left out.

    header    64 bytes: the segment's own (format.py), with magic "BRIMARCH".  Its checksum is the **seed** of
              all checksums below, so nothing of another archive ever fits.
    frames    one zstd frame each, in the order of the footer's index: of each window its blocks and its head,
              then the pages of names
    footer    one zstd frame of msgpack, see below
    trailer   32 bytes:

    byte  size  field
       0     8  footer_place
       8     4  footer_length
      12     4  plain_length     of the footer, decompressed
      16     4  version          ARCHIVE_VERSION
      20     4  crc32c           of the footer as it stands in the file, then of trailer bytes 0 .. 20, seeded
      24     8  magic            "BRIMARCH"

Footer, a map:

    "end"       place in the segment where its log ended
    "opening"   {ring_id: [name, epoch, next_offset]} at the segment's begin, as in a catalogue
    "closing"   the same at its end
    "rings"     [[name, epoch], ...], which runs refer to by index
    "windows"   [[head, [block, ...], [run, ...], records, first_timestamp_ns, last_timestamp_ns, crc], ...]
                run: [ring, length, records, first_offset, ring_position], without a gap in either;
                crc: crc32c of the window's records as they stood in the ring, run by run, seeded
    "pages"     [[frame, rank behind its last name, first name], ...]

    A frame is [place, length, plain_length, crc32c]: where in the file, decompressed, of the file's bytes.

A **window** is about WINDOW_BYTES of records: runs of one ring after the other.  The names of all topics
(keys) of the segment have ranks, by their bytes.  Record order is that of the runs; key order is by rank, and
within one topic by record order: what is alike stands together.

    head    for each column, plane by plane, lowest byte first, one byte for each record:
            4 rank of the key, record order
            8 timestamp_ns less that of the record before (of 0 at the first), zigzag, record order
            2 flags of the record; 0x8000: the body is all of the record's span, as it stood, key order
            4 length of the record, key order
            4 that length less the length of the body, modulo 2^32, key order
    blocks  the bodies, key order: properties and payload.  A block ends with the record that takes it to
            BLOCK_BYTES, so one topic's records are in one block, or in neighbours
    page    lengths of its names, 2 planes; windows each is in, 8 planes: bit n for window n modulo 64; names

Offsets (dense in a run), the key's hash, padding and the record's own checksum are not stored: a reader works
them out.  A record that would not come back bit by bit is stored as it stands.

Rule for change: any change raises ARCHIVE_VERSION and adds golden bytes under tests/golden/persistence; a
reader keeps reading the version before.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import NamedTuple

import msgpack

from persistence.archive.zstd import compress, decompress
from persistence.errors import FormatError
from persistence.format import CatalogueEntry, SegmentHeader
from ringbuf import crc32c

__all__ = [
    "ARCHIVE_MAGIC",
    "ARCHIVE_SUFFIX",
    "ARCHIVE_VERSION",
    "BLOCK_BYTES",
    "HEADER_BYTES",
    "PAGE_BYTES",
    "TRAILER_BYTES",
    "WINDOW_BYTES",
    "Footer",
    "Frame",
    "Page",
    "Run",
    "Trailer",
    "WindowEntry",
    "archive_name",
    "base_of_archive",
    "pack_header",
    "unpack_header",
]

ARCHIVE_VERSION = 1
ARCHIVE_MAGIC = b"BRIMARCH"
ARCHIVE_SUFFIX = ".archive"
HEADER_BYTES = 64
TRAILER_BYTES = 32
WINDOW_BYTES = 8 << 20  # what reading a few records in the order of the ring may have to decompress
BLOCK_BYTES = 1 << 20  # what reading one topic has to decompress of a window, beside its head
PAGE_BYTES = 64 << 10
FOOTER_MOST_BYTES = 1 << 30

_NAME_DIGITS = 20
_TRAILER = struct.Struct("<QIIII8s")
_COVERED = struct.Struct("<QIII")  # trailer bytes 0 .. 20

assert _TRAILER.size == TRAILER_BYTES


def archive_name(base: int) -> str:
    """The file name of the archive of the segment at that log position."""
    return f"{base:0{_NAME_DIGITS}d}{ARCHIVE_SUFFIX}"


def base_of_archive(name: str) -> int | None:
    """The base position that a file name says, or None for a file that is no archive."""
    digits = name.removesuffix(ARCHIVE_SUFFIX)
    if digits == name or len(digits) != _NAME_DIGITS or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits)


def pack_header(segment: SegmentHeader) -> bytes:
    """The first 64 bytes of the archive of that segment."""
    return segment._replace(magic=ARCHIVE_MAGIC).pack()[:HEADER_BYTES]


def unpack_header(data: bytes) -> SegmentHeader:
    """The header of an archive; its `seed` begins every checksum.  Raises FormatError."""
    return SegmentHeader.unpack(data, ARCHIVE_MAGIC)


class Frame(NamedTuple):
    """Where a zstd frame is, and what it holds."""

    place: int
    length: int
    plain_length: int
    crc: int

    def open(self, data: bytes, seed: int) -> bytes:
        """What the frame holds that reads as `data`.  Raises FormatError."""
        if len(data) != self.length or crc32c(data, seed) != self.crc:
            raise FormatError(f"the frame of {self.length} bytes at {self.place} is not what was written")
        return decompress(data, self.plain_length)


class Run(NamedTuple):
    """Records of one ring and epoch, dense in offsets and in ring positions."""

    ring: int  # index into Footer.rings
    length: int  # bytes
    records: int
    first_offset: int
    position: int


class WindowEntry(NamedTuple):
    """What the footer says of a window."""

    head: Frame
    blocks: list[Frame]
    runs: list[Run]
    records: int
    first_timestamp_ns: int
    last_timestamp_ns: int
    crc: int

    @property
    def length(self) -> int:
        """What its records take once restored."""
        return sum(run.length for run in self.runs)


class Page(NamedTuple):
    """What the footer says of a page of names: ranks from the page before up to `end`."""

    frame: Frame
    end: int
    first_name: bytes


@dataclass
class Footer:
    """The index of an archive."""

    end: int = 0
    opening: dict[int, CatalogueEntry] = field(default_factory=dict)
    closing: dict[int, CatalogueEntry] = field(default_factory=dict)
    rings: list[tuple[str, int]] = field(default_factory=list)
    windows: list[WindowEntry] = field(default_factory=list)
    pages: list[Page] = field(default_factory=list)

    def pack(self) -> tuple[bytes, int]:
        """As it goes into the file, and its bytes before compression."""
        fields = {
            "end": self.end,
            "opening": {ring_id: list(entry) for ring_id, entry in self.opening.items()},
            "closing": {ring_id: list(entry) for ring_id, entry in self.closing.items()},
            "rings": self.rings,
            "windows": self.windows,
            "pages": self.pages,
        }
        plain: bytes = msgpack.packb(fields)
        return compress(plain), len(plain)

    @classmethod
    def unpack(cls, data: bytes) -> Footer:
        """From what pack() compressed.  Raises FormatError."""
        try:
            fields = msgpack.unpackb(data, strict_map_key=False)
            return cls(
                int(fields["end"]),
                {int(ring_id): CatalogueEntry(*entry) for ring_id, entry in fields["opening"].items()},
                {int(ring_id): CatalogueEntry(*entry) for ring_id, entry in fields["closing"].items()},
                [(str(name), int(epoch)) for name, epoch in fields["rings"]],
                [_window(*entry, rings=len(fields["rings"])) for entry in fields["windows"]],
                _pages(fields["pages"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError, msgpack.UnpackException) as error:
            raise FormatError(f"an archive's footer of {len(data)} bytes that is none: {error!r}") from error


def _frame(fields: list[int]) -> Frame:
    frame = Frame(*fields)
    if any(type(it) is not int or not 0 <= it < 2**63 for it in frame):
        raise ValueError(f"{frame} is nowhere")
    return frame


def _pages(fields: list[tuple[list[int], int, bytes]]) -> list[Page]:
    pages, end = [], 0
    for frame, behind, first_name in fields:
        if not end < behind < 2**31:
            raise ValueError("ranks that do not rise")
        pages.append(Page(_frame(frame), behind, bytes(first_name)))
        end = behind
    return pages


def _window(
    head: list[int],
    blocks: list[list[int]],
    runs: list[list[int]],
    records: int,
    first_ns: int,
    last_ns: int,
    crc: int,
    *,
    rings: int,
) -> WindowEntry:
    its = [Run(*run) for run in runs]
    if sum(run.records for run in its) != records or any(run.ring >= rings for run in its):
        raise ValueError("a window whose runs do not fit it")
    if any(type(it) is not int or not 0 <= it < 2**64 for run in its for it in run):
        raise ValueError("a run that cannot be")
    frames = [_frame(block) for block in blocks]
    return WindowEntry(_frame(head), frames, its, records, first_ns, last_ns, crc)


class Trailer(NamedTuple):
    """The last bytes: where the footer is."""

    footer: Frame

    def pack(self, seed: int, footer: bytes) -> bytes:
        """The trailer of an archive whose footer stands in the file as `footer`."""
        covered = _COVERED.pack(self.footer.place, len(footer), self.footer.plain_length, ARCHIVE_VERSION)
        return covered + struct.pack("<I", crc32c(covered, crc32c(footer, seed))) + ARCHIVE_MAGIC

    @classmethod
    def unpack(cls, data: bytes, size: int) -> Trailer:
        """From the last bytes of a file of `size`; its checksum is for Footer.  Raises FormatError."""
        if len(data) != TRAILER_BYTES or data[-8:] != ARCHIVE_MAGIC:
            raise FormatError(f"no archive's trailer in its last {len(data)} bytes")
        place, length, plain, version, crc, _ = _TRAILER.unpack(data)
        if version != ARCHIVE_VERSION:
            raise FormatError(f"an archive of version {version}, where {ARCHIVE_VERSION} is read")
        if place + length + TRAILER_BYTES != size or plain > FOOTER_MOST_BYTES:
            raise FormatError(f"an archive whose footer would be at {place}, {length} bytes of {size}")
        return cls(Frame(place, length, plain, crc))

    def open(self, footer: bytes, trailer: bytes, seed: int) -> Footer:
        """The footer that stands in the file as `footer`.  Raises FormatError."""
        if crc32c(trailer[: _COVERED.size], crc32c(footer, seed)) != self.footer.crc:
            raise FormatError("an archive's footer is not what was written")
        return Footer.unpack(decompress(footer, self.footer.plain_length))
