"""Refusals of a session, without starting Spark; and a start where paths of sockets are too long."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Timer
from typing import Any, NoReturn

import pytest

from bridge.errors import SparkUnavailable
from bridge.spark.session import INSTALL_JAVA, check_java
from ringbuf.extras import install_extra
from tests.support.project import ROOT
from tests.support.spark_session import SHORT_LIFE, pytest_runtest_makereport

ADD_ONE = """
import sys, tempfile
from bridge.spark.session import session
for tempfile.tempdir in sys.argv[1:]:
    spark = session("test", master="local[1]")
    print(spark.sparkContext.parallelize([1, 2], 1).map(lambda number: number + 1).collect())
    print(spark.conf.get("spark.python.unix.domain.socket.enabled"))
    spark.stop()
"""


def a_java(directory: Path, version: str) -> Path:
    """A JAVA_HOME whose java says that version, on standard error as java does."""
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    java.chmod(0o755)
    return directory


def test_without_java_the_line_that_installs_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkUnavailable, match="no java on PATH") as caught:
        check_java()
    assert caught.value.hint == INSTALL_JAVA
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkUnavailable, match=f"no java in JAVA_HOME, {tmp_path}"):
        check_java()


@pytest.mark.parametrize(("version", "number"), [("17.0.15", 17), ("21", 21), ("25.0.2-ea", 25)])
def test_a_java_that_is_new_enough_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, number: int
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(a_java(tmp_path, version)))
    assert check_java() == number


@pytest.mark.parametrize(("version", "said"), [("11.0.2", "Java 11"), ("1.8.0_392", "Java 8")])
def test_a_java_that_is_too_old_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, said: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(a_java(tmp_path, version)))
    with pytest.raises(SparkUnavailable, match=said):
        check_java()


def test_without_pyspark_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from bridge.spark.session import session

    monkeypatch.setitem(sys.modules, "pyspark.sql", None)  # as if it were not installed
    with pytest.raises(SparkUnavailable, match="pyspark is not installed") as caught:
        session("test")
    assert caught.value.hint == install_extra("spark")


@pytest.mark.java
@pytest.mark.timeout(600)
def test_workers_run_where_the_directory_for_temporary_files_has_a_long_path(
    tmp_path: Path, runtime_directory: Path
) -> None:
    """Of Java only, and then of Python too: one Java runs both sessions."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    environment = {
        **os.environ,
        "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={long} {SHORT_LIFE}",
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(long),
    }
    done = subprocess.run(
        [sys.executable, "-c", ADD_ONE, str(runtime_directory), str(long)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[2, 3]\ntrue\n[2, 3]\nfalse\n"


@pytest.mark.java
@pytest.mark.timeout(400)
def test_java_ends_with_a_test_that_its_limit_ends(spark: Any) -> None:
    """The limit comes as a signal while Python waits for Java; the next command would take its answer."""

    def end(*_: object) -> NoReturn:
        pytest.fail("Timeout (>1s) from pytest-timeout.")

    before = signal.signal(signal.SIGUSR1, end)
    timer = Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
    sleep = getattr(spark._jvm, "java.lang.Thread").sleep
    java = spark.sparkContext._gateway.proc
    try:
        timer.start()
        call = pytest.CallInfo.from_call(lambda: sleep(600_000), "call")
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    report = pytest_runtest_makereport(call)
    next(report)
    with pytest.raises(StopIteration):
        report.send(None)
    assert java.poll() is not None


def test_the_report_of_each_test_looks_for_its_time_limit(request: pytest.FixtureRequest) -> None:
    implementations = request.config.hook.pytest_runtest_makereport.get_hookimpls()
    assert pytest_runtest_makereport in [implementation.function for implementation in implementations]


@pytest.mark.java
@pytest.mark.timeout(400)
def test_the_test_after_it_has_a_new_spark(spark: Any) -> None:
    assert spark.range(3).count() == 3
