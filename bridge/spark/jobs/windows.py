"""Windows: from the bronze table, by device and minute, the count, minimum, mean and maximum of values.

    python -m bridge.spark.jobs.windows /srv/bronze --to /srv/minutes --payload json --field temp

A device is a topic. Columns: edge, device, minute, count, min, avg, max, undecodable (payloads of that minute
without a number), and the directory column dt (date of the minute).

It is computed from the table and not from the stream: after an outage data is days late, and a stream would
have to keep state for that time, or drop the data. Days that are computed again replace their earlier output,
so the job may be run at any time. --since limits it to the newest days.

Payloads: json (a number, or an object with a number at FIELD; a dot selects a key in an object), msgpack (the
same), text (a number in characters).
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgpack
import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import arrow_udf

from bridge.errors import SourceOptionError
from bridge.spark.jobs.common import add_spark_arguments, command, spark_of
from bridge.spark.tables import read_table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PAYLOADS = ("json", "msgpack", "text")
WINDOW = "1 minute"
_FIELD = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def by_minute(
    records: DataFrame, payload: str = "json", field: str = "value", window: str = WINDOW
) -> DataFrame:
    """The aggregate of records with the columns edge, topic, timestamp and payload.

    Raises SourceOptionError: no column payload.
    """
    if "payload" not in records.columns:
        raise SourceOptionError("the table has no column payload", hint="name a bronze table")
    values = with_value(records.select("edge", "topic", "timestamp", "payload"), payload, field)
    start = f.window("timestamp", window)["start"].alias("minute")
    return (
        values.groupBy("edge", f.col("topic").alias("device"), start)
        .agg(
            f.count("value").alias("count"),
            f.min("value").alias("min"),
            f.avg("value").alias("avg"),
            f.max("value").alias("max"),
            f.count_if(f.col("value").isNull()).alias("undecodable"),
        )
        .withColumn("dt", f.to_date("minute"))
    )


def with_value(records: DataFrame, payload: str, field: str) -> DataFrame:
    """`records` with a column value double, maybe null, for payload. Raises SourceOptionError."""
    if payload not in PAYLOADS:
        raise SourceOptionError(f"payload is {payload!r}, and must be one of {', '.join(PAYLOADS)}")
    if not _FIELD.fullmatch(field):
        raise SourceOptionError(f"field {field!r} is not made of names with dots between them")
    column = f.col("payload")
    value = _packed(column, field) if payload == "msgpack" else _number(column, payload, field)
    return records.withColumn("value", value).drop("payload")


def _number(payload: Column, kind: str, field: str) -> Column:
    text = payload.cast("string")
    plain = text.try_cast("double")
    if kind == "text":
        return _finite(plain)
    inside = f.get_json_object(text, f"$.{field}").try_cast("double")
    return _finite(f.coalesce(plain, inside))


def _finite(value: Column) -> Column:
    """The value; null for NaN and infinities, because one of them would spoil every mean."""
    return f.when(~f.isnan(value) & (f.abs(value) != float("inf")), value)


def _packed(payload: Column, field: str) -> Column:
    path = field.split(".")

    def decode(payloads: pa.Array) -> pa.Array:
        return pa.array((_packed_number(value, path) for value in payloads.to_pylist()), pa.float64())

    make: Any = arrow_udf  # not mapInArrow, which needs pandas
    column: Column = make(decode, "double")(payload)
    return column


def _packed_number(payload: bytes | None, path: Sequence[str]) -> float | None:
    try:
        value: Any = msgpack.unpackb(payload, strict_map_key=False)
        for key in path if isinstance(value, dict) else ():
            value = value[key]
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, msgpack.UnpackException):
        return None
    return number if math.isfinite(number) else None


def add_payload_arguments(parser: argparse.ArgumentParser) -> None:
    """--payload and --field, of a job that reads one number from each payload."""
    parser.add_argument(
        "--payload", default="json", choices=PAYLOADS, help="format of payloads (default: %(default)s)"
    )
    parser.add_argument(
        "--field", default="value", help="path of the number in an object (default: %(default)s)"
    )


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="brim spark windows",
        description="Count, minimum, mean and maximum by device and minute, from the bronze table.",
    )
    parser.add_argument("table", help="bronze table")
    parser.add_argument(
        "--to", default="", metavar="TABLE", help="table to write (default: none, only print)"
    )
    add_payload_arguments(parser)
    parser.add_argument("--since", default="", metavar="YYYY-MM-DD", help="first day")
    parser.add_argument(
        "--show", type=int, default=20, metavar="N", help="number of rows to print (default: %(default)s)"
    )
    add_spark_arguments(parser)
    return parser


def job(arguments: argparse.Namespace) -> int:
    """Run the job, and return its exit status."""
    if arguments.since and not re.fullmatch(r"\d{4}-\d\d-\d\d", arguments.since):
        raise SourceOptionError(f"--since {arguments.since!r} is no date, as in 2026-01-31")
    spark = spark_of(arguments, "brim windows", {"spark.sql.sources.partitionOverwriteMode": "dynamic"})
    records = read_table(spark, arguments.table)
    if arguments.since:
        records = records.where(f.col("timestamp") >= f.lit(arguments.since).cast("timestamp"))
    result = by_minute(records, arguments.payload, arguments.field)
    if arguments.to:
        result.write.mode("overwrite").partitionBy("dt").option("compression", "zstd").parquet(arguments.to)
        result = spark.read.parquet(arguments.to)
        if arguments.since:
            result = result.where(f.col("dt") >= arguments.since)
    _print(result, arguments.show, arguments.json)
    return 0


def _print(result: DataFrame, rows: int, as_json: bool) -> None:
    ordered = result.drop("dt").orderBy("edge", "device", "minute")
    if as_json:
        found_rows = [row.asDict() for row in ordered.limit(rows).collect()]
        print(json.dumps({"minutes": result.count(), "rows": found_rows}, default=str))
    else:
        ordered.show(rows, truncate=False)


main = command(arguments, job)

if __name__ == "__main__":
    sys.exit(main(None))
