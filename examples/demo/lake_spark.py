"""Table by Spark: the bridge's own jobs over the drained files, in one session.

    bronze     drained files into a Parquet table, each record exactly once
    windows    by device and minute, and by device and second for the plots
    gaps       proof, by offsets, that the table has every record of every file, once

Owns the order of the jobs and the counts of their results; every number is computed by Spark.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge.rangeset import count
from bridge.spark.jobs import bronze, gaps, windows
from bridge.spark.session import session
from examples.demo.lake import Aggregate, Lake, report_step
from examples.demo.tally import Tally

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Steps:
    """Steps with their time and output."""

    def __init__(self) -> None:
        self.done: list[tuple[str, float, str]] = []
        self.began = time.monotonic()

    @contextmanager
    def step(self, name: str) -> Iterator[list[str]]:
        """Measure the time of a step; its output goes into the list."""
        report_step(name)
        begin, words = time.monotonic(), list[str]()
        yield words
        took = time.monotonic() - begin
        self.done.append((name, took, " ".join(words)))
        report_step(f"{name}: {' '.join(words)}", seconds=took)


def by_spark(root: Path, out: Path) -> Lake:
    """The table of the drained files below `root`, made in `out`."""
    steps, table = Steps(), str(out / "bronze")
    with steps.step("starting Spark") as words:
        spark = session("brim demo")
        words.append(f"{spark.version}, {spark.sparkContext.master}")
    with steps.step("bronze") as words:
        query, outcome = bronze.ingest(spark, str(root), table)
        query.awaitTermination()
        words.append(f"{outcome.records:,} records in {outcome.batches} batches, as Parquet")
    records = spark.read.parquet(table)
    with steps.step("windows") as words:
        by_minute = _aggregates(windows.by_minute(records))
        by_second = _aggregates(windows.by_minute(records, window="1 second"))
        words.append(f"{len(by_minute)} devices and minutes, {len(by_second):,} devices and seconds")
    with steps.step("gaps") as words:
        files = gaps.landing_account(str(root))
        accounts = gaps.table_account(spark, table, files)
        stored, twice = (
            sum(account.records for account in accounts),
            sum(account.doubled for account in accounts),
        )
        missing = sum(count(account.missing) + account.quarantined for account in accounts)
        missing += files.totals.missing + files.totals.lost + files.totals.skipped
        missing += sum(count(edge.missing) for edge in files.edges) + len(files.unreadable)
        words.append(f"{missing} missing, {twice} doubled in {len(accounts)} partitions")
    with steps.step("ledger") as words:
        tally = _tally(records)
        words.append(f"{tally.count():,} messages of {len(tally.devices())} devices")
    took = time.monotonic() - steps.began
    made_by = f"Spark {version('pyspark')}"
    return Lake(made_by, took, stored, twice, missing, by_minute, by_second, steps.done, tally)


def _aggregates(frame: DataFrame) -> list[Aggregate]:
    """Rows of the windows job. The column with the begin of a window is called minute for any length."""
    rows = frame.where("count > 0").orderBy("device", "minute").collect()
    return [_aggregate(row) for row in rows]


def _aggregate(row: Any) -> Aggregate:
    start_s = int(row["minute"].timestamp())
    return Aggregate(row["device"], start_s, row["count"], row["avg"], row["min"], row["max"])


def _tally(records: DataFrame) -> Tally:
    """Messages in the table, by device and number."""
    number = "cast(get_json_object(cast(payload as string), '$.n') as long) as n"
    rows = records.selectExpr("topic", number).toArrow()
    tally = Tally()
    for device, n in zip(rows["topic"].to_pylist(), rows["n"].to_pylist(), strict=True):
        tally.add(device, n)
    return tally
