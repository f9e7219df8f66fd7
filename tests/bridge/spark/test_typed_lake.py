"""Files with typed columns in Spark: lake() has the columns of records, Spark's own reader has the fields."""

import json
from contextlib import closing
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the spark extra: pip install 'brim[spark]'")

from bridge.sinks.interface import Decoding
from bridge.sinks.registry import open_file_sink
from bridge.spark.lake import lake
from tests.support.drained_files import drained_file_of

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

FIELDS = """
[[payload]]
topic = "plant/#"
format = "json"
[payload.fields]
line = { level = 2, type = "int" }
temp = "TYPE"
ratio = "float"
at = { type = "timestamp", unit = "s" }
samples = "array<long>"
limits = "map<string,double>"
"""
PAYLOAD = json.dumps(
    {"temp": 21, "ratio": 0.25, "at": 1_700_000_000, "samples": [1, None], "limits": {"a": 1}}
)
ROW = (2, 21, 0.25, "2023-11-14 22:13:20", [1, None], {"a": 1.0})


def store_typed(root: Path, first: int, last: int, drain_seq: int, kind: str) -> Path:
    schema = root.parent / f"{kind}.toml"
    schema.write_text(FIELDS.replace("TYPE", kind))
    with closing(open_file_sink(root.as_uri(), {"format": "parquet", "payloads": str(schema)})) as sink:
        assert isinstance(sink, Decoding)
        file = drained_file_of(first, last, drain_seq=drain_seq, payload=lambda _: PAYLOAD.encode())
        sink.put(replace(file, payloads=sink.schema[0]))
    return schema


def values(row: Any) -> tuple[Any, ...]:
    when = row["at"].astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    return (row["line"], row["temp"], row["ratio"], when, row["samples"], row["limits"])


def test_a_lake_of_typed_files_has_the_records_and_spark_reads_the_fields(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "lake"
    store_typed(root, 0, 4, 1, "int")
    schema = store_typed(root, 5, 9, 2, "long")
    frame = lake(spark, str(root))
    assert [row["offset"] for row in frame.sort("offset").collect()] == list(range(10))
    assert {bytes(row["payload"]) for row in frame.collect()} == {PAYLOAD.encode()}
    assert "temp" not in frame.columns
    own = (
        "offset long, line int, temp long, ratio float, at timestamp, "
        "samples array<long>, limits map<string,double>"
    )
    files = spark.read.schema(own).option("recursiveFileLookup", "true").parquet(str(root))
    assert values(files.where("offset = 2").first()) == ROW
    assert files.where("temp = 21").count() == 10
    decoded = lake(spark, str(root), payloads=str(schema))
    assert values(decoded.where("offset = 6").first()) == ROW
    assert decoded.where("_undecoded is not null").count() == 0
    assert dict(decoded.dtypes)["limits"] == "map<string,double>"
