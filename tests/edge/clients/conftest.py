"""A broker for the clients of this folder."""

from collections.abc import Iterator

import pytest

from tests.support.mqtt_served import Served, served


@pytest.fixture
def there() -> Iterator[Served]:
    """On a real port."""
    with served() as made:
        yield made
