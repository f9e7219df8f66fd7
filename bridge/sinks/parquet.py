"""Parquet sink: Parquet files instead of drained files, in any sink for files. Half the bytes, readable by
any tool.

    option format = "parquet" of a directory or an object store; needs the extra `archive`
    option payloads = "/path": absolute path of a payload schema (bridge/payloads/schema.py); optional

There is one Parquet file for each drained file, under its name with another ending. So Spark, Hive, DuckDB
and all others find edge= and dt= as partitions, and a drained file that is put again is stored once, as with
drained files.

    columns    those of bridge/arrow/schema.py but `edge`, which is in the path
    encodings  offset and timestamp DELTA_BINARY_PACKED, topic as a dictionary; zstd, level 1
    metadata   the footer of the drained file as text (bridge/format/parquet_footer.py); body_crc32 is that of
               the drained file

With a payload schema the columns of its fields follow, and after them

    _rescued   string  the values that do not fit, in the form of `_undecoded` (bridge/payloads/schema.py), or
                       the reason why the payload could not be decoded; null: every value fits. A text of
                       more than RESCUED_MAX characters is cut, and ends with `...`: the payload has the rest

The column `payload` stays, so nothing is lost, and readers that know nothing of the schema read such files.
The schema file is read when the sink is opened. A Parquet file has the schema that its write intent names.

Records are no longer bit for bit those of the ring: timestamps are rounded down to microseconds, and
checksums are absent. The Spark source "brim" reads these files like drained files, with the same rows
(bridge/arrow/parquet_reader.py).

Invariant: a name has one content, but not one sequence of bytes: another pyarrow writes the same records
differently. So the metadata decides whether an existing file is the drained file that is put again. It has
that file's number, offsets and count, and the checksum of its records.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from bridge.errors import BadName, DrainedFileError, SinkBlocked, SinkUnavailable, SourceOptionError
from bridge.format.drained_file import PARQUET_COLUMNS, FileFooter
from bridge.format.file_builder import DrainedFile
from bridge.format.file_name import COMPRESSED_SUFFIX, PARQUET_SUFFIX, SUFFIX, as_drained
from bridge.format.installation import Holder
from bridge.format.parquet_footer import footer_of, metadata_of
from bridge.sinks.interface import FileSink, Leasing, Turn
from ringbuf.extras import install_extra

if TYPE_CHECKING:
    import pyarrow as pa

    from bridge.arrow.schema import DecodedColumns
    from bridge.payloads.schema import Payloads

log = logging.getLogger(__name__)

RESCUED = "_rescued"
RESCUED_MAX = 4096  # characters: a text may be many times as long as its payload, which is in the file, too
CUT = "..."  # the end of a text that was longer
SCHEMA_MAX_BYTES = 256 << 10  # it is in each checkpoint
PATH_COLUMNS = ("edge", "dt")  # columns that readers take from the path of a file
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
        try:
            return parquet_footer_in(read(length - metadata_bytes, length)) == self.footer
        except DrainedFileError:
            return False


def parquet_footer_in(tail: bytes) -> FileFooter:
    """The footer of the drained file, from the end of a Parquet file. Raises DrainedFileError."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        metadata = parquet.read_metadata(pa.BufferReader(tail)).metadata
    except (pa.ArrowInvalid, OSError) as error:
        raise DrainedFileError(f"is no Parquet file, or cut short: {error}") from error
    return footer_of(metadata)


