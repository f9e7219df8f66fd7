"""Records into Arrow columns and back, by the C core (ringbuf/c/archive/), in memory that Arrow owns.

Imported only where records of an archive are written or read: it loads pyarrow.  Owns the schema of the file
(layout.py describes the columns) and no file.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from persistence.archive.layout import TOPIC_FILTER_BYTES
from persistence.archive.records import Records, Run
from persistence.errors import FormatError, NotArchived
from ringbuf.native import ffi, lib

TEXTS: Final = pa.dictionary(pa.int32(), pa.string())
SCHEMA: Final = pa.schema(
    [
        pa.field("ring", TEXTS, nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp_ns", pa.int64(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("flags", pa.int32(), nullable=False),
        pa.field("properties", pa.binary()),
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("position", pa.int64()),
        pa.field("verbatim", pa.binary()),
    ]
)
# The columns that records are built from, and their types when they have been read.
COLUMNS: Final = {field.name: TEXTS if field.name == "topic" else field.type for field in list(SCHEMA)[2:]}
# Fields of rb_decode_columns (ringbuf/c/arrow/decode_api.h) by the buffers of a column: bitmap of rows
# that are not null, then values, or ends and values.
FIXED: Final = ("offset", "timestamp_ns", "flags")
SPLIT: Final = {name: (None, name) for name in FIXED} | {
    "topic": (None, "key_ends", "key"),
    "properties": ("properties_there", "properties_ends", "properties"),
    "payload": (None, "payload_ends", "payload"),
}
BYTES_MAX = (1 << 31) - 1  # of records in one array: its ends have 32 bits


class Split(NamedTuple):
    """The rows of a row group, and facts that follow from all of them."""

    table: pa.Table
    first_timestamp_ns: int
    last_timestamp_ns: int
    verbatim: int
    topics: bytes  # filter, see layout.py


# ---- records into columns ----


def table_of(records: memoryview, runs: Sequence[Run], ring: str, epoch: int) -> Split:
    """Take apart records of one ring and epoch, whose runs lie one behind the other.

    Raises NotArchived: a record does not verify, or its offset has more than 63 bits.
    """
    odd = ffi.new("rb_odd *")
    topics = ffi.new("uint8_t[]", TOPIC_FILTER_BYTES)
    odd.filter, odd.earliest_ns = topics, (1 << 64) - 1
    tables, at, verbatim = [], 0, 0
    for run in runs:
        tables.append(_split(records[at : at + run.length], run, epoch, odd))
        verbatim += odd.rows
        at += run.length
    columns = pa.concat_tables(tables)
    rows = columns.num_rows
    epochs = pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(array("q", [epoch]) * rows)])
    table = columns.add_column(0, SCHEMA.field("ring"), [_ring(ring, rows)])
    table = table.add_column(1, SCHEMA.field("epoch"), [epochs])
    return Split(table, odd.earliest_ns, odd.latest_ns, verbatim, bytes(ffi.buffer(topics)))


def _ring(name: str, rows: int) -> pa.Array:
    """A column of one text.  pa.array() would import pandas, to look for its types."""
    text = name.encode()
    ends = pa.py_buffer(array("i", [0, len(text)]))
    names = pa.Array.from_buffers(pa.string(), 1, [None, ends, pa.py_buffer(text)])
    indexes = pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(bytes(4 * rows))])
    return pa.DictionaryArray.from_arrays(indexes, names)


def _split(records: memoryview, run: Run, epoch: int, odd: Any) -> pa.Table:
    data, sizes = ffi.from_buffer("uint8_t[]", records), ffi.new("rb_decode_sizes *")
    lib.rb_decode_measure(
        data, len(records), epoch, run.first_offset, run.records, min(len(records), BYTES_MAX), sizes
    )
    if (sizes.rows, sizes.consumed_bytes) != (run.records, run.length):
        raise NotArchived(f"a record from offset {run.first_offset + sizes.rows} on does not verify")
    out = ffi.new("rb_decode_columns *")
    buffers = _allocated(out, sizes)
    odd.ends = ffi.NULL
    if (
        lib.rb_decode_fill(data, sizes, out) != lib.RB_OK
        or lib.rb_archive_odd(data, sizes, out, odd) != lib.RB_OK
    ):
        raise NotArchived(f"an offset from {run.first_offset} on is too large for a Parquet file")
    rows = run.records
    arrays = {
        name: pa.Array.from_buffers(SCHEMA.field(name).type, rows, [buffers.get(part) for part in parts])
        for name, parts in SPLIT.items()
    }
    arrays["position"] = _first_only(run.position, rows)
    arrays["verbatim"] = _verbatim(data, sizes, out, odd) if odd.rows else pa.nulls(rows, pa.binary())
    return pa.table([arrays[name] for name in COLUMNS], schema=pa.schema(list(SCHEMA)[2:]))


def _first_only(value: int, rows: int) -> pa.Array:
    """A column of one value and nulls."""
    values, there = value.to_bytes(8, "little") + bytes(8 * rows - 8), b"\1" + bytes((rows + 7) // 8 - 1)
    return pa.Array.from_buffers(pa.int64(), rows, [pa.py_buffer(there), pa.py_buffer(values)])


def _allocated(out: Any, sizes: Any) -> dict[str | None, pa.Buffer]:
    """Arrow memory for all columns, which `out` then points to."""
    rows = sizes.rows
    room = {
        "offset": 8 * rows,
        "timestamp_ns": 8 * rows,
        "flags": 4 * rows,
        "key": sizes.key_bytes,
        "key_ends": 4 * rows + 4,
        "properties": sizes.properties_bytes,
        "properties_ends": 4 * rows + 4,
        "properties_there": (rows + 7) // 8,
        "payload": sizes.payload_bytes,
        "payload_ends": 4 * rows + 4,
    }
    buffers: dict[str | None, pa.Buffer] = {}
    for name, length in room.items():
        buffers[name] = pa.allocate_buffer(length)
        setattr(out, name, ffi.cast(ffi.typeof(getattr(out, name)), buffers[name].address))
    return buffers


def _verbatim(data: Any, sizes: Any, columns: Any, odd: Any) -> pa.Array:
    """The column of records that are kept whole, of which `odd` has counted the bytes."""
    ends, there = bytearray(4 * sizes.rows + 4), bytearray((sizes.rows + 7) // 8)
    values = bytearray(odd.bytes)
    odd.ends = ends_view = ffi.from_buffer("int32_t[]", ends)
    odd.there = there_view = ffi.from_buffer("uint8_t[]", there)
    odd.verbatim = values_view = ffi.from_buffer("uint8_t[]", values)
    result = lib.rb_archive_odd(data, sizes, columns, odd)
    assert result == lib.RB_OK
    del ends_view, there_view, values_view
    return pa.Array.from_buffers(
        pa.binary(), sizes.rows, [pa.py_buffer(there), pa.py_buffer(ends), pa.py_buffer(values)]
    )


# ---- columns into records ----


def records_of(table: pa.Table, epoch: int, topic: bytes | None = None) -> Records:
    """Build the records of a row group, or only those of a topic, from the columns COLUMNS.

    Raises FormatError: the columns do not fit each other.
    """
    if dict(zip(table.schema.names, table.schema.types, strict=True)) != COLUMNS:
        raise FormatError(f"a row group with the columns {', '.join(map(str, table.schema))}")
    arrays = {name: _array(table, name) for name in COLUMNS}
    topics = arrays["topic"].dictionary
    if topics.offset or topics.null_count:
        raise FormatError("a dictionary of topics that is not in one piece")
    hashes = ffi.new("uint32_t[]", max(len(topics), 1))
    rows, columns = ffi.new("rb_archive_rows *"), ffi.new("rb_decode_columns *")
    rows.rows, rows.epoch, rows.columns = table.num_rows, epoch, columns
    rows.topics, rows.topic_hash = len(topics), hashes
    _point(rows, ("topic",), arrays["topic"].indices)
    _point(rows, ("position_there", "position"), arrays["position"])
    rows.verbatim_bytes = _point(rows, ("verbatim_ends", "verbatim"), arrays["verbatim"])
    for name in FIXED:
        _point(columns, (name,), arrays[name])
    rows.key_bytes = _point(columns, ("key_ends", "key"), topics)
    rows.properties_bytes = _point(columns, ("properties_ends", "properties"), arrays["properties"])
    rows.payload_bytes = _point(columns, ("payload_ends", "payload"), arrays["payload"])
    return _joined(rows, epoch, topic)


def _joined(rows: Any, epoch: int, topic: bytes | None) -> Records:
    key = ffi.NULL if topic is None else ffi.from_buffer("uint8_t[]", topic)
    joined = ffi.new("rb_joined *")
    if lib.rb_archive_join(rows, key, len(topic or b""), joined) != lib.RB_OK:
        raise FormatError("columns of a row group that do not fit each other")
    data = pa.allocate_buffer(joined.bytes)  # not filled with zeros first, as a bytearray is
    places = array("I", bytes(4 * (joined.rows + 1)))
    stretches = ffi.new("rb_stretch[]", max(joined.stretches, 1))
    joined.out, joined.stretch = ffi.cast("uint8_t *", data.address), stretches
    joined.place = ffi.from_buffer("uint32_t[]", places, require_writable=True)
    if lib.rb_archive_join(rows, key, len(topic or b""), joined) != lib.RB_OK:
        raise FormatError("columns of a row group that do not fit each other")
    return Records(memoryview(data).cast("B").toreadonly(), epoch, places, stretches, joined.stretches)


def _array(table: pa.Table, name: str) -> Any:
    """The column in one piece, from its first value on, with all its buffers."""
    column = table.column(name)
    whole = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if not isinstance(whole, pa.Array) or whole.offset or len(whole) != table.num_rows:
        raise FormatError(f"the column {name} of a row group is not in one piece")
    return whole


def _point(struct: Any, parts: tuple[str, ...], column: pa.Array) -> int:
    """Let fields of a C struct point to the last buffers of a column; size of the last one."""
    buffers = column.buffers()
    for part, buffer in zip(parts, buffers[len(buffers) - len(parts) :], strict=True):
        address = 0 if buffer is None else buffer.address
        setattr(struct, part, ffi.cast(ffi.typeof(getattr(struct, part)), address))
    return 0 if buffers[-1] is None else int(buffers[-1].size)
