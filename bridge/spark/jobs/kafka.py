"""Bronze from Kafka: records that a bridge drained to a Kafka topic, into the table that bronze.py makes of
files.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0 .../kafka.py host:9092 records
        --to /srv/bronze [--every 60] [--option kafka.security.protocol=SSL]

The connector is Spark's own and has Spark's version; it is not in the pyspark package. A Kafka record without
the headers of bridge/sinks/kafka.py goes into quarantine. Columns, batches, checkpoint and quarantine are
those of bronze.py. So windows, latest, gaps and compact work on this table, too. From the same records both
jobs make the same rows.

Each record is in the table once, although a bridge sends some records again after an outage, and sends live
records before a backlog: no order of offsets is assumed. TABLE.state/marks keeps ranges of offsets for each
batch, as of its end: the ranges in which the table has records of each edge, stream, partition and epoch. A
batch without records in these ranges is new. Otherwise the identities in the ranges are read from the table,
and records that it has are left out. Only the batches before are read, so a batch that is run again gives the
same result.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql import functions as f

from bridge.arrow.schema import CORRUPT, DDL
from bridge.errors import SourceOptionError
from bridge.rangeset import Ranges, overlap, union
from bridge.spark.job_state import state_before, write_state
from bridge.spark.jobs import bronze
from bridge.spark.jobs.bronze import IDENTITY
from bridge.spark.jobs.common import (
    add_stream_arguments,
    command,
    format_of_arguments,
    pairs,
    spark_of,
)
from bridge.spark.table_places import table_lock
from bridge.spark.tables import TableFormat, log_of, read_table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SOURCE, RECORD, PROPERTIES = "brim-source", "brim-record", "mqtt-properties"
WHOSE = ("edge", "stream", "partition", "epoch")
MARKED = f"{DDL.partition(', offset ')[0]}, first long, last long"
RANGES_MAX = 16  # of one source; above this number neighbours are joined, and more of the table is read
ASKED_MAX = 32  # ranges in the condition of a table scan; above this number only their ends

Whose: TypeAlias = tuple[str, str, int, int]
Marks: TypeAlias = dict[Whose, Ranges]


def records(kafka: DataFrame) -> DataFrame:
    """Rows of Spark's Kafka source, headers included, with the columns of a record.

    Rows that are not records have the reason in _corrupt_record.
    """
    parts = f.split(_header(RECORD).cast("string"), " ")
    flags = parts[2].try_cast("int")
    columns = {
        **_source_columns(),
        "offset": parts[0].try_cast("bigint"),
        "timestamp": f.timestamp_micros(f.call_function("div", parts[1].try_cast("bigint"), f.lit(1000))),
        "topic": f.col("key").cast("string"),
        "qos": flags.bitwiseAND(f.lit(3)),
        "retain": flags.bitwiseAND(f.lit(4)) != 0,
        "properties": _header(PROPERTIES),
        "payload": f.col("value"),
    }
    assert list(columns) == [column.split()[0] for column in DDL.split(", ")]
    rows = kafka.select(*(column.alias(name) for name, column in columns.items()))
    known = _all_present(*IDENTITY, "timestamp")
    return rows.withColumn(CORRUPT, f.when(~known, "a Kafka record without the headers of Brim"))


def _source_columns() -> dict[str, Column]:
    source = f.split(_header(SOURCE).cast("string"), "/")
    return {
        "edge": source[0],
        "stream": source[1],
        "partition": source[2].try_cast("int"),
        "epoch": source[3].try_cast("bigint"),
    }


def _all_present(*names: str) -> Column:
    known = f.lit(True)
    for name in names:
        known &= f.col(name).isNotNull()
    return known


def _header(name: str) -> Column:
    """Value of a header; null: absent."""
    return f.try_element_at(f.filter("headers", lambda header: header["key"] == name), f.lit(1))["value"]


# ---- each record once ----


def once(spark: SparkSession, frame: DataFrame, target: bronze.TableTarget, batch: int) -> DataFrame:
    """Records of a batch without those that came before; and the marks for the next batch."""
    marks = f"{target.state}/marks"
    good = f.col(CORRUPT).isNull()
    ends = (
        frame.where(good).groupBy(*WHOSE).agg(f.min("offset").alias("first"), f.max("offset").alias("last"))
    )
    ends_by_key, before = (
        _marks(ends),
        _marks(state_before(spark, marks, batch, MARKED)),
    )
    both = {
        whose: few(ends_by_key.get(whose, []) + before.get(whose, [])) for whose in {**before, **ends_by_key}
    }
    rows = [(*whose, *offset_range) for whose, ranges in both.items() for offset_range in ranges]
    write_state(spark.createDataFrame(rows, MARKED), marks, batch, target.attempt)
    fresh = frame.where(good).dropDuplicates(list(IDENTITY))
    if known := _known(spark, ends_by_key, before, target.table, batch):
        fresh = fresh.join(known, list(IDENTITY), "left_anti")
    return fresh.unionByName(frame.where(~good))


def _known(spark: SparkSession, ends: Marks, before: Marks, table: str, batch: int) -> DataFrame | None:
    """Identities in the table that the batch may repeat, and perhaps others; None: none."""
    twice = {whose: overlap([*ends[whose], *before[whose]]) for whose in ends if whose in before}
    pairs = [(whose, offset_range) for whose, ranges in twice.items() for offset_range in ranges]
    if not pairs:
        return None
    schema = f"{MARKED.partition(', first ')[0]}, offset long"
    if log_of(table) is not None:  # it has only the batches before, unless this batch was written already
        there = read_table(spark, table, schema)
    else:
        there = spark.read.schema(f"{schema}, batch int").parquet(table).where(f.col("batch") < batch)
    ranges = [offset_range for _, offset_range in pairs]
    near = f.col("offset").between(min(ranges)[0], max(last for _, last in ranges))
    if len(pairs) <= ASKED_MAX:
        near = f.lit(False)
        for whose, (first, last) in pairs:
            same = f.col("offset").between(first, last)
            for name, value in zip(WHOSE, whose, strict=True):
                same &= f.col(name) == value
            near |= same
    return there.where(near).select(*IDENTITY)


def _marks(rows: DataFrame) -> Marks:
    marks: Marks = {}
    for row in rows.collect():
        *whose, first, last = row
        marks.setdefault((whose[0], whose[1], whose[2], whose[3]), []).append((first, last))
    return {whose: union(ranges) for whose, ranges in marks.items()}


def few(ranges: Ranges) -> Ranges:
    """At most RANGES_MAX ranges that cover all; the nearest are joined."""
    merged = union(ranges)
    while len(merged) > RANGES_MAX:
        gaps = [after[0] - before[1] for before, after in pairwise(merged)]
        at = gaps.index(min(gaps))
        merged[at : at + 2] = [(merged[at][0], merged[at + 1][1])]
    return merged


def ingest(
    spark: SparkSession,
    servers: str,
    topic: str,
    table: str,
    *,
    checkpoint: str = "",
    form: TableFormat = bronze.PLAIN,
    every_s: float | None = None,
    options: Mapping[str, str] | None = None,
) -> tuple[StreamingQuery, bronze.BronzeResult]:
    """As bronze.ingest(), from a Kafka topic.  Raises SourceOptionError: no connector."""
    from pyspark.errors import AnalysisException

    target = bronze.opened_target(table, checkpoint, form)
    settings = {
        "startingOffsets": "earliest",
        **dict(options or {}),
        "kafka.bootstrap.servers": servers,
        "subscribe": topic,
        "includeHeaders": "true",
    }
    try:
        source = spark.readStream.format("kafka").options(**settings).load()
    except AnalysisException as error:
        raise SourceOptionError(
            f"Spark's Kafka source cannot be used: {str(error).partition(chr(10))[0]}",
            hint=f"--conf spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:{spark.version}",
        ) from error
    rows = records(source)

    def prepare(frame: DataFrame, batch: int) -> DataFrame:
        return once(spark, frame, target, batch)

    return bronze.start(rows, target, every_s, prepare=prepare)


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="brim spark kafka",
        description="Write the records drained to Kafka into a table, each exactly once.",
    )
    parser.add_argument("servers", help="brokers as host:port, separated by commas")
    parser.add_argument("topic", help="Kafka topic")
    add_stream_arguments(parser)
    return parser


def job(arguments: argparse.Namespace) -> int:
    """Run the job, and return its exit status."""
    form = format_of_arguments(arguments)
    with table_lock(arguments.to, "write"):
        query, outcome = ingest(
            spark_of(arguments, "brim kafka"),
            arguments.servers,
            arguments.topic,
            arguments.to,
            checkpoint=arguments.checkpoint,
            form=form,
            every_s=arguments.every,
            options=pairs(arguments.option, "--option"),
        )
        return bronze.finish(query, outcome, as_json=arguments.json)


main = command(arguments, job)

if __name__ == "__main__":
    sys.exit(main(None))
