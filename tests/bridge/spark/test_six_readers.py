"""The same records by Spark, DuckDB, Polars, pandas, PyIceberg and deltalake, from files and from tables.

Each reader counts the records, and adds offsets and the lengths of payloads (of a typed table: a field).
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the spark extra: pip install 'brim[spark]'")
pytest.importorskip("deltalake", reason="needs the delta extra: pip install 'brim[delta]'")
pytest.importorskip("pyiceberg", reason="needs the iceberg extra: pip install 'brim[iceberg]'")

import deltalake
import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyspark.sql import functions as f

from bridge.sinks.registry import open_file_sink
from bridge.spark.jobs import bronze, silver
from bridge.spark.tables import FORMATS, read_table
from tests.support.drained_files import drained_file_of
from tests.support.open_tables import delta_of, iceberg_of, with_catalog

pytestmark = [pytest.mark.java, pytest.mark.timeout(580)]

FILES = 4
SCHEMA = '[[payload]]\ntopic = "#"\nformat = "json"\nfields = { temp = "double" }\n'
Sums = tuple[int, int, float]


def payload(offset: int) -> bytes:
    return json.dumps({"temp": offset % 1000 / 4}).encode()


def of_arrow(table: Any) -> Sums:
    if "payload" in table.schema.names:
        third = pc.sum(pc.binary_length(table["payload"]))
    else:
        third = pc.sum(table["temp"])
    return table.num_rows, pc.sum(table["offset"]).as_py(), float(third.as_py())


def of_pandas(frame: Any) -> Sums:
    third = frame["payload"].map(len) if "payload" in frame else frame["temp"]
    return len(frame), int(frame["offset"].sum()), float(third.sum())


def of_polars(frame: Any) -> Sums:
    names = frame.collect_schema().names()
    third = pl.col("payload").bin.size() if "payload" in names else pl.col("temp")
    sums = frame.select(pl.len(), pl.col("offset").sum(), third.sum().alias("third"))
    count, offsets, value = sums.collect().row(0)
    return count, offsets, float(value)


def of_duckdb(connection: Any, relation: str, *, typed: bool) -> Sums:
    third = "temp" if typed else "octet_length(payload)"
    row = connection.execute(f'SELECT count(*), sum("offset"), sum({third}) FROM {relation}').fetchone()
    return int(row[0]), int(row[1]), float(row[2])


def of_spark(frame: Any) -> Sums:
    third = f.octet_length("payload") if "payload" in frame.columns else f.col("temp")
    row = frame.agg(f.count("*"), f.sum("offset"), f.sum(third)).first()
    return row[0], row[1], float(row[2])


def from_files(spark: Any, root: Path, tmp_path: Path, *, typed: bool) -> dict[str, Sums]:
    """Plain Parquet files. PyIceberg and deltalake register them where they are."""
    pattern = f"{root}/**/*.parquet"
    files = sorted(root.rglob("*.parquet"))
    registered = registered_in_iceberg(files, tmp_path / f"{root.name}-catalog")
    return {
        "Spark": of_spark(spark.read.parquet(str(root))),
        "DuckDB": of_duckdb(duckdb.connect(), f"read_parquet('{pattern}')", typed=typed),
        "Polars": of_polars(pl.scan_parquet(pattern, hive_partitioning=False)),
        "pandas": of_pandas(pd.read_parquet(root)),
        "PyIceberg": of_arrow(registered.scan().to_arrow()),
        "deltalake": of_arrow(registered_in_delta(files, tmp_path / f"{root.name}-delta").to_pyarrow_table()),
    }


def registered_in_iceberg(files: list[Path], place: Path) -> Any:
    from pyiceberg.catalog import load_catalog

    place.mkdir()
    catalog = load_catalog("other", uri=f"sqlite:///{place}/catalog.db", warehouse=f"file://{place}")
    catalog.create_namespace("other")
    table = catalog.create_table("other.files", ds.dataset(files[0]).schema)
    table.add_files([f"file://{path}" for path in files])
    return with_catalog(table, catalog)


def registered_in_delta(files: list[Path], place: Path) -> Any:
    place.mkdir()
    for number, path in enumerate(files):
        (place / f"{number}.parquet").hardlink_to(path)
    deltalake.convert_to_deltalake(place)
    return deltalake.DeltaTable(place)


def from_delta(spark: Any, table: Path, *, typed: bool) -> dict[str, Sums]:
    log, connection = delta_of(table), duckdb.connect()
    connection.register("rows", log.to_pyarrow_dataset())
    return {
        "Spark": of_spark(read_table(spark, str(table))),
        "DuckDB": of_duckdb(connection, "rows", typed=typed),
        "Polars": of_polars(pl.scan_delta(str(table))),
        "pandas": of_pandas(log.to_pandas()),
        "deltalake": of_arrow(log.to_pyarrow_table()),
    }


def from_iceberg(spark: Any, table: Path, *, typed: bool) -> dict[str, Sums]:
    log = iceberg_of(table)
    return {
        "Spark": of_spark(read_table(spark, str(table))),
        "DuckDB": of_duckdb(log.scan().to_duckdb("rows"), "rows", typed=typed),
        "Polars": of_polars(pl.scan_iceberg(log)),
        "pandas": of_pandas(log.scan().to_pandas()),
        "PyIceberg": of_arrow(log.scan().to_arrow()),
    }


READERS: dict[str, Callable[..., dict[str, Sums]]] = {"delta": from_delta, "iceberg": from_iceberg}


ALL = [(job, form) for job in (bronze, silver) for form in FORMATS]


@pytest.mark.parametrize(
    ("records", "tables"),
    [
        pytest.param(400, [(bronze, "delta"), (silver, "iceberg")], id="small"),
        pytest.param(1_000_000, ALL, id="million", marks=pytest.mark.campaign),
    ],
)
def test_all_engines_read_the_same_records_from_files_and_tables(
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    records: int,
    tables: list[tuple[Any, str]],
) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    lake, schema = tmp_path / "lake", tmp_path / "payloads.toml"
    schema.write_text(SCHEMA)
    drain(lake, records)
    offsets = records * (records - 1) // 2
    raw = records, offsets, float(sum(len(payload(offset)) for offset in range(records)))
    typed = records, offsets, sum(offset % 1000 / 4 for offset in range(records))
    assert set(from_files(spark, lake, tmp_path, typed=False).values()) == {raw}
    for job, form in tables:
        table = tmp_path / f"{job.__name__}-{form}"
        more = [] if job is bronze else ["--payloads", str(schema)]
        assert job.main([str(lake), "--to", str(table), f"--format={form}", *more]) == 0
        if form == "parquet":
            found = from_files(spark, table, tmp_path, typed=job is silver)
        else:
            found = READERS[form](spark, table, typed=job is silver)
        assert set(found.values()) == {typed if job is silver else raw}, (table.name, found)


def drain(lake: Path, records: int) -> None:
    """FILES Parquet files, as a bridge writes them."""
    sink, step = open_file_sink(f"file://{lake}", {"format": "parquet"}), records // FILES
    sink.begin("edge-1")
    for number in range(FILES):
        last = (number + 1) * step - 1
        sink.put(drained_file_of(number * step, last, drain_seq=number + 1, payload=payload))
    sink.close()


def test_the_sums_would_show_a_record_that_is_missing_or_twice() -> None:
    table = pa.table({"offset": [1, 2], "payload": [b"a", b"bc"]})
    assert of_arrow(table) == (2, 3, 3.0)
    assert of_arrow(pa.concat_tables([table, table.slice(1)])) != of_arrow(table) != of_arrow(table.slice(1))
