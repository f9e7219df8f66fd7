"""The same records by files and by Kafka: two tables, equal row for row.

A real broker and Spark's own Kafka source; the bridge to Kafka is killed under way, so that the topic holds
some records twice.  `./dev kafka` fetches both, and
`./dev test -m campaign tests/bridge/spark/test_kafka_real.py` runs this.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the spark extra: pip install 'brim[spark]'")
pytest.importorskip("pyspark", reason="needs the spark extra: pip install 'brim[spark]'")
pytest.importorskip("confluent_kafka", reason="needs the kafka extra: pip install 'brim[kafka]'")

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.bridges import publish, ring
from tests.support.kafka_broker import KafkaBroker, kafka_broker
from tests.support.kafka_connector import conf, why_not
from tests.support.kafka_mock import messages
from tests.support.project import ROOT
from tests.support.spark_session import SHORT_LIFE

pytestmark = [  # a minute and a half, of which most is Java
    pytest.mark.campaign,
    pytest.mark.java,
    pytest.mark.timeout(580),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "it is there"),
]

RECORDS = 3_600
BRIEF = (
    "--master=local[2]",
    f"--conf=spark.driver.extraJavaOptions={SHORT_LIFE}",
    "--conf=spark.sql.shuffle.partitions=1",
    "--conf=spark.sql.codegen.wholeStage=false",
)
SORTED_BY = [(name, "ascending") for name in ("edge", "stream", "partition", "epoch", "offset")]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    with kafka_broker(tmp_path) as running:
        yield running


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def drained(runtime: Path, root: Path, url: str, *, killed_at: int = 0) -> None:
    root.mkdir(exist_ok=True)
    done = run("tests.support.killed_at_ack", str(runtime), str(root), url, str(killed_at))
    assert done.returncode == (-9 if killed_at else 0), done.stderr


def table_of(job: str, *arguments: str, to: Path) -> Any:
    """The job in a Spark of its own, run to its end; and what it has made, in order."""
    done = run(f"bridge.spark.jobs.{job}", *arguments, "--to", str(to), "--json", *BRIEF)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["quarantined"] == 0
    parts = [pq.read_table(path, partitioning=None) for path in sorted(to.glob("batch=*/*.parquet"))]
    return pa.concat_tables(parts).sort_by(SORTED_BY)


def test_files_and_kafka_make_equal_tables(
    broker: KafkaBroker, runtime_directory: Path, tmp_path: Path
) -> None:
    names = ("default-0", "default-1", "press-0")
    rings = [ring(runtime_directory, name, capacity_bytes=1 << 22) for name in names]
    upstream = f"kafka://{broker.servers}/records"
    for half in (1, 2):
        for made in rings:
            for topic in ("plant/1/temp", "plant/2/temp", "plant/ü/é"):
                publish(made, RECORDS // 18, topic=topic)
        drained(runtime_directory, tmp_path / "kafka", upstream, killed_at=3)
        if half == 1:  # and a table that is behind gets what comes again in a later batch
            early = table_of("kafka", broker.servers, "records", f"--conf={conf()}", to=tmp_path / "by-kafka")
            assert 0 < len(early) < RECORDS
    drained(runtime_directory, tmp_path / "kafka", upstream)
    drained(runtime_directory, tmp_path / "files", (tmp_path / "lake").as_uri())
    for made in rings:
        made.close()

    assert len(messages(broker.servers, "records", RECORDS)) > RECORDS
    by_file = table_of("bronze", str(tmp_path / "lake"), to=tmp_path / "by-file")
    by_kafka = table_of("kafka", broker.servers, "records", f"--conf={conf()}", to=tmp_path / "by-kafka")
    assert len(by_file) == RECORDS
    assert by_kafka.equals(by_file)
