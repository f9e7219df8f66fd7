"""Parquet sink: Parquet files instead of drained files, in any sink for files. Half the bytes, readable by
any tool.

    option format = "parquet" of a directory or an object store; needs pyarrow: pip install 'brim[spark]'

There is one Parquet file for each drained file, under its name with another ending. So Spark, Hive, DuckDB
and all others find edge= and dt= as partitions, and a drained file that is put again is stored once, as with
drained files.

    columns    those of bridge/arrow/schema.py but `edge`, which is in the path
    encodings  offset and timestamp DELTA_BINARY_PACKED, topic as a dictionary; zstd, level 1
    metadata   the footer of the drained file as text (bridge/format/parquet_footer.py); body_crc32 is that of
               the drained file

Records are no longer bit for bit those of the ring: timestamps are rounded down to microseconds, and
checksums are absent. The Spark source "brim" reads these files like drained files, with the same rows
(bridge/arrow/parquet_files.py).

Invariant: a name has one content, but not one sequence of bytes: another pyarrow writes the same records
differently. So the metadata decides whether an existing file is the drained file that is put again. It has
that file's number, offsets and count, and the checksum of its records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from bridge.errors import DrainedFileError, SinkBlocked, SinkUnavailable
from bridge.format.drained_file import PARQUET_COLUMNS, FileFooter
from bridge.format.file_builder import DrainedFile
from bridge.format.file_name import COMPRESSED_SUFFIX, PARQUET_SUFFIX, SUFFIX, as_drained
from bridge.format.installation import Holder
from bridge.format.parquet_footer import footer_of, metadata_of
from bridge.sinks.interface import FileSink, Leasing

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ParquetSink", "parquet_of"]

COLUMNS = ("stream", "partition", "epoch", *PARQUET_COLUMNS)
SETTINGS: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": ["stream", "partition", "epoch", "topic", "qos"],
    "column_encoding": {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"},
    "store_schema": False,  # Arrow's copy of the column types
}
TRAILER_BYTES = 8  # of a Parquet file: length of its footer, and a magic


class ParquetFile(DrainedFile):
    """Drained file in the form of Parquet."""

    __slots__ = ()

    def is_held_by(self, length: int, read: Callable[[int, int], bytes]) -> bool:
        """See DrainedFile. Holds for a file from any writer."""
        ends = read(max(length - TRAILER_BYTES, 0), length)
        metadata_bytes = TRAILER_BYTES + int.from_bytes(ends[:4], "little")
        if len(ends) < TRAILER_BYTES or metadata_bytes > length:
            return False
        return _footer_in(read(length - metadata_bytes, length)) == self.footer


def _footer_in(tail: bytes) -> FileFooter | None:
    """The footer of the drained file, from the end of a Parquet file; None: no valid one."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return footer_of(parquet.read_metadata(pa.BufferReader(tail)).metadata)
    except (pa.ArrowInvalid, OSError, DrainedFileError):
        return None


class ParquetSink:
    """Sink that puts drained files as Parquet files into `inner`."""

    def __init__(self, inner: FileSink) -> None:
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            hint = "pip install 'brim[spark]', or leave format = \"parquet\" out"
            raise SinkUnavailable(f"{inner.url}: pyarrow is not installed", hint=hint) from error
        self._inner = inner

    @property
    def url(self) -> str:
        """See FileSink."""
        return self._inner.url

    def hold_as(self, holder: Holder) -> None:
        """See Leasing."""
        if isinstance(self._inner, Leasing):
            self._inner.hold_as(holder)

    def begin(self, edge: str) -> None:
        """See FileSink."""
        self._inner.begin(edge)

    def put(self, file: DrainedFile) -> None:
        """See FileSink."""
        self._inner.put(ParquetFile(parquet_name(file.name), (parquet_of(file),), file.footer, file.runs))

    def names(self, prefix: str) -> Iterator[str]:
        """See FileSink. The names are those of drained files, which the drain knows."""
        yield from map(as_drained, self._inner.names(prefix))

    def close(self) -> None:
        """See FileSink."""
        self._inner.close()


def parquet_name(name: str) -> str:
    """Name of the Parquet file for the drained file of this name."""
    return name.removesuffix(COMPRESSED_SUFFIX).removesuffix(SUFFIX) + PARQUET_SUFFIX


def parquet_of(file: DrainedFile) -> memoryview:
    """The records of a drained file as a Parquet file. Raises SinkBlocked: a record does not verify."""
    import pyarrow as pa
    from pyarrow import parquet

    table, out = table_of(file), pa.BufferOutputStream()
    with parquet.ParquetWriter(out, table.schema, **SETTINGS) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(metadata_of(file.footer))
    return memoryview(out.getvalue()).cast("B")  # bytes of pyarrow are signed, which obstore refuses


def table_of(file: DrainedFile) -> pa.Table:
    """The records of a drained file as a table.  Raises as parquet_of()."""
    import pyarrow as pa

    from bridge.arrow.decode import decode_records
    from bridge.arrow.schema import TYPES, Constants, batch_of

    footer = file.footer
    schema = pa.schema([(name, TYPES[name]) for name in COLUMNS])
    constants = Constants(footer.edge, footer.stream, footer.partition, footer.epoch)
    batches: list[Any] = []
    for run in file.runs:
        least = run.first_offset
        decoded = decode_records(run.records, footer.ring_epoch, least, footer.last_offset, PARQUET_COLUMNS)
        batches += [batch_of(rows, constants, schema) for rows in decoded]
    table = pa.Table.from_batches(batches, schema)
    if table.num_rows != footer.count:
        text = f"{file.name}: {footer.count - table.num_rows} records do not verify"
        raise SinkBlocked(text, hint="look at this machine's memory; format brim keeps them as they are")
    return table
