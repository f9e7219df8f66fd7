"""Delta log of a table, written without a jar.

Spark writes the files of a batch (table_layout.py), and the driver adds all of them to the log in one commit
of the deltalake package, with the application transaction ("brim", number of the batch). After a kill before
the commit, the batch is written again, and nothing of it had counted. After a kill behind the commit, the log
has that number already, and the batch is skipped. A batch with further columns first adds them to the table,
in a commit of their own (schema_evolution.py).

Of two jobs that write a batch at the same time, one has its commit. Each commit is made for a version of the
log without the number, and deltalake refuses it if a later version has a transaction of this application.

compact() lets Spark write large files, and commits the exchange with a transaction of COMPACTION. The
compaction of the deltalake package has no such number, and two of them at the same time double records.

A table that an earlier version began has no partition column, and stays so.

Requires deltalake, the extra `delta`. Its credentials come from the environment.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs, parquet

from bridge.errors import SourceOptionError
from bridge.spark.table_layout import DATE, TableFile, may_be_in_flight, merge_files, small_files
from bridge.spark.table_places import (
    COMMIT_TRIES,
    busy,
    check_characters,
    check_records,
    opened,
    parquet_files,
    taken,
    url_of,
)
from ringbuf.extras import install_extra

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

LOG = "_delta_log"
APPLICATION, COMPACTION = "brim", "brim.compact"  # of transactions
STATISTICS = ("partition", "epoch", "offset", "timestamp", "topic")  # readers of the log skip files by these
TEXT_MAX = 256  # characters of a text in the statistics; a longer one is left out


class DeltaLog:
    """See TableLog in tables.py. Raises SourceOptionError: deltalake is not installed, or "%" in the path."""

    def __init__(self, table: str) -> None:
        try:
            import deltalake
        except ImportError as error:
            hint = install_extra("delta")
            raise SourceOptionError(f"{table}: deltalake is not installed", hint=hint) from error
        self._deltalake = deltalake
        self._table = table.rstrip("/")
        self._url = url_of(self._table)
        check_characters(self._url, "%")

    def last_batch(self) -> int | None:
        """See TableLog."""
        log = self._opened()
        return log.transaction_version(APPLICATION) if log is not None else None

    def commit(self, batch: int, directory: str, records: int) -> None:
        """See TableLog."""
        from deltalake.exceptions import CommitFailedError, DeltaError

        for tries_left in reversed(range(COMMIT_TRIES)):
            log = self._opened()
            try:
                self._append(log, batch, directory, records)
            except DeltaError as error:
                begun_meanwhile = log is None and self._opened() is not None
                if not (isinstance(error, CommitFailedError) or begun_meanwhile):
                    raise
                if not tries_left:
                    raise busy(self._table, error) from error
            else:
                break

    def _append(self, log: DeltaTable | None, batch: int, directory: str, records: int) -> None:
        """Commit for this version of the log. Raises DeltaError, TableBusy."""
        from deltalake.transaction import create_table_with_add_actions

        self._check_new(log, batch)
        by_day = log is None or DATE in log.metadata().partition_columns
        arrow, actions, found = self._actions(directory, by_day=by_day)
        check_records(f"{self._table}/{directory}", found, records)
        if arrow is None:
            return
        schema = self._deltalake.Schema.from_arrow(arrow)
        transaction = self._deltalake.Transaction(APPLICATION, batch)
        properties = self._deltalake.CommitProperties(app_transactions=[transaction])
        parts = [DATE] if by_day else []
        if log is None:
            create_table_with_add_actions(
                self._url, schema, actions, partition_by=parts, commit_properties=properties
            )
        else:
            log = self._with_columns(log, schema)
            self._check_new(log, batch)
            log.create_write_transaction(
                actions, "append", log.schema(), partition_by=parts, commit_properties=properties
            )

    def _check_new(self, log: DeltaTable | None, batch: int) -> None:
        known = log.transaction_version(APPLICATION) if log is not None else None
        if known is not None and known >= batch:
            raise taken(self._table, batch)

    def _with_columns(self, log: DeltaTable, schema: Any) -> DeltaTable:
        """The log of a table with these columns added."""
        known = {field.name.lower() for field in log.schema().fields}
        new = [field for field in schema.fields if field.name.lower() not in known]
        if not new:
            return log
        log.alter.add_columns([self._deltalake.Field(field.name, field.type, nullable=True) for field in new])
        return self._deltalake.DeltaTable(self._url)

    def schema(self) -> StructType | None:
        """See TableLog."""
        from pyspark.sql.types import StructType

        log = self._opened()
        return StructType.fromJson(json.loads(log.schema().to_json())) if log is not None else None

    def paths(self) -> list[str]:
        """See TableLog."""
        log = self._opened()
        uris = [unquote(uri) for uri in log.file_uris()] if log is not None else []
        if self._table.startswith("s3a://"):
            return [uri.replace("s3://", "s3a://", 1) for uri in uris]
        return uris

    def compact(self, spark: SparkSession, file_bytes: int) -> tuple[int, int]:
        """See TableLog. Raises TableBusy; SourceOptionError: another engine has deleted single rows."""
        from pyspark.sql.types import StructType

        log, schema = self._opened(), self.schema()
        old = small_files(self._table_files(log), file_bytes) if log is not None else []
        if log is None or schema is None or not old:
            return 0, 0
        by_day = DATE in log.metadata().partition_columns
        columns = StructType([field for field in schema.fields if field.name != DATE])
        directory = f"compact-{uuid.uuid4().hex}"
        merge_files(spark, columns, old, f"{self._table}/{directory}", file_bytes, by_day=by_day)
        _, new, written = self._actions(directory, by_day=by_day, moved=True)
        read = spark.read.schema(columns).parquet(*(file.path for file in old)).count()
        check_records(f"{self._table}/{directory}", written, read)
        self._exchange(old, new, by_day=by_day)
        return len(old), len(new)

    def _table_files(self, log: DeltaTable) -> Iterator[TableFile]:
        if any(log.deletion_vectors()):
            text = f"{self._table} has deletion vectors, which another engine wrote"
            raise SourceOptionError(text, hint="rewrite its data files with that engine first")
        for file in pa.table(log.get_add_actions()).to_pylist():
            day = file.get("partition", {}).get(DATE)
            yield TableFile(f"{self._table}/{file['path']}", file["size_bytes"], day, file)

    def _exchange(self, old: list[TableFile], new: list[Any], *, by_day: bool) -> None:
        """Commit the exchange of files for the present log. Raises TableBusy: it has not all old files.

        deltalake accepts two commits that remove the same file, and would double its records. It refuses
        the second one of an application. Batches are of another one, so they may be committed meanwhile.
        """
        from deltalake.transaction import RemoveAction

        log = self._deltalake.DeltaTable(self._url)
        known = {file.path for file in self._table_files(log)}
        if missing := [file.path for file in old if file.path not in known]:
            raise busy(self._table, f"{missing[0]} was removed")
        now_ms = time.time_ns() // 1_000_000
        removed = [
            RemoveAction(
                file.entry["path"],
                data_change=False,
                deletion_timestamp=now_ms,
                size=file.length,
                partition_values={DATE: None if file.day is None else str(file.day)} if by_day else {},
            )
            for file in old
        ]
        number = (log.transaction_version(COMPACTION) or 0) + 1
        transaction = self._deltalake.Transaction(COMPACTION, number)
        properties = self._deltalake.CommitProperties(app_transactions=[transaction])
        parts = [DATE] if by_day else []
        with self._conflicts():
            log.create_write_transaction(
                [*new, *removed], "append", log.schema(), partition_by=parts, commit_properties=properties
            )

    def delete_before(self, day: date) -> None:
        """See TableLog. Raises SourceOptionError: the table has no partition column."""
        log = self._opened()
        if log is None:
            return
        if DATE not in log.metadata().partition_columns:
            text = f"{self._table} was begun by an earlier version, and is not partitioned by day"
            raise SourceOptionError(text, hint="read its records into a new table with bronze or silver")
        with self._conflicts():
            log.delete(f"{DATE} < '{day.isoformat()}'")

    @contextmanager
    def _conflicts(self) -> Iterator[None]:
        """Raise TableBusy for the error of a conflict."""
        from deltalake.exceptions import CommitFailedError

        try:
            yield
        except CommitFailedError as error:
            raise busy(self._table, error) from error

    def clean(self, hours: int) -> int:
        """See TableLog."""
        log = self._opened()
        if log is None:
            return 0
        log.create_checkpoint()
        log.cleanup_metadata()
        last = log.transaction_version(APPLICATION)
        listed = log.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True)
        unused = sorted(set(map(unquote, listed)))
        filesystem, root = opened(self._table)
        paths = [f"{root}/{path}" for path in unused if not may_be_in_flight(path, last)]
        there = [entry.path for entry in filesystem.get_file_info(paths) if entry.type == fs.FileType.File]
        for path in there:
            filesystem.delete_file(path)
        return len(there)

    def _opened(self) -> DeltaTable | None:
        if not self._deltalake.DeltaTable.is_deltatable(self._url):
            return None
        return self._deltalake.DeltaTable(self._url)

    def _actions(
        self, directory: str, *, by_day: bool, moved: bool = False
    ) -> tuple[pa.Schema | None, list[Any], int]:
        """The columns, the actions that add the files with rows, and the number of rows; None: no file.

        `moved`: the table has these rows in other files already.
        """
        from deltalake.transaction import AddAction

        filesystem, root = opened(self._table)
        schema, actions, rows = None, [], 0
        for entry in parquet_files(f"{self._table}/{directory}"):
            with filesystem.open_input_file(entry.path) as file:
                metadata = parquet.read_metadata(file)
            schema = metadata.schema.to_arrow_schema().remove_metadata()
            rows += metadata.num_rows
            if metadata.num_rows:
                path, at = entry.path.removeprefix(f"{root}/"), (entry.mtime_ns or 0) // 1_000_000
                stats = json.dumps(_statistics(metadata))
                day = _day_of(path) if by_day else {}
                actions.append(AddAction(path, entry.size, day, at, not moved, stats))
        if schema is not None and by_day:
            schema = schema.append(pa.field(DATE, pa.date32()))
        return schema, actions, rows


def _day_of(path: str) -> dict[str, str | None]:
    """The value of the partition column, from the directory of a file."""
    day = next(part for part in path.split("/") if part.startswith(f"{DATE}="))
    return {DATE: day.removeprefix(f"{DATE}=")}


def _statistics(metadata: Any) -> dict[str, Any]:
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    for name, statistics in _of_columns(metadata):
        least[name] = min(least.get(name, statistics.min), statistics.min)
        greatest[name] = max(greatest.get(name, statistics.max), statistics.max)
    return {"numRecords": metadata.num_rows, "minValues": _plain(least), "maxValues": _plain(greatest)}


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Values of statistics in the form of the log, without long texts."""
    plain = {
        name: value if isinstance(value, int | str) else value.isoformat() for name, value in values.items()
    }
    return {name: value for name, value in plain.items() if isinstance(value, int) or len(value) <= TEXT_MAX}


def _of_columns(metadata: Any) -> Iterator[tuple[str, Any]]:
    for group in range(metadata.num_row_groups):
        for at in range(metadata.num_columns):
            column = metadata.row_group(group).column(at)
            if column.path_in_schema in STATISTICS and column.is_stats_set and column.statistics.has_min_max:
                yield column.path_in_schema, column.statistics
