"""Columns of a record in Spark and Arrow.

    edge        string     edge id
    stream      string     stream, or stream@producer
    partition   int
    epoch       long       with edge, stream, partition and offset: the permanent identity of the record
    offset      long       dense from the first of the epoch on
    timestamp   timestamp  time at which the broker took it; microseconds (the record has nanoseconds), UTC
    topic       string     bytes that are not UTF-8 are shown as U+FFFD
    qos         int        QoS of the publish
    retain      boolean
    properties  binary     MQTT 5 properties in wire form with their length first; null: no properties
    payload     binary

With mode PERMISSIVE there is one more, null for a good record:

    _corrupt_record  string  reason why this offset could not be read; all columns behind `offset` are null

Without that mode all columns but `properties` are NOT NULL: otherwise Spark checks each column of each row
twice for nulls.

Rule for change: columns are only added, at the end, and nullable, because tables and stream checkpoints
outlive versions.
"""

from __future__ import annotations

import functools
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

CORRUPT: Final = "_corrupt_record"
REPEATED_MAX = 65_536  # rows of a constant that are cached: the maximum of a batch of records

TYPES: Final[dict[str, pa.DataType]] = {
    "edge": pa.string(),
    "stream": pa.string(),
    "partition": pa.int32(),
    "epoch": pa.int64(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "topic": pa.string(),
    "qos": pa.int32(),
    "retain": pa.bool_(),
    "properties": pa.binary(),
    "payload": pa.binary(),
    CORRUPT: pa.string(),
}

RAW_TYPES: Final[dict[str, pa.DataType]] = {
    "ring": pa.string(),
    "timestamp_ns": pa.int64(),
    "flags": pa.int32(),
}
"""Columns of a record as in an archive (persistence/archive/layout.py), which Spark does not have."""

NEVER_NULL: Final = frozenset(TYPES) - {"properties", CORRUPT}  # in a record that verifies

DDL: Final = (
    "edge string, stream string, partition int, epoch long, offset long, timestamp timestamp, topic string, "
    "qos int, retain boolean, properties binary, payload binary"
)


def never_null(columns: str) -> str:
    """The same columns as DDL, with NOT NULL where it holds if every record verifies."""
    known = ((column, column.split()[0] in NEVER_NULL) for column in columns.split(", "))
    return ", ".join(f"{column} NOT NULL" if never else column for column, never in known)


class DecodedColumns(NamedTuple):
    """Rows with contiguous offsets from first_offset on; the requested columns that a record has."""

    first_offset: int
    rows: int
    columns: dict[str, pa.Array]

    def part(self, first_offset: int, last_offset: int) -> DecodedColumns:
        """The rows of those offsets. Copies nothing."""
        begin, rows = first_offset - self.first_offset, last_offset - first_offset + 1
        return DecodedColumns(
            first_offset, rows, {name: array.slice(begin, rows) for name, array in self.columns.items()}
        )


class Constants(NamedTuple):
    """Values that all records of a file share."""

    edge: str
    stream: str
    partition: int
    epoch: int


class RingConstants(NamedTuple):
    """Values that all records of a ring share in an epoch."""

    ring: str
    epoch: int


def batch_of(
    decoded: DecodedColumns, constants: Constants | RingConstants, schema: pa.Schema
) -> pa.RecordBatch:
    """The rows in the order of `schema`, whose fields are some of TYPES and RAW_TYPES."""
    return pa.RecordBatch.from_arrays(
        [
            decoded.columns[field.name]
            if field.name in decoded.columns
            else _filled(field, constants, decoded.rows)
            for field in schema
        ],
        schema=schema,
    )


def corrupt_batch_of(
    first_offset: int, last_offset: int, reason: str, constants: Constants, schema: pa.Schema
) -> pa.RecordBatch:
    """One row per offset, with the reason why it could not be read."""
    rows = last_offset - first_offset + 1
    columns = {
        "offset": pa.array(range(first_offset, last_offset + 1), pa.int64()),
        CORRUPT: pa.repeat(pa.scalar(reason), rows),
    }
    arrays = [
        columns[field.name] if field.name in columns else _filled(field, constants, rows) for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def as_text(keys: pa.Array) -> pa.Array:
    """Bytes as strings, without a copy if they are UTF-8; otherwise invalid bytes become U+FFFD."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array((key.decode(errors="replace") for key in keys.to_pylist()), pa.string())


def _filled(field: pa.Field, constants: Constants | RingConstants, rows: int) -> pa.Array:
    """The same value for each row: a value of the file, or null. Usually a slice of a cached array."""
    value = getattr(constants, field.name, None)
    if rows > REPEATED_MAX:
        return _repeated.__wrapped__(field.type, value, rows)
    return _repeated(field.type, value, REPEATED_MAX).slice(0, rows)


# Some hundred KiB each; without the cache they took half as long as decoding.
@functools.lru_cache(maxsize=32)
def _repeated(kind: pa.DataType, value: str | int | None, rows: int) -> pa.Array:
    """Built from plain buffers: the first pa.scalar() of a process imports pandas, which takes 0.2 s."""
    if value is None:
        return pa.nulls(rows, kind)
    if isinstance(value, str):
        text = value.encode()
        ends = np.arange(rows + 1, dtype=np.int32) * len(text)
        return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(ends), pa.py_buffer(text * rows)])
    values = np.full(rows, value, f"i{kind.bit_width // 8}")
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(values)])
