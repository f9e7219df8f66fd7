"""Parquet instead of drained files, into any sink for files: half the bytes, and every tool reads them.

    option format = "parquet" of a directory or an object store; wants pyarrow: pip install 'brim[spark]'

One Parquet file for each unit, under the unit's name with another ending, so that edge= and dt= are found as
partitions by Spark, Hive, DuckDB and all others, and a unit that is put again is there once as before.

    columns    those of bridge/spark/columns.py but `edge`, which the path has
    encodings  offset and timestamp DELTA_BINARY_PACKED, topic as a dictionary; zstd, level 1
    metadata   "brim": the footer of the drained file (bridge/drained.py), in msgpack; body_crc32 is that of
               the drained file

What is given up: records are no longer bit for bit those of the ring (timestamps are rounded down to
microseconds, checksums are gone), and the Spark source "brim" passes these files over: they are read as what
they are.

Invariant: the same unit gives the same bytes, with the same pyarrow.  After another pyarrow was installed, a
unit that was put and not acknowledged is a conflict: skip it, or put the old one back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bridge.drained import COMPRESSED_SUFFIX, SUFFIX
from bridge.errors import SinkBlocked, SinkUnavailable
from bridge.sink import UnitSink
from bridge.unit import Unit

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ParquetSink", "parquet_of"]

PARQUET_SUFFIX = ".parquet"
IN_RECORDS = ("offset", "timestamp", "topic", "qos", "retain", "properties", "payload")
COLUMNS = ("stream", "partition", "epoch", *IN_RECORDS)
TRAILER_BYTES = 8  # of a Parquet file: length of its footer, and a magic


class ParquetSink:
    """Units as Parquet files into `inner`."""

    def __init__(self, inner: UnitSink) -> None:
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            hint = "pip install 'brim[spark]', or leave format = \"parquet\" out"
            raise SinkUnavailable(f"{inner.url}: pyarrow is not installed", hint=hint) from error
        self._inner = inner

    @property
    def url(self) -> str:
        """See UnitSink."""
        return self._inner.url

    def begin(self, edge: str) -> None:
        """See UnitSink."""
        self._inner.begin(edge)

    def put(self, unit: Unit) -> None:
        """See UnitSink."""
        content = parquet_of(unit)
        tail = TRAILER_BYTES + int.from_bytes(content[-TRAILER_BYTES : -TRAILER_BYTES + 4], "little")
        parts = (content[:-tail], content[-tail:])  # equal tails, equal content: it has the body's checksum
        self._inner.put(replace(unit, name=parquet_name(unit.name), parts=parts))

    def names(self, prefix: str) -> Iterator[str]:
        """See UnitSink.  As the drain knows them."""
        for name in self._inner.names(prefix):
            yield name.removesuffix(PARQUET_SUFFIX) + SUFFIX if name.endswith(PARQUET_SUFFIX) else name

    def close(self) -> None:
        """See UnitSink."""
        self._inner.close()


def parquet_name(name: str) -> str:
    """What the unit of this name is called as Parquet."""
    return name.removesuffix(COMPRESSED_SUFFIX).removesuffix(SUFFIX) + PARQUET_SUFFIX


def parquet_of(unit: Unit) -> memoryview:
    """The records of a unit as a Parquet file.  Raises SinkBlocked: one of them does not verify."""
    import pyarrow as pa
    from pyarrow import parquet

    table, out = _table(unit), pa.BufferOutputStream()
    settings: dict[str, Any] = {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": ["stream", "partition", "epoch", "topic", "qos"],
        "column_encoding": {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"},
        "store_schema": False,  # Arrow's own copy of what the columns say already
    }
    with parquet.ParquetWriter(out, table.schema, **settings) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({"brim": unit.footer.pack()})
    return memoryview(out.getvalue())


def _table(unit: Unit) -> pa.Table:
    import pyarrow as pa

    from bridge.spark.columns import TYPES, Constants, batch_of
    from bridge.spark.decode import decode_compiled

    footer = unit.footer
    schema = pa.schema([(name, TYPES[name]) for name in COLUMNS])
    constants = Constants(footer.edge, footer.stream, footer.partition, footer.epoch)
    batches: list[Any] = []
    for run in unit.runs:
        least = run.first_offset
        decoded = decode_compiled(run.records, footer.epoch, least, footer.last_offset, IN_RECORDS)
        batches += [batch_of(rows, constants, schema) for rows in decoded]
    table = pa.Table.from_batches(batches, schema)
    if table.num_rows != footer.count:
        text = f"{unit.name}: {footer.count - table.num_rows} records do not verify"
        raise SinkBlocked(text, hint="look at this machine's memory; format brim keeps them as they are")
    return table
