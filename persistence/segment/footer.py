"""Footer of a sealed segment: an index of its records by ring, time and topic.  Little-endian.

The footer is in the segment's own file, after the end of the log, and is not part of the log.  It is built
only from the segment.  A missing or damaged footer, or one of another version or of an earlier use of the
file, is ignored, and the segment is read instead.  Records found by a footer are verified like all others: it
saves time, and proves nothing.  Only an undamaged segment gets one.

The footer begins at the first multiple of 4096 at or after `end` + 32.  The last sector of the log is
therefore never written again, and the 32 zeros after its last extent stay.

    byte  size  field
       0     8  magic            "BRIMFOOT"
       8     4  version          FOOTER_VERSION
      12     4  seed             of the segment: crc32c of its header
      16     8  base_position    of the segment
      24     8  end              of the log in this file, a position
      32     8  length           of the footer, in bytes
      40     4  groups           in the directory
      44     4  catalogue        bytes of the catalogue
      48     4  directory crc32c of catalogue and groups
      52     8  zeros
      60     4  crc32c           of bytes 0 .. 60, seeded with 0
      64        catalogue        as it is at `end` (format.py)
                groups           one for each ring and epoch, GROUP below
                sections         of each group

Group, 88 bytes:

       0     4  ring_id
       4     4  ring_epoch
       8     8  first_offset     of its records
      16     8  end_offset       one more than the last
      24     8  records
      32     8  earliest_ns      of all timestamps
      40     8  latest_ns
      48     8  bytes            of records, as in the ring
      56     8  at               begin of its sections, from the footer's first byte
      64     4  rows             in the extent table
      68     4  rows_bytes
      72     4  marks
      76     4  topics           number of different hashes of keys
      80     4  sections crc32c  of rows, marks and fences
      84     4  zeros

Sections, in this order:

    rows      the extent table: ringbuf/c/scan/row_codec.c; padded with zeros to a multiple of 8
    marks     {offset u64, place u64, timestamp_ns u64}: one for each 64 KiB of records (extent_table.py)
    fences    {hash u32, start u32, crc32c u32}: one for each TOPICS_PER_BLOCK topics: hash and start of the
              first topic, and the checksum of the block
    topics    {hash u32, start u32}, rising: the crc32c of a key, and the index of its first position
    places    u32 for each record, a position in units of 32 bytes: by topic, and rising within one

Two keys may have the same hash; a reader compares the key in the record.  If a client constructs topics with
one hash, a reader of one of them reads the records of all: linear in their number.

Rule for changes: raise FOOTER_VERSION and add golden bytes.  Older versions need not be read; they are
replaced by a new footer.
"""

from __future__ import annotations

import os
import struct
from array import array
from bisect import bisect_left, bisect_right
from contextlib import suppress
from dataclasses import dataclass, field
from operator import ge
from typing import NamedTuple

from persistence.errors import FormatError
from persistence.files import Files
from persistence.segment.extent_table import Columns, ExtentRows
from persistence.segment.format import (
    CatalogueEntry,
    SegmentHeader,
    pack_catalogue,
    segment_name,
    unpack_catalogue,
)
from persistence.segment.scan import SegmentTable, open_table, read_header, walk_table
from persistence.segment.scan_native import ExtentGroup, FileBytes, Walk
from ringbuf import crc32c
from ringbuf.native import ffi, lib

FOOTER_VERSION = 1
FOOTER_MAGIC = b"BRIMFOOT"
FOOTER_ALIGN_BYTES = 4096
TOPICS_PER_BLOCK = 256
END_MAX = 1 << 37  # positions of records have 32 bits, in units of 32 bytes

_HEADER = struct.Struct("<8sIIQQQIII8x")
_CRC = struct.Struct("<I")
_GROUP = struct.Struct("<IIQQQQQQQIIIII4x")
_MARK = struct.Struct("<QQQ")
_FENCE = struct.Struct("<III")
_TOPIC_BYTES = 8
_PLACE_BYTES = 4
_UNIT_BYTES = 32
_DIRECTORY_MAX_BYTES = 64 << 20

assert _HEADER.size + _CRC.size == 64
assert _GROUP.size == 88


