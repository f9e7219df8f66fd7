"""The Spark data source "brim": drained files, as a table or as a stream.

    spark.dataSource.register(BrimDataSource)              # session.py does it
    spark.read.format("brim").load("/srv/lake")
    spark.readStream.format("brim").option("edge", "plant-*").load("s3://bucket/lake")

Columns: columns.py.  Options: options.py.  A schema given with .schema() is honoured: a column that is not
in it is never decoded, which is the way to a fast scan, as Spark pushes no columns into Python sources.
Conditions are pushed only with option pushDown; options that say the same always work.

A stream is exactly once by its offsets: {"version": 1, "edges": {edge: last drain_seq read}}, from which the
files of a batch follow, in any process and at any later time, for names decide contents.  Rows come as Arrow
batches, decoded on the executors; the driver handles names only.

Readers are pickled to where they are used: they hold values, no open file.
"""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from bridge.drained import PARQUET_SUFFIX
from bridge.errors import DrainedFileError, SourceOptionError
from bridge.spark import daemon, files_view, parquet_files
from bridge.spark.columns import (
    CORRUPT,
    DDL,
    NEVER_NULL,
    TYPES,
    Constants,
    Decoded,
    batch_of,
    corrupt_batch_of,
    never_null,
)
from bridge.spark.coverage import subtract
from bridge.spark.decode import decode_file
from bridge.spark.fields import typed_columns
from bridge.spark.landing import Landing, StoredFile, matches, name_of
from bridge.spark.named import refuse_unknown, warn_of_unknown
from bridge.spark.options import Options
from bridge.spark.plan import Cursor, FileTask, advance, between, by_edge, clipped, pack, tasks_of
from bridge.spark.where import BY_NAME, BY_RECORD, Condition

__all__ = ["BrimDataSource"]

OFFSET_VERSION = 1
LISTING_S = 5.0  # how old a listing may be from which a batch is planned
DAMAGED = "the record does not verify"
RECORD_DDL = DDL.partition(", properties ")[0]  # what a record has beside its fields


