"""Parser of drained files (format: drained_file.py): checks header, footer and extents, and verifies records.

Never builds a file. Only the standard library and msgspec at import: a reader without compiled code can parse
a file. extent_verifies() and verify() need the compiled core.
"""

from __future__ import annotations

import dataclasses
import importlib
import struct
import zlib
from dataclasses import dataclass

from bridge.errors import DrainedFileError
from bridge.format.drained_file import (
    EXTENT_HEADER_BYTES,
    HEADER_BYTES,
    RING_ID,
    SKIPPABLE,
    SKIPPABLE_MAGIC,
    TRAILER_BYTES,
    Bytes,
    FileFooter,
    FileHeader,
    footer_length,
    parse_footer,
)
from bridge.format.file_name import FileName
from ringbuf.extras import install_extra

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
BODY_MAX_BYTES = (1 << 30) + (64 << 20)  # before compression: a length above this is damage
FLAG_UNCHECKED = 32  # of a record: RB_FLAG_UNCHECKED; a test compares it with ringbuf's
_FLAGS_AT = 30  # in a record

_EXTENT = struct.Struct("<IIIIQQ")


@dataclass(frozen=True, slots=True)
class FileExtent:
    """One extent of records. `body` is a view into the data that was parsed."""

    at: int  # byte of its header in the file
    crc: int
    body: memoryview
    unchecked: bool  # one record, covered only by `crc`


@dataclass(frozen=True, slots=True)
class ParsedFile:
    """A parsed file.  Its extents are views into the data."""

    header: FileHeader
    footer: FileFooter
    extents: tuple[FileExtent, ...]
    body: memoryview  # everything before the footer
    compressed: bool = False

    @property
    def name(self) -> FileName:
        """The name for this content."""
        return dataclasses.replace(self.footer.name(self.header.day), compressed=self.compressed)

    def body_verifies(self) -> bool:
        """True if header, extents and records are unchanged; needs no compiled code."""
        return zlib.crc32(self.body) == self.footer.body_crc32


def parse(data: Bytes, name: str = "") -> ParsedFile:
    """Parse the file in `data`. Header, footer and the places of its extents are checked; their bodies are
    not.

    `name` is for messages. Raises DrainedFileError.
    """
    view = memoryview(data)
    is_compressed = bytes(view[:4]) == ZSTD_MAGIC  # a buffer of pyarrow may have signed bytes
    try:
        footer = parse_footer(view)
        body = view[: len(view) - TRAILER_BYTES - footer_length(view)]
        if is_compressed:
            body = _decompressed(body)
        header = FileHeader.unpack(body)
        if footer.count * 32 > len(body):
            raise DrainedFileError(f"{len(body)} bytes cannot hold {footer.count} records")
        if (header.drain_seq, header.epoch, header.partition) != (
            footer.drain_seq,
            footer.ring_epoch,
            footer.partition,
        ):
            raise DrainedFileError(f"header and footer contradict each other: {header}, {footer}")
        return ParsedFile(header, footer, tuple(_extents(body, header)), body, is_compressed)
    except DrainedFileError as error:
        raise DrainedFileError(str(error), name=name, hint=error.hint) from None


def _decompressed(data: memoryview) -> memoryview:
    """Content of the zstd frame at the begin of `data`; the head of the next frame ends it."""
    if len(data) < SKIPPABLE.size:
        raise DrainedFileError(f"{len(data)} bytes before the footer are no zstd frame")
    magic, _, length = SKIPPABLE.unpack_from(data, len(data) - SKIPPABLE.size)
    if magic != SKIPPABLE_MAGIC or not HEADER_BYTES <= length <= BODY_MAX_BYTES:
        raise DrainedFileError(f"no zstd frame of a drained file: it would hold {length} bytes")
    frame = data[: len(data) - SKIPPABLE.size]
    for name in ("compression.zstd", "backports.zstd", "pyarrow"):  # executors have the last one
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        try:
            if name == "pyarrow":
                body = module.Codec("zstd").decompress(frame, length, asbytes=True)
            else:
                body = module.ZstdDecompressor().decompress(frame, length + 1)
        except (OSError, ValueError, getattr(module, "ZstdError", OSError)) as error:
            raise DrainedFileError(f"the zstd frame cannot be read: {error}") from error
        if len(body) != length:
            raise DrainedFileError(f"the zstd frame holds {len(body)} bytes, not {length}")
        return memoryview(body)
    text = "it is compressed, and this Python (before 3.14) has no zstd"
    raise DrainedFileError(text, hint=f"{install_extra('zstd')}, or install pyarrow")


def _extents(body: memoryview, header: FileHeader) -> list[FileExtent]:
    extents: list[FileExtent] = []
    at, records_bytes = HEADER_BYTES, 0
    while at < len(body):
        if at + EXTENT_HEADER_BYTES > len(body):
            raise DrainedFileError(f"byte {at}: {len(body) - at} bytes are less than an extent's header")
        length, crc, ring_id, epoch, position, _ = _EXTENT.unpack_from(body, at)
        begin = at + EXTENT_HEADER_BYTES
        if length < 32 or length % 32 or begin + length > len(body):
            raise DrainedFileError(
                f"byte {at}: an extent of {length} bytes, where {len(body) - begin} are left"
            )
        if (ring_id, epoch, position) != (RING_ID, header.epoch, records_bytes):
            raise DrainedFileError(
                f"byte {at}: an extent of ring {ring_id}, epoch {epoch}, position {position}"
            )
        records = body[begin : begin + length]
        extents.append(FileExtent(at, crc, records, bool(records[_FLAGS_AT] & FLAG_UNCHECKED)))
        at, records_bytes = begin + length, records_bytes + length
    return extents


def extent_verifies(file: ParsedFile, extent: FileExtent) -> bool:
    """True if header and body of an extent are what was written.  Needs the compiled core."""
    from ringbuf import crc32c

    covered = file.body[extent.at + 8 : extent.at + EXTENT_HEADER_BYTES + len(extent.body)]
    return crc32c(covered, file.header.seed) == extent.crc


def verify(file: ParsedFile, name: str = "") -> None:
    """Check everything: all three kinds of checksum, and that the records are those of the footer.

    Raises DrainedFileError for the first failed check. Needs the compiled core.
    """
    from ringbuf import scan_records

    footer = file.footer
    if not file.body_verifies():
        raise DrainedFileError("the checksum of the body does not hold", name=name)
    expected = footer.first_offset
    stamps = []
    for extent in file.extents:
        if not extent_verifies(file, extent):
            raise DrainedFileError(f"byte {extent.at}: the extent's checksum does not hold", name=name)
        scan = scan_records(extent.body, footer.ring_epoch)
        if scan.good_bytes != len(extent.body):
            raise DrainedFileError(f"byte {extent.at}: bad record {scan.good_bytes} bytes into it", name=name)
        if scan.first_offset != expected or scan.last_offset - scan.first_offset + 1 != scan.count:
            raise DrainedFileError(
                f"byte {extent.at}: {scan.count} records from {scan.first_offset}, expected {expected}",
                name=name,
            )
        expected += scan.count
        stamps += [scan.first_timestamp_ns, scan.last_timestamp_ns]
    if expected != footer.last_offset + 1:
        raise DrainedFileError(
            f"records end at {expected - 1}, the footer has {footer.last_offset}", name=name
        )
    if (stamps[0], stamps[-1]) != (footer.first_timestamp_ns, footer.last_timestamp_ns):
        raise DrainedFileError("the footer's timestamps are not those of the records", name=name)