class ParquetSink:
    """Sink that puts drained files as Parquet files into `inner`; see Decoding.

    `payloads` is the path of a payload schema; "": none. Raises BadName, SourceOptionError, SinkUnavailable.
    """

    def __init__(self, inner: FileSink, payloads: str = "") -> None:
        try:
            import bridge.arrow.schema  # noqa: F401 - imports numpy and pyarrow
        except ImportError as error:
            hint = f'{install_extra("archive")}, or leave format = "parquet" out'
            raise SinkUnavailable(f"{inner.url}: {error.name} is not installed", hint=hint) from error
        self._inner = inner
        self._payloads: Payloads | None = _read(inner.url, payloads) if payloads else None
        text = self._payloads.text if self._payloads is not None else ""
        self._schema = (schema_id(text), text) if text else ("", "")
        self._schemas: dict[str, Payloads | None] = {"": None, self._schema[0]: self._payloads}

    @property
    def inner(self) -> FileSink:
        """The store with the Parquet files."""
        return self._inner

    @property
    def url(self) -> str:
        """See FileSink."""
        return self._inner.url

    def hold_as(self, holder: Holder) -> None:
        """See Leasing."""
        if isinstance(self._inner, Leasing):
            self._inner.hold_as(holder)

    def begin(self, edge: str) -> Turn | None:
        """See FileSink."""
        return self._inner.begin(edge)

    @property
    def schema(self) -> tuple[str, str]:
        """See Decoding."""
        return self._schema

    def remember(self, schemas: Mapping[str, str]) -> None:
        """See Decoding."""
        from bridge.payloads.schema import Payloads

        for name, text in schemas.items():
            try:
                self._schemas.setdefault(name, Payloads.of_text(text))
            except SourceOptionError as error:
                raise SinkBlocked(
                    f"payload schema {name} of files in flight: {error}", hint=error.hint
                ) from error

    def evolve(self, columns: Mapping[str, str]) -> dict[str, str]:
        """See Decoding."""
        from bridge.payloads.evolution import evolved

        try:
            return evolved(columns, self._payloads.columns if self._payloads is not None else {})
        except SourceOptionError as error:
            raise SinkBlocked(f"{self.url}: {error}", hint=error.hint) from error

    def put(self, file: DrainedFile) -> int:
        """See FileSink."""
        if file.payloads not in self._schemas:
            raise SinkBlocked(
                f"{file.name}: payload schema {file.payloads} is not known",
                hint="restore the checkpoint of this bridge from a backup",
            )
        table = table_of(file, payloads := self._schemas[file.payloads])
        self._inner.put(
            ParquetFile(parquet_name(file.name), (parquet_bytes(table, file),), file.footer, file.runs)
        )
        return 0 if payloads is None else table.num_rows - table[RESCUED].null_count

    def names(self, prefix: str) -> Iterator[str]:
        """See FileSink. The names are those of drained files, which the drain knows."""
        yield from map(as_drained, self._inner.names(prefix))

    def close(self) -> None:
        """See FileSink."""
        self._inner.close()


def parquet_name(name: str) -> str:
    """Name of the Parquet file for the drained file of this name."""
    return name.removesuffix(COMPRESSED_SUFFIX).removesuffix(SUFFIX) + PARQUET_SUFFIX


