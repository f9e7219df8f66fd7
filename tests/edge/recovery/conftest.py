"""A broker that is killed and started again, for the tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.support.kept_bench import Lives


@pytest.fixture
def lives() -> Iterator[Lives]:
    with Lives() as lives:
        yield lives
