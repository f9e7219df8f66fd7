"""Bronze from Kafka: what a bridge drained to a Kafka topic, into the table that bronze.py makes of files.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0 .../kafka.py host:9092 records
        --to /srv/bronze [--every 60] [--option kafka.security.protocol=SSL]

The connector is Spark's own and has Spark's version; it is not in the pyspark package.  One Kafka record is
one record (bridge/sinks/kafka.py says how); records of others, without Brim's headers, go into quarantine.
Columns, batches, checkpoint and quarantine are those of bronze.py, so windows, latest, gaps and compact work
on the table as on the other; from the same records both jobs make the same rows.

Each record once: an outage makes a bridge send some again.  What comes again has, in its Kafka partition, an
offset that is not above what came before of its edge, stream, partition and epoch.  TABLE/_marks keeps that
highest offset by Kafka partition, for each batch that of its end; so a batch that is run again is judged by
the same marks.  More partitions for the Kafka topic move records to others, and what is sent again
at that moment may be doubled: drain dry first.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from bridge.errors import SourceOptionError
from bridge.spark.columns import CORRUPT, DDL
from bridge.spark.jobs import bronze
from bridge.spark.jobs.common import add_spark_arguments, add_stream_arguments, pairs, run
from bridge.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["ingest", "main", "once", "records"]

SOURCE, RECORD, PROPERTIES = "brim-source", "brim-record", "mqtt-properties"
MARKED = ("edge", "stream", "partition", "epoch", "kafka_partition")
MARKS_KEPT = 3  # batches


def records(kafka: DataFrame) -> DataFrame:
    """The rows of Spark's Kafka source, headers included, with the columns of a record, kafka_partition, and
    _corrupt_record for those that are none.
    """
    source = f.split(_header(SOURCE).cast("string"), "/")
    said = f.split(_header(RECORD).cast("string"), " ")
    flags = said[2].try_cast("int")
    made = {
        "edge": source[0],
        "stream": source[1],
        "partition": source[2].try_cast("int"),
        "epoch": source[3].try_cast("bigint"),
        "offset": said[0].try_cast("bigint"),
        "timestamp": f.timestamp_micros(f.call_function("div", said[1].try_cast("bigint"), f.lit(1000))),
        "topic": f.col("key").cast("string"),
        "qos": flags.bitwiseAND(f.lit(3)),
        "retain": flags.bitwiseAND(f.lit(4)) != 0,
        "properties": _header(PROPERTIES),
        "payload": f.col("value"),
    }
    assert list(made) == [column.split()[0] for column in DDL.split(", ")]
    rows = kafka.select(
        *(column.alias(name) for name, column in made.items()), f.col("partition").alias("kafka_partition")
    )
    known = f.lit(True)
    for name in ("edge", "stream", "partition", "epoch", "offset", "timestamp"):
        known &= f.col(name).isNotNull()
    return rows.withColumn(CORRUPT, f.when(~known, "a Kafka record without the headers of Brim"))


def _header(name: str) -> Column:
    """Its value; null: there is none."""
    return f.try_element_at(f.filter("headers", lambda it: it["key"] == name), f.lit(1))["value"]


def once(spark: SparkSession, frame: DataFrame, table: str, batch: int) -> DataFrame:
    """The records of a batch without those that came before; and the marks, for the batch behind it."""
    marks = f"{table.rstrip('/')}/_marks/batch="
    if batch > 0:
        before = spark.read.parquet(f"{marks}{batch - 1:09d}")
        known = f.broadcast(before.withColumnRenamed("mark", "known"))
        kept = frame.join(known, [*MARKED], "left")
        fresh = kept.where(f.col("known").isNull() | (f.col("offset") > f.col("known"))).drop("known")
    else:
        before, fresh = None, frame
    good = frame.where(f.col(CORRUPT).isNull())
    highest = good.groupBy(*MARKED).agg(f.max("offset").alias("mark"))
    if before is not None:
        both = highest.unionByName(before)
        highest = both.groupBy(*MARKED).agg(f.max("mark").alias("mark"))
    highest.coalesce(1).write.mode("overwrite").parquet(f"{marks}{batch:09d}")
    bronze.forget(f"{table.rstrip('/')}/_marks", f"batch={batch - MARKS_KEPT:09d}")
    bad = fresh.where(f.col(CORRUPT).isNotNull())
    distinct = fresh.where(f.col(CORRUPT).isNull()).dropDuplicates([*MARKED, "offset"])
    return distinct.unionByName(bad).drop("kafka_partition")


def ingest(
    spark: SparkSession,
    servers: str,
    topic: str,
    table: str,
    *,
    checkpoint: str = "",
    every_s: float | None = None,
    options: Mapping[str, str] | None = None,
) -> tuple[StreamingQuery, bronze.Outcome]:
    """As bronze.ingest(), from a Kafka topic.  Raises SourceOptionError: no connector."""
    from pyspark.errors import AnalysisException

    checkpoint = checkpoint or f"{table.rstrip('/')}/_checkpoint"
    bronze.check_checkpoint(table, checkpoint)
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
    return bronze.start(
        records(source), table, checkpoint, every_s, lambda frame, batch: once(spark, frame, table, batch)
    )


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="kafka", description="What was drained to Kafka into a Parquet table, each record exactly once."
    )
    parser.add_argument("servers", help="host:port, of some brokers")
    parser.add_argument("topic", help="the Kafka topic")
    add_stream_arguments(parser)
    add_spark_arguments(parser)
    return parser


def job(argv: Sequence[str] | None) -> int:
    """See main()."""
    given = arguments().parse_args(argv)
    spark = session("brim kafka", master=given.master, settings=pairs(given.conf, "--conf"))
    query, outcome = ingest(
        spark,
        given.servers,
        given.topic,
        given.to,
        checkpoint=given.checkpoint,
        every_s=given.every,
        options=pairs(given.option, "--option"),
    )
    return bronze.finish(query, outcome, as_json=given.json)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0; 2 for a mistake in the arguments."""
    return run(job, argv)


if __name__ == "__main__":
    sys.exit(main())
