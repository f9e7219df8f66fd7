"""Plan of a query by its options: the files of a table, or the end of a batch of a stream, and the tasks.

Owns the choice of files for batch queries, in the data source and in lake(), and the options of both kinds of
query; micro_batch.py and task_planning.py have the rules, without options. Uses only names of files.

Invariant: for equal options and equal `ending` the plan of lake() and that of the data source agree.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxFiles

from bridge.errors import SourceOptionError
from bridge.format.file_name import is_parquet
from bridge.rangeset import Ranges
from bridge.spark.landing_zone import Landing, StoredFile, matches, name_of
from bridge.spark.merged_files import cut, divided, table_end
from bridge.spark.micro_batch import Progress, advance, between
from bridge.spark.options import SourceOptions
from bridge.spark.task_planning import FileTask, PartitionKey, clipped, tasks_of
from bridge.spark.unknown_names import refuse_unknown


class TablePlan(NamedTuple):
    """Files of a batch query."""

    present: list[StoredFile]  # of the wanted edges
    end: Progress  # the last drain_seq of each edge that is read
    tasks: list[FileTask]
    parquet: list[FileTask]  # whole Parquet files, which need no other reader than Spark's own


def table_plan(options: SourceOptions) -> TablePlan:
    """The plan for the present files. Raises SourceOptionError, FilesMissing."""
    landing = Landing(options.path)
    present = landing.with_footers(landing.names(options.edges))
    refuse_unknown(options, present)
    start = options.starting if isinstance(options.starting, dict) else {}
    if options.starting == "latest":
        raise SourceOptionError("startingOffsets is latest, which leaves nothing to a table")
    present = cut(divided(present), start)
    end = table_end(start, present, _young_from_s(options))
    end = {edge: min(number, options.ending.get(edge, number)) for edge, number in end.items()}
    present = cut(present, end)
    chosen = between(start, end, present, dense=False)  # table_end() has checked the drain_seqs
    tasks, parquet = tasks_for(options, chosen, present)
    return TablePlan(present, end, tasks, parquet)


def tasks_for(
    options: SourceOptions,
    new_files: list[StoredFile],
    every: list[StoredFile],
    read_before: Mapping[PartitionKey, Ranges] = MappingProxyType({}),
) -> tuple[list[FileTask], list[FileTask]]:
    """The tasks for the chosen files, and those for Spark's own reader if option parquet is "skip".

    The files are of `every`, or behind files with the ranges `read_before`.
    """
    where = options.where
    wanted = [
        file
        for file in new_files
        if matches(file.name.stream, options.streams)
        and where.may_be_in(file.merged.name if file.merged else file.name)
    ]
    tasks = tasks_of(wanted, every, read_before)
    parquet = [task for task in tasks if _is_whole_parquet(task)] if options.parquet == "skip" else []
    others = set(tasks) - set(parquet)
    return clipped([task for task in tasks if task in others], *where.offsets), parquet


def _is_whole_parquet(task: FileTask) -> bool:
    """True if Spark's own reader may read the file: no file before it has a record of it."""
    if not is_parquet(task.path):
        return False
    name = name_of(task.path)
    return name is not None and task.ranges == ((name.first_offset, name.last_offset),)


def reached(
    options: SourceOptions,
    start: Progress,
    files: list[StoredFile],
    limit: ReadLimit,
) -> Progress:
    """End of a batch of a stream from `start`."""
    return advance(
        start,
        files,
        files_max=limit.max_files if isinstance(limit, ReadMaxFiles) else None,
        bytes_max=limit.max_bytes if isinstance(limit, ReadMaxBytes) else None,
        younger_than_s=_young_from_s(options),
        stream=True,
    )


def _young_from_s(options: SourceOptions) -> float | None:
    """Time of change from which on a file is young: files with lower drain_seqs may still be in flight.

    None: missing files are passed over.
    """
    return time.time() - options.missing_grace_s if options.fail_on_data_loss else None
