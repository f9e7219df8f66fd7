"""Packets that wait for room for an event: each waits once, in its order. Neither new nor accepted clients
wait for all of the others.
"""

from edge.engine.engine import Event, EventKind
from edge.mqtt import Connect, Disconnect, Unsubscribe, Version, encode
from edge.transport.listener import EVENTS_AT_A_TIME
from tests.support.mqtt_bench import Bench, Wire

EVENTS = 32  # MQ_EVENTS of ringbuf/c/mqtt/mqtt.h
SPARE = 8  # MQ_EVENTS_SPARE
CLIENTS = 400
UNSUBSCRIBE = encode(Unsubscribe(1, ("x",)), Version.V311)


def turn(bench: Bench, events_max: int = EVENTS) -> list[Event]:
    """One turn of Python, and the events that it has handled."""
    events = bench.engine.events(events_max)
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


def test_clients_are_served_while_new_ones_connect_again_and_again() -> None:
    with Bench() as bench:
        wires = [bench.client(f"c{n}") for n in range(CLIENTS)]
        feed(bench, wires, UNSUBSCRIBE)
        waiting = {wire.handle for wire in wires}
        for number in range(CLIENTS):
            for few in range(EVENTS_AT_A_TIME + 1):
                new = bench.engine.open(0)
                bench.engine.feed(new, encode(Connect(f"new-{number}-{few}"), Version.V311))
            waiting -= {connection for _, connection, _, _ in turn(bench, EVENTS_AT_A_TIME)}
        assert not waiting


def test_a_client_whose_packet_waits_is_not_silent() -> None:
    with Bench() as bench:
        wires = [bench.client(f"c{n}", keep_alive_s=10) for n in range(CLIENTS)]
        feed(bench, wires, UNSUBSCRIBE)
        waiting = wires[EVENTS - SPARE :]
        bench.now_ms += 20_000
        bench.engine.step(bench.now_ms, bench.now_ns)
        assert all(wire.is_open for wire in waiting)
        bench.settle(9_000)
        assert all(wire.is_open for wire in waiting)
        bench.settle(20_000)
        assert not any(wire.is_open for wire in waiting)
