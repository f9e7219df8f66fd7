"""Tables that jobs write and read: one directory per batch, plain or under a Delta or Iceberg log.

    TABLE/batch=000000012/part-*.parquet    plain: the directory of a batch is replaced
    TABLE/batch-000000012/...               delta, iceberg: files count if the log has them (table_layout.py)

A batch of a table with a log is one commit with the number of the batch (delta_log.py, iceberg_log.py). The
log has each number once, also if two jobs write the batch at the same time. So a reader of the log sees whole
batches, each once. Its columns are those of the files: `batch` is a directory, and not a column.

Without a log a table has no schema of its own: each file has the columns of its batch. A reader merges them
(Spark: mergeSchema; DuckDB: union_by_name). A column with different types cannot be merged.

A table is recognised by its log. Only then the library of the format is imported.
"""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, NamedTuple, Protocol

from bridge.arrow.schema import DDL
from bridge.errors import SourceOptionError
from bridge.spark.delta_log import LOG, DeltaLog
from bridge.spark.iceberg_log import IcebergLog, kept_settings
from bridge.spark.table_layout import DATE, date_of
from bridge.spark.table_places import is_there

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FORMATS = ("parquet", "delta", "iceberg")


class TableFormat(NamedTuple):
    """Format of a table, as a command line has it."""

    kind: str = FORMATS[0]
    catalog: str = ""  # of Iceberg; "": the default of iceberg_log.py
    name: str = ""


class TableLog(Protocol):
    """The log of a Delta or Iceberg table: the files that count."""

    def last_batch(self) -> int | None:
        """Number of the last batch that was committed; None: no table yet. Raises TableUnreachable."""

    def commit(self, batch: int, directory: str, records: int) -> None:
        """Add the files below TABLE/`directory`, and new columns: from now on they count.

        Raises TableBusy: the log has the batch, or the files have another number of records.
        """

    def schema(self) -> StructType | None:
        """The columns for Spark; None: no table yet."""

    def paths(self) -> list[str]:
        """Paths of the files that count, in Spark's form."""

    def compact(self, spark: SparkSession, file_bytes: int) -> tuple[int, int]:
        """Merge small files into large ones of that length; return the numbers of old and new files."""

    def delete_before(self, day: date) -> None:
        """Delete the records of all days (UTC) before this one."""

    def clean(self, hours: int) -> int:
        """Forget versions that are older, and delete files that no version has and that are as old.

        Files of batches that the log does not have yet stay. Returns the number of deleted files. The age
        must be longer than a query takes.
        """


def format_of(table: str) -> str:
    """Format of a table that is there; of a new one, "parquet". Raises TableUnreachable."""
    if is_there(f"{table.rstrip('/')}/{LOG}"):
        return "delta"
    return "iceberg" if kept_settings(table) else "parquet"


def log_of(table: str) -> TableLog | None:
    """The log of a table; None: a table without one. Raises TableUnreachable, SourceOptionError."""
    kind = format_of(table)
    return None if kind == "parquet" else new_log(table, TableFormat(kind))


def new_log(table: str, form: TableFormat) -> TableLog | None:
    """The log of a table that is written in this format.

    Raises SourceOptionError: the table has another format; TableUnreachable.
    """
    if (kind := format_of(table)) not in {"parquet", form.kind}:
        raise SourceOptionError(f"{table} is a table of the format {kind}", hint=f"--format {kind}")
    if form.kind == "delta":
        return DeltaLog(table)
    return IcebergLog(table, form.catalog, form.name) if form.kind == "iceberg" else None


def read_table(spark: SparkSession, table: str, schema: str = "", *, merge: bool = False) -> DataFrame:
    """All records that count in a table; with `schema`, these columns. Raises TableUnreachable.

    `merge`: the columns of all batches, also of a table without a log. This reads each file's footer.
    """
    log = log_of(table)
    if log is None:
        reader = spark.read.schema(schema) if schema else spark.read.option("mergeSchema", merge)
        return reader.parquet(table)
    known = log.schema()
    columns = schema or known or DDL
    if not (paths := log.paths()):
        return spark.createDataFrame([], columns)
    rows = spark.read.schema(columns).option("recursiveFileLookup", "true").parquet(*paths)
    return rows.withColumn(DATE, date_of(rows.columns)) if DATE in rows.columns else rows
