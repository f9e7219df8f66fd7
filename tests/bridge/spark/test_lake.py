"""lake() in a real Spark: native and Parquet files as one DataFrame, each record once."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the spark extra: pip install 'brim[spark]'")

from pyspark.errors import AnalysisException

from bridge.errors import SourceOptionError
from bridge.spark.jobs import gaps
from bridge.spark.lake import lake
from bridge.spark.options import SQL_VIEW
from tests.support.drained_files import EPOCH, drained_file_of, store, store_parquet

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

DAY_NS = 86_400 * 10**9
CREATED_NS = 1_700_000_123_456_789_000


def offsets(frame: Any) -> list[int]:
    return sorted(row["offset"] for row in frame.select("offset").collect())


def plan_of(frame: Any) -> str:
    return str(frame._jdf.queryExecution().toString())


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Native 0..9 and 20..29; Parquet 10..19 of the same day, 30..39 of the next; edge 007 in Parquet."""
    root = tmp_path / "lake [1]"
    store(root, drained_file_of(0, 9), drained_file_of(20, 29, drain_seq=3))
    store_parquet(
        root,
        drained_file_of(10, 19, drain_seq=2),
        drained_file_of(30, 39, drain_seq=4, created_ns=CREATED_NS + DAY_NS),
        drained_file_of(100, 104, edge="007"),
    )
    return root


def test_both_kinds_are_one_frame_with_the_columns_of_the_source(spark: Any, mixed: Path) -> None:
    frame, source = lake(spark, str(mixed)), spark.read.format("brim").load(str(mixed))
    assert frame.dtypes == source.dtypes
    assert sorted(map(str, frame.collect())) == sorted(map(str, source.collect()))
    assert frame.where("edge = '007'").count() == 5
    assert {row["epoch"] for row in frame.select("epoch").distinct().collect()} == {EPOCH}


def test_a_lake_of_parquet_files_is_read_without_python(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "lake"
    store_parquet(root, drained_file_of(0, 9), drained_file_of(0, 4, edge="e2"))
    frame = lake(spark, str(root)).where("edge = 'e2' AND topic = 'plant/1/temp'").select("payload")
    plan = plan_of(frame)
    assert "python" not in plan.lower()
    assert "PartitionFilters: [isnotnull(edge" in plan
    assert "EqualTo(topic,plant/1/temp)" in plan
    assert [bytes(row["payload"]) for row in frame.collect()] == [b"1"]


def test_a_count_of_parquet_files_reads_no_column_and_gaps_counts_both_kinds(
    spark: Any, mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "parquet"
    store_parquet(root, drained_file_of(0, 9), drained_file_of(0, 4, edge="e2"))
    counted = lake(spark, str(root)).groupBy().count()
    assert "ReadSchema: struct<>" in plan_of(counted)
    assert counted.collect()[0][0] == 15
    gaps.main([str(mixed), "--json"])
    assert json.loads(capsys.readouterr().out)["records"] == lake(spark, str(mixed)).count() == 45


def test_conditions_of_the_source_hold_for_both_kinds(spark: Any, mixed: Path) -> None:
    def read(**options: Any) -> list[int]:
        return offsets(lake(spark, str(mixed), edge="edge-1", **options))

    assert read(topic="plant/1/temp") == list(range(1, 40, 4))
    assert read(topic="plant/+/temp, other") == list(range(40))
    assert read(topic="plant/1/#") == list(range(1, 40, 4))
    assert read(offsets="8-12") == [8, 9, 10, 11, 12]
    assert read(since="2023-11-14T22:13:20.015", until="2023-11-14T22:13:20.032") == list(range(15, 32))
    assert read(partition="1") == []
    since = datetime(2023, 11, 14, 22, 13, 20, 15_000, tzinfo=UTC)
    assert offsets(lake(spark, str(mixed), edge="edge-1").where(f"timestamp >= '{since}'")) == [
        *range(15, 40)
    ]


def test_only_the_named_columns_are_there_in_their_order(spark: Any, mixed: Path) -> None:
    frame = lake(spark, str(mixed), columns="payload, offset", topic="plant/1/temp", edge="edge-1")
    assert frame.columns == ["payload", "offset"]
    assert sorted(bytes(row["payload"]) for row in frame.collect()) == sorted(
        b"%d" % n for n in range(1, 40, 4)
    )
    with pytest.raises(SourceOptionError, match="no column 'paylod'"):
        lake(spark, str(mixed), columns=["paylod"])


def test_records_that_an_earlier_file_has_are_read_once(spark: Any, tmp_path: Path) -> None:
    """A restored edge drains offsets 5 to 9 again, in Parquet; the second file is Spark's own."""
    root = tmp_path / "lake"
    store(root, drained_file_of(0, 9))
    store_parquet(root, drained_file_of(5, 14, drain_seq=2), drained_file_of(15, 19, drain_seq=3))
    assert offsets(lake(spark, str(root))) == list(range(20))


def test_files_of_others_in_the_directories_are_not_read(spark: Any, mixed: Path) -> None:
    [day] = (mixed / "edge=007").glob("dt=*")
    [file] = day.glob("*.parquet")
    (day / "copy.parquet").write_bytes(file.read_bytes())
    assert offsets(lake(spark, str(mixed), edge="007")) == [100, 101, 102, 103, 104]


def test_a_stream_reads_both_kinds_once(spark: Any, mixed: Path, tmp_path: Path) -> None:
    stream = lake(spark, str(mixed), streaming=True, edge="edge-1", columns="offset")
    writer = stream.writeStream.format("memory").queryName("lake_stream")
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(
        availableNow=True
    ).start().awaitTermination()
    assert offsets(spark.table("lake_stream")) == list(range(40))


def test_the_log_line_names_what_each_reader_reads(
    spark: Any, mixed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "brim.spark")
    lake(spark, str(mixed), offsets="0-12", edge="edge-1")
    [record] = caplog.records
    assert record.getMessage().endswith("2 of 4 files: 1 by Spark's Parquet reader, 1 by format(brim)")


def test_sql_reads_a_view_and_a_statement_that_cannot_work_names_it(spark: Any, mixed: Path) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW of_sql USING brim OPTIONS (path '{mixed}', edge 'edge-1')")
    assert spark.sql("SELECT count(*) FROM of_sql").collect()[0][0] == 40
    spark.catalog.dropTempView("of_sql")
    view = f"write {re.escape(SQL_VIEW)}"
    for place in (f"OPTIONS (path '{mixed}')", f"LOCATION '{mixed}'", ""):
        with pytest.raises(
            AnalysisException,
            match=rf"SourceOptionError: CREATE TABLE \.\.\. USING brim is not possible\n{view}",
        ):
            spark.sql(f"CREATE TABLE of_sql USING brim {place}")
    spark.sql(SQL_VIEW.replace("/srv/lake", str(mixed)))
    assert spark.sql("SELECT count(*) FROM name WHERE edge = 'edge-1'").collect()[0][0] == 40
    spark.catalog.dropTempView("name")
    with pytest.raises(
        AnalysisException, match="Unsupported data source type for direct query on files: brim"
    ):
        spark.sql(f"SELECT * FROM brim.`{mixed}`")
