"""Decoder: drained files into Arrow batches.

The compiled core (ringbuf/c/decode.c) decodes about 4 GB/s per core and checks every checksum.

A record that does not verify is left out. It shows as an offset that is missing between the first and the
last of the file. The caller decides whether that is an error. Bytes are hostile: any bytes give rows or an
error.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from typing import Any

import pyarrow as pa

from bridge import drained
from bridge.spark.columns import TYPES, Decoded, as_text
from ringbuf.constants import RECORD_HEADER_BYTES
from ringbuf.core import ffi, lib

__all__ = ["decode_file", "decode_records"]

ROWS_MOST = 65_536  # of one batch
BYTES_MOST = 2 << 20  # of records at once, so that the second pass finds them in the cache
_OFFSET = struct.Struct("<8xQ")  # of a record


def decode_file(file: drained.DrainedFile, wanted: Collection[str]) -> Iterator[Decoded]:
    """Rows of a file, in rising order of offsets; `wanted` names the columns.

    An offset between the footer's first and last offset that is absent belongs to a record that does not
    verify.
    """
    footer = file.footer
    least = footer.first_offset
    for extent in file.extents:
        if extent.unchecked and not drained.extent_verifies(file, extent):
            continue
        for decoded in decode_records(extent.body, footer.ring_epoch, least, footer.last_offset, wanted):
            yield decoded
            least = decoded.first_offset + decoded.rows


def decode_records(
    records: memoryview, epoch: int, first_offset: int, last_offset: int, wanted: Collection[str]
) -> Iterator[Decoded]:
    """Rows of a run of records, with rising offsets in first_offset .. last_offset.

    A record that does not verify is skipped. If its length is invalid, all records behind it are skipped.
    """
    data, sizes = ffi.from_buffer("uint8_t[]", records), ffi.new("rb_decode_sizes *")
    at, least = 0, first_offset
    while at < len(records) and least <= last_offset:
        begin = _offset_at(records, at, least, last_offset)
        rows_most = min(ROWS_MOST, last_offset - begin + 1)
        lib.rb_decode_measure(data + at, len(records) - at, epoch, begin, rows_most, BYTES_MOST, sizes)
        if sizes.rows:
            if (columns := _filled(data + at, sizes, wanted)) is not None:
                yield Decoded(begin, sizes.rows, columns)
            at, least = at + sizes.consumed_bytes, begin + sizes.rows
        elif sizes.bad_length:
            at += sizes.bad_length
        else:
            return


def _offset_at(records: memoryview, at: int, least: int, most: int) -> int:
    """The offset in the header of the record at `at`, if it is in least .. most; otherwise `least`."""
    if at + RECORD_HEADER_BYTES > len(records):
        return least
    offset = int(_OFFSET.unpack_from(records, at)[0])
    return offset if least <= offset <= most else least


def _filled(data: Any, sizes: Any, wanted: Collection[str]) -> dict[str, pa.Array] | None:
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
        if column in wanted:
            room(field, length)
    if lib.rb_decode_fill(data, sizes, out) != lib.RB_OK:
        return None
    layouts = {
        "offset": (None, "offset"),
        "timestamp": (None, "timestamp_us"),
        "qos": (None, "qos"),
        "retain": (None, "retain"),
        "topic": (None, "key_ends", "key"),
        "properties": ("properties_there", "properties_ends", "properties"),
        "payload": (None, "payload_ends", "payload"),
    }
    columns = {}
    for name, fields in layouts.items():
        if name in wanted:
            kind = pa.binary() if name == "topic" else TYPES[name]
            parts = [buffers[field] if field else None for field in fields]
            columns[name] = pa.Array.from_buffers(kind, rows, parts)
    if "topic" in columns:
        columns["topic"] = as_text(columns["topic"])
    return columns
