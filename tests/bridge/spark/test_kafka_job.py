"""Bronze from Kafka: the same rows as from files, each once, whatever a bridge sends again.

The rows of Spark's Kafka source are made here from records as the sink sends them; the job with the connector
and a broker is a test of its own.
"""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the spark extra: pip install 'brim[spark]'")
pytest.importorskip("pyspark", reason="needs the spark extra: pip install 'brim[spark]'")

from bridge.errors import SourceOptionError
from bridge.spark.columns import CORRUPT
from bridge.spark.jobs import kafka
from tests.support.drained_files import EPOCH, T0_NS, record, store, unit_of

pytestmark = [pytest.mark.java, pytest.mark.timeout(180)]

SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "timestampType int, headers array<struct<key: string, value: binary>>"
)


def sent(offset: int, partition: int) -> tuple[Any, ...]:
    """As bridge/sinks/kafka.py has it, and Spark's source shows it."""
    data = record(offset, str(offset).encode())
    flags = int.from_bytes(data[30:32], "little")
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


def batches(spark: Any, table: Path, *given: list[tuple[Any, ...]]) -> list[list[Any]]:
    found = []
    for number, rows in enumerate(given):
        frame = kafka.records(spark.createDataFrame(rows, SCHEMA))
        made = kafka.once(spark, frame, str(table), number).orderBy("offset").collect()
        again = kafka.once(spark, frame, str(table), number).orderBy("offset").collect()
        assert made == again  # as when a batch is run again
        found.append(made)
    return found


def test_rows_are_those_of_files_and_what_is_sent_again_is_left_out(spark: Any, tmp_path: Path) -> None:
    def partition(offset: int) -> int:
        return offset % 4 // 2

    first = [sent(it, partition(it)) for it in range(20)]
    # Sent again: part of the batch within it, and of the one before; one partition is ahead of the other.
    again = [sent(it, partition(it)) for it in (*range(15, 30), *range(25, 28))]
    behind = [sent(it, partition(it)) for it in range(18, 32)]
    foreign: tuple[Any, ...] = (b"k", b"v", "records", 0, 0, None, 0, [])
    ahead = [it for it in again if it[3] == 0]
    found = batches(spark, tmp_path / "table", first, [*ahead, foreign], behind)
    bad = [row for row in found[1] if row[CORRUPT]]
    assert [bytes(row["payload"]) for row in bad] == [b"v"]
    rows = [row for batch in found for row in batch if not row[CORRUPT]]
    store(tmp_path / "lake", unit_of(0, 31))
    files = spark.read.format("brim").load(str(tmp_path / "lake")).orderBy("offset").collect()
    assert [row[:-1] for row in sorted(rows, key=lambda row: row["offset"])] == [tuple(row) for row in files]


def test_without_the_connector_it_says_which_one_to_take(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(SourceOptionError) as caught:
        kafka.ingest(spark, "127.0.0.1:9092", "records", str(tmp_path / "table"))
    assert "spark-sql-kafka-0-10_2.13:4.3" in caught.value.hint
