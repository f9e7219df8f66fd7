"""Decoder: drained files into Arrow batches.

The compiled core (ringbuf/c/arrow/decode.c) decodes about 4 GB/s per core and checks every checksum.

A record that does not verify is left out. It shows as an offset that is missing between the first and the
last of the file. The caller decides whether that is an error. Bytes are hostile: any bytes give rows or an
error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import pyarrow as pa

from bridge.arrow.schema import RAW_TYPES, TYPES, DecodedColumns, as_text
from bridge.errors import DrainedFileError
from bridge.format import file_parser
from ringbuf.constants import RECORD_HEADER_BYTES
from ringbuf.native import ffi, lib
from ringbuf.record import RecordHeader

ROWS_MAX = 65_536  # of one batch
BYTES_MAX = 2 << 20  # of records at once, so that the second pass finds them in the cache


def decode_file(file: file_parser.ParsedFile, columns: Collection[str]) -> Iterator[DecodedColumns]:
    """Rows of a file, in rising order of offsets; `columns`: names of the columns.

    An offset between the footer's first and last offset that is absent belongs to a record that does not
    verify.
    """
    footer = file.footer
    least = footer.first_offset
    for extent in file.extents:
        if extent.unchecked and not file_parser.extent_verifies(file, extent):
            continue
        for decoded in decode_records(extent.body, footer.ring_epoch, least, footer.last_offset, columns):
            yield decoded
            least = decoded.first_offset + decoded.rows


def decode_records(
    records: memoryview, epoch: int, first_offset: int, last_offset: int, wanted_columns: Collection[str]
) -> Iterator[DecodedColumns]:
    """Rows of a run of records, with rising offsets in first_offset .. last_offset.

    A record that does not verify is skipped. If its length is invalid, all records behind it are skipped.
    """
    data, sizes = ffi.from_buffer("uint8_t[]", records), ffi.new("rb_decode_sizes *")
    at, least = 0, first_offset
    while at < len(records) and least <= last_offset:
        begin = _offset_at(records, at, least, last_offset)
        rows_max = min(ROWS_MAX, last_offset - begin + 1)
        lib.rb_decode_measure(data + at, len(records) - at, epoch, begin, rows_max, BYTES_MAX, sizes)
        if sizes.rows:
            if (columns := _filled(data + at, sizes, wanted_columns)) is not None:
                yield DecodedColumns(begin, sizes.rows, columns)
            at, least = at + sizes.consumed_bytes, begin + sizes.rows
        elif sizes.bad_length:
            at += sizes.bad_length
        else:
            return


def decode_sparse(
    records: memoryview, epoch: int, wanted_columns: Collection[str]
) -> Iterator[DecodedColumns]:
    """Rows of verified records with any offsets, as they stand behind each other.

    `first_offset` of a result is 0. Raises DrainedFileError if a record does not verify.
    """
    data, sizes, at = ffi.from_buffer("uint8_t[]", records), ffi.new("rb_decode_sizes *"), 0
    while at < len(records):
        lib.rb_decode_measure(
            data + at, len(records) - at, epoch, lib.RB_ANY_OFFSET, ROWS_MAX, BYTES_MAX, sizes
        )
        columns = _filled(data + at, sizes, wanted_columns) if sizes.rows else None
        if columns is None:
            raise DrainedFileError(f"a record at byte {at} does not verify")
        yield DecodedColumns(0, sizes.rows, columns)
        at += sizes.consumed_bytes


def _offset_at(records: memoryview, at: int, least: int, high: int) -> int:
    """The offset in the header of the record at `at`, if it is in least .. most; otherwise `least`."""
    if at + RECORD_HEADER_BYTES > len(records):
        return least
    offset = RecordHeader.of(records, at).offset
    return offset if least <= offset <= high else least


def _filled(data: Any, sizes: Any, wanted_columns: Collection[str]) -> dict[str, pa.Array] | None:
    """Columns with memory allocated by Arrow and filled in C; None: the bytes have changed meanwhile."""
    out = ffi.new("rb_decode_columns *")
    rows = sizes.rows
    bits = (rows + 7) // 8
    buffers: dict[str, pa.Buffer] = {}

    def room(field: str, length: int) -> None:
        buffers[field] = pa.allocate_buffer(length)
        setattr(out, field, ffi.cast(ffi.typeof(getattr(out, field)), buffers[field].address))

    for column, field, length in (
        ("offset", "offset", 8 * rows),
        ("timestamp", "timestamp_us", 8 * rows),
        ("timestamp_ns", "timestamp_ns", 8 * rows),
        ("flags", "flags", 4 * rows),
        ("qos", "qos", 4 * rows),
        ("retain", "retain", bits),
        ("topic", "key", sizes.key_bytes),
        ("topic", "key_ends", 4 * rows + 4),
        ("properties", "properties", sizes.properties_bytes),
        ("properties", "properties_ends", 4 * rows + 4),
        ("properties", "properties_there", bits),
        ("payload", "payload", sizes.payload_bytes),
        ("payload", "payload_ends", 4 * rows + 4),
    ):
        if column in wanted_columns:
            room(field, length)
    if lib.rb_decode_fill(data, sizes, out) != lib.RB_OK:
        return None
    layouts = {
        "offset": (None, "offset"),
        "timestamp": (None, "timestamp_us"),
        "timestamp_ns": (None, "timestamp_ns"),
        "flags": (None, "flags"),
        "qos": (None, "qos"),
        "retain": (None, "retain"),
        "topic": (None, "key_ends", "key"),
        "properties": ("properties_there", "properties_ends", "properties"),
        "payload": (None, "payload_ends", "payload"),
    }
    columns = {}
    for name, fields in layouts.items():
        if name in wanted_columns:
            kind = pa.binary() if name == "topic" else TYPES.get(name) or RAW_TYPES[name]
            parts = [buffers[field] if field else None for field in fields]
            columns[name] = pa.Array.from_buffers(kind, rows, parts)
    if "topic" in columns:
        columns["topic"] = as_text(columns["topic"])
    return columns
