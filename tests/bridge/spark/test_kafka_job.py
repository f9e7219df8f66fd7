"""Bronze from Kafka: the same rows as from files, each once, whatever a bridge sends again.

The rows of Spark's Kafka source are made here from records as the sink sends them; the job with the connector
and a broker is a test of its own.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the spark extra: pip install 'brim[spark]'")
pytest.importorskip("pyspark", reason="needs the spark extra: pip install 'brim[spark]'")

from pyspark.sql import functions as f

from bridge.arrow.schema import CORRUPT
from bridge.errors import SourceOptionError
from bridge.format.file_builder import DrainedFile
from bridge.rangeset import subtract
from bridge.spark.jobs import bronze, kafka
from ringbuf.record import RecordHeader
from tests.support.drained_files import EPOCH, T0_NS, drained_file_of, record, store

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

Form = Callable[[Any], Any]

SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "timestampType int, headers array<struct<key: string, value: binary>>"
)


def sent(offset: int, partition: int) -> tuple[Any, ...]:
    """As bridge/sinks/kafka.py has it, and Spark's source shows it."""
    data = record(offset, str(offset).encode())
    flags = RecordHeader.of(data).flags
    headers = [("brim-source", f"edge-1/default/0/{EPOCH}".encode())]
    headers.append(("brim-record", f"{offset} {T0_NS + offset * 1_000_000} {flags}".encode()))
    if offset % 7 == 0:
        headers.append(("mqtt-properties", b"\x03\x01\x01\x02"))
    return (
        f"plant/{offset % 4}/temp".encode(),
        str(offset).encode(),
        "records",
        partition,
        0,
        None,
        0,
        headers,
    )


def batches(
    spark: Any, table: Path, form: Form, *given: list[tuple[Any, ...]], runs: int = 1
) -> list[list[Any]]:
    """Rows that each batch adds to the table, which is written as the job writes it."""
    found = []
    for number, rows in enumerate(given):
        frame = form(spark.createDataFrame(rows, SCHEMA))
        for run in range(runs):  # more than one: killed after it has been written
            target = bronze.TableTarget(str(table), "", f"{table}.state", None, f"{number}{run}")
            made = kafka.once(spark, frame, target, number)
            added = made.orderBy("offset").collect()
            good = made.where(f.col(CORRUPT).isNull()).drop(CORRUPT)
            good.write.mode("overwrite").parquet(f"{table}/batch={number:09d}")
        found.append(added)
    return found


def expect_the_table_of_files(
    spark: Any, found: list[list[Any]], *drained_files: DrainedFile, root: Path
) -> None:
    rows = [tuple(row)[:-1] for batch in found for row in batch if not row[CORRUPT]]
    store(root, *drained_files)
    files = spark.read.format("brim").load(str(root)).collect()
    offset = list(files[0].asDict()).index("offset")
    assert sorted(rows, key=lambda row: row[offset]) == sorted(map(tuple, files), key=lambda row: row[offset])


def test_rows_are_those_of_files_and_what_is_sent_again_is_left_out(spark: Any, tmp_path: Path) -> None:
    def partition(offset: int) -> int:
        return offset % 4 // 2

    first = [sent(it, partition(it)) for it in range(20)]
    # Sent again: part of the batch within it, and of the one before; one partition is ahead of the other.
    again = [sent(it, partition(it)) for it in (*range(15, 30), *range(25, 28))]
    behind = [sent(it, partition(it)) for it in range(18, 32)]
    foreign: tuple[Any, ...] = (b"k", b"v", "records", 0, 0, None, 0, [])
    ahead = [it for it in again if it[3] == 0]
    found = batches(spark, tmp_path / "table", kafka.records, first, [*ahead, foreign], behind, runs=2)
    bad = [row for row in found[1] if row[CORRUPT]]
    assert [bytes(row["payload"]) for row in bad] == [b"v"]
    expect_the_table_of_files(spark, found, drained_file_of(0, 31), root=tmp_path / "lake")


def test_what_came_in_before_what_had_waited_hides_none_of_it(spark: Any, tmp_path: Path) -> None:
    """A bridge drains live data before a backlog, so higher offsets come first; and a filter leaves holes."""
    order = [
        [*range(0, 8, 2), *range(100, 108, 2)],
        [*range(8, 40, 2), *range(108, 112, 2)],
        [*range(36, 100, 2), *range(104, 120, 2)],
    ]
    given = [[sent(it, 0) for it in them] for them in order]
    found = batches(spark, tmp_path / "table", kafka.records, *given)
    assert [row["offset"] for batch in found for row in batch] == [
        *(*range(0, 8, 2), *range(100, 108, 2)),
        *(*range(8, 40, 2), *range(108, 112, 2)),
        *(*range(40, 100, 2), *range(112, 120, 2)),
    ]


def test_places_that_are_remembered_stay_few_and_cover_all_that_came() -> None:
    ranges = [(at, at + 1) for at in range(0, 4000, 4)]
    few = kafka.few(ranges)
    assert len(few) == kafka.RANGES_MAX
    assert subtract(ranges, few) == []
    assert (few[0][0], few[-1][1]) == (0, 3997)


def test_without_the_connector_it_says_which_one_to_take(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(SourceOptionError) as caught:
        kafka.ingest(spark, "127.0.0.1:9092", "records", str(tmp_path / "table"))
    assert "spark-sql-kafka-0-10_2.13:4.3" in caught.value.hint
