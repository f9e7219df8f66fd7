"""Places of an HTTP server, and its listener: no address excludes the others."""

import asyncio
import resource
import socket
from collections.abc import AsyncIterator, Iterator

import pytest

from edge.transport import http_listener
from edge.transport.http_listener import HttpListener
from edge.transport.http_places import HttpConnection, HttpPlaces
from edge.transport.listen_sockets import bind_http
from tests.support.waiting import until

LIMIT = 6


@pytest.fixture
def accepted() -> Iterator[socket.socket]:
    near, far = socket.socketpair()
    with near, far:
        yield near


class Table:
    """A table of LIMIT places, and the connections that have ended."""

    def __init__(self, accepted: socket.socket) -> None:
        self.places = HttpPlaces(LIMIT, "test")
        self.ended: list[HttpConnection] = []
        self._socket = accepted

    def take(self, host: str, *, waits: bool = True) -> HttpConnection | None:
        connection = HttpConnection(self._socket, host)
        connection.waits = lambda: waits
        connection.end = lambda: self.ended.append(connection)  # type: ignore[method-assign]
        return connection if self.places.take(connection) else None


@pytest.fixture
def table(accepted: socket.socket) -> Table:
    return Table(accepted)


def test_the_address_with_most_connections_loses_its_oldest_one_that_waits(table: Table) -> None:
    table.take("192.0.2.1", waits=False)
    oldest = table.take("192.0.2.1")
    for _ in range(LIMIT - 3):
        table.take("192.0.2.1")
    table.take("192.0.2.2")
    assert table.take("192.0.2.2") is not None
    assert table.ended == [oldest]
    assert len(table.places) == LIMIT


def test_an_address_with_all_places_in_use_makes_room_for_others_but_not_for_itself(table: Table) -> None:
    held = [table.take("192.0.2.1", waits=False) for _ in range(LIMIT)]
    assert table.take("192.0.2.1", waits=False) is None
    others = [table.take("192.0.2.2", waits=False) for _ in range(LIMIT)]
    assert table.ended == held[: LIMIT // 2]
    assert sum(other is not None for other in others) == LIMIT // 2  # both have the same number then


def test_each_address_has_one_place_of_many_and_a_new_one_still_gets_one(table: Table) -> None:
    first = table.take("192.0.2.0")
    for number in range(1, LIMIT):
        table.take(f"192.0.2.{number}")
    assert table.take("192.0.2.99") is not None
    assert table.ended == [first]


def test_a_network_of_ipv6_and_loopback_count_as_one_address(table: Table) -> None:
    for number in range(LIMIT - 1):
        table.take(f"2001:db8::{number + 1}")
    table.take("2001:db8:0:1::1", waits=False)
    assert table.take("2001:db8:0:1::2") is not None
    assert [each.origin for each in table.ended] == ["2001:db8::/64"]
    assert (
        HttpConnection(table._socket, "127.0.0.9").origin == HttpConnection(table._socket, "127.1.2.3").origin
    )


def test_a_place_that_is_given_back_is_free(table: Table) -> None:
    held = [table.take("192.0.2.1", waits=False) for _ in range(LIMIT)]
    for each in held * 2:
        assert each is not None
        table.places.give(each)
    assert len(table.places) == 0
    assert table.take("192.0.2.1") is not None


# ---- the listener ----


class Scene:
    """A listener with one place, clients that are connected, and the connections that it has accepted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        bound = bind_http("127.0.0.1:0", "test.listen")
        self.accepted: list[HttpConnection] = []
        self.clients = [socket.create_connection(bound.getsockname()) for _ in range(LIMIT)]
        self.listener = HttpListener(bound, self._serve, 1, "test")
        monkeypatch.setattr(http_listener, "HttpConnection", self._connection)

    def _connection(self, accepted: socket.socket, host: str) -> HttpConnection:
        self.accepted.append(HttpConnection(accepted, host))
        return self.accepted[-1]

    async def _serve(self, connection: HttpConnection) -> None:
        try:
            await asyncio.sleep(3_600)
        finally:
            connection.socket.close()


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    scene = Scene(monkeypatch)
    scene.listener.start()
    yield scene
    await scene.listener.stop()
    for client in scene.clients:
        client.close()


async def test_a_connection_that_is_displaced_is_closed(scene: Scene) -> None:
    for client in scene.clients[:-1]:
        client.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
    assert scene.listener.connections == 1


async def test_other_tasks_have_a_turn_between_two_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    scene.listener.start()
    await asyncio.sleep(0)
    assert len(scene.accepted) == 1
    await scene.listener.stop()  # before the task of the connection has begun
    assert scene.accepted[0].socket.fileno() == -1
    for client in scene.clients:
        client.close()


async def test_a_listener_without_descriptors_accepts_again_when_there_are_some(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def serve(connection: HttpConnection) -> None:
        connection.socket.close()

    bound = bind_http("127.0.0.1:0", "test.listen")
    listener = HttpListener(bound, serve, LIMIT, "test")
    listener.start()
    client = socket.create_connection(bound.getsockname())
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno(), limits[1]))  # all below are in use
        await until(lambda: "test connection not accepted" in caplog.text)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    client.setblocking(False)
    assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
    client.close()
    await listener.stop()
