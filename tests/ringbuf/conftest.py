"""The ring under test: 64 KiB, new for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ringbuf import Ring, WakeupThread
from tests.support.rings import new_ring


@pytest.fixture
def ring(runtime_directory: Path) -> Iterator[Ring]:
    """An empty ring, written by this process."""
    with new_ring(runtime_directory) as made:
        yield made


@pytest.fixture
def silent_bell() -> Iterator[None]:
    """The WakeupThread ends with the test."""
    yield
    WakeupThread.of_process().close()
