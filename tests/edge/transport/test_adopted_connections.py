"""Connections that another thread has accepted: handed to the loop, they are like any other."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from edge.auth.interfaces import TransportInfo
from edge.engine.engine import EngineLimits, listener_of
from edge.mqtt import ConnAck, Connect, Publish, Subscribe, Subscription, Will, encode
from tests.support.mqtt_served import RawClient, Served, served
from tests.support.recording_authenticator import RecordingAuthenticator
from tests.support.waiting import PATIENCE_S, wait_until

FACTS = TransportInfo("tls", "press-7")
PEER = (0, socket.AF_INET6, socket.inet_pton(socket.AF_INET6, "2001:db8::7"), 4711)


def adopted(there: Served, *, ago_s: float = 0.0) -> socket.socket:
    """Our end of a socket whose other end was handed over."""
    ours, theirs = socket.socketpair()
    there.listener.adopt(theirs, 0, PEER, FACTS, time.monotonic() - ago_s)
    ours.settimeout(PATIENCE_S)
    return ours


@pytest.fixture
def there() -> Iterator[Served]:
    with served(engine=EngineLimits(connections_max=3)) as there:
        yield there


def test_a_socket_that_was_handed_over_is_served(there: Served) -> None:
    with closing(adopted(there)) as client, there.client("r") as reader:
        reader.send(Subscribe(1, (Subscription("#", 0),)))
        reader.packet()
        client.sendall(encode(Connect("c", will=Will("gone", b"c"))) + encode(Publish("t", b"1")))
        assert client.recv(100) == encode(ConnAck())
        assert reader.publish().payload == b"1"
        client.close()
        assert reader.publish().topic == "gone"


def test_the_broker_knows_where_it_comes_from_and_what_its_certificate_says() -> None:
    recorder = RecordingAuthenticator()
    with served(authenticator=recorder) as there, closing(adopted(there)) as client:
        client.sendall(encode(Connect("c", username="u")))
        assert client.recv(100) == encode(ConnAck())
        (facts,) = recorder.seen
        assert facts.address == "[2001:db8::7]:4711"
        assert (facts.transport, facts.certificate, facts.username) == ("tls", "press-7", "u")


def test_time_spent_before_it_was_handed_over_counts() -> None:
    with served(engine=EngineLimits(connect_timeout_ms=60_000)) as there:
        with closing(adopted(there, ago_s=59.8)) as silent:
            assert silent.recv(1) == b""
        assert there.stats.closed()["connect timeout"] == 1


def test_it_counts_against_the_limit_of_connections(there: Served) -> None:
    clients = [there.client(f"c{i}") for i in range(3)]
    with closing(adopted(there)) as surplus:
        assert surplus.recv(1) == b""
    assert there.stats.closed()["limit"] == 1
    for client in clients:
        client.close()


def test_a_listener_has_limits_of_its_own(there: Served) -> None:
    limits = listener_of(there.engine, 0)
    limits.connections_max = 2
    first = there.client("c1")
    limits.outside = 1  # somebody is shaking hands
    with RawClient(there.port) as surplus:
        assert surplus.packet() is None
    limits.outside = 0
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


def test_facts_about_the_gone_do_not_pile_up(there: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.transport.listener.TRANSPORTS_LOOK", 4)
    there.ask(lambda: setattr(there.listener, "_transports_look", 4))
    for _ in range(20):
        with closing(adopted(there)) as client:
            client.sendall(encode(Connect("c")))
            assert client.recv(100) == encode(ConnAck())
        wait_until(lambda: there.stats.gauges()["connections"] == 0)
    assert there.ask(lambda: len(there.listener.broker.transports)) <= 5
