"""Spark for tests: settings for short runs, of the one session of a test run and of processes."""

from collections.abc import Iterator
from typing import Any

import pytest

SHORT_LIFE = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Java options: less optimization; runs of seconds are a quarter shorter."""

SETTINGS = {  # no query is compiled: for a few rows that takes longer than it saves
    "spark.python.authenticate.socketTimeout": "60s",  # 15 s are short for a worker on a busy machine
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """One session for all tests that need one: it takes as long to start as they take together."""
    from bridge.spark.session import JAVA_OPTIONS, session

    settings = {**SETTINGS, "spark.driver.extraJavaOptions": f"{JAVA_OPTIONS} {SHORT_LIFE}"}
    made = session("brim tests", master="local[2]", settings=settings)
    yield made
    made.stop()
