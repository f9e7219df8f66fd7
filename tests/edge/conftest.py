"""What tests of the broker share: a bench that is cleared away, and time that stands still."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.mqtt_bench import Bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    """An engine and a broker with no limits but the default ones."""
    with Bench() as made:
        yield made
