"""Layout of the files of Delta and Iceberg tables: one day in each file, rows sorted by topic.

    TABLE/batch-000000012/019ab3c4d5e6f7a8b/dt=2026-01-31/part-*.parquet

Each run of a job has a directory of its own below that of a batch: its attempt. So two jobs that
write the same batch share no path. The log decides which attempt counts, and has each number once. The other
attempts are deleted after the commit, or by --clean-hours.

An earlier version wrote TABLE/batch-000000012/dt=...; the paths in the log count, so its tables are read and
continued. Stop its jobs before the update: they replace the whole directory of a batch.

`dt` is the UTC date of `timestamp` (of `minute`, in a table of minutes). Spark writes it as directories, and
not into files. Delta has it as partition column; Iceberg has the day of the timestamp as hidden partition.
Rows are sorted by topic (device), so statistics of row groups and pages show where a topic is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

COMPRESSION = "zstd"
SMALL = 0.75  # a file below this share of the requested size is small
DATE = "dt"
DAY_US = 86_400_000_000
TIMES = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")  # with statistics; Delta requires it
OF_BATCH = re.compile(r"batch-(\d+)/")
NO_MARKER = ("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")  # no file _SUCCESS: not Parquet


class TableFile(NamedTuple):
    """File that counts in a table with a log."""

    path: str  # in Spark's form
    length: int
    day: Hashable
    entry: Any  # of the log


def logged_directory_of(batch: int) -> str:
    """Directory of a batch in a table with a log: no `=`, which some readers take for a column."""
    return f"batch-{batch:09d}"


def may_be_in_flight(path: str, last: int | None) -> bool:
    """True if a file, by its path below the table, is of a batch behind the last one that the log has."""
    match = OF_BATCH.match(path)
    return match is not None and (last is None or int(match[1]) > last)


def time_of(names: Collection[str]) -> str:
    """The column whose date is `dt`."""
    return "timestamp" if "timestamp" in names else "minute"


def key_of(names: Collection[str]) -> str:
    """The column that files are sorted by."""
    return "topic" if "topic" in names else "device"


def date_of(names: Collection[str]) -> Column:
    """The date of a row, whatever the time zone of the session is."""
    micros = f.unix_micros(time_of(names))
    days = f.call_function("div", micros - f.pmod(micros, f.lit(DAY_US)), f.lit(DAY_US))
    return f.date_from_unix_date(days.cast("int"))


def write_files(frame: DataFrame, directory: str, *, by_day: bool) -> None:
    """Write the rows, replacing all that is in `directory`; by day and topic, or as they are."""
    frame.sparkSession.conf.set(*TIMES)
    if by_day:
        frame = frame.withColumn(DATE, date_of(frame.columns))
        frame = frame.sortWithinPartitions(DATE, key_of(frame.columns))
    writer = frame.write.mode("overwrite").option("compression", COMPRESSION).option(*NO_MARKER)
    (writer.partitionBy(DATE) if by_day else writer).parquet(directory)


def small_files(files: Iterable[TableFile], file_bytes: int) -> list[TableFile]:
    """Files that are to be merged: the small ones of each day that has at least two."""
    by_day: dict[Hashable, list[TableFile]] = {}
    for file in files:
        if file.length < SMALL * file_bytes:
            by_day.setdefault(file.day, []).append(file)
    return [file for group in by_day.values() if len(group) > 1 for file in group]


def merge_files(
    spark: SparkSession,
    schema: StructType,
    files: Sequence[TableFile],
    directory: str,
    file_bytes: int,
    *,
    by_day: bool,
) -> None:
    """Write the rows of these files to `directory`, in files of about that length."""
    reader = spark.read.schema(schema).option("recursiveFileLookup", "true")
    frame = reader.parquet(*(file.path for file in files))
    parts = max(1, -(-sum(file.length for file in files) // file_bytes))
    order = time_of(frame.columns), key_of(frame.columns)
    write_files(frame.repartitionByRange(parts, *order), directory, by_day=by_day)
