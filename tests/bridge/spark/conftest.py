"""One Spark session for all tests that need one: it takes as long to start as they take together."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A session on this machine, with two cores at most."""
    from bridge.spark.session import session

    made = session("brim tests", master="local[2]", settings={"spark.sql.shuffle.partitions": "2"})
    yield made
    made.stop()
