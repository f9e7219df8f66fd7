"""Common parts of the command lines of the jobs."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from bridge.arrow.schema import CORRUPT
from bridge.errors import BridgeError, SourceOptionError
from bridge.payloads.schema import RAW, UNDECODED
from bridge.spark.landing_zone import Landing
from bridge.spark.options import SourceOptions
from bridge.spark.session import session
from bridge.spark.table_places import has_locks, is_there
from bridge.spark.tables import FORMATS, TableFormat

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PROGRESS_S = 1
OURS = re.compile(r"^bridge\.errors\.\w+: (.+)\n((?! *SQLSTATE).*)$", re.MULTILINE)
TYPES_HINT = "begin another table (--to) after such a change; DuckDB reads this one, by union_by_name = true"
BOTH_SCHEMAS = re.compile(r'CANNOT_MERGE_SCHEMAS.*?"STRUCT<(.*?)>"\n.*?"STRUCT<(.*?)>"', re.DOTALL)
NO_TABLE = re.compile(r"Path does not exist: \S+|Unable to infer schema for Parquet")


def counted(count: int, noun: str) -> str:
    """Number and noun: `1 batch`, `12 batches`."""
    plural = "es" if noun.endswith("ch") else "s"
    return f"{count} {noun}{'' if count == 1 else plural}"


def add_spark_arguments(parser: argparse.ArgumentParser) -> None:
    """--master and --conf, for jobs that are not started by spark-submit."""
    parser.add_argument(
        "--master", default="", help="master URL of Spark (default: this machine, or that of spark-submit)"
    )
    parser.add_argument(
        "--conf", action="append", default=[], metavar="KEY=VALUE", help="setting of Spark; may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def add_landing_arguments(parser: argparse.ArgumentParser, table: str) -> None:
    """Arguments of a job that examines drained files. `table`: help of --table."""
    parser.add_argument("root", help="root of the drained files: path or URL")
    parser.add_argument("--table", default="", help=table)
    parser.add_argument(
        "--edge",
        action="append",
        default=[],
        help="only edges of this name; * matches anything; may be repeated",
    )
    parser.add_argument(
        "--retained",
        action="store_true",
        help="accept missing files at the beginning: they were deleted on purpose",
    )


def add_copy_arguments(parser: argparse.ArgumentParser) -> None:
    """--to and --option, of a job that reads a source into a table."""
    parser.add_argument("--to", required=True, metavar="TABLE", help="table to write: path or URL for Spark")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="option of the source; may be repeated",
    )


def add_stream_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of a job that reads a stream into a table: the source, the table, its format, and Spark."""
    add_copy_arguments(parser)
    parser.add_argument(
        "--checkpoint", default="", help="directory of the checkpoint (default: TABLE.state/checkpoint)"
    )
    parser.add_argument(
        "--every",
        type=float,
        metavar="SECONDS",
        help="run without end, a batch at this interval (default: one batch)",
    )
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help="format of the table (default: parquet; a new table in an object store or HDFS has none)",
    )
    parser.add_argument(
        "--catalog",
        default="",
        metavar="NAME_OR_URL",
        help="Iceberg catalogue: a name in PyIceberg's configuration, sqlite:///PATH or a REST URL "
        "(default: SQLite in TABLE.state)",
    )
    parser.add_argument(
        "--name",
        default="",
        metavar="NAMESPACE.TABLE",
        help="name in the catalogue (default: brim.DIRECTORY)",
    )
    add_spark_arguments(parser)


def format_of_arguments(arguments: argparse.Namespace) -> TableFormat:
    """The format of the command line. Raises SourceOptionError, TableUnreachable."""
    kind = arguments.format or FORMATS[0]
    if kind != "iceberg" and (arguments.catalog or arguments.name):
        text = f"a table of the format {kind} has no catalogue"
        raise SourceOptionError(text, hint="write --format iceberg, or leave out --catalog and --name")
    if kind == FORMATS[0] and not has_locks(arguments.to):
        _accept_without_lock(arguments.to, chosen=arguments.format is not None)
    return TableFormat(kind, arguments.catalog, arguments.name)


