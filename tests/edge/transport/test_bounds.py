"""Memory, connections, time and wake-ups have bounds, whatever a connection came through."""

import os
import resource
import threading
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from edge.engine.engine import EngineLimits
from edge.mqtt import PingReq, PingResp, PubAck, Publish, Subscribe, Subscription
from tests.support.mqtt_transports import KINDS, transports
from tests.support.waiting import wait_until


def is_empty(limits: Any) -> bool:
    """True if a listener has no connection."""
    return bool(limits.connections == 0)


def test_subscribers_behind_tls_that_do_not_read_cost_little() -> None:
    with transports("tls", "wss", capacity_bytes=1 << 24) as there:
        slow = [there.client(kind, f"slow-{kind}-{i}") for i in range(10) for kind in ("tls", "wss")]
        for client in slow:
            client.send(Subscribe(1, (Subscription("t"),)))
            client.packet()
        with there.client("tls", "w") as writer:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            batch = [Publish("t", bytes(10_000))] * 100
            for _ in range(60):
                writer.send(*batch)
            writer.send(PingReq())
            assert writer.packet() == PingResp()
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown_kib < 40 * 1_024  # of 60 MB for each of the 20; what the kernel keeps is the kernel's
        for client in slow:
            client.close()


def test_silent_clients_are_closed_in_time_whatever_they_connected_to() -> None:
    with transports(engine=EngineLimits(connect_timeout_ms=2_000)) as there:
        clients = [there.dial(kind) for _ in range(400) for kind in KINDS]
        for client in clients:
            assert client.recv(1) == b""
            client.close()
        assert there.there.stats.closed()["connect timeout"] == len(clients)
        wait_until(lambda: there.there.stats.gauges()["connections"] == 0)


def test_handshakes_count_against_the_limit() -> None:
    with transports("tls", listener={"connections_max": 2}) as there:
        limits = there.limits("tls")
        dialled = [there.dial("tls") for _ in range(2)]
        wait_until(lambda: limits.connections == 2)
        with closing(there.dial("tls")) as surplus:
            assert surplus.recv(1) == b""
        assert there.there.stats.closed()["limit"] == 1
        for client in dialled:
            client.close()
        wait_until(lambda: limits.connections == 0)
        with there.client("tls", "a"), there.client("tls", "b"), closing(there.dial("tls")) as surplus:
            assert surplus.recv(1) == b""
        wait_until(partial(is_empty, limits))


@pytest.mark.parametrize("kind", ["tls", "ws"])
def test_a_client_gets_the_place_of_one_that_has_just_left(kind: str) -> None:
    with transports(kind, listener={"connections_max": 5}) as there:
        clients = [there.client(kind, f"c{i}") for i in range(5)]
        for number in range(30):
            clients.pop(0).close()
            clients.append(there.client(kind, f"d{number}"))
        assert there.there.stats.closed()["limit"] == 0
        for client in clients:
            client.close()


def test_a_client_that_does_not_take_the_end_is_not_waited_for() -> None:
    with transports("tls", "wss") as there, there.there.client("w") as writer:
        slow = [there.client(kind, f"slow-{kind}", keep_alive_s=1) for kind in ("tls", "wss")]
        for client in slow:
            client.send(Subscribe(1, (Subscription("t"),)))
            client.packet()
        for _ in range(30):  # more than sockets hold
            writer.send(*[Publish("t", bytes(100_000))] * 10)
        wait_until(lambda: is_empty(there.limits("tls")) and is_empty(there.limits("wss")))
        for client in slow:
            client.close()


def test_an_idle_broker_sleeps_on_every_thread() -> None:
    with transports() as there:
        clients = [there.client(kind, f"{kind}{i}", keep_alive_s=60) for i in range(5) for kind in KINDS]
        before = sleeps()
        threading.Event().wait(2.0)  # what is measured, not waited for
        assert sleeps() - before < 10
        for client in clients:
            client.close()


def sleeps() -> int:
    """Times that the threads of the broker went to sleep."""
    count = 0
    for task in Path("/proc/self/task").iterdir():
        if int(task.name) != os.getpid():  # that one is the test's
            lines = (task / "status").read_text().splitlines()
            count += next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))
    return count


def test_connections_leave_nothing_behind() -> None:
    with transports() as there:
        for _ in range(3):
            clients = [there.client(kind, f"{kind}{i}") for i in range(10) for kind in KINDS]
            for client in clients:
                client.close()
        wait_until(lambda: there.there.stats.gauges()["connections"] == 0)
        wait_until(lambda: all(is_empty(there.limits(kind)) for kind in KINDS))


def test_who_publishes_faster_than_the_listener_allows_is_read_more_slowly_and_loses_nothing() -> None:
    with transports("tls", listener={"publish_rate_max": 100}) as there, there.client("tls") as client:
        client.send(*(Publish("t", b"%d" % i, 1, packet_id=i) for i in range(1, 131)))
        for i in range(1, 131):
            assert client.packet() == PubAck(i)
        assert there.there.stats.totals()["rate_waits"] > 0
