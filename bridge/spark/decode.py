"""Drained files into Arrow batches.

The records are decoded by the compiled core (ringbuf/c/decode.c) at about 4 GB/s a core, every checksum
checked; where it cannot be loaded, as from a zip, by decode_numpy.py at a fifth of that.  Both give the
same rows.

What does not verify is left out and shows as offsets that are missing between first and last of the file; the
caller decides whether that is an error.  Bytes are hostile: whatever they are, the outcome is rows or an
error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeAlias

import pyarrow as pa

from bridge import drained
from bridge.errors import SourceOptionError
from bridge.spark import decode_numpy
from bridge.spark.columns import TYPES, Decoded, as_text
from bridge.spark.decode_numpy import offset_at

__all__ = ["Decoder", "compiled", "decode_compiled", "decode_file", "decoder_of"]

ROWS_MOST = 65_536  # of one batch
BYTES_MOST = 2 << 20  # of records at once: the second pass then finds them in the cache

Decoder: TypeAlias = Callable[[memoryview, int, int, int, Collection[str]], Iterator[Decoded]]


def compiled() -> tuple[Any, Any] | None:
    """The compiled core as (ffi, lib), or None where there is none: in a zip, or on another platform."""
    try:
        from ringbuf.core import ffi, lib
    except (ImportError, OSError):
        return None
    return ffi, lib


def decoder_of(name: str) -> Decoder:
    """The decoder that an option names: "auto", "c" or "numpy".  Raises SourceOptionError."""
    if name not in {"auto", "c", "numpy"}:
        raise SourceOptionError(f"decoder is {name!r}, and must be auto, c or numpy")
    if name == "numpy" or (name == "auto" and compiled() is None):
        return decode_numpy.decode
    if compiled() is None:
        raise SourceOptionError(
            "decoder is 'c', but the compiled core cannot be loaded here", hint="install the wheel"
        )
    return decode_compiled


def decode_file(file: drained.DrainedFile, wanted: Collection[str], decoder: Decoder) -> Iterator[Decoded]:
    """The rows of a file, in rising order of offsets; `wanted` names the columns.

    Numbers that lie between the footer's first and last offset and do not come are of records that do not
    verify.
    """
    footer = file.footer
    portable = decoder is decode_numpy.decode
    whole = portable and file.body_verifies()
    checksum = decode_numpy.crc32c if portable else None
    least = footer.first_offset
    for extent in file.extents:
        if extent.unchecked and not whole and not drained.extent_verifies(file, extent, checksum):
            continue
        chosen = decode_numpy.decode_verified if whole else decoder
        for decoded in chosen(extent.body, footer.ring_epoch, least, footer.last_offset, wanted):
            yield decoded
            least = decoded.first_offset + decoded.rows


def decode_compiled(
    records: memoryview, epoch: int, first_offset: int, last_offset: int, wanted: Collection[str]
) -> Iterator[Decoded]:
    """Rows of a run of records, in C.  A record that does not verify is skipped, and all behind it if its
    length cannot be believed; what comes has rising offsets in first_offset .. last_offset.
    """
    core = compiled()
    assert core is not None
    ffi, lib = core
    data, sizes = ffi.from_buffer("uint8_t[]", records), ffi.new("rb_decode_sizes *")
    at, least = 0, first_offset
    while at < len(records) and least <= last_offset:
        begin = offset_at(records, at, least, last_offset)
        rows_most = min(ROWS_MOST, last_offset - begin + 1)
        lib.rb_decode_measure(data + at, len(records) - at, epoch, begin, rows_most, BYTES_MOST, sizes)
        if sizes.rows:
            if (columns := _filled(ffi, lib, data + at, sizes, wanted)) is not None:
                yield Decoded(begin, sizes.rows, columns)
            at, least = at + sizes.consumed_bytes, begin + sizes.rows
        elif sizes.bad_length:
            at += sizes.bad_length
        else:
            return


def _filled(ffi: Any, lib: Any, data: Any, sizes: Any, wanted: Collection[str]) -> dict[str, pa.Array] | None:
    """Columns whose memory Arrow allocates and C fills; None: the bytes have changed meanwhile."""
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
