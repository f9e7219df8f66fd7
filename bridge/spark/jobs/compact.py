"""Compact: many small batches of a bronze or silver table into one, sorted, without loss or doubles.

    python -m bridge.spark.jobs.compact /srv/bronze                # all but the newest two batches
    python -m bridge.spark.jobs.compact /srv/bronze --keep 100

Batches 0 .. B become batch=B, sorted by edge, stream, partition, epoch and offset, in files of about --file
bytes. The newest --keep batches stay, at least two: the ingest may still write the last of them again, and it
uses its checkpoint, not directories. Compaction can be repeated. A batch that was compacted before is
included only if the new batches have as many bytes.

Each step can be repeated:

1. Write the new directory below TABLE/_compact, which readers ignore, and count its records.
2. Write a note with the directories that it replaces, and its files.
3. Delete the content of these directories.
4. Move the files into their place one by one, because object stores have no directories.
5. Delete the note.

After a kill the next run continues with the note, or starts again without one. While directories are
replaced, readers do not see all records: run it when no reader is active.

For a Delta table it is one commit of the deltalake package: small files become large ones, and readers are
not affected. The old files stay until deltalake's `vacuum`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import fs

from bridge.errors import BridgeError, SourceOptionError
from bridge.spark.jobs.bronze import IDENTITY
from bridge.spark.jobs.common import add_spark_arguments, command, spark_of
from bridge.spark.tables import DeltaLog, is_delta, opened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CompactResult", "compact", "main", "replaced"]

KEEP_MIN = 2
WORK, NOTE = "_compact", "replaces.json"


@dataclass
class CompactResult:
    """Result of one run."""

    table: str
    batches: int = 0  # number of batches that became one
    records: int = 0
    files: int = 0
    finished: bool = False  # an earlier run was completed


def compact(
    spark: SparkSession, table: str, *, keep: int = KEEP_MIN, file_bytes: int = 128 << 20
) -> CompactResult:
    """Compact a table. Raises SourceOptionError; BridgeError: the written records differ."""
    try:
        filesystem, root = opened(table)
    except (pa.ArrowInvalid, OSError) as error:
        raise SourceOptionError(f"table {table!r} cannot be opened: {error}") from error
    outcome = CompactResult(table)
    if is_delta(table):
        outcome.batches, outcome.files = DeltaLog(table).compact(file_bytes)
        return outcome
    outcome.finished = replaced(filesystem, root)
    batches = _batches(filesystem, root)[: -max(keep, KEEP_MIN)]
    if len(batches) < 2 or not _worth(filesystem, root, batches):
        return outcome
    target = f"{table.rstrip('/')}/{WORK}/{batches[-1]}"
    paths = [f"{table.rstrip('/')}/{batch}" for batch in batches]
    length = sum(_length(filesystem, f"{root}/{batch}") for batch in batches)
    frame = spark.read.option("mergeSchema", True).parquet(*paths)  # otherwise later columns are lost
    parts = max(1, -(-length // file_bytes))
    ordered = frame.repartitionByRange(parts, *IDENTITY).sortWithinPartitions(*IDENTITY)
    ordered.write.mode("overwrite").option("compression", "zstd").parquet(target)
    before, after = frame.count(), spark.read.parquet(target).count()
    if before != after:
        raise BridgeError(f"{target} has {after} records, and the batches {before}: nothing was replaced")
    plan = {
        "batches": batches,
        "target": batches[-1],
        "files": _files(filesystem, f"{root}/{WORK}/{batches[-1]}"),
    }
    with filesystem.open_output_stream(f"{root}/{WORK}/{NOTE}") as note:
        note.write(json.dumps(plan).encode())
    replaced(filesystem, root)
    outcome.batches, outcome.records, outcome.files = len(batches), after, parts
    return outcome


def replaced(filesystem: Any, root: str) -> bool:
    """Complete the replacement in the note, if there is one; otherwise remove unfinished files.

    Returns True if there was a note.
    """
    note = f"{root}/{WORK}/{NOTE}"
    if filesystem.get_file_info(note).type == fs.FileType.NotFound:
        if filesystem.get_file_info(f"{root}/{WORK}").type == fs.FileType.Directory:
            filesystem.delete_dir(f"{root}/{WORK}")
        return False
    with filesystem.open_input_stream(note) as file:
        plan = json.loads(file.read())
    work, target, files = f"{root}/{WORK}/{plan['target']}", f"{root}/{plan['target']}", set(plan["files"])
    for batch in plan["batches"]:
        directory = f"{root}/{batch}"
        if directory != target and filesystem.get_file_info(directory).type == fs.FileType.Directory:
            filesystem.delete_dir(directory)
    for name in set(_files(filesystem, target)) - files:
        filesystem.delete_file(f"{target}/{name}")
    filesystem.create_dir(target)
    for name in files.intersection(_files(filesystem, work)):  # the others have been moved already
        filesystem.move(f"{work}/{name}", f"{target}/{name}")
    filesystem.delete_dir(f"{root}/{WORK}")
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
    parser.add_argument("table", help="bronze or silver table: path or URL for Spark")
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
    add_spark_arguments(parser)
    return parser


def job(arguments: argparse.Namespace) -> int:
    """Run the job, and return its exit status."""
    if arguments.keep < KEEP_MIN or arguments.file_mib < 1:
        raise SourceOptionError(f"--keep is {KEEP_MIN} at least, and --file-mib 1")
    spark = spark_of(arguments, "brim compact")
    outcome = compact(spark, arguments.table, keep=arguments.keep, file_bytes=arguments.file_mib << 20)
    if arguments.json:
        print(json.dumps(asdict(outcome)))
    else:
        done = f"{outcome.batches} batches into {outcome.files} files" if outcome.batches else "nothing to do"
        print(f"{outcome.table}: {done}, {outcome.records} records")
    return 0


main = command(arguments, job)

if __name__ == "__main__":
    sys.exit(main(None))
