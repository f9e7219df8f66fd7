"""Packets that wait for room for an event: each waits once, in its order; new clients do not wait."""

from __future__ import annotations

from edge.engine.engine import Event, EventKind
from edge.mqtt import Connect, Disconnect, Unsubscribe, Version, encode
from tests.support.mqtt_bench import Bench, Wire

EVENTS = 32  # MQ_EVENTS of ringbuf/c/mqtt/mqtt.h
SPARE = 8  # MQ_EVENTS_SPARE
CLIENTS = 400
UNSUBSCRIBE = encode(Unsubscribe(1, ("x",)), Version.V311)


def turn(bench: Bench) -> list[Event]:
    """One turn of Python, and the events that it has handled."""
    events = bench.engine.events()
    bench.broker.handle(events)
    while bench.calls:  # steps that did not fit into a slice of time
        bench.calls.popleft()()
    bench.engine.step(bench.now_ms, bench.now_ns)
    return events


def feed(bench: Bench, wires: list[Wire], data: bytes) -> None:
    for wire in wires:
        assert bench.engine.feed(wire.handle, data) == len(data)


def test_each_of_many_clients_that_disconnect_at_once_waits_once() -> None:
    with Bench() as bench:
        wires = [bench.client(f"c{n}") for n in range(CLIENTS)]
        feed(bench, wires, encode(Disconnect(), Version.V311))
        bench.settle()
        assert len(bench.broker.clients) == 0
        assert bench.stats.totals()["event_waits"] == CLIENTS - (EVENTS - SPARE)


def test_packets_are_handled_in_turn_however_many_a_client_sends() -> None:
    with Bench() as bench:
        wires = [bench.client(f"c{n}") for n in range(CLIENTS)]
        feed(bench, wires, UNSUBSCRIBE * 3)
        handled: list[int] = []
        while events := turn(bench):
            handled += [connection for _, connection, _, _ in events]
        assert len(handled) == 3 * CLIENTS
        assert set(handled[:CLIENTS]) == {wire.handle for wire in wires}


def test_a_new_client_does_not_wait_for_packets_of_others() -> None:
    with Bench() as bench:
        wires = [bench.client(f"c{n}") for n in range(CLIENTS)]
        feed(bench, wires, UNSUBSCRIBE * 9)
        turn(bench)
        new = bench.engine.open(0)
        bench.engine.feed(new, encode(Connect("new"), Version.V311))
        assert (EventKind.PACKET, new) in [(kind, connection) for kind, connection, _, _ in turn(bench)]


def test_the_packet_of_a_client_that_was_closed_meanwhile_is_dropped() -> None:
    with Bench() as bench:
        wires = [bench.client(f"c{n}") for n in range(CLIENTS)]
        feed(bench, wires, UNSUBSCRIBE)
        for number in range(0, CLIENTS, 2):
            assert bench.broker.disconnect(f"c{number}")
        handled: list[int] = []
        while events := turn(bench):
            handled += [connection for _, connection, _, _ in events]
        assert set(handled) >= {wire.handle for wire in wires[1::2]}
        assert set(handled) <= {wire.handle for wire in wires[: EVENTS - SPARE]} | {
            wire.handle for wire in wires[1::2]
        }
        assert len(bench.broker.clients) == CLIENTS // 2
