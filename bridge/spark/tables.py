"""Tables that jobs write and read: Parquet by directory of the batch, and the same under a Delta log.

    TABLE/batch=000000012/part-*.parquet    written by Spark, in the place of what was there
    TABLE/_delta_log/                       with --format delta: which of these files count

A Delta table is written without a jar: Spark writes the files of a batch, and the driver adds all of them to
the log in one commit of the deltalake package, with the application transaction ("brim", number of the
batch).  Killed before the commit, the batch is written again in the same place, and nothing had counted;
killed behind it, the log has that number already, and the batch is passed over.  So a reader of the log sees
whole batches, each once.  Its columns are those of the files: `batch` is where they lie, and no column.  A
batch with further columns adds them to the table first, in a commit of their own (evolution.py).

Without a Delta log a table has no schema of its own: each file has the columns of its batch.  A reader merges
them (Spark: mergeSchema; DuckDB: union_by_name), and a column that has changed its type cannot be merged.

Whether a table is Delta is seen by its log; deltalake is imported only then: pip install 'brim[delta]'.
Credentials come from where that library takes them, the environment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import fs, parquet

from bridge.errors import SourceOptionError, TableUnreachable
from bridge.spark.columns import DDL

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["FORMATS", "DeltaLog", "is_delta", "is_there", "opened", "read_table"]

FORMATS = ("parquet", "delta")
LOG = "_delta_log"
APPLICATION = "brim"
UNLOADED = "Unable to load lib"  # pyarrow's, of HDFS on a machine that has Hadoop for Spark alone
STATISTICS = ("partition", "epoch", "offset")  # by which readers of the log pass files over


def opened(directory: str) -> tuple[Any, str]:
    """The file system of a path or URL as Spark has it, and the path there.  Raises ArrowInvalid, OSError."""
    url = directory.replace("s3a://", "s3://") if "://" in directory else os.path.abspath(directory)
    filesystem, path = fs.FileSystem.from_uri(url)
    return filesystem, path


def is_there(directory: str, prefix: str = "") -> bool:
    """Whether something there has a name that begins so.  Where only Spark can look, nothing is seen.

    Raises TableUnreachable: it cannot be known.  Who takes that for nothing reads what a Delta log has
    replaced, or begins a table a second time.
    """
    try:
        filesystem, path = opened(directory)
        found = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
    except NotADirectoryError:
        return False
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, pa.ArrowInvalid) or UNLOADED in str(error):
            return False
        raise TableUnreachable(
            f"{directory}: what is there cannot be listed: {error}",
            hint="try again when it answers, and give this process credentials for it in the environment",
        ) from error
    return any(entry.base_name.startswith(prefix) for entry in found)


def is_delta(table: str) -> bool:
    """Whether there is a Delta log.  Raises TableUnreachable."""
    return is_there(f"{table.rstrip('/')}/{LOG}")


def read_table(spark: SparkSession, table: str, schema: str = "", *, merge: bool = False) -> DataFrame:
    """All that counts in a table; with `schema`, these columns.  Raises TableUnreachable.

    `merge`: the columns of all batches, of a table without a Delta log too.  This reads each file's footer.
    """
    if not is_delta(table):
        reader = spark.read.schema(schema) if schema else spark.read.option("mergeSchema", merge)
        return reader.parquet(table)
    log = DeltaLog(table)
    columns = schema or log.schema() or DDL
    if not (paths := log.paths()):
        return spark.createDataFrame([], columns)
    return spark.read.schema(columns).option("recursiveFileLookup", "true").parquet(*paths)


class DeltaLog:
    """The log of a table.  Raises SourceOptionError: deltalake is not installed."""

    def __init__(self, table: str) -> None:
        try:
            import deltalake
        except ImportError as error:
            hint = "pip install 'brim[delta]'"
            raise SourceOptionError(f"{table}: deltalake is not installed", hint=hint) from error
        self._deltalake = deltalake
        self._table = table.rstrip("/")
        self._url = self._table.replace("s3a://", "s3://") if "://" in table else os.path.abspath(self._table)

    def has(self, batch: int) -> bool:
        """Whether this batch counts already."""
        log = self._opened()
        known = log.transaction_version(APPLICATION) if log is not None else None
        return known is not None and known >= batch

    def commit(self, batch: int, directory: str) -> None:
        """From now on what lies in TABLE/`directory` counts."""
        from deltalake.transaction import create_table_with_add_actions

        arrow, actions = self._actions(directory)
        if arrow is None:
            return
        schema = self._deltalake.Schema.from_arrow(arrow)
        transaction = self._deltalake.Transaction(APPLICATION, batch)
        properties = self._deltalake.CommitProperties(app_transactions=[transaction])
        log = self._opened()
        if log is None:
            create_table_with_add_actions(self._url, schema, actions, commit_properties=properties)
        else:
            log = self._with_columns(log, schema)
            log.create_write_transaction(actions, "append", log.schema(), commit_properties=properties)

    def _with_columns(self, log: DeltaTable, schema: Any) -> DeltaTable:
        """The log of a table that has these columns, too."""
        known = {field.name.lower() for field in log.schema().fields}
        new = [field for field in schema.fields if field.name.lower() not in known]
        if not new:
            return log
        log.alter.add_columns([self._deltalake.Field(it.name, it.type, nullable=True) for it in new])
        return self._deltalake.DeltaTable(self._url)

    def schema(self) -> StructType | None:
        """The columns, for Spark; None: there is no table yet."""
        from pyspark.sql.types import StructType

        log = self._opened()
        return StructType.fromJson(json.loads(log.schema().to_json())) if log is not None else None

    def paths(self) -> list[str]:
        """The files that count, as Spark names them."""
        log = self._opened()
        found = log.file_uris() if log is not None else []
        if self._table.startswith("s3a://"):
            return [it.replace("s3://", "s3a://", 1) for it in found]
        return found

    def compact(self, file_bytes: int) -> tuple[int, int]:
        """Small files become large ones of about that length; how many were replaced, and by how many."""
        log = self._opened()
        done = log.optimize.compact(target_size=file_bytes) if log is not None else {}
        return int(done.get("numFilesRemoved", 0)), int(done.get("numFilesAdded", 0))

    def _opened(self) -> DeltaTable | None:
        if not self._deltalake.DeltaTable.is_deltatable(self._url):
            return None
        return self._deltalake.DeltaTable(self._url)

    def _actions(self, directory: str) -> tuple[pa.Schema | None, list[Any]]:
        """The columns, and what adds the files that have rows; None: there is no file."""
        from deltalake.transaction import AddAction

        filesystem, root = opened(f"{self._table}/{directory}")
        schema, actions = None, []
        for entry in filesystem.get_file_info(fs.FileSelector(root)):
            if not entry.base_name.endswith(".parquet"):
                continue
            with filesystem.open_input_file(entry.path) as file:
                facts = parquet.read_metadata(file)
            schema = facts.schema.to_arrow_schema().remove_metadata()
            if facts.num_rows:
                path, at = f"{directory}/{entry.base_name}", (entry.mtime_ns or 0) // 1_000_000
                stats = json.dumps(_statistics(facts))
                actions.append(AddAction(path, entry.size, {}, at, True, stats))
        return schema, actions


def _statistics(facts: Any) -> dict[str, Any]:
    least: dict[str, int] = {}
    greatest: dict[str, int] = {}
    for name, found in _of_columns(facts):
        least[name] = min(least.get(name, found.min), found.min)
        greatest[name] = max(greatest.get(name, found.max), found.max)
    return {"numRecords": facts.num_rows, "minValues": least, "maxValues": greatest}


def _of_columns(facts: Any) -> Iterator[tuple[str, Any]]:
    for group in range(facts.num_row_groups):
        for at in range(facts.num_columns):
            column = facts.row_group(group).column(at)
            if column.path_in_schema in STATISTICS and column.is_stats_set and column.statistics.has_min_max:
                yield column.path_in_schema, column.statistics