class BrimDataSource(DataSource):
    """What Spark makes of format("brim")."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = Options.read(dict(options))

    @classmethod
    def name(cls) -> str:
        """The name for format()."""
        return "brim"

    def schema(self) -> str:
        """The columns, when .schema() does not say which."""
        _settle()
        if self._options.view == "files":
            return files_view.DDL
        payloads = self._options.payloads
        columns = DDL if payloads is None else f"{RECORD_DDL}, {payloads.ddl}"
        return f"{columns}, {CORRUPT} string" if self._options.mode == "PERMISSIVE" else never_null(columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For spark.read."""
        _settle()
        if self._options.view == "files":
            return files_view.FilesReader(self._options)
        kind = _PushingReader if self._options.push_down else _BatchReader
        return kind(_Rows.of(self._options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """For spark.readStream."""
        if self._options.view != "records":
            raise SourceOptionError(f"a stream has no view {self._options.view!r}", hint="use spark.read")
        return _StreamReader(_Rows.of(self._options, schema))


class _Files(InputPartition):
    """What one task reads."""

    def __init__(self, files: tuple[FileTask, ...]) -> None:
        super().__init__(None)
        self.files = files


@dataclass(frozen=True)
class _Rows:
    """Reading: the part that runs on executors, and is the same for tables and streams."""

    options: Options
    schema: pa.Schema

    @classmethod
    def of(cls, options: Options, schema: StructType) -> _Rows:
        """Raises SourceOptionError: a column that there is not, or of another type."""
        ddl = f"{DDL}, {CORRUPT} string"
        types = dict(TYPES)
        if options.payloads is not None:
            ddl, types = f"{ddl}, {options.payloads.ddl}", types | options.payloads.types
        known = set(ddl.replace(" long", " bigint").split(", "))
        fields = []
        for field in schema.fields:
            kind = types.get(field.name)
            if kind is None:
                raise SourceOptionError(f"no column {field.name!r}", hint=f"there are {', '.join(types)}")
            given = field.dataType.simpleString()
            if f"{field.name} {given}" not in known:
                raise SourceOptionError(
                    f"column {field.name} cannot be {given}", hint=f"the columns are {ddl}"
                )
            if not field.nullable and (options.mode == "PERMISSIVE" or field.name not in NEVER_NULL):
                raise SourceOptionError(
                    f"column {field.name} cannot be NOT NULL", hint="leave it out of the schema"
                )
            fields.append(pa.field(field.name, kind, field.nullable))
        return cls(options, pa.schema(fields))

    def of_partition(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The batches of one task.  Spark asks for one task even where none was planned: it is empty."""
        _settle()
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
                    chosen = self.options.where.of(decoded.part(begin, end)) if begin <= end else None
                    if chosen is not None and chosen.rows:
                        yield batch_of(self._typed(chosen), constants, self.schema)
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
        """False: by the times in its footer the file holds no wanted record.  An unreadable footer: True."""
        if not self.options.where.has_times:
            return True
        try:
            footer = Landing(self.options.path).footer(task.path, task.length)
        except DrainedFileError:
            return True
        return self.options.where.may_be_between(footer.first_timestamp_ns, footer.last_timestamp_ns)

    def _decoded(self, task: FileTask) -> Iterator[Decoded]:
        """All rows of a file that verify.  Raises DrainedFileError."""
        landing = Landing(self.options.path)
        if task.path.endswith(PARQUET_SUFFIX):
            name = name_of(task.path)
            assert name is not None
            with landing.parquet(task.path) as file:
                yield from parquet_files.rows_of(file, task.path, name, self._wanted())
            return
        file = landing.read(task.path, task.length)
        yield from decode_file(file, self._wanted())

    def _wanted(self) -> set[str]:
        """The columns of a record that are needed, for themselves or for what is made of them."""
        names = set(self.schema.names) | self.options.where.columns
        return names | {"topic", "payload"} if names - set(TYPES) else names

    def _typed(self, decoded: Decoded) -> Decoded:
        """With the columns of the payload schema that are asked for."""
        if self.options.payloads is None or not set(self.schema.names) - set(TYPES):
            return decoded
        topics, data = decoded.columns["topic"], decoded.columns["payload"]
        made = typed_columns(self.options.payloads, topics, data, self.schema.names)
        return decoded._replace(columns={**decoded.columns, **made})

    def planned(self, chosen: list[StoredFile], every: list[StoredFile]) -> list[InputPartition]:
        """The tasks for the chosen files."""
        streams = self.options.streams
        where = self.options.where
        wanted = [it for it in chosen if matches(it.name.stream, streams) and where.may_be_in(it.name)]
        tasks = clipped(tasks_of(wanted, every), *where.offsets)
        return [_Files(files) for files in pack(tasks, self.options.task_bytes, self.options.min_partitions)]

    def stored(self) -> list[StoredFile]:
        """All files of the edges that are wanted, whatever their stream: only all of them are dense."""
        return Landing(self.options.path).files(self.options.edges)

    def reached(
        self, start: Cursor, files: list[StoredFile], limit: ReadLimit, *, stream: bool = False
    ) -> Cursor:
        """How far a batch from `start` may go."""
        options = self.options
        return advance(
            start,
            files,
            files_most=limit.max_files if isinstance(limit, ReadMaxFiles) else None,
            bytes_most=limit.max_bytes if isinstance(limit, ReadMaxBytes) else None,
            younger_than_s=time.time() - options.missing_grace_s if options.fail_on_data_loss else None,
            stream=stream,
        )


@functools.cache
def _settle() -> None:
    """Once in a worker, before its first task; and in those that plan: there are two, which stay, too.

    Spark's workers collect garbage after each task.  Looking at all that pyarrow and the rest consist of
    took 40 ms, as long as reading 8 MB; what is frozen is not looked at again.
    """
    gc.freeze()
    daemon.settle()


class _BatchReader(DataSourceReader):
    """A table: all that is there when the query is planned."""

    def __init__(self, rows: _Rows) -> None:
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        """Tasks of some files each."""
        options, files = self._rows.options, self._rows.stored()
        refuse_unknown(options, files)
        start = options.starting if isinstance(options.starting, dict) else {}
        if options.starting == "latest":
            raise SourceOptionError("startingOffsets is latest, which leaves nothing to a table")
        end = self._rows.reached(start, files, ReadAllAvailable())
        end = {edge: min(number, options.ending.get(edge, number)) for edge, number in end.items()}
        return self._rows.planned(between(start, end, files, dense=options.fail_on_data_loss), files)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On an executor."""
        return self._rows.of_partition(partition)


class _PushingReader(_BatchReader):
    """A table that Spark tells what it will look for.

    A class of its own: Spark refuses any reader that could be told where its setting for that is off, as it
    is by default.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """All of them: Spark looks again at what is left."""
        found = [made for made in map(_condition, filters) if made is not None]
        options = self._rows.options
        self._rows = replace(self._rows, options=replace(options, where=options.where.and_also(*found)))
        return filters


HOWS: dict[type[Filter], str] = {
    EqualTo: "=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    In: "in",
    StringStartsWith: "starts",
}


def _condition(given: Filter) -> Condition | None:
    """What Spark says, if it is of use here."""
    how, said = HOWS.get(type(given)), vars(given)
    column = ".".join(said.get("attribute", ()))
    if how is None or column not in BY_NAME | BY_RECORD | {"offset"}:
        return None
    values = tuple(said["value"]) if how == "in" else (said["value"],)
    if None in values or any(isinstance(it, datetime) and it.tzinfo is None for it in values):
        return None
    return Condition(column, how, values if how == "in" else values[0])


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream: what is behind the last drain_seq of each edge.  Lives on the driver; read() on executors."""

    def __init__(self, rows: _Rows) -> None:
        self._rows = rows
        self._target: Cursor | None = None  # of a query that reads what is there now, and ends
        self._listed: tuple[float, list[StoredFile]] = (-LISTING_S, [])
        self._warned = False

    def __getstate__(self) -> dict[str, Any]:
        """For executors: the options, and not what the driver knows of the landing zone."""
        return {**self.__dict__, "_listed": (-LISTING_S, [])}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a query begins that has no checkpoint yet."""
        starting = self._rows.options.starting
        if starting == "earliest":
            return _offset({})
        if starting == "latest":
            return _offset(self._latest())
        assert isinstance(starting, dict)
        return _offset(starting)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next batch ends."""
        begin = _cursor(start)
        files = self._stored(fresh=True)
        self._warned = self._warned or warn_of_unknown(self._rows.options, files)
        end = self._rows.reached(begin, files, limit, stream=True)
        if self._target is not None:
            target = self._target
            most = {edge: max(target.get(edge, 0), begin.get(edge, 0)) for edge in target | begin}
            end = {edge: min(number, most[edge]) for edge, number in end.items() if edge in most}
        return _offset(end)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """As the options say."""
        options = self._rows.options
        return ReadMaxFiles(options.max_files) if options.max_files else ReadMaxBytes(options.max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What is there now is all that this query reads."""
        self._stored(fresh=True)
        self._target = self._latest()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """For the progress report."""
        return _offset(self._latest())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of one batch: the same for the same offsets, whoever asks."""
        files = self._stored()
        dense = self._rows.options.fail_on_data_loss
        return self._rows.planned(between(_cursor(start), _cursor(end), files, dense=dense), files)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On an executor."""
        return self._rows.of_partition(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: what the landing zone keeps is its owner's business."""

    def _latest(self) -> Cursor:
        """Without limits, and without judging what is missing."""
        return {edge: max(numbers) for edge, numbers in sorted(by_edge(self._stored()).items())}

    def _stored(self, *, fresh: bool = False) -> list[StoredFile]:
        """The files, listed once for a batch: Spark asks three times, and object stores list slowly."""
        if fresh or time.monotonic() - self._listed[0] > LISTING_S:
            self._listed = time.monotonic(), self._rows.stored()
        return self._listed[1]


def _offset(cursor: Cursor) -> dict[str, Any]:
    return {"version": OFFSET_VERSION, "edges": dict(sorted(cursor.items()))}


def _cursor(offset: dict[str, Any]) -> Cursor:
    version = offset.get("version")
    if version != OFFSET_VERSION:
        raise SourceOptionError(
            f"the checkpoint of this query has offsets of version {version}, this build has {OFFSET_VERSION}",
            hint="install a newer Brim, or start the query with a new checkpoint",
        )
    return dict(offset["edges"])
