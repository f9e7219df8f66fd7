"""Records that a ring without a log overwrites while a session of QoS 1 or 2 still waits for them."""

import pytest

from edge.broker.dispatcher import BrokerLimits
from edge.broker.sessions import SessionLimits
from edge.engine.engine import EngineLimits
from edge.mqtt import PubAck, PubComp, Publish, PubRec, PubRel, Subscribe, Subscription
from ringbuf import Ring
from tests.support.away_client import away, back, dropped
from tests.support.mqtt_bench import Bench, Wire

RING_BYTES = 64 << 10
BODY = 200
LAPS = RING_BYTES // BODY  # more than once around


def small(spill_max_bytes: int = 64 << 20, in_flight: int = 100) -> Bench:
    return Bench(
        capacity_bytes=RING_BYTES,
        engine=EngineLimits(spill_max_bytes=spill_max_bytes),
        limits=BrokerLimits(sessions=SessionLimits(in_flight_max=in_flight)),
    )


def body(n: int) -> bytes:
    return b"%d" % n + bytes(BODY)


def publish(publisher: Wire, first: int, count: int, topic: str = "t/a", qos: int = 1) -> None:
    for n in range(first, first + count):
        publisher.send(Publish(topic, body(n), qos, packet_id=1 if qos else 0))
    publisher.bytes_received()


def numbers(client: Wire) -> list[int]:
    """Of all that there is for it, each acknowledged."""
    found = []
    while packets := client.received():
        for packet in packets:
            if isinstance(packet, Publish):
                found.append(int(bytes(packet.payload).rstrip(b"\0")))
                if packet.qos:
                    client.send(PubAck(packet.packet_id) if packet.qos == 1 else PubRec(packet.packet_id))
            elif isinstance(packet, PubRel):
                client.send(PubComp(packet.packet_id))
    return found


@pytest.mark.parametrize("qos", [1, 2])
def test_who_was_away_for_many_laps_of_the_ring_gets_everything_in_order(qos: int) -> None:
    with small() as bench:
        away(bench, "sleeper", qos=qos)
        publisher = bench.client("p")
        for n in range(10 * LAPS):
            publisher.send(Publish("t/a", body(n), qos, packet_id=1))
            if qos == 2:
                publisher.send(PubRel(1))
            if n % 10 == 0:
                publish(publisher, n, 1, "noise", 0)
        assert bench.stats.gauges()["spilled_records"] > 8 * LAPS
        assert numbers(back(bench, "sleeper")) == list(range(10 * LAPS))
        assert bench.stats.gauges()["spilled_bytes"] == bench.stats.gauges()["spilled_records"] == 0
        assert dropped(bench, "sleeper") == {}


def test_a_record_that_many_sessions_need_is_copied_once() -> None:
    with small() as bench:
        for i in range(5):
            away(bench, f"s{i}")
        publish(bench.client("p"), 0, 3 * LAPS)
        assert bench.stats.totals()["spilled"] < 3 * LAPS
        for i in range(5):
            assert numbers(back(bench, f"s{i}")) == list(range(3 * LAPS))
        assert bench.stats.gauges()["spilled_bytes"] == 0


def test_what_was_in_flight_is_found_again_after_the_ring_has_passed() -> None:
    with small(in_flight=7) as bench:
        client = bench.client("c", clean_start=False)
        client.subscribe("t/#", qos=1)
        publisher = bench.client("p")
        publish(publisher, 0, 20)
        sent = [packet for packet in client.received() if isinstance(packet, Publish)]
        assert len(sent) == 7
        client.drop()
        publish(publisher, 20, 3 * LAPS)
        client = back(bench, "c")
        again = [packet for packet in client.received() if isinstance(packet, Publish)]
        assert [packet.packet_id for packet in again] == [packet.packet_id for packet in sent]
        assert all(packet.dup for packet in again)
        client.send(*(PubAck(packet.packet_id) for packet in again))
        assert numbers(client) == list(range(7, 20 + 3 * LAPS))


def test_copies_have_a_limit_beyond_which_records_are_dropped_and_counted_by_client() -> None:
    limit_bytes = 30_000
    with small(limit_bytes) as bench:
        away(bench, "one")
        away(bench, "two")
        publish(bench.client("p"), 0, 5 * LAPS)
        assert 0 < bench.stats.gauges()["spilled_bytes"] <= limit_bytes
        for client_id in ("one", "two"):
            got = numbers(back(bench, client_id))
            assert got == sorted(got)
            assert len(got) + dropped(bench, client_id)["overrun"] == 5 * LAPS
        assert bench.stats.gauges()["spilled_bytes"] == 0


def test_who_keeps_up_or_wants_qos_0_costs_no_copy() -> None:
    with small() as bench:
        live = bench.client("live")
        live.subscribe("t/#", qos=1)
        lossy = bench.client("lossy")
        lossy.subscribe("t/#", qos=0)
        publisher = bench.client("p")
        for first in range(0, 2_000, 20):
            publish(publisher, first, 20)
            assert numbers(live) == list(range(first, first + 20))
        assert bench.stats.totals()["spilled"] == 0
        got = numbers(lossy)
        assert len(got) + dropped(bench, "lossy")["overrun"] == 2_000


def test_sessions_that_end_give_their_copies_back() -> None:
    with small() as bench:
        away(bench, "one")
        away(bench, "two")
        publish(bench.client("p"), 0, 3 * LAPS)
        bench.client("one")  # clean
        assert bench.stats.gauges()["spilled_bytes"] > 0
        bench.client("two")
        assert bench.stats.gauges()["spilled_bytes"] == bench.stats.gauges()["spilled_records"] == 0


def test_what_a_group_waits_for_is_copied_too_and_found_again_when_a_member_leaves() -> None:
    with small(in_flight=20) as bench:
        member = bench.client("one", clean_start=False)
        member.subscribe("$share/group/t/#", qos=1)
        publisher = bench.client("p")
        publish(publisher, 0, 30)
        assert len([packet for packet in member.received() if isinstance(packet, Publish)]) == 20
        member.drop()  # nothing was acknowledged: it is the group's again
        publish(publisher, 30, 4 * LAPS)
        other = bench.client("two")
        other.send(Subscribe(1, (Subscription("$share/group/t/#", 1),)))
        assert sorted(numbers(other)) == list(range(30 + 4 * LAPS))
        assert bench.stats.gauges()["spilled_bytes"] == 0


def test_records_of_a_local_producer_are_copied_before_its_ring_passes_them() -> None:
    with small() as bench:
        away(bench, "sleeper")
        path = bench.directory / "t@cam"
        with Ring.create(path, capacity_bytes=RING_BYTES, epoch=3) as ring, Ring.attach(path) as attached:
            reader = attached.reader(start="latest", verify=True)
            source = bench.engine.add_reader(reader)
            writer = ring.writer()
            for n in range(6 * LAPS):
                writer.publish(body(n), key="t/cam", flags=1)
                if n % 20 == 0:
                    bench.engine.read_producers()
                    bench.settle()
            bench.engine.read_producers()
            bench.settle()
            assert numbers(back(bench, "sleeper")) == list(range(6 * LAPS))
            bench.engine.remove_ring(source)
            reader.close()
            writer.close()
        assert bench.stats.totals()["spilled"] > 4 * LAPS
