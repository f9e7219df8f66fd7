"""A broker for the clients of this folder, and clients that end with the test."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.mqtt_served import Served, served
from tests.support.paho_client import Paho


@pytest.fixture
def there() -> Iterator[Served]:
    """On a real port."""
    with served() as made:
        yield made


@pytest.fixture
def paho(there: Served) -> Iterator[Callable[..., Paho]]:
    """Makes connected clients: client identifier, then as Paho has it."""
    made: list[Paho] = []

    def connect(client_id: str, **options: Any) -> Paho:
        made.append(Paho(there.port, client_id, **options))
        return made[-1]

    yield connect
    while made:  # objects that are freed close their last sockets
        made.pop().stop()
