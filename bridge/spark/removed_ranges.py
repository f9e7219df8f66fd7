"""Removed ranges: offsets of records that --retain-days has removed from a table.

They are declared, so that `brim spark gaps` does not report them as missing.

    TABLE.state/removed.json    [{"edge", "stream", "partition", "epoch", "ranges": [[first, last]]}]

A range is declared before its records are deleted: a run that is killed in between declares too much, which
changes nothing while the records are in the table. Ranges of one epoch are dense, so the file stays small.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from datetime import date
from typing import TYPE_CHECKING

from pyarrow import fs

from bridge.errors import BridgeError
from bridge.rangeset import Ranges, union
from bridge.spark.completeness import EpochKey
from bridge.spark.table_layout import date_of
from bridge.spark.table_places import checked_state, opened

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FILE = "removed.json"


def declare_removed(frame: DataFrame, table: str, day: date) -> bool:
    """Declare the records of a table that belong to days before `day`. False if there are none."""
    if "offset" not in frame.columns:  # a table of windows has rows without an offset
        return True
    from pyspark.sql import functions as f

    _, removed = islands(frame.where(date_of(frame.columns) < f.lit(day)))
    if not removed:
        return False
    known = removed_ranges(table)
    for epoch, ranges in removed.items():
        known[epoch] = union([*known.get(epoch, []), *ranges])
    _write(table, known)
    return True


def removed_ranges(table: str) -> dict[EpochKey, Ranges]:
    """The declared ranges of a table. Raises BridgeError: the declaration cannot be read."""
    filesystem, state = opened(checked_state(table))
    path = f"{state}/{FILE}"
    if filesystem.get_file_info(path).type == fs.FileType.NotFound:
        return {}
    try:
        with filesystem.open_input_stream(path) as file:
            rows = json.loads(file.read())
        return {
            EpochKey(row["edge"], row["stream"], row["partition"], row["epoch"]): union(
                (int(first), int(last)) for first, last in row["ranges"]
            )
            for row in rows
        }
    except (ValueError, KeyError, TypeError) as error:
        hint = "remove it: what --retain-days has removed is then reported as missing"
        raise BridgeError(f"{path} is damaged: {error}", hint=hint) from error


def _write(table: str, known: Mapping[EpochKey, Ranges]) -> None:
    filesystem, state = opened(checked_state(table))
    filesystem.create_dir(state)
    rows = [{**epoch._asdict(), "ranges": ranges} for epoch, ranges in sorted(known.items())]
    with filesystem.open_output_stream(f"{state}/{FILE}.new") as file:
        file.write(json.dumps(rows).encode())
    filesystem.move(f"{state}/{FILE}.new", f"{state}/{FILE}")


def islands(frame: DataFrame) -> tuple[dict[EpochKey, int], dict[EpochKey, Ranges]]:
    """Rows, and contiguous ranges of different offsets, by epoch. Only ranges are sent to the driver."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    keys = ["edge", "stream", "partition", "epoch"]
    offsets = frame.groupBy(*keys, "offset").agg(f.count("*").alias("rows"))
    number = f.row_number().over(Window.partitionBy(*keys).orderBy("offset"))
    ranges = (
        offsets.withColumn("island", f.col("offset") - number)
        .groupBy(*keys, "island")
        .agg(f.min("offset").alias("first"), f.max("offset").alias("last"), f.sum("rows").alias("rows"))
    )
    rows: dict[EpochKey, int] = defaultdict(int)
    found: dict[EpochKey, Ranges] = defaultdict(list)
    for row in ranges.collect():
        epoch = EpochKey(row["edge"], row["stream"], row["partition"], row["epoch"])
        rows[epoch] += row["rows"]
        found[epoch].append((row["first"], row["last"]))
    return rows, {epoch: union(ranges) for epoch, ranges in found.items()}