def schema_id(text: str) -> str:
    """The id of a payload schema with this text."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _read(url: str, path: str) -> Payloads:
    """The payload schema of the file. Raises BadName, SourceOptionError, SinkUnavailable."""
    try:
        from bridge.payloads.decode import check_libraries
        from bridge.payloads.schema import Payloads
    except ImportError as error:
        raise SinkUnavailable(
            f"{url}: {error.name} is not installed", hint=install_extra("payloads")
        ) from error
    if not os.path.isabs(path):
        raise BadName(f"{url}: payloads is {path!r}, and must be an absolute path", hint="begin it with /")
    payloads = Payloads.read(path)
    check_libraries(payloads)
    if taken := [name for name in payloads.columns if name.lower() in PATH_COLUMNS]:
        raise BadName(
            f"{path}: a field cannot be called {taken[0]!r}, which is in the path of each file",
            hint=f'give it another name, as in payload_{taken[0]} = {{ path = "{taken[0]}", type = ... }}',
        )
    if (length := len(payloads.text.encode())) > SCHEMA_MAX_BYTES:
        raise BadName(
            f"{path}: {length} bytes of fields are above the limit of {SCHEMA_MAX_BYTES}",
            hint="remove entries or fields",
        )
    return payloads


def parquet_bytes(table: pa.Table, file: DrainedFile) -> memoryview:
    """The table of a drained file as a Parquet file."""
    import pyarrow as pa
    from pyarrow import parquet

    out = pa.BufferOutputStream()
    with parquet.ParquetWriter(out, table.schema, **settings_for(table.schema)) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(metadata_of(file.footer))
    return memoryview(out.getvalue()).cast("B")  # bytes of pyarrow are signed, which obstore refuses


def settings_for(schema: pa.Schema) -> dict[str, Any]:
    """Settings of the writer for a file with these columns."""
    import pyarrow as pa

    texts = [field.name for field in schema if field.type == pa.string() and field.name not in COLUMNS]
    return {**SETTINGS, "use_dictionary": [*SETTINGS["use_dictionary"], *texts]}


def table_of(file: DrainedFile, payloads: Payloads | None = None) -> pa.Table:
    """The records of a drained file as a table, with the columns of `payloads`.

    Raises SinkBlocked: a record does not verify.
    """
    import pyarrow as pa

    from bridge.arrow.decode import decode_records
    from bridge.arrow.schema import TYPES, Constants, batch_of

    footer = file.footer
    typed = _typed(payloads)
    schema = pa.schema([*((name, TYPES[name]) for name in COLUMNS), *typed.items()])
    constants = Constants(footer.edge, footer.stream, footer.partition, footer.epoch)
    batches: list[Any] = []
    for run in file.runs:
        least = run.first_offset
        decoded = decode_records(run.records, footer.ring_epoch, least, footer.last_offset, PARQUET_COLUMNS)
        batches += [batch_of(_decoded(rows, payloads), constants, schema) for rows in decoded]
    table = pa.Table.from_batches(batches, schema)
    if table.num_rows != footer.count:
        text = f"{file.name}: {footer.count - table.num_rows} records do not verify"
        raise SinkBlocked(text, hint="look at this machine's memory; format brim keeps them as they are")
    return table


def _typed(payloads: Payloads | None) -> dict[str, pa.DataType]:
    """The columns of a payload schema in a file."""
    if payloads is None:
        return {}
    import pyarrow as pa

    from bridge.payloads.kinds import KINDS

    return {**{name: KINDS[kind] for name, kind in payloads.columns.items()}, RESCUED: pa.string()}


def _decoded(rows: DecodedColumns, payloads: Payloads | None) -> DecodedColumns:
    """The rows with the columns of the payload schema."""
    if payloads is None:
        return rows
    import pyarrow as pa

    from bridge.payloads.decode import typed_columns
    from bridge.payloads.schema import UNDECODED

    wanted = {*payloads.columns, UNDECODED}
    topics, data = rows.columns["topic"], rows.columns["payload"]
    try:
        columns = typed_columns(payloads, topics, data, wanted)
    except Exception as error:  # a mistake in a decoder must not stop the drain: the payload is in the file
        log.exception("payloads not decoded offsets=%d+%d", rows.first_offset, rows.rows)
        columns = {name: pa.nulls(rows.rows, kind) for name, kind in payloads.types.items() if name in wanted}
        columns[UNDECODED] = pa.repeat(pa.scalar(f"the decoder failed: {type(error).__name__}"), rows.rows)
    columns[RESCUED] = _shortened(columns.pop(UNDECODED))
    return rows._replace(columns={**rows.columns, **columns})


def _shortened(texts: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    is_long = pc.greater(pc.utf8_length(texts), RESCUED_MAX)
    if not pc.any(is_long).as_py():
        return texts
    begins = pc.utf8_slice_codeunits(texts, 0, RESCUED_MAX - len(CUT))
    return pc.if_else(is_long, pc.binary_join_element_wise(begins, CUT, ""), texts)
