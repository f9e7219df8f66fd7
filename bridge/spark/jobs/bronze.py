"""Bronze: drained files into a table, each record exactly once, with payloads not decoded.

    python -m bridge.spark.jobs.bronze /srv/lake --to /srv/bronze              # present files, then end
    spark-submit .../bronze.py s3://bucket/lake --to s3a://bucket/bronze --format delta --every 60

The table is Parquet with one directory per batch: TABLE/batch=000000012/part-*.parquet, with the columns of
bridge/arrow/schema.py and `batch`. A batch that is run again replaces its directory. The files that it reads
are fixed by its offsets, which Spark saves first. So a record is in the table once, after any number of
crashes, and for every reader: Spark, duckdb, polars, pandas. (Spark's own Parquet sink is exactly once only
for Spark: files of interrupted batches stay, and other readers count them.) While a batch is being written a
reader may see a part of it. With --format delta or iceberg a log names the files that count (tables.py): then
readers see whole batches, and the rows are partitioned by day and sorted by topic (table_layout.py). In an
object store or HDFS nothing locks a table, and two jobs at once lose or double records of a plain one. So a
new table needs --format there.

The default checkpoint is TABLE.state/checkpoint, next to the table: both together are the state. A new
checkpoint for a table that has batches is refused, because numbers of batches would be given twice.

Records that do not verify go to TABLE.state/quarantine, with the reason, and the job continues. Files that
hold the same records are distinguished by name (task_planning.py). Late files have a higher drain_seq and
come with a later batch.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as f

from bridge.arrow.schema import CORRUPT
from bridge.errors import SourceOptionError
from bridge.payloads.schema import RAW, UNDECODED
from bridge.spark.jobs.common import (
    add_stream_arguments,
    check_source,
    command,
    counted,
    follow,
    format_of_arguments,
    pairs,
    reason_of,
    spark_of,
)
from bridge.spark.schema_evolution import fitted, refuse_other_types
from bridge.spark.table_layout import logged_directory_of, write_files
from bridge.spark.table_places import (
    checked_state,
    directory_of,
    forget,
    is_there,
    names_in,
    new_attempt,
    parquet_files,
    table_lock,
    taken,
)
from bridge.spark.tables import TableFormat, TableLog, new_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PLAIN = TableFormat()
IDENTITY = ("edge", "stream", "partition", "epoch", "offset")

Prepare = Callable[["DataFrame", int], "DataFrame"]


class TableTarget(NamedTuple):
    """The table that a job writes."""

    table: str
    checkpoint: str
    state: str
    log: TableLog | None
    attempt: str  # directory of this run below that of a batch (table_layout.py)

    def directory(self, batch: int) -> str:
        """Directory of a batch below the table."""
        return directory_of(batch) if self.log is None else f"{logged_directory_of(batch)}/{self.attempt}"


@dataclass
class BronzeResult:
    """Result of one run."""

    table: str
    batches: int = 0
    records: int = 0
    quarantined: int = 0


def ingest(
    spark: SparkSession,
    root: str,
    table: str,
    *,
    form: TableFormat = PLAIN,
    checkpoint: str = "",
    every_s: float | None = None,
    options: Mapping[str, str] | None = None,
) -> tuple[StreamingQuery, BronzeResult]:
    """The running query, and its result so far.

    The query ends when it has read all present files, or, with `every_s`, continues to look. Raises
    SourceOptionError.
    """
    target = opened_target(table, checkpoint, form)
    source = spark.readStream.format("brim").options(mode="PERMISSIVE", **dict(options or {})).load(root)
    if target.log is None:
        refuse_other_types(target.table, source.schema)
    return start(source, target, every_s)


def start(
    source: DataFrame, target: TableTarget, every_s: float | None, *, prepare: Prepare | None = None
) -> tuple[StreamingQuery, BronzeResult]:
    """Start the query that writes a stream into a table by batches, after `prepare` has changed each."""
    outcome = BronzeResult(target.table)

    def write(frame: DataFrame, batch: int) -> None:
        if has_batch(target.log, batch):  # before `prepare`, which replaces state of the batch
            return
        records, bad = _write(prepare(frame, batch) if prepare else frame, target, batch)
        commit(target, batch, records)
        outcome.batches += 1
        outcome.records += records
        outcome.quarantined += bad

    return follow_batches(source, write, target.checkpoint, every_s), outcome


def has_batch(log: TableLog | None, batch: int) -> bool:
    """True if the log has this batch already."""
    known = log.last_batch() if log is not None else None
    return known is not None and known >= batch


def commit(target: TableTarget, batch: int, records: int) -> None:
    """Commit the files of this attempt; then delete other attempts, which cannot be committed any more.

    Raises TableBusy: another attempt was committed. Then this one deletes its own files, but only before its
    first try to commit: the log may have the files of a try whose answer was lost.
    """
    if target.log is None:
        return
    own = target.directory(batch)
    if has_batch(target.log, batch):
        forget(target.table, own)
        raise taken(target.table, batch)
    target.log.commit(batch, own, records)
    if records:
        batch_directory = f"{target.table}/{logged_directory_of(batch)}"
        for name in set(names_in(batch_directory)) - {target.attempt}:
            forget(batch_directory, name)


def follow_batches(
    source: DataFrame, take: Callable[[DataFrame, int], None], checkpoint: str, every_s: float | None
) -> StreamingQuery:
    """Start the query that passes each batch and its number to `take`; once, or forever with `every_s`."""
    writer = source.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
    if every_s is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{every_s} seconds").start()


def _write(frame: DataFrame, target: TableTarget, batch: int) -> tuple[int, int]:
    """Numbers of records written and quarantined."""
    from pyspark.sql import Observation

    seen = Observation()
    typed = UNDECODED in frame.columns
    reason = reason_of(frame)
    bad = reason.isNotNull()
    good = frame.observe(seen, f.count_if(~bad).alias("good"), f.count_if(bad).alias("bad"))
    rows = good.where(~bad).drop(CORRUPT, RAW)
    schema = target.log.schema() if target.log is not None else None
    rows = rows if schema is None else fitted(rows, schema)
    write_files(rows, f"{target.table}/{target.directory(batch)}", by_day=target.log is not None)
    counted = seen.get
    if counted["bad"]:
        more = ("timestamp", "topic", RAW) if typed else ()
        rejected = frame.where(bad).select(*IDENTITY, *more, reason.alias(CORRUPT))
        write_files(rejected, f"{target.state}/quarantine/{directory_of(batch)}", by_day=False)
    return int(counted["good"]), int(counted["bad"])


def opened_target(table: str, checkpoint: str, form: TableFormat) -> TableTarget:
    """The table, its log and its checkpoint; default: TABLE.state/checkpoint.

    Raises SourceOptionError: the table has batches and the checkpoint is new, or batches without a log, or
    another format; TableUnreachable.
    """
    table = table.rstrip("/")
    state = checked_state(table)
    checkpoint = (checkpoint or f"{state}/checkpoint").rstrip("/")
    log = new_log(table, form)
    last = log.last_batch() if log is not None else None
    if not is_there(f"{checkpoint}/offsets") and (last is not None or is_there(table, "batch")):
        raise SourceOptionError(
            f"{table} has batches already, and {checkpoint} is new: numbers of batches would be given twice",
            hint="use the checkpoint that the table was made with, or write another table",
        )
    if log is not None and last is None and _has_rows(table, checkpoint):
        text = f"{table} has batches without a log of the format {form.kind}"
        raise SourceOptionError(
            text, hint="write another table, or give the format of this one with --format"
        )
    return TableTarget(table, checkpoint, state, log, new_attempt())


def _has_rows(table: str, checkpoint: str) -> bool:
    """True if a batch that the checkpoint knows as committed has files."""
    committed = [int(name) for name in names_in(f"{checkpoint}/commits") if name.isdigit()]
    names = (form(batch) for batch in committed for form in (directory_of, logged_directory_of))
    return any(parquet_files(f"{table}/{name}") for name in names)


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="brim spark bronze", description="Drained files into a table, each record exactly once."
    )
    parser.add_argument("root", help="root of the drained files: path or URL")
    add_stream_arguments(parser)
    return parser


def job(arguments: argparse.Namespace) -> int:
    """Run the job, and return its exit status."""
    return ingest_as("brim bronze", arguments)


def ingest_as(application: str, arguments: argparse.Namespace, **options: str) -> int:
    """Run the job for a command line, with more options of the source; return the exit status."""
    options = {**pairs(arguments.option, "--option"), **options}
    check_source(arguments.root, options)
    form = format_of_arguments(arguments)
    with table_lock(arguments.to, "write"):
        opened_target(arguments.to, arguments.checkpoint, form)  # refused before the slow start of Spark
        query, outcome = ingest(
            spark_of(arguments, application),
            arguments.root,
            arguments.to,
            checkpoint=arguments.checkpoint,
            every_s=arguments.every,
            form=form,
            options=options,
        )
        return finish(query, outcome, as_json=arguments.json)


def finish(query: StreamingQuery, outcome: BronzeResult, *, as_json: bool, noun: str = "record") -> int:
    """Wait for the end of the query, and print its result. Returns the exit status."""
    follow(query)
    if as_json:
        print(json.dumps(asdict(outcome)))
    else:
        quarantined = f", {outcome.quarantined} in quarantine" if outcome.quarantined else ""
        rows, batches = counted(outcome.records, noun), counted(outcome.batches, "batch")
        print(f"{outcome.table}: {rows} in {batches}{quarantined}")
    return 0


main = command(arguments, job)

if __name__ == "__main__":
    sys.exit(main(None))
