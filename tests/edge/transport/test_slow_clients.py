"""Clients that read slowly or send much: what they cost, and that no other client waits for them."""

import resource
import threading
from collections.abc import Iterable

from edge.broker.dispatcher import BrokerLimits
from edge.broker.sessions import SessionLimits
from edge.engine.engine import Event, EventKind
from edge.mqtt import PubAck, Publish, ReasonCode, SubAck, Subscribe, Subscription, encode
from tests.support.mqtt_served import served
from tests.support.waiting import PATIENCE_S


def test_a_subscriber_that_does_not_read_costs_little_and_what_it_loses_is_counted() -> None:
    limits = BrokerLimits(sessions=SessionLimits(queued_records_max=1_000))
    payload, count = bytes(1_000), 40_000
    with (
        served(limits=limits, capacity_bytes=1 << 24) as there,
        there.client("slow") as slow,
        there.client("w") as writer,
    ):
        slow.subscribe("t")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for begin in range(0, count, 500):
            writer.socket.sendall(
                b"".join(encode(Publish("t", b"%08d" % i + payload)) for i in range(begin, begin + 500))
            )
        writer.ping()
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown_kib < 20_000  # of 40 MB; the ring was populated when it was made
        dropped = there.stats.dropped()
        lost = dropped["queue"] + dropped["overrun"]
        assert lost > 0
        numbers = [int(slow.publish().payload[:8]) for _ in range(count - lost)]
        assert numbers == sorted(set(numbers))
        assert numbers[-1] == count - 1  # the newest are kept
        slow.ping()


def test_a_client_that_does_not_read_its_acknowledgements_is_no_longer_read() -> None:
    with served() as there, there.client("c") as client, there.client("other") as other:
        message = encode(Publish("t", b"x", 1, packet_id=1))
        data = message * 10_000
        client.socket.setblocking(False)
        sent = refused = 0
        while refused < 50:  # times in a row
            assert sent < 160_000_000, "somebody takes it all"
            try:
                sent += client.socket.send(data[sent % len(message) :])
                refused = 0
            except BlockingIOError:
                refused += 1
                other.ping()
        client.socket.settimeout(PATIENCE_S)
        expected = sent // len(message) * encode(PubAck(1))
        received = 0
        while received < len(expected):  # too many to look at one by one
            found = client.socket.recv(1 << 20)
            assert expected[received : received + len(found)] == found
            received += len(found)


def test_a_publisher_in_full_flood_does_not_starve_another_client() -> None:
    with served() as there, there.client("flood") as flood, there.client("honest") as honest:
        honest.subscribe("mine")
        done = threading.Event()
        batch = encode(Publish("noise", bytes(100))) * 1_000

        def pour() -> None:
            while not done.is_set():
                flood.socket.sendall(batch)

        pouring = threading.Thread(target=pour)
        pouring.start()
        try:
            for i in range(200):
                honest.send(Publish("mine", b"%d" % i))
                assert honest.publish().payload == b"%d" % i
        finally:
            done.set()
            pouring.join()


def test_a_client_of_ever_new_topics_does_not_keep_others_waiting() -> None:
    with served() as there, there.client("many") as many, there.client("one") as one:
        broker, seen = there.listener.broker, list[int]()
        handle = broker.handle

        def noted(events: Iterable[Event]) -> None:
            events = list(events)
            if not seen:
                one.send(Subscribe(7, (Subscription("t"),)))
            seen.extend(kind for kind, *_ in events)
            handle(events)

        broker.handle = noted  # type: ignore[method-assign]
        many.send(*(Publish(f"new/{n}") for n in range(8_000)))
        assert one.packet() == SubAck(7, (ReasonCode(0),))
        assert seen.index(EventKind.PACKET) < 20, "asked only after all new topics of another client"
