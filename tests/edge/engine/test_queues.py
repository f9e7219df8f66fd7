"""Queues of sessions: what they cost, in which order they give back, and what goes when there is no room."""

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from edge.broker.dispatcher import BrokerLimits
from edge.broker.sessions import SessionLimits
from edge.engine.engine import EngineLimits
from edge.mqtt import ConnAck, Disconnect, PubAck, PubComp, Publish, PubRec, PubRel, Version, encode
from tests.support.away_client import back
from tests.support.mqtt_bench import Bench, Wire

MIB = 1 << 20
SMALLEST_BYTES = 512  # of a queue with 1 .. 32 records
BATCH = 4_096


def limits_of(queued: int, in_flight: int = 100, drop_newest: bool = False) -> BrokerLimits:
    return BrokerLimits(
        sessions=SessionLimits(queued_records_max=queued, in_flight_max=in_flight, drop_newest=drop_newest)
    )


def away(bench: Bench, client_id: str, qos: int = 1) -> None:
    """A client that subscribed to a/# and has left."""
    client = bench.client(client_id, clean_start=False)
    client.subscribe("a/#", qos=qos)
    client.send(Disconnect())


def number(payload: bytes | bytearray | memoryview) -> int:
    return int.from_bytes(payload, "big")


def publish_many(publisher: Wire, count: int) -> None:
    """Messages 0 .. count - 1 with QoS 1, in parts, with their acknowledgements read."""
    head = b"\x32\x0b\x00\x03a/b\x00\x01"
    for first in range(0, count, BATCH):
        some = range(first, min(first + BATCH, count))
        publisher.raw(b"".join(head + n.to_bytes(4, "big") for n in some))
        publisher.bytes_received()


def test_a_million_queued_messages_take_less_than_16_bytes_each_and_come_back_in_order() -> None:
    count = 1_000_000
    with Bench(capacity_bytes=64 * MIB, limits=limits_of(count, in_flight=60_000)) as bench:
        away(bench, "sleeper")
        publish_many(bench.client("p"), count)
        queued_bytes = bench.stats.gauges()["queues_bytes"]
        assert 15 * count <= queued_bytes <= 15.2 * count
        sleeper = back(bench, "sleeper")
        seen, ahead = 0, len(encode(ConnAck(True), Version.V311))
        while data := sleeper.bytes_received()[ahead:]:
            ahead = 0
            acknowledgements = bytearray()
            # PUBLISH QoS 1: 0x32 13, topic "a/b" with its length, identifier, 4 bytes
            assert len(data) % 13 == 0
            for at in range(0, len(data), 13):
                assert data[at] == 0x32
                assert number(data[at + 9 : at + 13]) == seen
                seen += 1
                acknowledgements += b"\x40\x02" + data[at + 7 : at + 9]
            sleeper.raw(bytes(acknowledgements))
        assert seen == count
        assert bench.stats.gauges()["queues_bytes"] == SMALLEST_BYTES
        assert bench.stats.snapshot()["dropped"]["overrun"] == 0


def test_a_short_queue_is_small_and_gives_back_what_a_burst_took() -> None:
    with Bench() as bench:
        away(bench, "sleeper")
        publisher = bench.client("p")
        sizes = []
        for _ in range(400):
            publish_many(publisher, 1)
            sizes.append(bench.stats.gauges()["queues_bytes"])
        assert sizes[0] == sizes[31] == SMALLEST_BYTES
        assert all(size <= 2 * 15 * count + 2 * SMALLEST_BYTES for count, size in enumerate(sizes, 1))
        assert drain(back(bench, "sleeper")) == [0] * 400
        assert bench.stats.gauges()["queues_bytes"] == SMALLEST_BYTES
        session = bench.broker.sessions.get("sleeper")
        assert session is not None
        bench.broker.sessions.close(session)
        assert bench.stats.gauges()["queues_bytes"] == 0


def drain(client: Wire) -> list[int]:
    """The numbers of all messages there are for it, each acknowledged."""
    found = []
    while packets := client.received():
        for packet in packets:
            if isinstance(packet, Publish):
                found.append(number(packet.payload))
                client.send(PubAck(packet.packet_id))
    return found


# How many are published, or taken, by turns.
TURNS = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 3)), max_size=12)


@settings(max_examples=40, deadline=None)
@given(turns=TURNS, most=st.sampled_from([1, 31, 32, 33, 99, 300, 10_000]), newest=st.booleans())
def test_a_queue_is_first_in_first_out_and_drops_by_its_policy(
    turns: list[tuple[int, int]], most: int, newest: bool
) -> None:
    with Bench(limits=limits_of(most, in_flight=40, drop_newest=newest)) as bench:
        away(bench, "sleeper")
        publisher = bench.client("p")
        model: deque[int] = deque()
        dropped = at = 0
        for count, visits in turns:
            for n in range(at, at + count):
                publisher.send(Publish("a/b", n.to_bytes(4, "big"), 1, packet_id=1))
                dropped += len(model) == most
                if len(model) == most and not newest:
                    model.popleft()
                if len(model) < most:
                    model.append(n)
            publisher.bytes_received()
            at += count
            sleeper = back(bench, "sleeper")
            for _ in range(visits):  # each takes a window full
                packets = [packet for packet in sleeper.received() if isinstance(packet, Publish)]
                assert [number(packet.payload) for packet in packets] == [
                    model.popleft() for _ in range(min(len(model), 40))
                ]
                sleeper.send(*(PubAck(packet.packet_id) for packet in packets))
            sleeper.drop()
        (row,) = [it for it in bench.stats.clients(bench.broker.sessions) if it.client_id == "sleeper"]
        assert (row.queued, row.dropped.get("queue", 0)) == (len(model), dropped)


def test_queues_at_their_limit_together_drop_the_oldest_of_who_wants_more() -> None:
    limit_bytes = 64 << 10
    with Bench(engine=EngineLimits(queues_max_bytes=limit_bytes), limits=limits_of(1 << 20)) as bench:
        away(bench, "one")
        away(bench, "two")
        publish_many(bench.client("p"), 10_000)
        rows = {it.client_id: it for it in bench.stats.clients(bench.broker.sessions)}
        assert bench.stats.gauges()["queues_bytes"] <= limit_bytes
        for client_id in ("one", "two"):
            row = rows[client_id]
            assert row.queued + row.dropped["memory"] == 10_000
            seen = drain(back(bench, client_id))
            assert seen == sorted(seen)
            assert len(seen) == row.queued
        assert rows["one"].queued + rows["two"].queued > limit_bytes // 20


@settings(max_examples=100, deadline=None)
@given(steps=st.lists(st.tuples(st.integers(1, 14), st.booleans()), max_size=120))
def test_identifiers_received_with_qos_2_are_known_until_they_are_released(
    steps: list[tuple[int, bool]],
) -> None:
    """Few of them are kept in another way than many, so it goes to and fro between both."""
    with Bench() as bench:
        client = bench.client("c")
        published, in_use = 0, set()
        for packet_id, publish in steps:
            if publish:
                client.send(Publish("a/b", b"x", 2, packet_id=packet_id, dup=packet_id in in_use))
                published += packet_id not in in_use
                in_use.add(packet_id)
                assert client.received() == [PubRec(packet_id)]
            else:
                client.send(PubRel(packet_id))
                in_use.discard(packet_id)
                assert client.received() == [PubComp(packet_id)]
        assert len(bench.records()) == published
