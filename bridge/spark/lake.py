"""lake(): all drained files of a landing zone as one DataFrame, each by the fastest correct reader.

    brim.lake(spark, "/srv/lake").where("topic = 'plant/1/temp'").count()
    brim.lake(spark, "s3://bucket/lake", columns="topic, payload", since="2026-01-31")

Spark's own vectorised reader reads Parquet files, without Python, with statistics of row groups, columns and
partitions. format("brim") reads native files, and Parquet files of which a file with a lower drain_seq has
some records. Both are planned from one listing, so each record is there once.

Owns the division of the files. Never opens one. Spark's own reader does not check that a Parquet file has
the rows of its name; format("brim") does.
"""

from __future__ import annotations

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from bridge.arrow.schema import DDL, TYPES
from bridge.errors import SourceOptionError
from bridge.format.file_name import PARQUET_SUFFIX, is_staged
from bridge.payloads.schema import filter_pattern
from bridge.spark.conditions import Condition
from bridge.spark.data_source import BrimDataSource
from bridge.spark.landing_zone import Landing
from bridge.spark.options import SourceOptions
from bridge.spark.table_plan import TablePlan, table_plan

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

LOG = logging.getLogger("brim.spark")
FILTER_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
SCHEMES = {"s3": "s3a", "file": "file"}  # of pyarrow, and of Hadoop; others are equal
GLOB = str.maketrans({character: f"\\{character}" for character in "\\{}[]*?"})


def lake(
    spark: SparkSession,
    path: str,
    *,
    columns: str | Sequence[str] = (),
    streaming: bool = False,
    **options: object,
) -> DataFrame:
    """The records of the drained files below `path`, with the columns of format("brim").

    `columns`: only these, by name; of native files the others are not decoded. `options`: those of
    format("brim"), such as edge, stream, topic, since, until and offsets; they exclude files and records
    before anything is decoded. Conditions of where() are pushed down to Spark's reader, and to native files
    if spark.sql.python.filterPushdown.enabled is true, as in brim.spark.session().

    A stream (`streaming=True`), and a table with option payloads or mode, is read by format("brim") alone:
    only it follows drain_seqs, decodes fields and reports damage.

    Raises SourceOptionError, FilesMissing.
    """
    given = {name: str(value) for name, value in options.items()}
    names = _names(columns)
    if streaming or {"payloads", "mode"} & {name.lower() for name in given}:
        return _by_source(spark, path, given, names, streaming=streaming)
    chosen = SourceOptions.read({**given, "path": path, "parquet": "skip"})
    if chosen.view != "records":
        raise SourceOptionError(f"lake() has no view {chosen.view!r}", hint='use format("brim")')
    plan = table_plan(chosen)
    LOG.info(
        "%s: %d of %d files: %d by Spark's Parquet reader, %d by format(brim)",
        path, len(plan.tasks) + len(plan.parquet), len(plan.present), len(plan.parquet), len(plan.tasks),
    )  # fmt: skip
    frames = []
    if plan.tasks or not plan.parquet:
        native = {**given, "parquet": "skip", "endingOffsets": json.dumps(plan.end)}
        if spark.conf.get(FILTER_PUSHDOWN, "false") == "true":
            native["pushDown"] = "true"
        frames.append(_by_source(spark, path, native, names))
    if plan.parquet:
        rows = _by_spark(spark, Landing(path).root, plan)
        rows = reduce(lambda frame, term: frame.where(term), _terms(chosen, given), rows)
        frames.append(rows.select(*names or _names(DDL)))
    return reduce(lambda one, other: one.unionByName(other), frames)


def _names(columns: str | Sequence[str]) -> list[str]:
    """Names of columns, from a list, a text with commas, or columns with types. Raises SourceOptionError."""
    parts = columns.split(",") if isinstance(columns, str) else columns
    names = [part.split()[0] for part in parts if part.strip()]
    known = [name for name in TYPES if not name.startswith("_")]
    if unknown := [name for name in names if name not in known]:
        raise SourceOptionError(f"no column {unknown[0]!r}", hint=f"there are {', '.join(known)}")
    return names


