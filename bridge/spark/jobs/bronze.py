"""Bronze: drained files into a Parquet table, each record exactly once, with payloads not decoded.

    python -m bridge.spark.jobs.bronze /srv/lake --to /srv/bronze              # present files, then end
    spark-submit .../bronze.py s3://bucket/lake --to s3a://bucket/bronze --every 60

The table is Parquet with one directory per batch: TABLE/batch=000000012/part-*.parquet, with the columns of
bridge/arrow/schema.py and `batch`. A batch that is run again replaces its directory. The files that it reads
are fixed by its offsets, which Spark saves first. So a record is in the table once, after any number of
crashes, and for every reader: Spark, duckdb, polars, pandas. (Spark's own Parquet sink is exactly once only
for Spark: files of interrupted batches stay, and other readers count them.) While a batch is being written a
reader may see a part of it. With --format delta a log next to the directories names the files that count
(tables.py): then readers see whole batches.

The default checkpoint is TABLE/_checkpoint: the table is the state. A new checkpoint for a table that has
batches is refused, because numbers of batches would be given twice.

Records that do not verify go to TABLE/_quarantine, with the reason, and the job continues. Files that hold
the same records are distinguished by name (task_planning.py). Late files have a higher drain_seq and come
with a later batch.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as f

from bridge.arrow.schema import CORRUPT
from bridge.errors import SourceOptionError
from bridge.payloads.schema import RAW, UNDECODED
from bridge.spark.jobs.common import (
    add_format_argument,
    add_spark_arguments,
    add_stream_arguments,
    check_source,
    command,
    follow,
    pairs,
    reason_of,
    spark_of,
)
from bridge.spark.schema_evolution import fitted
from bridge.spark.tables import FORMATS, DeltaLog, is_delta, is_there, opened

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

__all__ = [
    "COMPRESSION",
    "IDENTITY",
    "BronzeResult",
    "checkpoint_of",
    "directory_of",
    "finish",
    "follow_batches",
    "forget",
    "ingest",
    "log_of",
    "main",
    "start",
]

COMPRESSION = "zstd"
TIMES = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")  # with statistics; Delta requires it
IDENTITY = ("edge", "stream", "partition", "epoch", "offset")

Prepare = Callable[["DataFrame", int], "DataFrame"]


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
    form: str = FORMATS[0],
    checkpoint: str = "",
    every_s: float | None = None,
    options: Mapping[str, str] | None = None,
) -> tuple[StreamingQuery, BronzeResult]:
    """The running query, and its result so far.

    The query ends when it has read all present files, or, with `every_s`, continues to look. Raises
    SourceOptionError.
    """
    checkpoint = checkpoint_of(table, checkpoint)
    log = log_of(table, checkpoint, form)
    source = spark.readStream.format("brim").options(mode="PERMISSIVE", **dict(options or {})).load(root)
    return start(source, table, checkpoint, every_s, log=log)


def start(
    source: DataFrame,
    table: str,
    checkpoint: str,
    every_s: float | None,
    *,
    prepare: Prepare | None = None,
    log: DeltaLog | None = None,
) -> tuple[StreamingQuery, BronzeResult]:
    """Start the query that writes a stream into `table` by batches, after `prepare` has changed each."""
    outcome = BronzeResult(table)

    def write(frame: DataFrame, batch: int) -> None:
        prepared = prepare(frame, batch) if prepare else frame
        if log is not None and log.has(batch):
            return
        records, bad = _write(prepared, table, batch, log.schema() if log is not None else None)
        if log is not None:
            log.commit(batch, directory_of(batch))
        outcome.batches += 1
        outcome.records += records
        outcome.quarantined += bad

    return follow_batches(source, write, checkpoint, every_s), outcome


def follow_batches(
    source: DataFrame, take: Callable[[DataFrame, int], None], checkpoint: str, every_s: float | None
) -> StreamingQuery:
    """Start the query that passes each batch and its number to `take`; once, or forever with `every_s`."""
    writer = source.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
    if every_s is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{every_s} seconds").start()


def _write(frame: DataFrame, table: str, batch: int, schema: StructType | None) -> tuple[int, int]:
    """Numbers of records written and quarantined. `schema`: the columns of the table, if any."""
    from pyspark.sql import Observation

    frame.sparkSession.conf.set(*TIMES)
    seen = Observation()
    typed = UNDECODED in frame.columns
    reason = reason_of(frame)
    bad = reason.isNotNull()
    good = frame.observe(seen, f.count_if(~bad).alias("good"), f.count_if(bad).alias("bad"))
    directory = directory_of(batch)
    rows = good.where(~bad).drop(CORRUPT, RAW)
    rows = rows if schema is None else fitted(rows, schema)
    rows.write.mode("overwrite").option("compression", COMPRESSION).parquet(f"{table}/{directory}")
    counted = seen.get
    if counted["bad"]:
        more = ("timestamp", "topic", RAW) if typed else ()
        rejected = frame.where(bad).select(*IDENTITY, *more, reason.alias(CORRUPT))
        rejected.write.mode("overwrite").option("compression", COMPRESSION).parquet(
            f"{table}/_quarantine/{directory}"
        )
    return int(counted["good"]), int(counted["bad"])


def directory_of(batch: int) -> str:
    """Directory of a batch below the table."""
    return f"batch={batch:09d}"


def log_of(table: str, checkpoint: str, form: str) -> DeltaLog | None:
    """The Delta log; None: a table without one. Raises SourceOptionError: it is of the other kind."""
    if form == "parquet" and is_delta(table):
        raise SourceOptionError(f"{table} is a Delta table", hint="--format delta")
    if form == "delta" and not is_delta(table) and is_there(f"{checkpoint.rstrip('/')}/commits"):
        text = f"{table} has batches without a Delta log"
        raise SourceOptionError(text, hint="write another table, or leave out --format delta")
    return DeltaLog(table) if form == "delta" else None


def checkpoint_of(table: str, checkpoint: str) -> str:
    """Directory of the checkpoint; default: TABLE/_checkpoint.

    Raises SourceOptionError: the table has batches, and the checkpoint is new.
    """
    checkpoint = checkpoint or f"{table.rstrip('/')}/_checkpoint"
    if is_there(table, "batch=") and not is_there(f"{checkpoint.rstrip('/')}/offsets"):
        raise SourceOptionError(
            f"{table} has batches already, and {checkpoint} is new: numbers of batches would be given twice",
            hint="use the checkpoint that the table was made with, or write another table",
        )
    return checkpoint


def forget(directory: str, name: str) -> None:
    """Delete `name`. If only Spark can reach the directory, it stays."""
    with suppress(pa.ArrowInvalid, OSError):
        filesystem, path = opened(directory)
        filesystem.delete_dir(f"{path}/{name}")


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="brim spark bronze", description="Drained files into a Parquet table, each record exactly once."
    )
    parser.add_argument("root", help="root of the drained files: path or URL")
    add_stream_arguments(parser)
    add_format_argument(parser)
    add_spark_arguments(parser)
    return parser


def job(arguments: argparse.Namespace) -> int:
    """Run the job, and return its exit status."""
    return ingest_as("brim bronze", arguments)


def ingest_as(application: str, arguments: argparse.Namespace, **options: str) -> int:
    """Run the job for a command line, with more options of the source; return the exit status."""
    options = {**pairs(arguments.option, "--option"), **options}
    check_source(arguments.root, options)
    spark = spark_of(arguments, application)
    query, outcome = ingest(
        spark,
        arguments.root,
        arguments.to,
        checkpoint=arguments.checkpoint,
        every_s=arguments.every,
        form=arguments.format,
        options=options,
    )
    return finish(query, outcome, as_json=arguments.json)


def finish(query: StreamingQuery, outcome: BronzeResult, *, as_json: bool, noun: str = "records") -> int:
    """Wait for the end of the query, and print its result. Returns the exit status."""
    follow(query)
    if as_json:
        print(json.dumps(asdict(outcome)))
    else:
        quarantined = f", {outcome.quarantined} in quarantine" if outcome.quarantined else ""
        print(f"{outcome.table}: {outcome.records} {noun} in {outcome.batches} batches{quarantined}")
    return 0


main = command(arguments, job)

if __name__ == "__main__":
    sys.exit(main(None))
