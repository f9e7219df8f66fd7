"""State of a job at the end of each batch, for its next batch: small tables of one file each.

    TABLE.state/NAME/batch=000000012/run-019ab3c4d5e6f7a8b/part-*.parquet

Each run of a job writes to a directory of its own. With one directory for all, a run that was cut off and is
killed while it replaces the state would leave an empty directory: no open minutes, without an error. The last
run that has written the file of a batch is read. If two jobs run at the same time, both write equal rows,
because a batch of a job is a function of its records, the state before and the time that Spark has noted for
the batch. So any of them is right.

An earlier version wrote the file to the directory of the batch; it is read if no run of this version has
written that batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.errors import TableUnreachable
from bridge.spark.table_layout import write_files
from bridge.spark.table_places import directory_of, forget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEPT = 3  # batches


def state_before(spark: SparkSession, directory: str, batch: int, schema: str) -> DataFrame:
    """Rows of the state before a batch. Raises TableUnreachable: they are not there."""
    if batch == 0:
        return spark.createDataFrame([], schema)
    place = f"{directory}/{directory_of(batch - 1)}"
    reader = spark.read.schema(schema)
    files = reader.option("recursiveFileLookup", "true").parquet(place).inputFiles()
    if not files:
        raise TableUnreachable(
            f"{place} has no state of the job", hint="write another table, from all records"
        )
    run = max(
        (name for name in (file.split("/")[-2] for file in files) if name.startswith("run-")), default=""
    )
    return spark.read.schema(schema).parquet(f"{place}/{run}")


def write_state(frame: DataFrame, directory: str, batch: int, attempt: str) -> str:
    """Write the state at the end of a batch, and return its place. Deletes that of an earlier batch."""
    place = f"{directory}/{directory_of(batch)}/run-{attempt}"
    write_files(frame.coalesce(1), place, by_day=False)
    forget(directory, directory_of(batch - KEPT))
    return place