def _accept_without_lock(table: str, *, chosen: bool) -> None:
    """Warn of a plain Parquet table that nothing locks. Raises SourceOptionError: a new one, not `chosen`."""
    text = f"nothing locks {table}: two jobs at once lose or double records of a plain Parquet table"
    if chosen or is_there(table, "batch="):
        remedy = "start one at a time, or begin another table with --format delta or iceberg"
        print(f"warning: {text}; {remedy}", file=sys.stderr)
        return
    hint = "choose --format delta or iceberg, or --format parquet if never two jobs write the table at once"
    raise SourceOptionError(text, hint=hint)


def follow(query: StreamingQuery) -> None:
    """Wait until the query has ended, or is ended with Ctrl-C.

    On a terminal, print the progress to standard error meanwhile.
    """
    try:
        if not sys.stderr.isatty():
            query.awaitTermination()
            return
        while not query.awaitTermination(PROGRESS_S):
            if progress := query.lastProgress:
                rate = progress["processedRowsPerSecond"] or 0
                text = f"batch {progress['batchId']}: {progress['numInputRows']:,} records, {rate:,.0f}/s"
                print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        query.stop()


def pairs(texts: Sequence[str], noun: str) -> dict[str, str]:
    """KEY=VALUE arguments.  Raises SourceOptionError."""
    values = {}
    for pair in texts:
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise SourceOptionError(f"{noun} {pair!r} is not KEY=VALUE")
        values[key] = value
    return values


def check_source(root: str, options: Mapping[str, str]) -> None:
    """Check path and options before the slow start of Spark. Raises SourceOptionError."""
    SourceOptions.read({"path": root, **options})
    Landing(root).check()


def reason_of(frame: DataFrame) -> Column:
    """The reason why nothing of a record could be read or decoded; null for the others."""
    if UNDECODED not in frame.columns:
        return f.col(CORRUPT)
    return f.coalesce(CORRUPT, f.when(f.col(RAW).isNotNull(), f.col(UNDECODED)))


def spark_of(
    arguments: argparse.Namespace, application: str, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Spark session for --master and --conf, which overrides `settings`. Raises SparkUnavailable."""
    return session(
        application, master=arguments.master, settings={**(settings or {}), **pairs(arguments.conf, "--conf")}
    )


def command(
    arguments: Callable[[], argparse.ArgumentParser], job: Callable[[argparse.Namespace], int]
) -> Callable[[Sequence[str] | None], int]:
    """The main() of a job: returns the exit status of `job` for the arguments of a command line."""

    def main(argv: Sequence[str] | None = None) -> int:
        parser = arguments()
        return _status(parser.prog, job, parser.parse_args(argv))

    return main


def _status(command: str, job: Callable[[argparse.Namespace], int], arguments: argparse.Namespace) -> int:
    """Exit status of a job. An error that the user can correct is one line, with status 2."""
    try:
        return job(arguments)
    except BridgeError as error:
        explained = str(error), error.hint
    except OSError as error:
        explained = str(error), ""
    except Exception as error:
        if (status := _in_spark(error)) is None:
            raise
        explained = status
    text, hint = explained
    print(f"{command}: {text}" + (f"\n  {hint}" if hint else ""), file=sys.stderr)
    return 2


def _in_spark(error: Exception) -> tuple[str, str] | None:
    """Text and hint of an error that Spark has wrapped; None: not an error that the user can correct."""
    if not type(error).__module__.startswith(("pyspark.", "py4j.")):
        return None
    if match := OURS.search(str(error)):
        return match[1], match[2]
    if match := NO_TABLE.search(str(error)):
        return match[0].removesuffix("."), "a table is made by bronze, silver or kafka, with --to"
    if match := BOTH_SCHEMAS.search(str(error)):
        return _changed_types(match[1], match[2]), TYPES_HINT
    return None


def _changed_types(one: str, other: str) -> str:
    """The columns that differ in two schemas of Spark: NAME: TYPE, NAME: TYPE."""
    types, later = (dict(re.findall(r"(\w+): ([^,]+)", schema)) for schema in (one, other))
    changed = [
        f"{name} is {kind} and {later[name]}" for name, kind in types.items() if later.get(name, kind) != kind
    ]
    return f"columns of the table have several types: {', '.join(changed)}"
