"""Limits of one listener, in place of those of the engine."""

from collections.abc import Iterator

import pytest

from edge.engine.engine import EngineLimits, listener_of
from edge.mqtt import Connect, Publish
from tests.support.mqtt_served import Served, served
from tests.support.mqtt_socket import RawClient
from tests.support.waiting import wait_until


@pytest.fixture
def there() -> Iterator[Served]:
    with served(engine=EngineLimits(connections_max=3)) as there:
        yield there


def test_a_listener_has_a_limit_of_its_own(there: Served) -> None:
    limits = listener_of(there.engine, 0)
    limits.connections_max = 1
    first = there.client("c1")
    with RawClient(there.port) as surplus:
        assert surplus.packet() is None
    limits.connections_max = 2
    with there.client("c2"):
        assert limits.connections == 2
    first.close()
    wait_until(lambda: limits.connections == 0)


def test_packets_of_a_listener_may_be_shorter_than_elsewhere(there: Served) -> None:
    limits = listener_of(there.engine, 0)
    limits.connect_max_bytes, limits.packet_max_bytes = 100, 200
    with RawClient(there.port) as long_winded:
        long_winded.send(Connect("c" * 90))
        assert long_winded.packet() is None
    with there.client("c") as client:
        client.send(Publish("t", bytes(194)))  # with its header 200 bytes
        client.send(Publish("t", bytes(195)))
        assert client.packet() is None
        assert there.records() == [("t", bytes(194))]
