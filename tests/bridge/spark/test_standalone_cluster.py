"""Jobs on a real Spark standalone cluster, in the three ways of docs/how-to/spark-on-a-cluster.md.

The worker has nothing of Brim. Each way runs a batch job and a streaming job, with executors of their own.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("pyspark", reason="needs the spark extra: pip install 'brim[spark]'")
pytest.importorskip("pyarrow", reason="needs the spark extra: pip install 'brim[spark]'")

from pyarrow import parquet

from tests.support.drained_files import drained_file_of, store, store_parquet
from tests.support.hatch import hatch
from tests.support.project import ROOT
from tests.support.standalone_cluster import (
    bare_environment,
    installed_environment,
    packed_environment,
    spark_home,
    standalone_cluster,
)

pytestmark = [pytest.mark.java, pytest.mark.campaign, pytest.mark.timeout(600)]

LOG_LINE = re.compile(r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (INFO|WARN) ")
PARQUET_BATCH = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
spark.read.parquet(sys.argv[1]).write.parquet(sys.argv[2])
"""
PARQUET_STREAM = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
records = spark.readStream.schema(spark.read.parquet(sys.argv[1]).schema).parquet(sys.argv[1])
writing = records.writeStream.option("checkpointLocation", sys.argv[2] + ".state").trigger(availableNow=True)
writing.start(sys.argv[2]).awaitTermination()
"""
ABSENT = """
from importlib.util import find_spec
from pyspark.sql import SparkSession
tasks = SparkSession.builder.getOrCreate().sparkContext.parallelize([0], 1)
found = tasks.map(lambda _: [name for name in ("bridge", "ringbuf", "pyarrow") if find_spec(name)]).collect()
assert found == [[]], found
"""
LAKE = """
import sys
import brim
import brim.spark
spark = brim.spark.session("lake")
brim.lake(spark, sys.argv[1]).write.parquet(sys.argv[2])
"""


class Cluster(NamedTuple):
    """A cluster, and the environments that its workers and the driver may have."""

    master: str
    bare: Path  # pyspark only
    installed: Path  # and the wheel of Brim, with its libraries


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hatch("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def cluster(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    bare = bare_environment(directory / "bare")
    installed = installed_environment(directory / "installed", wheel)
    with standalone_cluster(directory) as master:
        yield Cluster(master, bare, installed)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("native") / "lake"
    store(root, drained_file_of(0, 99), drained_file_of(100, 199, drain_seq=2))
    return root


@pytest.fixture(scope="module")
def parquet_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("parquet") / "lake"
    store_parquet(root, drained_file_of(0, 99), drained_file_of(100, 199, drain_seq=2))
    return root


def options_of(cluster: Cluster, more: str = "") -> str:
    """Options of spark-submit."""
    return f"--master {cluster.master} --conf spark.executor.memory=512m --conf spark.ui.enabled=false {more}"


def fault_of(directory: Path, *command: str, python: str, driver: Path) -> str:
    """Run a command in the environment of a driver; what it printed if it failed.

    `python`: the Python of the executors, and of the processes in which the driver plans.
    """
    foreign = ("PYTHON", "PYSPARK", "SPARK")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    environment |= {
        "PATH": f"{driver / 'bin'}:{os.environ['PATH']}",
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": str(driver / "bin" / "python"),
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    said = [line for line in (done.stdout + done.stderr).splitlines() if not LOG_LINE.match(line)]
    return "\n".join(said) if done.returncode else ""


def job(cluster: Cluster, directory: Path, *words: str, python: str, options: str = "") -> str:
    """Run `brim spark --submit` of the installed wheel; what it printed if it failed."""
    brim = str(cluster.installed / "bin" / "brim")
    command = (brim, "spark", "--submit", options_of(cluster, options), *words)
    return fault_of(directory, *command, python=python, driver=cluster.installed)


def script(cluster: Cluster, directory: Path, text: str, *words: str, driver: Path) -> str:
    """Run a program with spark-submit, on executors with nothing of Brim; what it printed if it failed."""
    program = directory / "program.py"
    program.write_text(text)
    command = (str(spark_home() / "bin" / "spark-submit"), *options_of(cluster).split(), str(program), *words)
    return fault_of(directory, *command, python=str(cluster.bare / "bin" / "python"), driver=driver)


def offsets(table: Path) -> list[int]:
    """Offsets in the Parquet files of a table."""
    files = [path for path in table.rglob("*.parquet") if not path.name.startswith(("_", "."))]
    return sorted(
        offset
        for path in files
        for offset in parquet.ParquetFile(path).read(["offset"])["offset"].to_pylist()
    )


def check_batch_and_stream(
    cluster: Cluster, lake: Path, directory: Path, python: str, options: str = ""
) -> None:
    batch = ("replay", str(lake), "--option", "offsets=0-149", "--to", str(directory / "batch"))
    fault = job(cluster, directory, *batch, python=python, options=options)
    assert not fault, fault
    assert offsets(directory / "batch") == list(range(150))
    stream = ("bronze", str(lake), "--to", str(directory / "stream"))
    fault = job(cluster, directory, *stream, python=python, options=options)
    assert not fault, fault
    assert offsets(directory / "stream") == list(range(200))


def documented_libraries() -> list[str]:
    """Libraries that the page installs next to the wheel."""
    page = (ROOT / "docs" / "how-to" / "spark-on-a-cluster.md").read_text()
    match = re.search(r"^env/bin/pip install \S+\.whl (.+)$", page, re.MULTILINE)
    assert match is not None
    return match[1].split()


def test_executors_have_nothing_of_brim(cluster: Cluster, tmp_path: Path) -> None:
    fault = script(cluster, tmp_path, ABSENT, driver=cluster.bare)
    assert not fault, fault


def test_with_the_wheel_on_every_node_both_jobs_run(cluster: Cluster, lake: Path, tmp_path: Path) -> None:
    check_batch_and_stream(cluster, lake, tmp_path, str(cluster.installed / "bin" / "python"))


def test_with_a_packed_environment_both_jobs_run_on_workers_without_brim(
    cluster: Cluster, lake: Path, wheel: Path, tmp_path: Path
) -> None:
    packed = packed_environment(tmp_path / "env", wheel, documented_libraries())
    archive, environment = tmp_path / "brim.tar.gz", tmp_path / "environment"
    environment.mkdir()
    subprocess.run(["tar", "-I", "gzip -1", "-cf", archive, "-C", packed, "."], check=True)
    subprocess.run(["tar", "-xzf", archive, "-C", environment], check=True)
    options = f"--archives {archive}#environment"
    check_batch_and_stream(cluster, lake, tmp_path, "./environment/bin/python", options)


def test_without_the_wheel_and_the_archive_a_job_fails_and_names_the_package(
    cluster: Cluster, lake: Path, tmp_path: Path
) -> None:
    words = ("replay", str(lake), "--option", "offsets=0-149", "--to", str(tmp_path / "batch"))
    said = job(cluster, tmp_path, *words, python=str(cluster.bare / "bin" / "python"))
    assert "No module named 'bridge'" in said


def test_parquet_files_need_nothing_of_brim_on_driver_and_workers(
    cluster: Cluster, parquet_lake: Path, tmp_path: Path
) -> None:
    for name, text in (("batch", PARQUET_BATCH), ("stream", PARQUET_STREAM)):
        table = tmp_path / name
        fault = script(cluster, tmp_path, text, str(parquet_lake), str(table), driver=cluster.bare)
        assert not fault, fault
        assert offsets(table) == list(range(200))


def test_brim_lake_on_a_driver_with_brim_reads_parquet_files_on_workers_without_it(
    cluster: Cluster, parquet_lake: Path, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    fault = script(cluster, tmp_path, LAKE, str(parquet_lake), str(table), driver=cluster.installed)
    assert not fault, fault
    assert offsets(table) == list(range(200))
