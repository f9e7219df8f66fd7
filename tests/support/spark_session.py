"""Spark for tests: settings for short runs, of the one session of a test run and of processes.

A test that its time limit ends leaves the answer of its last command in the connection to Java. The next
command would take that answer for its own. So Java ends with such a test.
"""

import sys
import warnings
from collections.abc import Generator
from contextlib import suppress
from typing import Any

import pytest

SHORT_LIFE = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=128m"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""Java options: less optimization; runs of seconds are a quarter shorter. Code stays: the cache of this level
has 48 MiB, and its sweeper takes a twentieth of the processor time. Classes of Spark are not verified, which
takes 2 of the 9 s of a start."""

SETTINGS = {  # no query is compiled: for a few rows that takes longer than it saves
    "spark.python.authenticate.socketTimeout": "60s",  # 15 s are short for a worker on a busy machine
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
}


def start_spark() -> Any:
    """A session with these settings."""
    from bridge.spark.session import JAVA_OPTIONS, session

    settings = {**SETTINGS, "spark.driver.extraJavaOptions": f"{JAVA_OPTIONS} {SHORT_LIFE}"}
    return session("brim tests", master="local[2]", settings=settings)


@pytest.fixture(scope="session")
def first_spark() -> Any:
    """The first session. The environment that it sets stays for all tests."""
    return start_spark()


@pytest.fixture
def spark(first_spark: Any) -> Any:
    """One session for all tests that need one: it takes as long to start as they take together."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() or start_spark()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """End Java with a test that its time limit has ended."""
    report = yield
    if call.excinfo is not None and "from pytest-timeout" in str(call.excinfo.value):
        end_java()
    return report


def end_java() -> None:
    """Kill the Java of this process, and forget the session."""
    if "pyspark.sql" not in sys.modules:
        return
    from py4j.protocol import Py4JError
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway, context = SparkContext._gateway, SparkContext._active_spark_context
    if gateway is None:
        return
    gateway.proc.kill()
    gateway.proc.wait()
    gateway.proc.stdin.close()
    with suppress(Py4JError, OSError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PySpark: Java has ended
        if context is not None:
            context.stop()
        gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
