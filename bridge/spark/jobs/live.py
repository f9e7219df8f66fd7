"""Live: count, minimum, mean and maximum by device and minute, from the files as they arrive.

    python -m bridge.spark.jobs.live /srv/lake --to /srv/minutes --field temp --delay 600 --every 10
    spark-submit .../live.py s3://bucket/lake --to s3a://bucket/minutes --field temp --format delta

The figures of windows.py as a stream. A minute is written once, when it is closed, to TABLE/batch=000000012,
with the columns edge, device, minute, count, min, avg, max, undecodable. A minute is closed when its edge has
sent a record that was taken --delay seconds after its end. Each edge has its own watermark, so an edge that
was offline for a week finds its minutes still open. (Spark's own watermark is one for all edges: it would
drop that week.)

Records for a closed minute are not lost. They are counted in TABLE.state/late/batch=..., with the same
columns and `late_s`, the seconds from the end of the minute to the watermark of the edge. Both tables
together, grouped once more by edge, device and minute, equal the figures of windows.py (a mean is weighted by
its count). A bridge with a backlog drains new records first. So --delay should be as long as the outages that
shall not appear in late. A watermark is at most AHEAD_S ahead of the clock of the driver: otherwise an edge
whose clock was once in the future would have all its later minutes in late. Records with a later time are
counted (`ahead`), and their minute is closed when its time has come.

State (job_state.py): TABLE.state/open, the open minutes, and TABLE.state/marks, the watermark of each edge;
both for the end of each of the last batches. A batch that is run again after a crash begins with the state of
the batch before, and replaces its output, so every record is counted once. Its clock is the time that Spark
has noted for the batch, so the same batch always closes the same minutes. There is one open minute per minute
and device within the delay. With --format delta or iceberg the minutes of a batch are one commit. Records
that do not verify are left out here: bronze.py keeps them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as f

from bridge.errors import SourceOptionError
from bridge.spark.job_state import state_before, write_state
from bridge.spark.jobs import bronze, windows
from bridge.spark.jobs.common import (
    add_stream_arguments,
    check_source,
    command,
    format_of_arguments,
    pairs,
    spark_of,
)
from bridge.spark.table_layout import write_files
from bridge.spark.table_places import directory_of, table_lock
from bridge.spark.tables import TableFormat

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DELAY_S = 600.0
AHEAD_S = 60  # of an edge's clock before the driver's: more than clocks that are kept right differ by
AHEAD_US = AHEAD_S * 1_000_000
OPEN = (
    "edge string, device string, minute timestamp, over timestamp, "
    "count long, sum double, min double, max double, undecodable long"
)
MARKS = "edge string, seen timestamp"
KEY = ("edge", "device", "minute", "over")


class WindowStep(NamedTuple):
    """Result of one batch."""

    ended: int  # closed minutes
    ahead: int  # values with a time too far in the future to advance the watermark


@dataclass
class LiveResult(bronze.BronzeResult):
    """Result of one run; `records` are closed minutes."""

    ahead: int = 0  # values; see WindowStep


def ingest(
    spark: SparkSession,
    root: str,
    table: str,
    *,
    payload: str = "json",
    field: str = "value",
    delay_s: float = DELAY_S,
    form: TableFormat = bronze.PLAIN,
    checkpoint: str = "",
    every_s: float | None = None,
    options: Mapping[str, str] | None = None,
) -> tuple[StreamingQuery, LiveResult]:
    """As bronze.ingest(). The result counts closed minutes, without late ones. Raises SourceOptionError."""
    if delay_s < 0:
        raise SourceOptionError(f"delay is {delay_s:g} s, and cannot be less than 0")
    target = bronze.opened_target(table, checkpoint, form)
    source = spark.readStream.format("brim").options(**{**dict(options or {}), "mode": "DROPMALFORMED"})
    records = source.load(root).select("edge", "topic", "timestamp", "payload")
    values = windows.with_value(records, payload, field).withColumn("now", f.current_timestamp())
    outcome = LiveResult(table)

    def take(frame: DataFrame, batch: int) -> None:
        if bronze.has_batch(target.log, batch):
            return
        done = step(spark, frame, target, batch, delay_s)
        bronze.commit(target, batch, done.ended)
        outcome.records += done.ended
        outcome.ahead += done.ahead
        outcome.batches += 1

    return bronze.follow_batches(values, take, target.checkpoint, every_s), outcome


def step(
    spark: SparkSession, values: DataFrame, target: bronze.TableTarget, batch: int, delay_s: float
) -> WindowStep:
    """One batch of values with the columns edge, topic, timestamp, value, and now: the time of the batch."""
    latest = f.timestamp_micros(f.unix_micros("now") + AHEAD_US)
    places = {name: f"{target.state}/{name}" for name in ("marks", "open")}
    marks = state_before(spark, places["marks"], batch, MARKS)
    known = f.broadcast(marks.withColumnRenamed("seen", "known"))
    window = f.window("timestamp", windows.WINDOW)
    parts = (
        values.withColumns({"device": f.col("topic"), "minute": window["start"], "over": window["end"]})
        .join(known, "edge", "left")
        .withColumn("known", f.when(f.col("known").isNotNull(), f.least("known", latest)))
        .groupBy(*KEY, "known")
        .agg(
            *_aggregates(), f.max("timestamp").alias("seen"), _count_behind(latest), f.max("now").alias("now")
        )
        .persist()
    )
    try:
        marks, ahead = _advanced(marks, parts)
        at_end = write_state(marks, places["marks"], batch, target.attempt)
        is_late = f.coalesce(_is_over("known", delay_s), f.lit(False))
        late_s = (f.unix_micros("known") - f.unix_micros("over")) / 1e6
        late = shown(parts.where(is_late), late_s.alias("late_s")).coalesce(1)
        write_files(late, f"{target.state}/late/{directory_of(batch)}", by_day=False)
        before = state_before(spark, places["open"], batch, OPEN)
        both = before.unionByName(parts.where(~is_late).select(*before.columns))
        merged = both.groupBy(*KEY).agg(
            *(f.sum(name).alias(name) for name in ("count", "sum", "undecodable")),
            f.min("min").alias("min"),
            f.max("max").alias("max"),
        )
        seen = f.broadcast(spark.read.schema(MARKS).parquet(at_end))
        judged = merged.join(seen, "edge").withColumn("is_over", _is_over("seen", delay_s)).persist()
        still_open = judged.where(~f.col("is_over")).select(*before.columns)
        write_state(still_open, places["open"], batch, target.attempt)
        directory = f"{target.table}/{target.directory(batch)}"
        write_files(shown(judged.where("is_over")), directory, by_day=target.log is not None)
        ended = judged.where("is_over").count()
        judged.unpersist()
        return WindowStep(ended, ahead)
    finally:
        parts.unpersist()


def _advanced(marks: DataFrame, parts: DataFrame) -> tuple[DataFrame, int]:
    """The watermarks after a batch, and the number of values too far ahead of the time of the batch."""
    totals = parts.agg(f.sum("ahead").alias("ahead"), f.max(f.unix_micros("now")).alias("now")).first()
    assert totals is not None
    seen = marks.unionByName(parts.select("edge", "seen")).groupBy("edge").agg(f.max("seen").alias("seen"))
    if totals.now is None:  # a batch without values
        return seen, 0
    bound = f.timestamp_micros(f.lit(totals.now + AHEAD_US))
    return seen.select("edge", f.least("seen", bound).alias("seen")), totals.ahead


def _aggregates() -> list[Column]:
    return [
        f.count("value").alias("count"),
        f.sum("value").alias("sum"),
        f.min("value").alias("min"),
        f.max("value").alias("max"),
        f.count_if(f.col("value").isNull()).alias("undecodable"),
    ]


def _count_behind(latest: Column) -> Column:
    return f.count_if(f.col("timestamp") > latest).alias("ahead")


def _is_over(seen: str, delay_s: float) -> Column:
    """True if a minute ended at least --delay seconds before the watermark of its edge."""
    return f.unix_micros("over") + round(delay_s * 1e6) <= f.unix_micros(seen)


def shown(minutes: DataFrame, *more: Column) -> DataFrame:
    """Open minutes with the columns of the table, and further ones."""
    mean = (f.col("sum") / f.nullif(f.col("count"), f.lit(0))).alias("avg")
    return minutes.select("edge", "device", "minute", "count", "min", mean, "max", "undecodable", *more)


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="brim spark live",
        description="Count, minimum, mean and maximum by device and minute, as files come.",
    )
    parser.add_argument("root", help="root of the drained files: path or URL")
    windows.add_payload_arguments(parser)
    parser.add_argument(
        "--delay",
        type=float,
        default=DELAY_S,
        metavar="SECONDS",
        help="time after the end of a minute at which it is closed (default: %(default)s)",
    )
    add_stream_arguments(parser)
    return parser


def job(arguments: argparse.Namespace) -> int:
    """Run the job, and return its exit status."""
    options = pairs(arguments.option, "--option")
    check_source(arguments.root, options)
    form = format_of_arguments(arguments)
    with table_lock(arguments.to, "write"):
        query, outcome = ingest(
            spark_of(arguments, "brim live"),
            arguments.root,
            arguments.to,
            payload=arguments.payload,
            field=arguments.field,
            delay_s=arguments.delay,
            form=form,
            checkpoint=arguments.checkpoint,
            every_s=arguments.every,
            options=options,
        )
        status = bronze.finish(query, outcome, as_json=arguments.json, noun="minute")
    if outcome.ahead:
        text = f"{outcome.ahead} values are stamped more than {AHEAD_S} s ahead of the clock of this machine"
        print(f"warning: {text}; look at the clocks of their edges", file=sys.stderr)
    return status


main = command(arguments, job)

if __name__ == "__main__":
    sys.exit(main(None))
