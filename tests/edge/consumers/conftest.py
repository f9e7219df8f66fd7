"""Fixtures of consumer groups: a coordinator at a desk, without a socket."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.consumer_desk import Desk


@pytest.fixture
def desk(runtime_directory: Path) -> Iterator[Desk]:
    """A coordinator of one ring."""
    with Desk(runtime_directory) as desk:
        yield desk


@pytest.fixture
def wide(runtime_directory: Path) -> Iterator[Desk]:
    """A coordinator of four rings."""
    with Desk(runtime_directory, rings=4) as desk:
        yield desk
