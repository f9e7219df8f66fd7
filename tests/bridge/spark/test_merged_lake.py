"""Merged files in Spark, DuckDB, Polars, pandas and pyarrow: the same records before, during and after."""
# ruff: noqa: E402

import shutil
from collections.abc import Callable
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

from bridge.format.file_name import is_staged
from bridge.spark.jobs import gaps
from bridge.spark.lake import lake
from tests.support.mergeable_lakes import drained_files, make_lake, merger, stores

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

NEVER_S = 10**6
# Records in drained_files(), by partition and epoch; 20 more are there twice.
ONCE = 85 + 42 + 5 + 40
Step = tuple[str, dict[str, Any]]
STEPS: tuple[Step, ...] = (
    ("before", {}),
    ("staged", {"merge_keep_s": NEVER_S}),
    ("published", {}),
    ("after", {}),
)


def rows_of(frame: Any) -> list[str]:
    return sorted(map(str, frame.drop("day").collect()))


def of_duckdb(root: Path) -> tuple[int, int]:
    files = f"read_parquet('{root}/**/*.parquet', hive_partitioning = true)"
    with duckdb.connect() as connection:
        found: Any = connection.execute(f'select count(*), sum("offset") from {files}').fetchone()
    return int(found[0]), int(found[1])


def of_polars(root: Path) -> tuple[int, int]:
    rows = pl.scan_parquet(root / "**/*.parquet", hive_partitioning=True)
    found: Any = rows.select(pl.len(), pl.col("offset").sum()).collect().row(0)
    return int(found[0]), int(found[1])


def of_pandas(root: Path) -> tuple[int, int]:
    frame = pd.read_parquet(root)
    return len(frame), int(frame["offset"].sum())


def of_pyarrow(root: Path) -> tuple[int, int]:
    rows = dataset.dataset(root, partitioning="hive").to_table()
    return rows.num_rows, pc.sum(rows["offset"]).as_py()


def of_spark(spark: Any, root: Path) -> tuple[int, int]:
    found = spark.read.parquet(str(root)).selectExpr("count(*)", "sum(offset)").first()
    return int(found[0]), int(found[1])


def steps(root: Path, seen: Callable[[str], None]) -> None:
    """Call `seen` before, between and after the passes of a merger."""
    store = stores(root)
    for name, changes in STEPS:
        if name != "before":
            merger(root, store, **changes).run_pass()
        seen(name)
    store.close()
    assert len(list(root.rglob("*-e*"))) == 7


@pytest.mark.parametrize("form", ["brim", "parquet"])
def test_spark_reads_the_same_tables_and_gaps_reports_the_same(
    spark: Any, tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "lake"
    make_lake(root, form)
    results = []

    def look(name: str) -> None:
        source = spark.read.format("brim")
        gaps.main([str(root), "--json"])
        results.append(
            (
                rows_of(source.load(str(root))),
                rows_of(lake(spark, str(root))),
                rows_of(lake(spark, str(root), offsets="5-33", since="2023-11-14T22:13:20.010")),
                source.option("startingOffsets", '{"edge-1": 9}').load(str(root)).count(),
                rows_of(source.option("view", "files").load(str(root)).drop("path", "length")),
                capsys.readouterr().out,
            )
        )

    steps(root, look)
    assert all(result == results[0] for result in results)
    assert len(results[0][0]) == len(results[0][1]) == ONCE


def test_a_frame_that_was_planned_before_is_read_after_a_staged_file_is_there(
    spark: Any, tmp_path: Path
) -> None:
    root = tmp_path / "lake"
    make_lake(root, "parquet")
    store = stores(root)
    frames = [lake(spark, str(root))]
    merger(root, store, merge_keep_s=NEVER_S).run_pass()
    frames.append(lake(spark, str(root)))
    assert any(is_staged(file) for file in frames[1].inputFiles())
    assert [len(rows_of(frame)) for frame in frames] == [ONCE, ONCE]
    store.close()


@pytest.mark.parametrize("form", ["brim", "parquet"])
def test_a_stream_that_stands_in_the_middle_of_the_day_reads_the_rest_once(
    spark: Any, tmp_path: Path, form: str
) -> None:
    """Its first batches end within files that are merged later, at each of the steps."""
    root = tmp_path / "lake"
    make_lake(root, form)
    streams = {name: tmp_path / name for name, _ in STEPS}

    def stream(source: Path, place: Path, **options: str) -> None:
        """Tables of batches, so that a copy of the place is another stream at the same point."""
        frame = spark.readStream.format("brim").options(**options).load(str(source))
        writer = frame.writeStream.option("checkpointLocation", str(place / "state"))
        writer = writer.foreachBatch(lambda rows, number: rows.write.parquet(f"{place}/out/batch={number}"))
        assert writer.trigger(availableNow=True).start().awaitTermination(120)

    def read_on(name: str) -> int:
        stream(root, streams[name], maxFilesPerTrigger="3")
        return int(spark.read.parquet(str(streams[name] / "out")).count())

    files = drained_files()
    partial = tmp_path / "partial"
    make_lake(partial, form, files[:9])
    first = tmp_path / "first"
    stream(partial, first)  # the first nine files, and then the whole lake in the same place
    for place in streams.values():
        shutil.copytree(first, place)
    counts: dict[str, int] = {}
    steps(root, lambda name: counts.update({name: read_on(name)}))
    assert counts == dict.fromkeys(streams, ONCE)
    rows = [rows_of(spark.read.parquet(str(path / "out")).drop("batch")) for path in streams.values()]
    assert all(one == rows[0] for one in rows)


def test_other_engines_read_each_record_once_at_each_step(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "lake"
    make_lake(root, "parquet")
    expected = of_duckdb(root)
    assert expected[0] == ONCE + 20  # 20 records were drained twice

    def look(name: str) -> None:
        found = [read(root) for read in (of_duckdb, of_polars, of_pandas, of_pyarrow)]
        assert [*found, of_spark(spark, root)] == [expected] * 5, name

    steps(root, look)
