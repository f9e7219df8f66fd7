"""Compact: many small batches of a table into one, sorted, without loss or doubles.

    python -m bridge.spark.jobs.compact /srv/bronze                # all but the newest two batches
    python -m bridge.spark.jobs.compact /srv/bronze --keep 100

Batches 0 .. B become batch=B, in files of about --file-mib, sorted by edge, stream, partition, epoch and
offset, or by minute and device. The newest --keep batches stay, at least two: the ingest may still write the
last of them again, and it uses its checkpoint, not directories. Compaction can be repeated. A batch that was
compacted before is included only if the new batches have as many bytes.

Each step can be repeated:

1. Write the new directory below TABLE.state/compact, and count its records.
2. Write a note with the directories that it replaces, and its files.
3. Delete the content of these directories.
4. Move the files into their place one by one, because object stores have no directories.
5. Delete the note.

After a kill the next run continues with the note, or starts again without one. While directories are
replaced, readers do not see all records: run it when no reader is active.

A Delta or Iceberg table is compacted by one commit: the small files of a day become large ones, and readers
are not affected. Of two compactions at once, one is refused: on this machine by a lock, elsewhere by the log.
For these tables there is more maintenance:

    --retain-days 90    delete records of days (UTC) before the last 90; whole files, so this is fast.
                        `brim spark gaps --table` counts them separately, not as missing
    --clean-hours 168   forget versions of the table that are older, and delete the files that no version has:
                        replaced ones, and those of batches that were killed. Queries on an older version
                        fail. Files of a batch that the log does not have yet stay, whatever their age
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import fs

from bridge.errors import BridgeError, SourceOptionError
from bridge.spark.jobs.bronze import IDENTITY
from bridge.spark.jobs.common import add_spark_arguments, command, counted, spark_of
from bridge.spark.removed_ranges import declare_removed
from bridge.spark.table_layout import key_of, time_of, write_files
from bridge.spark.table_places import checked_state, opened, table_lock
from bridge.spark.tables import TableLog, log_of, read_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEEP_MIN = 2
CLEAN_MIN_HOURS = 1  # files of a compaction that is running are not in the log yet
NOTE = "replaces.json"


@dataclass
class CompactResult:
    """Result of one run."""

    table: str
    batches: int = 0  # number of batches that became one; of a table with a log, of files that were merged
    records: int = 0
    files: int = 0
    deleted: int = 0  # files that no version of the table has
    finished: bool = False  # an earlier run was completed


def compact(
    spark: SparkSession,
    table: str,
    *,
    keep: int = KEEP_MIN,
    file_bytes: int = 128 << 20,
    retain_days: int | None = None,
    clean_hours: int | None = None,
) -> CompactResult:
    """Compact a table, and maintain one with a log.

    Raises SourceOptionError; TableBusy: another program maintains it; BridgeError: records differ.
    """
    table = table.rstrip("/")
    try:
        filesystem, root = opened(table)
        found = filesystem.get_file_info(root).type
    except (pa.ArrowInvalid, OSError) as error:
        raise SourceOptionError(f"table {table!r} cannot be opened: {error}") from error
    if found == fs.FileType.NotFound:
        raise SourceOptionError(f"there is no table in {table}", hint="give the path that a job had as --to")
    with table_lock(table, "compact"):
        if (log := log_of(table)) is not None:
            return _maintained(spark, table, log, file_bytes, retain_days, clean_hours)
        if retain_days is not None or clean_hours is not None:
            text = f"{table} is a plain Parquet table, which keeps no versions and has no days"
            raise SourceOptionError(text, hint="leave out --retain-days and --clean-hours")
        return _merged(spark, table, keep, file_bytes)


def _merged(spark: SparkSession, table: str, keep: int, file_bytes: int) -> CompactResult:
    """Compaction of a table without a log."""
    filesystem, root = opened(table)
    _, work = opened(f"{checked_state(table)}/compact")
    outcome = CompactResult(table)
    outcome.finished = replaced(filesystem, root, work)
    batches = _batches(filesystem, root)[: -max(keep, KEEP_MIN)]
    if len(batches) < 2 or not _worth(filesystem, root, batches):
        return outcome
    target = f"{checked_state(table)}/compact/{batches[-1]}"
    paths = [f"{table}/{batch}" for batch in batches]
    length = sum(_length(filesystem, f"{root}/{batch}") for batch in batches)
    frame = spark.read.option("mergeSchema", True).parquet(*paths)  # otherwise later columns are lost
    parts = max(1, -(-length // file_bytes))
    order = IDENTITY if {*IDENTITY} <= {*frame.columns} else (time_of(frame.columns), key_of(frame.columns))
    ordered = frame.repartitionByRange(parts, *order).sortWithinPartitions(*order)
    write_files(ordered, target, by_day=False)
    before, after = frame.count(), spark.read.parquet(target).count()
    if before != after:
        raise BridgeError(f"{target} has {after} records, and the batches {before}: nothing was replaced")
    files = _files(filesystem, f"{work}/{batches[-1]}")
    plan = {"batches": batches, "target": batches[-1], "files": files}
    with filesystem.open_output_stream(f"{work}/{NOTE}") as note:
        note.write(json.dumps(plan).encode())
    replaced(filesystem, root, work)
    outcome.batches, outcome.records, outcome.files = len(batches), after, parts
    return outcome


def _maintained(
    spark: SparkSession,
    table: str,
    log: TableLog,
    file_bytes: int,
    retain_days: int | None,
    clean_hours: int | None,
) -> CompactResult:
    """Retention, compaction and cleaning of a table with a log, in this order."""
    outcome = CompactResult(table)
    if retain_days is not None:
        day = datetime.now(UTC).date() - timedelta(days=retain_days)
        if log.last_batch() is not None and declare_removed(read_table(spark, table), table, day):
            log.delete_before(day)
    outcome.batches, outcome.files = log.compact(spark, file_bytes)
    if clean_hours is not None:
        outcome.deleted = log.clean(clean_hours)
    return outcome


def replaced(filesystem: Any, root: str, work: str) -> bool:
    """Complete the replacement in the note, if there is one; otherwise remove unfinished files.

    Returns True if there was a note.
    """
    note = f"{work}/{NOTE}"
    if filesystem.get_file_info(note).type == fs.FileType.NotFound:
        if filesystem.get_file_info(work).type == fs.FileType.Directory:
            filesystem.delete_dir(work)
        return False
    with filesystem.open_input_stream(note) as file:
        plan = json.loads(file.read())
    written, target, files = f"{work}/{plan['target']}", f"{root}/{plan['target']}", set(plan["files"])
    for batch in plan["batches"]:
        directory = f"{root}/{batch}"
        if directory != target and filesystem.get_file_info(directory).type == fs.FileType.Directory:
            filesystem.delete_dir(directory)
    for name in set(_files(filesystem, target)) - files:
        filesystem.delete_file(f"{target}/{name}")
    filesystem.create_dir(target)
    for name in files.intersection(_files(filesystem, written)):  # the others have been moved already
        filesystem.move(f"{written}/{name}", f"{target}/{name}")
    filesystem.delete_dir(work)
    return True


def _files(filesystem: Any, directory: str) -> list[str]:
    """Names of the files in a directory."""
    entries = filesystem.get_file_info(fs.FileSelector(directory, allow_not_found=True))
    return sorted(entry.base_name for entry in entries if entry.type == fs.FileType.File)


def _batches(filesystem: Any, root: str) -> list[str]:
    """Names of the batch directories, in order."""
    entries = filesystem.get_file_info(fs.FileSelector(root, allow_not_found=True))
    return sorted(entry.base_name for entry in entries if entry.base_name.startswith("batch="))


def _worth(filesystem: Any, root: str, batches: Sequence[str]) -> bool:
    """True if the first batch, maybe a compacted one, has at most half of the bytes, or if many follow."""
    first, *others = (_length(filesystem, f"{root}/{batch}") for batch in batches)
    return first <= sum(others) or len(others) > 100


def _length(filesystem: Any, directory: str) -> int:
    entries = filesystem.get_file_info(fs.FileSelector(directory, recursive=True))
    return sum(entry.size or 0 for entry in entries if entry.type == fs.FileType.File)


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="brim spark compact", description="Small batches of a table into large files."
    )
    parser.add_argument("table", help="table of bronze, silver, kafka or live: path or URL for Spark")
    parser.add_argument(
        "--keep",
        type=int,
        default=KEEP_MIN,
        metavar="N",
        help="number of newest batches to keep as they are (default: %(default)s)",
    )
    parser.add_argument(
        "--file-mib",
        type=int,
        default=128,
        metavar="MIB",
        help="approximate size of a file (default: %(default)s)",
    )
    parser.add_argument(
        "--retain-days",
        type=int,
        metavar="DAYS",
        help="Delta and Iceberg: delete records of days before the last DAYS (default: none)",
    )
    parser.add_argument(
        "--clean-hours",
        type=int,
        metavar="HOURS",
        help="Delta and Iceberg: forget older versions, and delete files that no version has (default: none)",
    )
    add_spark_arguments(parser)
    return parser


def job(arguments: argparse.Namespace) -> int:
    """Run the job, and return its exit status."""
    if arguments.keep < KEEP_MIN or arguments.file_mib < 1:
        raise SourceOptionError(f"--keep is {KEEP_MIN} at least, and --file-mib 1")
    days, hours = arguments.retain_days, arguments.clean_hours
    if (days is not None and days < 1) or (hours is not None and hours < CLEAN_MIN_HOURS):
        raise SourceOptionError(f"--retain-days is 1 at least, and --clean-hours {CLEAN_MIN_HOURS}")
    spark = spark_of(arguments, "brim compact")
    outcome = compact(
        spark,
        arguments.table,
        keep=arguments.keep,
        file_bytes=arguments.file_mib << 20,
        retain_days=days,
        clean_hours=hours,
    )
    if arguments.json:
        print(json.dumps(asdict(outcome)))
    else:
        merged = counted(outcome.batches, "batch" if outcome.records else "small file")
        done = f"{merged} into {counted(outcome.files, 'file')}" if outcome.batches else "nothing to merge"
        print(f"{outcome.table}: {done}, {counted(outcome.deleted, 'old file')} deleted")
    return 0


main = command(arguments, job)

if __name__ == "__main__":
    sys.exit(main(None))
