"""Imports and memory of a reader in a Spark worker, measured in a separate process without Spark."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the spark extra: pip install 'brim[spark]'")

from pyspark.sql.types import StructType

from bridge.spark.data_source import BrimDataSource
from bridge.spark.landing_zone import Landing
from tests.support.drained_files import drained_file_of, store

CODE = """
import gc, sys
from pyspark.sql.types import StructType
from bridge.spark.data_source import BrimDataSource

schema = StructType()
for name, kind in (("edge", "string"), ("partition", "integer"), ("offset", "long"), ("payload", "binary")):
    schema = schema.add(name, kind)
reader = BrimDataSource({"path": sys.argv[1]}).reader(schema)
(task,) = reader.partitions()
for _ in range(2):
    rows = sum(batch.num_rows for batch in reader.read(task))
print(rows, "pandas" in sys.modules, gc.get_freeze_count() > 10_000)
"""


def test_a_worker_imports_no_pandas_and_is_not_looked_through_after_each_task(tmp_path: Path) -> None:
    """Either would cost every short query, or every task, more than its records do."""
    store(tmp_path, drained_file_of(0, 99))
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("100 False True\n", "")


DAY = 24 * 3600 * 1000  # records of a day: tests' records are a millisecond apart


@pytest.mark.parametrize(
    ("option", "wanted"), [({"until": "2023-11-15"}, "0"), ({"since": "2023-11-19"}, str(6 * DAY))], ids=str
)
def test_files_of_other_times_are_not_read_but_for_their_footers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: dict[str, str], wanted: str
) -> None:
    """2023-11-14 and the 20th, both drained later."""
    late_ns = 1_700_900_000 * 10**9
    store(
        tmp_path,
        drained_file_of(0, 9, created_ns=late_ns),
        drained_file_of(6 * DAY, 6 * DAY + 9, drain_seq=2, created_ns=late_ns),
    )
    read: list[str] = []

    def watched(self: Landing, path: str, length: int) -> Any:
        read.append(path)
        return whole(self, path, length)

    whole = Landing.read
    monkeypatch.setattr(Landing, "read", watched)
    schema = StructType().add("offset", "long")
    reader = BrimDataSource({"path": str(tmp_path), **option}).reader(schema)
    batches: list[Any] = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert sum(batch.num_rows for batch in batches) == 10
    (path,) = read
    assert f"-{int(wanted):020d}-" in path
