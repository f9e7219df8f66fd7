"""What reading costs a Spark worker beside reading, seen in a process of its own, without Spark."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs the spark extra: pip install 'brim[spark]'")

from tests.support.drained_files import store, unit_of

CODE = """
import gc, sys
from pyspark.sql.types import StructType
from bridge.spark.source import BrimDataSource

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
    store(tmp_path, unit_of(0, 99))
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("100 False True\n", "")
