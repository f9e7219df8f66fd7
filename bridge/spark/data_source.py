"""Spark data source "brim": drained files, as a table or as a stream.

    spark.dataSource.register(BrimDataSource)              # session.py does it
    spark.read.format("brim").load("/srv/lake")
    spark.readStream.format("brim").option("edge", "plant-*").load("s3://bucket/lake")

Columns: bridge/arrow/schema.py. Options: options.py. A schema given with .schema() is honoured: columns
outside it are never decoded. That is the way to a fast scan, because Spark pushes no columns into Python
sources. Conditions are pushed only with option pushDown; the options for the same conditions always work.

A stream is exactly once by its offsets: {"version": 1, "edges": {edge: last drain_seq read}}. The files of a
batch follow from them, in any process and at any later time, because names determine contents. With options
that leave out records an offset has them, too, as "chosen": {option: text}; check_chosen() in options.py
compares them. An earlier version ignores and drops them. Rows are Arrow
batches, decoded on the executors; the driver handles only names.

Readers are pickled and sent to the executors: they hold values, no open file.
"""

from __future__ import annotations

import functools
import gc
import re
import time
from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from bridge.arrow import parquet_reader
from bridge.arrow.decode import decode_file
from bridge.arrow.schema import (
    CORRUPT,
    DDL,
    NEVER_NULL,
    TYPES,
    Constants,
    DecodedColumns,
    batch_of,
    corrupt_batch_of,
    never_null,
)
from bridge.errors import DrainedFileError, FilesMissing, SourceOptionError
from bridge.format.file_name import is_parquet
from bridge.payloads.decode import typed_columns
from bridge.rangeset import subtract
from bridge.spark import files_view, quiet_workers
from bridge.spark.landing_zone import Landing, StoredFile, name_of
from bridge.spark.micro_batch import Progress, between
from bridge.spark.options import SourceOptions
from bridge.spark.pushdown import condition_of
from bridge.spark.table_plan import reached, table_plan, tasks_for
from bridge.spark.task_planning import FileTask, pack
from bridge.spark.unknown_names import warn_of_unknown
from bridge.spark.unread_files import UnreadFiles

OFFSET_VERSION = 1
LISTING_S = 5.0  # maximum age of a listing from which a batch is planned
DAMAGED = "the record does not verify"
RECORD_DDL = DDL.partition(", properties ")[0]  # columns of a record without its fields


