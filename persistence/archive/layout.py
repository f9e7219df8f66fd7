"""The archive format: one sealed segment as a Parquet file.  Defined here; the columns are in columns.py.

An archive is named by the base position of its segment, 20 digits, ".parquet".  It holds every record of the
segment, bit for bit; the layout of the segment itself (extents, their checksums) is left out.  Any program
that reads Parquet reads it: each row is a record.

    ring          string   name of the ring, "telemetry-0"
    epoch         int64    of the ring
    offset        int64    of the record in its ring and epoch
    timestamp_ns  int64    since 1970
    topic         string
    flags         int32    of the record (ringbuf/c/base/record.h): QoS, retain, ...
    properties    binary   MQTT 5 properties in wire form, their length in front; null: none
    payload       binary
    position      int64    in the ring; null: right behind the record of the row before
    verbatim      binary   all of a record that the other columns do not give back; null: they do

A row group holds records of one ring and epoch, in order: about GROUP_BYTES as they stood in the ring.

In the file's metadata stand three texts.  "brim.crc32c" is the checksum of footer, its length and the
closing magic, eight hexadecimal digits, computed with zeros in their place.  "brim.topics" is in base64, for
each row group, a Bloom filter of its topics in TOPIC_FILTER_BYTES: bits 0 to 12 of a topic's crc32c are the
number of a bit that is set, and so are bits 13 to 25.  "brim.archive" is JSON:

    "version"  ARCHIVE_VERSION
    "segment"  worker, base_position, generation, salt, created_ns of the segment's header
    "end"      place in the segment where its log ended
    "opening"  {ring_id: [name, epoch, next_offset]} at the segment's begin, as in a catalogue
    "closing"  the same at its end
    "groups"   one object for each row group, in their order: the fields of Group

The checksums of the footer and of each row group cover every byte of the file but the magic at its begin.
The texts are found without a Parquet library (footer_text), so that listing archives loads none.

Rule for change: any change raises ARCHIVE_VERSION and adds golden bytes under tests/golden/persistence; a
reader keeps reading the version before.  Bytes of an equal version may differ with the library that writes.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from persistence.errors import FormatError, FutureFormat
from persistence.segment.format import (
    SEGMENT_MAGIC,
    CatalogueEntry,
    SegmentHeader,
    base_of_name,
    segment_name,
)
from ringbuf import crc32c
from ringbuf.native import lib

ARCHIVE_VERSION = 2  # 1 was a format of its own, in files named ".archive"
ARCHIVE_SUFFIX = ".parquet"
GROUP_BYTES = 4 << 20  # of records: reading one record decodes as much
MAGIC = b"PAR1"
TAIL_BYTES = 8  # of the file: length of the footer, magic
FOOTER_MAX_BYTES = 1 << 28
TOPIC_FILTER_BYTES: int = lib.RB_TOPIC_FILTER_BYTES
_BIT_MASK = 8 * TOPIC_FILTER_BYTES - 1
JSON_TEXT = "brim.archive"
TOPICS_TEXT = "brim.topics"
CRC_TEXT = "brim.crc32c"
NO_CRC = b"00000000"


def archive_name(base: int) -> str:
    """The file name of the archive of the segment at that log position."""
    return segment_name(base, ARCHIVE_SUFFIX)


def base_of_archive(name: str) -> int | None:
    """The base position in the name of an archive; None: the file is no archive."""
    return base_of_name(name, ARCHIVE_SUFFIX)


class RowGroup(NamedTuple):
    """A row group: its records, and where they stand in the file."""

    ring: str
    epoch: int
    first_offset: int
    end_offset: int  # perhaps with gaps between
    records: int
    position: int  # of the first record in the ring
    end_position: int
    bytes: int  # of the records as they stood in the ring
    records_crc32c: int  # of these bytes
    first_timestamp_ns: int  # the earliest
    last_timestamp_ns: int  # the latest
    verbatim: int  # records kept verbatim, whose topic may be missing in its column but not in "brim.topics"
    place: int
    length: int
    file_crc32c: int  # of the file's bytes there

    def __str__(self) -> str:
        return f"ring {self.ring}, epoch {self.epoch}, offsets {self.first_offset} to {self.end_offset - 1}"


@dataclass
class Catalogue:
    """The JSON text: what an archive holds."""

    header: SegmentHeader
    end: int
    opening: dict[int, CatalogueEntry]
    closing: dict[int, CatalogueEntry]
    groups: list[RowGroup] = field(default_factory=list)

    def pack(self) -> str:
        """JSON text."""
        header = self.header._asdict()
        del header["magic"]
        fields = {
            "version": ARCHIVE_VERSION,
            "segment": header,
            "end": self.end,
            "opening": self.opening,
            "closing": self.closing,
            "groups": [group._asdict() for group in self.groups],
        }
        return json.dumps(fields)

    @classmethod
    def unpack(cls, text: bytes) -> Catalogue:
        """Read JSON text.  Raises FormatError; FutureFormat: a later version wrote it."""
        try:
            fields: dict[str, Any] = json.loads(text)
            version = int(fields["version"])
            if version > ARCHIVE_VERSION:
                raise FutureFormat(
                    f"archive version {version} is later than {ARCHIVE_VERSION}, the latest that this "
                    "program reads; use the program that wrote it, or a later one"
                )
            header = SegmentHeader(**fields["segment"], magic=SEGMENT_MAGIC)
            _check_numbers(*header[:-1], fields["end"])
            opening, closing = _entries(fields["opening"]), _entries(fields["closing"])
            groups = [RowGroup(**group) for group in fields["groups"]]
            for group in groups:
                _check_numbers(*group[1:])
                _check_text(group.ring)
            return cls(header, fields["end"], opening, closing, groups)
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise FormatError(f"invalid archive catalogue of {len(text)} bytes: {error!r}") from error


def _entries(fields: dict[str, Any]) -> dict[int, CatalogueEntry]:
    entries = {int(ring_id): CatalogueEntry(*entry) for ring_id, entry in fields.items()}
    for ring_id, entry in entries.items():
        _check_numbers(ring_id, *entry[1:])
        _check_text(entry.name)
    return entries


def _check_numbers(*values: object) -> None:
    for value in values:
        if type(value) is not int or not 0 <= value < 1 << 64:
            raise ValueError(f"{value!r:.40} is no number of 64 bits")


def _check_text(value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is no text")


# ---- the footer ----


def footer_length(tail: bytes, size: int) -> int:
    """Bytes of the footer with its tail, from the last TAIL_BYTES of a file.  Raises FormatError."""
    length = int.from_bytes(tail[:4], "little") + TAIL_BYTES
    if len(tail) != TAIL_BYTES or tail[4:] != MAGIC or not 0 < length <= min(size, FOOTER_MAX_BYTES):
        raise FormatError(f"no Parquet footer at the end of {size} bytes")
    return length


def footer_text(footer: bytes, name: str) -> tuple[int, int]:
    """Begin and end of a text of the file's metadata in the footer.  Raises FormatError.

    Thrift's compact protocol has a pair of strings as 0x18, length, key, 0x18, length, value.  The last place
    counts: only metadata, whose texts are ASCII without control characters, stands behind statistics.
    """
    key = name.encode()
    at = footer.rfind(bytes([0x18, len(key)]) + key + b"\x18")
    if at < 0:
        raise FormatError(f"no {name} in a Parquet footer of {len(footer)} bytes")
    begin, length, shift = at + len(key) + 3, 0, 0
    for byte in footer[begin : begin + 5]:
        begin, length, shift = begin + 1, length | (byte & 127) << shift, shift + 7
        if byte < 128:
            break
    if not shift or begin + length > len(footer):
        raise FormatError(f"{name} of {length} bytes in a Parquet footer of {len(footer)}")
    return begin, begin + length


def sealed_footer(footer: bytes) -> bytes:
    """The footer with its own checksum in it, whatever digits stood there.  Raises FormatError."""
    begin, end = footer_text(footer, CRC_TEXT)
    blank = footer[:begin] + NO_CRC + footer[end:]
    return footer[:begin] + b"%08x" % crc32c(blank) + footer[end:]


def may_have_topic(footer: bytes, group: int, topic: bytes) -> bool:
    """False if the row group of that index has no record of the topic.  Raises FormatError."""
    begin, end = footer_text(footer, TOPICS_TEXT)
    length = len(packed_filters([bytes(TOPIC_FILTER_BYTES)]))
    begin += group * length
    if begin + length > end:
        raise FormatError(f"no topics of row group {group} in {TOPICS_TEXT}")
    bits, key_hash = b64decode(footer[begin : begin + length]), crc32c(topic)
    numbers = (key_hash & _BIT_MASK, key_hash >> 13 & _BIT_MASK)
    return all(bits[number >> 3] >> (number & 7) & 1 for number in numbers)


def packed_filters(filters: Iterable[bytes]) -> str:
    """The text TOPICS_TEXT."""
    return b"".join(map(b64encode, filters)).decode()
