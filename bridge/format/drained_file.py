"""Drained file: the format that the bridge writes and Spark reads, with its header and footer.

One file holds contiguous records of one partition and epoch, as they are in the ring. It is structured like a
segment of the log (persistence/segment/format.py), and closed by a footer. Little-endian.

    byte  size  field
       0     8  magic            "BRIMDRAN"
       8     4  version          2; 1 where the epoch of the footer is that of the ring
      12     4  header_bytes     64: where the first extent begins
      16     8  drain_seq        the number of this file, from 1 on, of this edge in this sink
      24     4  ring_epoch       seeds the records' own checksums: the low 32 bits of the footer's epoch
      28     4  partition
      32     8  created_ns       wall clock when the file was decided on, ns since 1970
      40    20  zeros
      60     4  crc32            of bytes 0 .. 60; it is also the seed of every extent's crc32c
      64        extents          each the 32 bytes below, then a body
                footer           msgpack map, below
                u32 footer_length, u32 crc32 of the footer, magic "BRIMDEND": the last TRAILER_BYTES

    Extent, 32 bytes, those of the log: u32 length of the body, a multiple of 32 | u32 crc32c of the
    following fields of the extent and of the body | u32 ring_id, 1 | u32 ring_epoch | u64 position: bytes of
    records before this extent in this file | u64 0.  Body: either records that are each covered by their own
    checksum, or one record with FLAG_UNCHECKED.  Extents have the maximum length that this rule allows,
    whatever ranges they came from.  So records read from the ring and the same records read from the log
    give the same bytes.

    Footer: edge, stream, partition, epoch: together with the offset the permanent identity of a record.
                                The epoch has 63 bits: no other installation gives it
                                (bridge/format/installation.py)
        epoch_first_offset      first offset of this epoch, or of this edge in it: records that an edge
                                drained before it was renamed belong to its old name
        previous                [epoch, next_offset]: progress of draining in the epoch before, when it
                                could no longer be read; in the first file of an epoch, otherwise nil
        first_offset, last_offset, count, first_timestamp_ns, last_timestamp_ns
        drain_seq
        lost, skipped           [[first, last], ...] offsets of this epoch that no file will ever hold:
                                overwritten before they were drained, or passed over on purpose.  They lie
                                between the file before and first_offset
        earlier_lost, earlier_skipped   [[epoch, first, last], ...] the same of earlier epochs, which ended
                                before a file of theirs could declare it; absent if empty
        body_crc32              crc32 of everything before the footer
        installation            32 hexadecimal digits: the installation that drained it; absent in version 1
        merged                  only in a merged file (merged_file.py), for each file that it replaces, in the
                                order of offsets: [drain_seq, first_offset, last_offset,
                                first_timestamp_ns, last_timestamp_ns, body_crc32]

    crc32 is the one of zlib, and not crc32c: so a reader without compiled code can check header, footer and
    body.

file_name.py has the form of the name. The day in the name is that of created_ns, UTC.

Compressed (suffix .brim.zst): everything before the footer as one zstd frame; then a skippable frame, which
`zstd -d` ignores. Its content is u64 bytes of the first part before compression, footer and trailer. So the
footer of either kind is read from the end. Two files with the same body_crc32 hold the same.

Rule for change: footers may gain keys, which readers ignore. Any other change raises VERSION and adds golden
bytes under tests/golden/bridge; a reader still reads the version before. A file with an epoch of 32 bits is
always written as version 1: a file that an earlier Brim has begun must stay the same.

file_builder.py builds the files, file_parser.py reads them. Only the standard library and msgspec at import,
for the reason above.
"""

from __future__ import annotations

import dataclasses
import struct
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import le
from typing import Annotated, Any, TypeAlias

import msgspec

from bridge.errors import DrainedFileError
from bridge.format.file_name import FileName
from bridge.format.lake_epoch import ring_epoch

Bytes: TypeAlias = bytes | bytearray | memoryview

MAGIC = b"BRIMDRAN"
END_MAGIC = b"BRIMDEND"
VERSION, NARROW_VERSION = 2, 1
HEADER_BYTES = 64
EXTENT_HEADER_BYTES = 32
TRAILER_BYTES = 16
FOOTER_MAX_BYTES = 1 << 20  # a footer is about 300 bytes; a length above this is damage
RING_ID = 1
# Of the same records as Parquet; parquet_footer.py: its metadata.
PARQUET_COLUMNS = ("offset", "timestamp", "topic", "qos", "retain", "properties", "payload")  # of its records
SKIPPABLE_MAGIC = 0x184D2A5B  # any of 0x184D2A50 to 0x184D2A5F: format of zstd, 3.1.2