class BrimDataSource(DataSource):
    """Data source behind format("brim")."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = SourceOptions.read(dict(options))

    @classmethod
    def name(cls) -> str:
        """The name for format()."""
        return "brim"

    def schema(self) -> str:
        """The columns without .schema()."""
        _prepare_process()
        if self._options.view == "files":
            return files_view.DDL
        payloads = self._options.payloads
        columns = DDL if payloads is None else f"{RECORD_DDL}, {payloads.ddl}"
        return f"{columns}, {CORRUPT} string" if self._options.mode == "PERMISSIVE" else never_null(columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reader for spark.read."""
        _prepare_process()
        if self._options.view == "files":
            return files_view.FilesReader(self._options)
        kind = _PushingReader if self._options.push_down else _BatchReader
        return kind(_Rows.of(self._options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Reader for spark.readStream."""
        if self._options.view != "records":
            raise SourceOptionError(f"a stream has no view {self._options.view!r}", hint="use spark.read")
        return _StreamReader(_Rows.of(self._options, schema))


class _Files(InputPartition):
    """Files of one task."""

    def __init__(self, files: tuple[FileTask, ...]) -> None:
        super().__init__(None)
        self.files = files


@dataclass(frozen=True)
class _Rows:
    """Reading on executors, for tables and streams."""

    options: SourceOptions
    schema: pa.Schema

    @classmethod
    def of(cls, options: SourceOptions, schema: StructType) -> _Rows:
        """Reader for a schema. Raises SourceOptionError: an unknown column, or one of another type."""
        ddl = f"{DDL}, {CORRUPT} string"
        types = dict(TYPES)
        if options.payloads is not None:
            ddl, types = f"{ddl}, {options.payloads.ddl}", types | options.payloads.types
        known = set(re.sub(r"(?<=[ <,])long\b", "bigint", ddl).split(", "))
        fields = []
        for field in schema.fields:
            kind = types.get(field.name)
            if kind is None:
                raise SourceOptionError(f"no column {field.name!r}", hint=f"there are {', '.join(types)}")
            type_name = field.dataType.simpleString()
            if f"{field.name} {type_name}" not in known:
                raise SourceOptionError(
                    f"column {field.name} cannot be {type_name}", hint=f"the columns are {ddl}"
                )
            if not field.nullable and (options.mode == "PERMISSIVE" or field.name not in NEVER_NULL):
                raise SourceOptionError(
                    f"column {field.name} cannot be NOT NULL", hint="leave it out of the schema"
                )
            fields.append(pa.field(field.name, kind, field.nullable))
        return cls(options, pa.schema(fields))

    def of_partition(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The batches of one task. Spark requests a task even if none was planned: it is empty."""
        _prepare_process()
        for task in partition.files if isinstance(partition, _Files) else ():
            yield from self._of_file(task)

    def _of_file(self, task: FileTask) -> Iterator[pa.RecordBatch]:
        name = name_of(task.path)
        assert name is not None
        constants = Constants(name.edge, name.stream, name.partition, name.epoch)
        if not self._may_hold(task):
            return
        left = list(task.ranges)
        reason = DAMAGED
        try:
            for decoded in self._decoded(task):
                rows = decoded.first_offset, decoded.first_offset + decoded.rows - 1
                for first, last in task.ranges:
                    begin, end = max(first, rows[0]), min(last, rows[1])
                    columns = self.options.where.of(decoded.part(begin, end)) if begin <= end else None
                    if columns is not None and columns.rows:
                        yield batch_of(self._typed(columns), constants, self.schema)
                left = subtract(left, [rows])
        except DrainedFileError as error:
            reason = str(error)
            if self.options.mode == "FAILFAST":
                raise
        if not left:
            return
        if self.options.mode == "FAILFAST":
            raise DrainedFileError(
                f"offsets {', '.join(f'{first} to {last}' for first, last in left)}: {reason}",
                name=task.path,
                hint="mode=PERMISSIVE keeps them as rows with _corrupt_record, DROPMALFORMED leaves them out",
            )
        if self.options.mode == "PERMISSIVE" and CORRUPT in self.schema.names:
            for first, last in left:
                yield corrupt_batch_of(first, last, reason, constants, self.schema)

    def _may_hold(self, task: FileTask) -> bool:
        """True if the file may hold a wanted record, by its times, or if its footer is unreadable."""
        if not self.options.where.has_times:
            return True
        try:
            footer = Landing(self.options.path).footer(task.path, task.length)
        except DrainedFileError:
            return True
        return self.options.where.may_be_between(footer.first_timestamp_ns, footer.last_timestamp_ns)

    def _decoded(self, task: FileTask) -> Iterator[DecodedColumns]:
        """All rows of a file that verify. Raises DrainedFileError."""
        landing = Landing(self.options.path)
        if is_parquet(task.path):
            name = name_of(task.path)
            assert name is not None
            with landing.parquet(task.path) as file:
                yield from parquet_reader.rows_of(file, task.path, name, self._columns_read())
            return
        file = landing.read(task.path, task.length)
        yield from decode_file(file, self._columns_read())

    def _columns_read(self) -> set[str]:
        """Columns of a record that are requested, or needed for a requested one."""
        names = set(self.schema.names) | self.options.where.columns
        return names | {"topic", "payload"} if names - set(TYPES) else names

    def _typed(self, decoded: DecodedColumns) -> DecodedColumns:
        """The rows with the requested columns of the payload schema."""
        if self.options.payloads is None or not set(self.schema.names) - set(TYPES):
            return decoded
        topics, data = decoded.columns["topic"], decoded.columns["payload"]
        typed = typed_columns(self.options.payloads, topics, data, self.schema.names)
        return decoded._replace(columns={**decoded.columns, **typed})

    def packed(self, tasks: list[FileTask]) -> list[InputPartition]:
        """The tasks, several files each."""
        return [_Files(files) for files in pack(tasks, self.options.task_bytes, self.options.min_partitions)]


@functools.cache
def _prepare_process() -> None:
    """Prepare a worker once, before its first task; and both processes that plan, which stay, too.

    Spark's workers collect garbage after each task. Scanning all objects of pyarrow and other libraries took
    40 ms, as long as reading 8 MB. Frozen objects are not scanned again.
    """
    gc.freeze()
    quiet_workers.quiet_this_worker()


class _BatchReader(DataSourceReader):
    """Reader of a table: all files that are present when the query is planned."""

    def __init__(self, rows: _Rows) -> None:
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        """Tasks of some files each."""
        return self._rows.packed(table_plan(self._rows.options).tasks)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Batches of a task; runs on an executor."""
        return self._rows.of_partition(partition)


class _PushingReader(_BatchReader):
    """Reader of a table that takes Spark's conditions.

    A class of its own: Spark refuses any reader with pushFilters() while its setting for that is off, which
    is the default.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take conditions; return all of them, because Spark checks the remaining rows again."""
        conditions = [condition for condition in map(condition_of, filters) if condition is not None]
        options = self._rows.options
        self._rows = replace(self._rows, options=replace(options, where=options.where.and_also(*conditions)))
        return filters


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a stream: files behind the last drain_seq of each edge.

    Lives on the driver; read() runs on executors.
    """

    def __init__(self, rows: _Rows) -> None:
        self._rows = rows
        self._target: Progress | None = None  # of a query that reads the present files, and ends
        self._unread = _unread(rows)
        self._refreshed_s = -LISTING_S
        self._warned = False

    def __getstate__(self) -> dict[str, Any]:
        """State for executors: the options, without the driver's listing of the landing zone."""
        return {**self.__dict__, "_unread": _unread(self._rows), "_refreshed_s": -LISTING_S}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """First offset of a query without a checkpoint."""
        starting = self._rows.options.starting
        if starting == "earliest":
            return self._offset({})
        if starting == "latest":
            return self._offset(self._latest())
        assert isinstance(starting, dict)
        return self._offset(starting)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """End of the next batch: advance() in micro_batch.py applies the limit."""
        begin = self._progress(start)
        files = self._files(begin, fresh=True)
        self._warned = self._warned or warn_of_unknown(
            self._rows.options, self._unread.edges, self._unread.streams
        )
        try:
            end = reached(self._rows.options, begin, files, limit)
        except FilesMissing:  # unless the file is in a directory that was not listed again
            self._unread.refresh(whole=True)
            end = reached(self._rows.options, begin, self._unread.files(), limit)
        if self._target is not None:
            target = self._target
            latest = {edge: max(target.get(edge, 0), begin.get(edge, 0)) for edge in target | begin}
            end = {edge: min(number, latest[edge]) for edge, number in end.items() if edge in latest}
        return self._offset(end)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Limit of a batch, by the options."""
        options = self._rows.options
        return ReadMaxFiles(options.max_files) if options.max_files else ReadMaxBytes(options.max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Limit this query to the files that are present now."""
        self._refresh({}, fresh=True)
        self._target = self._latest()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Offset for the progress report."""
        return self._offset(self._latest())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Tasks of one batch: equal offsets give equal tasks, in any process."""
        begin = self._progress(start)
        files = self._files(begin)
        dense = self._rows.options.fail_on_data_loss
        chosen_files = between(begin, self._progress(end), files, dense=dense)
        tasks, _ = tasks_for(self._rows.options, chosen_files, files, self._unread.read_ranges)
        return self._rows.packed(tasks)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Batches of a task; runs on an executor."""
        return self._rows.of_partition(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Forget the files of a committed batch; the owner of the landing zone decides what it keeps."""
        self._unread.mark_read(self._progress(end))

    def _offset(self, progress: Progress) -> dict[str, Any]:
        chosen = self._rows.options.chosen
        offset = {"version": OFFSET_VERSION, "edges": dict(sorted(progress.items()))}
        return {**offset, "chosen": chosen} if chosen else offset

    def _progress(self, offset: dict[str, Any]) -> Progress:
        version = offset.get("version")
        if version != OFFSET_VERSION:
            raise SourceOptionError(
                f"the checkpoint of this query has offsets of version {version}, not {OFFSET_VERSION}",
                hint="install a newer Brim, or start the query with a new checkpoint",
            )
        self._rows.options.check_chosen(offset.get("chosen", {}))
        return dict(offset["edges"])

    def _latest(self) -> Progress:
        """The latest offset, without limits and without a check for missing numbers."""
        self._refresh({})
        return self._unread.latest()

    def _files(self, start: Progress, *, fresh: bool = False) -> list[StoredFile]:
        """The files behind the committed offset."""
        self._refresh(start, fresh=fresh)
        return self._unread.files()

    def _refresh(self, start: Progress, *, fresh: bool = False) -> None:
        """List the files once per batch: Spark requests them three times.

        The first start is that of the checkpoint. A start before the committed offset, which Spark never
        gives, lists the landing zone again.
        """
        read_to = self._unread.read_to
        if start and any(start.get(edge, 0) < number for edge, number in read_to.items()):
            self._unread, fresh = _unread(self._rows), True
        if fresh or time.monotonic() - self._refreshed_s > LISTING_S:
            self._unread.refresh()
            self._refreshed_s = time.monotonic()
        if not self._unread.read_to:
            self._unread.mark_read(start)


def _unread(rows: _Rows) -> UnreadFiles:
    return UnreadFiles(Landing(rows.options.path), rows.options.edges)
