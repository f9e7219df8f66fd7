"""Replay: a range of drained files into a table, again or for the first time; also to fill in missing
records.

    python -m bridge.spark.jobs.replay /srv/lake --to /srv/again --since 2026-01-31 --until 2026-02-01
    python -m bridge.spark.jobs.replay /srv/lake --to /srv/again --option edge=kiln --option offsets=100-199
    python -m bridge.spark.jobs.replay /srv/lake --to /srv/mended --payloads payloads.toml --since ...

Options of the source define the range (options.py): edge, stream, partition, offsets, since, until, topic,
startingOffsets, endingOffsets. It is written to TABLE/range=NAME, and NAME depends only on these options. The
same range replaces its earlier output; another range is stored next to it. So a failed replay can be run
again. Ranges that do not overlap make a table in which each record is once.

Records that do not verify, or whose payloads do not decode, are left out and counted: bronze.py and silver.py
have put them into quarantine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from bridge.errors import SourceOptionError
from bridge.spark.columns import CORRUPT
from bridge.spark.jobs.common import add_spark_arguments, check_source, pairs, reason_of, run
from bridge.spark.payloads import RAW
from bridge.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["main", "range_name", "replay"]


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
    parser.add_argument("--to", required=True, metavar="TABLE", help="table to write: path or URL for Spark")
    parser.add_argument("--since", default="", metavar="TIME", help="first ISO date or time, UTC")
    parser.add_argument("--until", default="", metavar="TIME", help="end: ISO date or time, UTC, exclusive")
    parser.add_argument("--payloads", default="", metavar="FILE", help="payload schema, for typed columns")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="option of the source; may be repeated",
    )
    add_spark_arguments(parser)
    return parser


def job(argv: Sequence[str] | None) -> int:
    """See main()."""
    given = arguments().parse_args(argv)
    named = {"since": given.since, "until": given.until, "payloads": given.payloads}
    options = {**pairs(given.option, "--option"), **{key: value for key, value in named.items() if value}}
    if not options:
        raise SourceOptionError("no range is given", hint="--since, --until or --option; bronze reads all")
    check_source(given.root, options)
    spark = session("brim replay", master=given.master, settings=pairs(given.conf, "--conf"))
    target, records, left_out = replay(spark, given.root, given.to, options)
    if given.json:
        print(json.dumps({"range": target, "records": records, "left_out": left_out}))
    else:
        print(f"{target}: {records} records" + (f", {left_out} left out" if left_out else ""))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0; 2 for a mistake in the arguments."""
    return run(job, argv)


if __name__ == "__main__":
    sys.exit(main())