class GroupInfo(NamedTuple):
    """Directory entry of a footer for one ring and epoch."""

    ring_id: int
    epoch: int
    first_offset: int
    end_offset: int
    records: int
    earliest_ns: int
    latest_ns: int
    bytes: int
    at: int
    rows: int
    rows_bytes: int
    marks: int
    topics: int
    crc: int

    @property
    def fences(self) -> int:
        """Number of blocks of its topics."""
        return -(-self.topics // TOPICS_PER_BLOCK)

    @property
    def indexed_bytes(self) -> int:
        """Total bytes of rows, marks and fences."""
        return _padded(self.rows_bytes) + _MARK.size * self.marks + _FENCE.size * self.fences

    @property
    def sections_bytes(self) -> int:
        """Total bytes of all sections."""
        return self.indexed_bytes + _TOPIC_BYTES * self.topics + _PLACE_BYTES * self.records


def place_of(end: int) -> int:
    """Position of the footer of a segment whose log ends at `end`."""
    return -(-(end + _UNIT_BYTES) // FOOTER_ALIGN_BYTES) * FOOTER_ALIGN_BYTES


# ---- building -------------------------------------------------------------------------------------


def build(files: Files, handle: int, name: str, end: int) -> bytes | None:
    """The footer of a segment whose log ends at `end`; None if the segment is damaged, or too large for one.

    Reads and verifies the segment once, and leaves no pages in the cache.  Raises FormatError if its header
    is lost, OSError.
    """
    return examine(files, handle, name, end)[1]


def examine(files: Files, handle: int, name: str, end: int) -> tuple[SegmentTable, bytes | None]:
    """The table of the segment as read, and the footer as in build()."""
    table, walk = walk_table(files, handle, name, ends_at=end, topics=end <= END_MAX, once=True)
    behind = Walk(FileBytes(files, handle, files.size(handle)), table.seed, end)
    behind.run()
    files.advise(handle, 0, 0, "done")
    whole = not table.damage and table.end == end and table.first_is_whole
    if not whole or len(behind) or end > END_MAX:
        return table, None  # a valid extent after the end would contradict it
    return table, _packed(table, walk, end)


def _packed(table: SegmentTable, walk: Walk, end: int) -> bytes:
    order, groups = walk.groups(0, len(walk))
    catalogue = pack_catalogue(table.catalogue)
    at = _HEADER.size + _CRC.size + len(catalogue) + _GROUP.size * len(groups)
    directory, sections = [catalogue], []
    for group in groups:
        rows = table.rings[group.ring_id, group.epoch]
        info, parts = _pack_group(walk, order, group, rows, at)
        directory.append(_GROUP.pack(*info))
        sections += parts
        at += sum(map(len, parts))
    listed = b"".join(directory)
    head = _HEADER.pack(
        FOOTER_MAGIC,
        FOOTER_VERSION,
        table.seed,
        table.header.base_position,
        end,
        at,
        len(groups),
        len(catalogue),
        crc32c(listed),
    )
    return b"".join([head, _CRC.pack(crc32c(head)), listed, *sections])


def _pack_group(
    walk: Walk, order: object, group: ExtentGroup, rows: ExtentRows, at: int
) -> tuple[GroupInfo, list[bytes]]:
    """Directory entry of a group, and its sections, which begin at `at`."""
    packed = rows.packed()
    marks = b"".join(_MARK.pack(*mark) for mark in rows.marks())
    topics, places = walk.by_topic(order, group, rows.records)
    block_words = 2 * TOPICS_PER_BLOCK
    blocks = [topics[i : i + block_words].tobytes() for i in range(0, len(topics), block_words)]
    fences = b"".join(_FENCE.pack(*struct.unpack_from("<II", block), crc32c(block)) for block in blocks)
    indexed = packed.ljust(_padded(len(packed)), b"\0") + marks + fences
    info = GroupInfo(
        group.ring_id,
        group.epoch,
        rows.first_offset,
        rows.end_offset,
        rows.records,
        rows.first_timestamp_ns,
        rows.last_timestamp_ns,
        rows.bytes,
        at,
        len(rows),
        len(packed),
        len(marks) // _MARK.size,
        len(topics) // 2,
        crc32c(indexed),
    )
    return info, [indexed, *blocks, places.tobytes()]


def found(files: Files, handle: int, header: SegmentHeader, end: int) -> bytes:
    """Bytes stored at the place of that segment's footer, as many as their header gives.

    Empty without a footer of this segment and version.
    """
    head = files.read(handle, _HEADER.size + _CRC.size, place_of(end))
    if len(head) < _HEADER.size + _CRC.size:
        return b""
    magic, version, seed, _, _, length, *_ = _HEADER.unpack(head[: _HEADER.size])
    if (magic, version, seed) != (FOOTER_MAGIC, FOOTER_VERSION, header.seed):
        return b""
    return files.read(handle, min(length, files.size(handle)), place_of(end))


def put(files: Files, directory: str, base: int, end: int, footer: bytes) -> None:
    """Write a footer after the end of a sealed segment.

    Only if that end is known for certain, and while the file cannot be reused.  The footer is on the disk
    when this returns.  It is invisible if this raises OSError; a rest left by a crash does not verify.
    """
    handle = files.open(os.path.join(directory, segment_name(base)), create=True)
    try:
        rest, place = memoryview(footer), place_of(end)
        while rest:
            written = files.pwritev(handle, [rest], place)
            rest, place = rest[written:], place + written
        files.fdatasync(handle)
    except OSError:
        with suppress(OSError):
            files.ftruncate(handle, place_of(end))  # otherwise it is readable now, but lost after a power cut
        raise
    finally:
        files.close(handle)


def there(files: Files, directory: str, base: int, end: int) -> bool:
    """True if the segment has a footer with a valid directory; the footer is then also on the disk.

    Raises FormatError, OSError.
    """
    handle = files.open(os.path.join(directory, segment_name(base)))
    try:
        is_complete = read(files, handle, read_header(files, handle), end) is not None
        if is_complete:
            files.fdatasync(handle)  # its writer may have been killed before the sync
        return is_complete
    finally:
        files.close(handle)


# ---- use --------------------------------------------------------------------------------------------


@dataclass
class Footer:
    """A footer whose directory was read and is valid.  Sections are read on demand."""

    header: SegmentHeader
    end: int
    catalogue: dict[int, CatalogueEntry]
    groups: dict[tuple[int, int], GroupInfo]  # by ring id and epoch
    _fences: dict[tuple[int, int], array[int]] = field(default_factory=dict)

    def groups_of(self, ring_name: str, epoch: int) -> list[GroupInfo]:
        """Directory entries of a ring and epoch."""
        ids = [ring_id for ring_id, entry in self.catalogue.items() if entry.name == ring_name]
        return [group for ring_id in ids if (group := self.groups.get((ring_id, epoch))) is not None]

    def table(self, files: Files, handle: int, name: str) -> SegmentTable:
        """The table of the segment.  Raises FormatError if a section is damaged, OSError."""
        opening = open_table(files, handle, name)
        if opening.header != self.header or not opening.first_is_whole:
            raise FormatError(f"{name}: its footer is of another life of the file")
        base = self.header.base_position
        table = SegmentTable(name, self.header, end=self.end, proven=base + self.end)
        table.announce(opening.opening)
        table.first_is_whole = True
        table.catalogue = dict(self.catalogue)
        for key, group in self.groups.items():
            table.rings[key] = self.rows(files, handle, group)
        return table

    def rows(self, files: Files, handle: int, group: GroupInfo) -> ExtentRows:
        """The extent table of a group, with its marks.  Raises FormatError, OSError."""
        data = self._indexed(files, handle, group)
        columns = Columns(group.rows, group.marks)
        packed = data[: group.rows_bytes]
        unpacked = lib.rb_rows_unpack(
            ffi.from_buffer(packed), len(packed), group.rows, self.end, columns.pointer
        )
        if unpacked != lib.RB_OK:
            raise FormatError(f"the extent table of ring {group.ring_id} makes no sense")
        columns.set_marks(data[_padded(group.rows_bytes) :], group.marks)
        columns.pointer.records, columns.pointer.earliest_ns = group.records, group.earliest_ns
        rows = ExtentRows()
        rows.extend(columns)
        return rows

    def places(self, files: Files, handle: int, group: GroupInfo, key_hash: int) -> array[int]:
        """Positions of the records of a group whose keys have that hash, rising.

        Raises FormatError if a section is damaged, OSError.
        """
        fences = self._fences.get((group.ring_id, group.epoch))
        if fences is None:
            data = self._indexed(files, handle, group)
            fences = array("I", data[len(data) - _FENCE.size * group.fences :])
            self._fences[group.ring_id, group.epoch] = fences
        block = bisect_right(range(group.fences), key_hash, key=lambda i: fences[3 * i]) - 1
        if block < 0:
            return array("Q")
        first = block * TOPICS_PER_BLOCK
        count = min(TOPICS_PER_BLOCK, group.topics - first)
        at = place_of(self.end) + group.at + group.indexed_bytes
        data = files.read(handle, _TOPIC_BYTES * count, at + _TOPIC_BYTES * first)
        if crc32c(data) != fences[3 * block + 2]:
            raise FormatError(f"topics {first} to {first + count} of ring {group.ring_id} are damaged")
        topics = array("I", data)
        index = bisect_left(range(count), key_hash, key=lambda i: topics[2 * i])
        if index == count or topics[2 * index] != key_hash:
            return array("Q")
        start = topics[2 * index + 1]
        if index + 1 < count:
            stop = topics[2 * index + 3]
        else:
            stop = fences[3 * block + 4] if block + 1 < group.fences else group.records
        at += _TOPIC_BYTES * group.topics + _PLACE_BYTES * start
        data = files.read(handle, _PLACE_BYTES * (stop - start), at)
        whole = len(data) == _PLACE_BYTES * (stop - start)
        places = array("Q", (_UNIT_BYTES * place for place in array("I", data))) if whole else array("Q")
        if not whole or any(map(ge, places, places[1:])):
            raise FormatError(f"places of ring {group.ring_id} are damaged")
        return places

    def _indexed(self, files: Files, handle: int, group: GroupInfo) -> bytes:
        data = files.read(handle, group.indexed_bytes, place_of(self.end) + group.at)
        if len(data) < group.indexed_bytes or crc32c(data) != group.crc:
            raise FormatError(f"the footer's sections of ring {group.ring_id} are damaged")
        return data


def read(files: Files, handle: int, header: SegmentHeader, end: int) -> Footer | None:
    """The footer of the segment with that header, whose log ends at `end`; None without a valid one.

    Reads only its directory.
    """
    try:
        return _read(files, handle, header, end)
    except (FormatError, OSError):
        return None


def _read(files: Files, handle: int, header: SegmentHeader, end: int) -> Footer | None:
    head = files.read(handle, _HEADER.size + _CRC.size, place_of(end))
    if len(head) < _HEADER.size + _CRC.size or _CRC.unpack(head[-4:])[0] != crc32c(head[:-4]):
        return None
    magic, version, *whose, length, groups, catalogue_bytes, crc = _HEADER.unpack(head[:-4])
    if (magic, version) != (FOOTER_MAGIC, FOOTER_VERSION):
        return None
    if whose != [header.seed, header.base_position, end]:
        return None
    directory_bytes = catalogue_bytes + _GROUP.size * groups
    room = min(length, files.size(handle) - place_of(end))
    if directory_bytes > min(room, _DIRECTORY_MAX_BYTES):
        return None
    listed = files.read(handle, directory_bytes, place_of(end) + len(head))
    if len(listed) < directory_bytes or crc32c(listed) != crc:
        return None
    infos = [GroupInfo(*row) for row in _GROUP.iter_unpack(listed[catalogue_bytes:])]
    if any(group.at + group.sections_bytes > room or group.rows > group.rows_bytes for group in infos):
        return None  # a section outside the footer
    catalogue = unpack_catalogue(listed[:catalogue_bytes])
    return Footer(header, end, catalogue, {(group.ring_id, group.epoch): group for group in infos})


def _padded(length: int) -> int:
    return -(-length // 8) * 8