_HEADER = struct.Struct("<8sIIQIIQ20x")
_CRC = struct.Struct("<I")
_TRAILER = struct.Struct("<II8s")
SKIPPABLE = struct.Struct("<IIQ")


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The first HEADER_BYTES. `epoch` is that of the ring."""

    drain_seq: int
    epoch: int
    partition: int
    created_ns: int
    version: int = VERSION

    def pack(self) -> bytes:
        """Encode the header."""
        fields = _HEADER.pack(
            MAGIC, self.version, HEADER_BYTES, self.drain_seq, self.epoch, self.partition, self.created_ns
        )
        return fields + _CRC.pack(zlib.crc32(fields))

    @property
    def seed(self) -> int:
        """Initial value of the crc32c of each extent."""
        return int.from_bytes(self.pack()[-_CRC.size :], "little")

    @property
    def day(self) -> str:
        """The dt of its name."""
        return datetime.fromtimestamp(self.created_ns // 10**9, UTC).strftime("%Y-%m-%d")

    @classmethod
    def unpack(cls, data: Bytes) -> FileHeader:
        """Decode a header. Raises DrainedFileError."""
        if len(data) < HEADER_BYTES:
            raise DrainedFileError(f"{len(data)} bytes are less than the header of {HEADER_BYTES}")
        magic, version, header_bytes, drain_seq, epoch, partition, created_ns = _HEADER.unpack_from(data)
        if magic != MAGIC:
            raise DrainedFileError(f"begins with {magic!r}, a drained file with {MAGIC!r}")
        if version not in {NARROW_VERSION, VERSION} or header_bytes != HEADER_BYTES:
            raise DrainedFileError(
                f"version {version}, this build reads {NARROW_VERSION} and {VERSION}",
                hint="install a newer Brim",
            )
        if _CRC.unpack_from(data, _HEADER.size)[0] != zlib.crc32(data[: _HEADER.size]):
            raise DrainedFileError("the checksum of the header does not hold")
        return cls(drain_seq, epoch, partition, created_ns, version)


Ranges: TypeAlias = tuple[tuple[int, int], ...]
EarlierRanges: TypeAlias = tuple[tuple[int, int, int], ...]  # (epoch, first, last)

_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
MergedEntry: TypeAlias = tuple[_Number, _Number, _Number, _Number, _Number, _Number]  # as in the footer

_MAY_MISS: dict[str, Any] = {"earlier_lost": (), "earlier_skipped": (), "installation": "", "merged": ()}


@dataclass(frozen=True, slots=True)
class FileFooter:
    """Footer of a drained file.

    Ranges are (first, last), both ends included; earlier ranges have their epoch before that.
    """

    edge: str
    stream: str
    partition: int
    epoch: int
    epoch_first_offset: int
    previous: tuple[int, int] | None
    first_offset: int
    last_offset: int
    count: int
    first_timestamp_ns: int
    last_timestamp_ns: int
    drain_seq: int
    lost: Ranges
    skipped: Ranges
    body_crc32: int
    earlier_lost: EarlierRanges = ()
    earlier_skipped: EarlierRanges = ()
    installation: str = ""
    merged: tuple[MergedEntry, ...] = ()

    @property
    def ring_epoch(self) -> int:
        """The epoch with which the records' checksums begin."""
        return ring_epoch(self.epoch)

    def pack(self) -> bytes:
        """msgpack, keys in the order above."""
        return msgspec.msgpack.encode(self.values())

    def values(self) -> dict[str, Any]:
        """The keys and values of a footer, in the order above."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {key: value for key, value in values.items() if value or key not in _MAY_MISS}

    @classmethod
    def unpack(cls, data: Bytes) -> FileFooter:
        """Decode a footer. Raises DrainedFileError, also for a footer that contradicts itself."""
        try:
            return cls.of(msgspec.msgpack.decode(data))
        except (ValueError, RecursionError) as error:
            raise DrainedFileError(f"invalid footer ({len(data)} bytes): {error!r}") from error

    @classmethod
    def of(cls, values: Any) -> FileFooter:
        """The footer with these values. Raises as unpack()."""
        try:
            values = dict(values)
            merged = msgspec.convert(values.pop("merged", ()), tuple[MergedEntry, ...])  # may be thousands
            fields = {**_MAY_MISS, **as_tuples(values), "merged": merged}
            footer = cls(
                **{field.name: _checked(field.name, fields[field.name]) for field in dataclasses.fields(cls)}
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DrainedFileError(f"invalid footer: {error!r}") from error
        if footer.count != footer.last_offset - footer.first_offset + 1 or footer.count < 1:
            raise DrainedFileError(
                f"{footer.count} records cannot be offsets {footer.first_offset} to {footer.last_offset}"
            )
        if footer.merged and not _is_dense(footer):
            raise DrainedFileError("the merged files are not those of the footer's offsets")
        return footer

    def name(self, day: str) -> FileName:
        """The name of the file that this footer closes."""
        return FileName(
            self.edge,
            self.drain_seq,
            self.stream,
            self.partition,
            self.epoch,
            self.first_offset,
            self.last_offset,
            day,
            merged=bool(self.merged),
        )


def as_tuples(value: Any) -> Any:
    """The same value with tuples in place of lists, at any depth."""
    if isinstance(value, dict):
        return {key: as_tuples(inner) for key, inner in value.items()}
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value


def _checked(key: str, value: Any) -> Any:
    """Return `value` if it is valid for `key` in the footer. Raises ValueError."""
    if key in {"edge", "stream", "installation"}:
        good = isinstance(value, str)
    elif key == "previous":
        good = value is None or _is_pair(value)
    elif key in {"lost", "skipped"}:
        good = isinstance(value, tuple) and all(_is_pair(pair) and pair[0] <= pair[1] for pair in value)
    elif key == "merged":
        good = True  # checked by msgspec
    elif key in _MAY_MISS:
        good = isinstance(value, tuple) and all(map(_is_earlier, value))
    else:
        good = _is_number(value)
    if not good:
        raise ValueError(f"{key} is {value!r}")
    return value


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 64


def _is_earlier(value: object) -> bool:
    is_triple = isinstance(value, tuple) and len(value) == 3 and all(map(_is_number, value))
    return is_triple and value[1] <= value[2]  # type: ignore[index]


def _is_dense(footer: FileFooter) -> bool:
    """True if the merged files have all offsets of the footer, in order, and its drain_seq is the highest."""
    drain_seqs, firsts, lasts = zip(*(entry[:3] for entry in footer.merged), strict=True)
    return (
        firsts == (footer.first_offset, *(last + 1 for last in lasts[:-1]))
        and all(map(le, firsts, lasts))
        and (lasts[-1], max(drain_seqs)) == (footer.last_offset, footer.drain_seq)
    )


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(map(_is_number, value))


def footer_and_trailer(footer: FileFooter) -> bytes:
    """End of a drained file: footer and trailer."""
    packed = footer.pack()
    return packed + _TRAILER.pack(len(packed), zlib.crc32(packed), END_MAGIC)


def skipped_frame_head(body_length: int, tail_length: int) -> bytes:
    """Bytes between the zstd frame of `body_length` bytes and the footer with its trailer."""
    return SKIPPABLE.pack(SKIPPABLE_MAGIC, tail_length + 8, body_length)


def footer_length(tail: Bytes) -> int:
    """Bytes of the footer before the trailer at the end of `tail`. Raises DrainedFileError."""
    if len(tail) < TRAILER_BYTES:
        raise DrainedFileError(f"{len(tail)} bytes are less than the trailer of {TRAILER_BYTES}")
    length, _, magic = _TRAILER.unpack_from(tail, len(tail) - TRAILER_BYTES)
    if magic != END_MAGIC:
        raise DrainedFileError(
            f"ends with {magic!r}, a whole drained file with {END_MAGIC!r}: it is cut short"
        )
    if length > FOOTER_MAX_BYTES:
        raise DrainedFileError(
            f"a footer of {length} bytes is above the {FOOTER_MAX_BYTES} that one can have"
        )
    return int(length)


def parse_footer(tail: Bytes) -> FileFooter:
    """The footer at the end of `tail`, which holds at least the whole footer. Raises DrainedFileError."""
    length = footer_length(tail)
    at = len(tail) - TRAILER_BYTES - length
    if at < 0:
        raise DrainedFileError(f"{len(tail)} bytes cannot hold a footer of {length}")
    packed = tail[at : at + length]
    if _TRAILER.unpack_from(tail, len(tail) - TRAILER_BYTES)[1] != zlib.crc32(packed):
        raise DrainedFileError("the checksum of the footer does not hold")
    return FileFooter.unpack(packed)
