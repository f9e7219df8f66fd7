"""One Spark session for all tests that need one: it takes as long to start as they take together."""

from collections.abc import Iterator
from typing import Any

import pytest

SETTINGS = {  # no query is compiled: for a few rows that takes longer than it saves
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A session on this machine."""
    from bridge.spark.session import JAVA_OPTIONS, session

    # Java optimises less: short runs are a quarter shorter.
    java = f"{JAVA_OPTIONS} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    settings = {**SETTINGS, "spark.driver.extraJavaOptions": java}
    made = session("brim tests", master="local[2]", settings=settings)
    yield made
    made.stop()
