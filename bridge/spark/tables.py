"""Tables that jobs write and read: Parquet in one directory per batch, optionally under a Delta log.

    TABLE/batch=000000012/part-*.parquet    written by Spark, replacing the previous content
    TABLE/_delta_log/                       with --format delta: names the files that count

A Delta table is written without a jar. Spark writes the files of a batch, and the driver adds all of them to
the log in one commit of the deltalake package, with the application transaction ("brim", number of the
batch). After a kill before the commit, the batch is written again in the same place, and nothing of it had
counted. After a kill behind the commit, the log has that number already, and the batch is skipped. So a
reader of the log sees whole batches, each once. Its columns are those of the files: `batch` is a directory,
and not a column. A batch with further columns first adds them to the table, in a commit of their own
(schema_evolution.py).

Without a Delta log a table has no schema of its own: each file has the columns of its batch. A reader merges
them (Spark: mergeSchema; DuckDB: union_by_name). A column with different types cannot be merged.

A table is recognised as Delta by its log. Only then deltalake is imported: pip install 'brim[delta]'. Its
credentials come from the environment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import fs, parquet

from bridge.arrow.schema import DDL
from bridge.errors import SourceOptionError, TableUnreachable

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["FORMATS", "DeltaLog", "is_delta", "is_there", "opened", "read_table"]

FORMATS = ("parquet", "delta")
LOG = "_delta_log"
APPLICATION = "brim"
UNLOADED = "Unable to load lib"  # of pyarrow for HDFS, on a machine with Hadoop only for Spark
STATISTICS = ("partition", "epoch", "offset")  # readers of the log skip files by these


def opened(directory: str) -> tuple[Any, str]:
    """File system and path of a path or URL in Spark's form. Raises ArrowInvalid, OSError."""
    url = directory.replace("s3a://", "s3://") if "://" in directory else os.path.abspath(directory)
    filesystem, path = fs.FileSystem.from_uri(url)
    return filesystem, path


def is_there(directory: str, prefix: str = "") -> bool:
    """True if an entry there has a name with this prefix. False if only Spark can list the place.

    Raises TableUnreachable: the place cannot be listed. Treating that as absent would read files that a Delta
    log has replaced, or begin a table a second time.
    """
    try:
        filesystem, path = opened(directory)
        entries = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
    except NotADirectoryError:
        return False
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, pa.ArrowInvalid) or UNLOADED in str(error):
            return False
        raise TableUnreachable(
            f"{directory}: what is there cannot be listed: {error}",
            hint="try again when it answers, and give this process credentials for it in the environment",
        ) from error
    return any(entry.base_name.startswith(prefix) for entry in entries)


def is_delta(table: str) -> bool:
    """True if there is a Delta log. Raises TableUnreachable."""
    return is_there(f"{table.rstrip('/')}/{LOG}")


def read_table(spark: SparkSession, table: str, schema: str = "", *, merge: bool = False) -> DataFrame:
    """All records that count in a table; with `schema`, these columns. Raises TableUnreachable.

    `merge`: the columns of all batches, also of a table without a Delta log. This reads each file's footer.
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
    """Delta log of a table. Raises SourceOptionError: deltalake is not installed."""

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
        """True if this batch counts already."""
        log = self._opened()
        known = log.transaction_version(APPLICATION) if log is not None else None
        return known is not None and known >= batch

    def commit(self, batch: int, directory: str) -> None:
        """Add the files in TABLE/`directory` to the log: from now on they count."""
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
        """The log of a table with these columns added."""
        known = {field.name.lower() for field in log.schema().fields}
        new = [field for field in schema.fields if field.name.lower() not in known]
        if not new:
            return log
        log.alter.add_columns([self._deltalake.Field(field.name, field.type, nullable=True) for field in new])
        return self._deltalake.DeltaTable(self._url)

    def schema(self) -> StructType | None:
        """The columns for Spark; None: no table yet."""
        from pyspark.sql.types import StructType

        log = self._opened()
        return StructType.fromJson(json.loads(log.schema().to_json())) if log is not None else None

    def paths(self) -> list[str]:
        """Paths of the files that count, in Spark's form."""
        log = self._opened()
        uris = log.file_uris() if log is not None else []
        if self._table.startswith("s3a://"):
            return [uri.replace("s3://", "s3a://", 1) for uri in uris]
        return uris

    def compact(self, file_bytes: int) -> tuple[int, int]:
        """Merge small files into large ones of that length; return the numbers of old and new files."""
        log = self._opened()
        done = log.optimize.compact(target_size=file_bytes) if log is not None else {}
        return int(done.get("numFilesRemoved", 0)), int(done.get("numFilesAdded", 0))

    def _opened(self) -> DeltaTable | None:
        if not self._deltalake.DeltaTable.is_deltatable(self._url):
            return None
        return self._deltalake.DeltaTable(self._url)

    def _actions(self, directory: str) -> tuple[pa.Schema | None, list[Any]]:
        """The columns, and the actions that add the files with rows; None: there is no file."""
        from deltalake.transaction import AddAction

        filesystem, root = opened(f"{self._table}/{directory}")
        schema, actions = None, []
        for entry in filesystem.get_file_info(fs.FileSelector(root)):
            if not entry.base_name.endswith(".parquet"):
                continue
            with filesystem.open_input_file(entry.path) as file:
                metadata = parquet.read_metadata(file)
            schema = metadata.schema.to_arrow_schema().remove_metadata()
            if metadata.num_rows:
                path, at = f"{directory}/{entry.base_name}", (entry.mtime_ns or 0) // 1_000_000
                stats = json.dumps(_statistics(metadata))
                actions.append(AddAction(path, entry.size, {}, at, True, stats))
        return schema, actions


def _statistics(metadata: Any) -> dict[str, Any]:
    least: dict[str, int] = {}
    greatest: dict[str, int] = {}
    for name, statistics in _of_columns(metadata):
        least[name] = min(least.get(name, statistics.min), statistics.min)
        greatest[name] = max(greatest.get(name, statistics.max), statistics.max)
    return {"numRecords": metadata.num_rows, "minValues": least, "maxValues": greatest}


def _of_columns(metadata: Any) -> Iterator[tuple[str, Any]]:
    for group in range(metadata.num_row_groups):
        for at in range(metadata.num_columns):
            column = metadata.row_group(group).column(at)
            if column.path_in_schema in STATISTICS and column.is_stats_set and column.statistics.has_min_max:
                yield column.path_in_schema, column.statistics
