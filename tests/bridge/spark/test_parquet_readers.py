"""The Parquet files of a bridge, read by the tools of other projects."""
# ruff: noqa: E402

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the spark extra: pip install 'brim[spark]'")
for tool in ("duckdb", "pandas", "polars"):
    pytest.importorskip(tool, reason="needs the group of packages for tests")

import duckdb
import pandas as pd
import polars as pl
import pyarrow.compute as pc
from pyarrow import dataset

from bridge.sinks.registry import open_file_sink
from tests.support.drained_files import drained_file_of

pytestmark = pytest.mark.java

TOPIC = "plant/1/temp"

Sums = tuple[int, ...]


def of_pyarrow(lake: Path) -> Sums:
    rows = dataset.dataset(lake, partitioning="hive").to_table(filter=pc.field("topic") == TOPIC)
    lengths = pc.sum(pc.binary_length(rows["payload"])).as_py()
    return rows.num_rows, pc.sum(rows["offset"]).as_py(), lengths


def of_duckdb(lake: Path) -> Sums:
    files = f"read_parquet('{lake}/**/*.parquet', hive_partitioning = true)"
    asked = f'select count(*), sum("offset"), sum(octet_length(payload)) from {files} where topic = ?'
    with duckdb.connect() as connection:
        found: Any = connection.execute(asked, [TOPIC]).fetchone()
    return tuple(map(int, found))


def of_polars(lake: Path) -> Sums:
    rows = pl.scan_parquet(lake / "**/*.parquet", hive_partitioning=True).filter(pl.col("topic") == TOPIC)
    lengths = pl.col("payload").bin.size().sum().alias("lengths")
    found: Any = rows.select(pl.len(), pl.col("offset").sum(), lengths).collect().row(0)
    return tuple(map(int, found))


def of_pandas(lake: Path) -> Sums:
    frame = pd.read_parquet(lake)
    rows = frame[frame["topic"] == TOPIC]
    return len(rows), int(rows["offset"].sum()), int(rows["payload"].map(len).sum())


def of_spark(spark: Any, lake: Path) -> Sums:
    rows = spark.read.parquet(str(lake)).where(f"topic = '{TOPIC}'")
    return tuple(map(int, rows.selectExpr("count(*)", "sum(offset)", "sum(octet_length(payload))").first()))


def of_brim(spark: Any, lake: Path) -> Sums:
    rows = spark.read.format("brim").option("topic", TOPIC).load(str(lake))
    return tuple(map(int, rows.selectExpr("count(*)", "sum(offset)", "sum(octet_length(payload))").first()))


def test_five_tools_and_the_source_read_equal_counts_and_sums_of_the_parquet_files_of_a_bridge(
    spark: Any, tmp_path: Path
) -> None:
    sink = open_file_sink(tmp_path.as_uri(), {"format": "parquet"})
    sink.put(drained_file_of(0, 999, edge="press"))
    sink.put(drained_file_of(1005, 1499, drain_seq=2, edge="press", lost=((1000, 1004),)))
    sink.put(drained_file_of(0, 99, edge="lathe"))
    sink.close()
    chosen = [at for rows in (range(1000), range(1005, 1500), range(100)) for at in rows if at % 4 == 1]
    wanted = len(chosen), sum(chosen), sum(len(str(at)) for at in chosen)
    assert of_pyarrow(tmp_path) == wanted
    assert of_duckdb(tmp_path) == wanted
    assert of_polars(tmp_path) == wanted
    assert of_pandas(tmp_path) == wanted
    assert of_spark(spark, tmp_path) == wanted
    assert of_brim(spark, tmp_path) == wanted