def _by_source(
    spark: SparkSession, path: str, options: dict[str, str], names: Sequence[str], *, streaming: bool = False
) -> DataFrame:
    spark.dataSource.register(BrimDataSource)  # takes 10 ms: a query of Parquet files alone does without
    reader: Any = spark.readStream if streaming else spark.read
    reader = reader.format("brim").options(**options)
    if names:
        types = dict(column.split() for column in DDL.split(", "))
        reader = reader.schema(", ".join(f"{name} {types[name]}" for name in names))
    frame: DataFrame = reader.load(path)
    return frame


def _by_spark(spark: SparkSession, root: str, plan: TablePlan) -> DataFrame:
    """The whole Parquet files, by directories of days where all files of a day are read."""
    base = _hadoop_url(root)
    present = {file.path for file in plan.present}
    found = Counter(_below_root(path) for path in present if path.endswith(PARQUET_SUFFIX))
    by_day: dict[str, list[str]] = defaultdict(list)
    for task in plan.parquet:
        by_day[_below_root(task.path)].append(task.path.rpartition("/")[2])

    def read(paths: Iterable[str], names: str = "*") -> DataFrame:
        reader = spark.read.schema(DDL).option("basePath", base).option("pathGlobFilter", names)
        return reader.parquet(*(f"{base.translate(GLOB)}/{path}" for path in paths))

    files = {day: [f"{day}/{name}" for name in names] for day, names in by_day.items()}
    if not any(map(is_staged, present)):  # these are next to the files that they replace
        paths = (
            path for day, paths in files.items() for path in ([day] if len(paths) == found[day] else paths)
        )
        frame = read(paths, f"*{PARQUET_SUFFIX}")
        if _count_files(frame) == len(plan.parquet):
            return frame
    # A file arrived after the listing, or the directory has files of others.
    return read(path for paths in files.values() for path in paths)


def _below_root(path: str) -> str:
    """Directory of a file, from edge=... on."""
    return "edge=" + path.rpartition("/")[0].rpartition("/edge=")[2]


def _count_files(frame: Any) -> int:
    """Number of files of a frame. Classic Spark counts without a call for each name."""
    return len(frame._jdf.inputFiles()) if hasattr(frame, "_jdf") else len(frame.inputFiles())


def _hadoop_url(root: str) -> str:
    """The root as Hadoop names it; options of pyarrow in the URL are left out."""
    if "://" not in root:
        return f"file://{root}"
    parts = urlsplit(root)
    return f"{SCHEMES.get(parts.scheme, parts.scheme)}://{parts.netloc}{parts.path.rstrip('/')}"


def _terms(options: SourceOptions, given: dict[str, str]) -> list[Column]:
    """The conditions of the options for Spark's reader."""
    from pyspark.sql import functions as f

    terms = []
    for condition in options.where.conditions:
        column = f.col(condition.column)
        if condition.column == "topic":
            terms.append(_of_topics(column, _topics(given)))
        elif condition.how == "in":
            terms.append(column.isin(*condition.value))
        else:
            terms.append(_compared(column, condition))
    return terms


def _compared(column: Column, condition: Condition) -> Column:
    comparisons = {"<": column.__lt__, "<=": column.__le__, ">": column.__gt__, ">=": column.__ge__}
    return comparisons[condition.how](condition.value)


def _topics(given: dict[str, str]) -> list[str]:
    text = next(value for name, value in given.items() if name.lower() == "topic")
    return [part.strip() for part in text.split(",")]


def _of_topics(column: Column, filters: Sequence[str]) -> Column:
    """Equality for topics without wildcards, which the statistics of Parquet can exclude."""
    if not any("+" in topic or "#" in topic for topic in filters):
        return column.isin(*filters)
    pattern = "|".join(f"(?:{filter_pattern(topic)})" for topic in filters)
    return column.rlike(rf"(?s)\A(?:{pattern})\z")
