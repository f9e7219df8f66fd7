"""Gaps: proof that nothing is missing, or the exact ranges that are.

    python -m bridge.spark.jobs.gaps /srv/lake                       # the files: names, footers; no Spark
    python -m bridge.spark.jobs.gaps /srv/lake --table /srv/bronze   # and the table, record by record

Offsets of a partition are dense within an epoch, and numbers of files are dense for an edge. So the present
ones determine the missing ones. The file after a range that was lost by policy, or skipped on purpose,
declares the range. Every offset of the files must be in the table once. Records in its quarantine, and
those that `brim spark compact --retain-days` has removed, are counted separately.

Exit status, see bridge.spark.verdict: 0 complete; 5 records were skipped on purpose; 4 records are lost, and
declared; 1 something is missing without a declaration, is twice in the table, two files have the same number,
or a file cannot be read; 2 a mistake in the arguments, or there is no drained file, which proves nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from bridge.errors import DrainedFileError, SourceOptionError
from bridge.rangeset import Ranges, count, subtract, union
from bridge.spark.completeness import Account, EpochKey, FileInfo, account
from bridge.spark.jobs.common import (
    add_landing_arguments,
    add_spark_arguments,
    command,
    counted,
    spark_of,
)
from bridge.spark.landing_zone import Landing, StoredFile
from bridge.spark.removed_ranges import islands, removed_ranges
from bridge.spark.table_places import checked_state
from bridge.spark.tables import read_table
from bridge.spark.verdict import LakeVerdict, sentence, verdict_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READERS = 16  # footers read at once: object stores answer slowly, and in parallel
SHOWN = 20  # ranges of a kind


class TableAccount(NamedTuple):
    """One epoch of one partition in the table, compared with the files."""

    epoch: EpochKey
    records: int
    quarantined: int
    removed: int  # by --retain-days of `brim spark compact`
    missing: Ranges  # in files, but not in the table, not in quarantine and not removed
    doubled: int  # rows too many
    unknown: Ranges  # in the table, and in no file


def landing_account(root: str, edges: Sequence[str] = (), *, retained: bool = False) -> Account:
    """The account of the files below `root`."""
    return account(file_infos(root, edges), retained=retained)


def file_infos(root: str, edges: Sequence[str] = ()) -> list[FileInfo]:
    """Name and footer of each file below `root`."""
    landing = Landing(root)
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(lambda file: _file_info(landing, file), landing.files(edges)))


def _file_info(landing: Landing, file: StoredFile) -> FileInfo:
    try:
        return FileInfo(file, landing.footer_of(file))
    except (DrainedFileError, OSError) as error:
        return FileInfo(file, None, str(error))


def table_account(spark: SparkSession, table: str, files: Account) -> list[TableAccount]:
    """The account of the table that bronze made of those files."""
    from pyspark.errors import AnalysisException

    rows, there = islands(read_table(spark, table))
    try:
        _, aside = islands(spark.read.parquet(f"{checked_state(table)}/quarantine"))
    except AnalysisException:
        aside = {}  # no quarantine was ever written
    accounts = []
    declared = removed_ranges(table)
    drained = {account.epoch: account.present for account in files.epochs}
    for epoch in sorted({*drained, *there}):
        present, aside_ranges, drained_ranges = (
            there.get(epoch, []),
            aside.get(epoch, []),
            drained.get(epoch, []),
        )
        absent = subtract(drained_ranges, union([*present, *aside_ranges]))
        missing = subtract(absent, declared.get(epoch, []))
        accounts.append(
            TableAccount(
                epoch,
                count(present),
                count(subtract(aside_ranges, present)),
                count(absent) - count(missing),
                missing,
                rows.get(epoch, 0) - count(present),
                subtract(present, drained_ranges),
            )
        )
    return accounts


# ---- output ----


def _shown(ranges: Ranges) -> str:
    parts = [str(first) if first == last else f"{first} to {last}" for first, last in ranges[:SHOWN]]
    more = f" and {len(ranges) - SHOWN} more ranges" if len(ranges) > SHOWN else ""
    return f"{count(ranges)} ({', '.join(parts)}{more})"


def _called(epoch: EpochKey) -> str:
    return f"{epoch.edge} {epoch.stream}/{epoch.partition} epoch {epoch.epoch}"


def _lines(files: Account, table: Sequence[TableAccount] | None) -> Iterator[str]:
    beside = {account.epoch: account for account in table or ()}
    for row in files.epochs:
        yield f"{_called(row.epoch)}: {counted(row.records, 'record')} in {counted(row.files, 'file')}"
        kinds = (
            ("LOST, and declared", row.lost),
            ("skipped on purpose", row.skipped),
            ("MISSING", row.missing),
            ("twice in files", row.doubled),
        )
        yield from (f"    {kind}: {_shown(ranges)}" for kind, ranges in kinds if ranges)
        table_row = beside.pop(row.epoch, None)
        if table_row is not None:
            yield from _table_lines(table_row)
    for table_row in beside.values():
        yield f"{_called(table_row.epoch)}: in no file"
        yield from _table_lines(table_row)
    for edge in files.edges:
        if edge.missing:
            yield f"{edge.edge}: files MISSING: {_shown(edge.missing)}"
        if edge.doubled:
            yield f"{edge.edge}: files OF THE SAME NUMBER: {', '.join(map(str, edge.doubled[:SHOWN]))}"
    for unreadable in files.unreadable:
        yield f"{unreadable.file.path}: UNREADABLE: {unreadable.error}"


def _table_lines(row: TableAccount) -> Iterator[str]:
    yield f"    in the table: {counted(row.records, 'record')}"
    if row.quarantined:
        yield f"    in quarantine: {row.quarantined}"
    if row.removed:
        yield f"    removed by --retain-days: {row.removed}"
    if row.missing:
        yield f"    MISSING in the table: {_shown(row.missing)}"
    if row.doubled:
        yield f"    DOUBLED in the table: {row.doubled} rows too many"
    if row.unknown:
        yield f"    in the table, and in no file: {_shown(row.unknown)}"


def _as_json(files: Account, table: Sequence[TableAccount] | None, verdict: LakeVerdict) -> dict[str, Any]:
    totals = files.totals
    return {
        "verdict": verdict.value,
        "records": totals.records,
        "lost": totals.lost,
        "skipped": totals.skipped,
        "missing": totals.missing,
        "epochs": [
            {
                **epoch.epoch._asdict(),
                "files": epoch.files,
                "records": epoch.records,
                "expected": epoch.expected,
                "lost": epoch.lost,
                "skipped": epoch.skipped,
                "missing": epoch.missing,
                "doubled": epoch.doubled,
            }
            for epoch in files.epochs
        ],
        "edges": [vars(edge) for edge in files.edges],
        "unreadable": [
            {"path": unreadable.file.path, "error": unreadable.error} for unreadable in files.unreadable
        ],
        "table": None
        if table is None
        else [{**account.epoch._asdict(), **_without_epoch(account)} for account in table],
    }


def _without_epoch(row: TableAccount) -> dict[str, Any]:
    return {key: value for key, value in row._asdict().items() if key != "epoch"}


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="brim spark gaps", description="Report the records that the edges have and the table does not."
    )
    add_landing_arguments(parser, table="bronze table to compare with the files")
    add_spark_arguments(parser)
    return parser


def job(arguments: argparse.Namespace) -> int:
    """Run the job, and return its exit status."""
    files = landing_account(arguments.root, arguments.edge, retained=arguments.retained)
    table = None
    if arguments.table:
        spark = spark_of(arguments, "brim gaps")
        table = table_account(spark, arguments.table, files)
    verdict = verdict_of(files, table_is_wrong=any(row.missing or row.doubled for row in table or ()))
    proves_nothing = verdict is LakeVerdict.COMPLETE and not files.epochs
    if arguments.json:
        print(json.dumps(_as_json(files, table, verdict)))
    elif not proves_nothing:
        for line in _lines(files, table):
            print(line)
        print(sentence(files, verdict))
    if proves_nothing:
        raise SourceOptionError(
            f"there are no drained files below {arguments.root}",
            hint="check the path, --edge, and the bridge: `brim bridge status`",
        )
    return verdict.status


main = command(arguments, job)

if __name__ == "__main__":
    sys.exit(main(None))
