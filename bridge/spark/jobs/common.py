"""Common parts of the command lines of the jobs."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from bridge.errors import BridgeError, SourceOptionError
from bridge.spark.columns import CORRUPT
from bridge.spark.landing import Landing
from bridge.spark.options import Options
from bridge.spark.payloads import RAW, UNDECODED
from bridge.spark.tables import FORMATS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = [
    "add_format_argument",
    "add_spark_arguments",
    "add_stream_arguments",
    "check_source",
    "follow",
    "pairs",
    "reason_of",
    "run",
]

PROGRESS_S = 1
OURS = re.compile(r"^bridge\.errors\.\w+: (.+)\n((?! *SQLSTATE).*)$", re.MULTILINE)
NO_TABLE = re.compile(r"Path does not exist: \S+|Unable to infer schema for Parquet")


def add_spark_arguments(parser: argparse.ArgumentParser) -> None:
    """--master and --conf, for jobs that are not started by spark-submit."""
    parser.add_argument(
        "--master", default="", help="master URL of Spark (default: this machine, or that of spark-submit)"
    )
    parser.add_argument(
        "--conf", action="append", default=[], metavar="KEY=VALUE", help="setting of Spark; may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def add_stream_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of a job that reads a stream into a table."""
    parser.add_argument("--to", required=True, metavar="TABLE", help="table to write: path or URL for Spark")
    parser.add_argument(
        "--checkpoint", default="", help="directory of the checkpoint (default: TABLE/_checkpoint)"
    )
    parser.add_argument(
        "--every",
        type=float,
        metavar="SECONDS",
        help="run without end, a batch at this interval (default: one batch)",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="option of the source; may be repeated",
    )


def add_format_argument(parser: argparse.ArgumentParser) -> None:
    """--format, of a table."""
    parser.add_argument(
        "--format", choices=FORMATS, default=FORMATS[0], help="format of the table (default: %(default)s)"
    )


def follow(query: StreamingQuery) -> None:
    """Wait until the query has ended, or is ended with Ctrl-C.

    On a terminal, print the progress to standard error meanwhile.
    """
    try:
        if not sys.stderr.isatty():
            query.awaitTermination()
            return
        while not query.awaitTermination(PROGRESS_S):
            if said := query.lastProgress:
                rate = said["processedRowsPerSecond"] or 0
                text = f"batch {said['batchId']}: {said['numInputRows']:,} records, {rate:,.0f}/s"
                print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        query.stop()


def pairs(given: Sequence[str], what: str) -> dict[str, str]:
    """KEY=VALUE arguments.  Raises SourceOptionError."""
    found = {}
    for pair in given:
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise SourceOptionError(f"{what} {pair!r} is not KEY=VALUE")
        found[key] = value
    return found


def check_source(root: str, options: Mapping[str, str]) -> None:
    """Check path and options before Spark is started, because its start takes seconds.

    Raises SourceOptionError.
    """
    Options.read({"path": root, **options})
    Landing(root).check()


def reason_of(frame: DataFrame) -> Column:
    """The reason why nothing of a record could be read or decoded; null for the others."""
    if UNDECODED not in frame.columns:
        return f.col(CORRUPT)
    return f.coalesce(CORRUPT, f.when(f.col(RAW).isNotNull(), f.col(UNDECODED)))


def run(job: Callable[[Sequence[str] | None], int], argv: Sequence[str] | None) -> int:
    """The exit status of a job. An error that the user can correct is one line, with status 2."""
    try:
        return job(argv)
    except BridgeError as error:
        said = str(error), error.hint
    except OSError as error:
        said = str(error), ""
    except Exception as error:
        if (found := _in_spark(error)) is None:
            raise
        said = found
    text, hint = said
    print(f"error: {text}" + (f"\n  {hint}" if hint else ""), file=sys.stderr)
    return 2


def _in_spark(error: Exception) -> tuple[str, str] | None:
    """Text and hint of an error that Spark has wrapped; None: not an error that the user can correct."""
    if not type(error).__module__.startswith("pyspark."):
        return None
    if found := OURS.search(str(error)):
        return found[1], found[2]
    if found := NO_TABLE.search(str(error)):
        return found[0].removesuffix("."), "a table is made by bronze, silver or kafka, with --to"
    return None
