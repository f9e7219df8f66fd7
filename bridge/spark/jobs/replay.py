"""Replay: a range of drained files into a table, again or for the first time; also to fill in missing
records.

    python -m bridge.spark.jobs.replay /srv/lake --to /srv/again --since 2026-01-31 --until 2026-02-01
    python -m bridge.spark.jobs.replay /srv/lake --to /srv/again --option edge=kiln --option offsets=100-199
    python -m bridge.spark.jobs.replay /srv/lake --to /srv/mended --payloads payloads.toml --since ...

Options of the source define the range (bridge/spark/options.py): edge, stream, partition, offsets, since,
until, topic, startingOffsets, endingOffsets. It is written to TABLE/range=NAME, and NAME depends only on
these options. The same range replaces its earlier output; another range is stored next to it. So a failed
replay can be run again. Ranges that do not overlap make a table in which each record is once.

Records that do not verify, or whose payloads do not decode, are left out and counted: bronze.py and silver.py
have put them into quarantine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from bridge.arrow.schema import CORRUPT
from bridge.errors import SourceOptionError
from bridge.payloads.schema import RAW
from bridge.spark.jobs.common import (
    add_copy_arguments,
    add_spark_arguments,
    check_source,
    command,
    counted,
    pairs,
    reason_of,
    spark_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def range_name(options: Mapping[str, str]) -> str:
    """Name of the directory of these options, whatever their order."""
    text = json.dumps(dict(options), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def replay(spark: SparkSession, root: str, table: str, options: Mapping[str, str]) -> tuple[str, int, int]:
    """Write the range. Returns the directory, the number of records, and the number left out."""
    from pyspark.sql import Observation

    frame = spark.read.format("brim").options(**{**options, "mode": "PERMISSIVE"}).load(root)
    bad = reason_of(frame).isNotNull()
    seen = Observation()
    counted = frame.observe(seen, f.count_if(~bad).alias("good"), f.count_if(bad).alias("bad"))
    target = f"{table.rstrip('/')}/range={range_name(options)}"
    rows = counted.where(~bad).drop(CORRUPT, RAW)
    rows.write.mode("overwrite").option("compression", "zstd").parquet(target)
    return target, int(seen.get["good"]), int(seen.get["bad"])


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="brim spark replay", description="A range of drained files into a table."
    )
    parser.add_argument("root", help="root of the drained files: path or URL")
    add_copy_arguments(parser)
    parser.add_argument("--since", default="", metavar="TIME", help="first ISO date or time, UTC")
    parser.add_argument("--until", default="", metavar="TIME", help="end: ISO date or time, UTC, exclusive")
    parser.add_argument("--payloads", default="", metavar="FILE", help="payload schema, for typed columns")
    add_spark_arguments(parser)
    return parser


def job(arguments: argparse.Namespace) -> int:
    """Run the job, and return its exit status."""
    named = {"since": arguments.since, "until": arguments.until, "payloads": arguments.payloads}
    options = {**pairs(arguments.option, "--option"), **{key: value for key, value in named.items() if value}}
    if not options:
        raise SourceOptionError("no range is given", hint="--since, --until or --option; bronze reads all")
    check_source(arguments.root, options)
    spark = spark_of(arguments, "brim replay")
    target, records, left_out = replay(spark, arguments.root, arguments.to, options)
    if arguments.json:
        print(json.dumps({"range": target, "records": records, "left_out": left_out}))
    else:
        print(f"{target}: {counted(records, 'record')}" + (f", {left_out} left out" if left_out else ""))
    return 0


main = command(arguments, job)

if __name__ == "__main__":
    sys.exit(main(None))
