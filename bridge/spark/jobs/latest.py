"""Latest: the last record of each device, from a bronze or silver table.

    python -m bridge.spark.jobs.latest /srv/bronze --to /srv/latest
    python -m bridge.spark.jobs.latest /srv/silver --edge 'plant-*'          # only shown

A device is a topic of an edge. It has one row, with all columns of its last record: the record with the
greatest timestamp; of equal ones, the greatest epoch and offset. So late records change nothing, and the
order of batches does not matter. Further columns: `records`, the number of records, and `first_seen`.

It is computed from the whole table. A stream would have to keep its state as long as data may be late, and to
rebuild it after each repair of the table.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from bridge.spark.jobs.common import add_spark_arguments, command, spark_of
from bridge.spark.tables import read_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ORDER = ("timestamp", "epoch", "offset")


def latest(records: DataFrame) -> DataFrame:
    """One row for each edge and topic of `records`."""
    others = [name for name in records.columns if name not in {"edge", "topic"}]
    last = f.max_by(f.struct(*others), f.struct(*ORDER)).alias("last")
    newest = records.groupBy("edge", "topic").agg(
        last, f.count("*").alias("records"), f.min("timestamp").alias("first_seen")
    )
    return newest.select("edge", f.col("topic").alias("device"), "last.*", "records", "first_seen")


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="brim spark latest", description="The last record of each device.")
    parser.add_argument("table", help="bronze or silver table")
    parser.add_argument(
        "--to", default="", metavar="TABLE", help="table to replace (default: none, only print)"
    )
    parser.add_argument("--edge", default="", help="only edges of this name; * matches anything")
    parser.add_argument(
        "--show", type=int, default=20, metavar="N", help="number of rows to print (default: %(default)s)"
    )
    add_spark_arguments(parser)
    return parser


def job(arguments: argparse.Namespace) -> int:
    """Run the job, and return its exit status."""
    spark = spark_of(arguments, "brim latest")
    records = read_table(spark, arguments.table, merge=True)
    if arguments.edge:
        records = records.where(f.col("edge").like(arguments.edge.replace("_", r"\_").replace("*", "%")))
    result = latest(records)
    if arguments.to:
        result.write.mode("overwrite").option("compression", "zstd").parquet(arguments.to)
        result = spark.read.parquet(arguments.to)
    ordered = result.drop("properties", "batch").orderBy("edge", "device")
    if arguments.json:
        rows = [row.asDict() for row in ordered.limit(arguments.show).collect()]
        print(json.dumps({"devices": result.count(), "rows": rows}, default=_plain))
    else:
        ordered.show(arguments.show)
    return 0


def _plain(value: object) -> str:
    return bytes(value).decode(errors="replace") if isinstance(value, bytes | bytearray) else str(value)


main = command(arguments, job)

if __name__ == "__main__":
    sys.exit(main(None))
