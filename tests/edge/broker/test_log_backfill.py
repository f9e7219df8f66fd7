"""Sessions that come back when their records are in the log alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.broker.dispatcher import BrokerLimits
from edge.broker.sessions import SessionLimits
from edge.config.schema import Durability
from edge.engine.engine import EngineLimits
from edge.mqtt import ConnAck, Connect, Disconnect, PubAck, Publish, SubAck, Subscribe, Subscription
from persistence import Log
from tests.support.away_client import away, back, dropped
from tests.support.brim_process import BrimProcess
from tests.support.cold_log import ColdLog
from tests.support.mqtt_bench import Bench, Wire
from tests.support.mqtt_socket import RawClient
from tests.support.no_threads import no_threads

RING_BYTES = 64 << 10
BODY = 200
LAPS = RING_BYTES // BODY  # more than once around


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench(
        capacity_bytes=RING_BYTES,
        durability=Durability.INTERVAL,
        engine=EngineLimits(spill_max_bytes=1 << 20),
        limits=BrokerLimits(sessions=SessionLimits(in_flight_max=10)),
    ) as made:
        yield made


def publish(cold: ColdLog, publisher: Wire, first: int, count: int) -> None:
    for n in range(first, first + count):
        publisher.send(Publish("t/a", b"%d" % n + bytes(BODY), 1, packet_id=1))
        if n % 50 == 0:
            cold.write()
    cold.write()
    publisher.bytes_received()


def taken(cold: ColdLog, client: Wire) -> list[int]:
    """One turn: what is there for it, each acknowledged."""
    found = []
    for packet in client.received():
        if isinstance(packet, Publish):
            found.append(int(bytes(packet.payload).rstrip(b"\0")))
            client.send(PubAck(packet.packet_id))
    cold.settle()
    return found


def numbers(cold: ColdLog, client: Wire) -> list[int]:
    """All that there is for it."""
    found: list[int] = []
    cold.settle()
    while True:
        more = taken(cold, client)
        found += more
        if not more and not client.bench.broker.backfill.reading:
            again = taken(cold, client)
            if not again:
                return found
            found += again


def test_who_was_away_for_many_laps_gets_everything_from_the_log_in_order(
    bench: Bench, tmp_path: Path
) -> None:
    with ColdLog.behind(bench, tmp_path, segment_bytes=128 << 10) as cold:
        away(bench, "sleeper")
        publish(cold, bench.client("p"), 0, 8 * LAPS)
        assert bench.stats.gauges()["spilled_bytes"] == 0  # nothing is kept while it is away
        assert numbers(cold, back(bench, "sleeper")) == list(range(8 * LAPS))
        assert bench.stats.totals()["restored"] > 6 * LAPS
        assert bench.stats.gauges()["spilled_bytes"] == 0
        assert dropped(bench, "sleeper") == {}


def test_names_are_examined_up_to_the_first_record_of_the_log_and_all_of_a_group_whose_members_take_them(
    bench: Bench, tmp_path: Path
) -> None:
    """A change of access rules examines a queue by its names where the table has forgotten the topics."""
    with ColdLog.behind(bench, tmp_path) as cold:
        away(bench, "sleeper")
        away(bench, "member", "$share/g/t/#")
        publish(cold, bench.client("p"), 0, 2 * LAPS)
        (group,) = bench.broker.router._groups.values()
        session = bench.broker.sessions.get("sleeper")
        assert session is not None
        assert bench.engine.topics_recycle(10) > 0
        for handle in (session.handle, group.handle):
            assert bench.engine.queue_topics(handle) == b""
        assert bench.engine.queue_names(session.handle) == []
        in_memory = len(bench.records())
        assert bench.engine.queue_names(group.handle) == [b"t/a"] * in_memory
        bench.engine.queue_resolve_names(group.handle, b"\1" * in_memory)
        assert bench.engine.queue_names(group.handle) == []
        assert numbers(cold, back(bench, "sleeper")) == list(range(2 * LAPS))


def test_the_log_is_read_while_no_thread_can_be_started(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ColdLog.behind(bench, tmp_path) as cold:
        away(bench, "sleeper")
        publish(cold, bench.client("p"), 0, 2 * LAPS)
        with no_threads(monkeypatch):
            assert numbers(cold, back(bench, "sleeper")) == list(range(2 * LAPS))


def test_others_go_on_while_one_waits_for_the_log(bench: Bench, tmp_path: Path) -> None:
    with ColdLog.behind(bench, tmp_path) as cold:
        away(bench, "sleeper")
        publisher = bench.client("p")
        publish(cold, publisher, 0, 2 * LAPS)
        sleeper = back(bench, "sleeper")
        assert len(sleeper.received()) == 1  # CONNACK: the rest is not there yet
        bench.settle()
        assert bench.broker.backfill.reading == 1
        live = bench.client("live")
        live.subscribe("t/#", qos=1)
        publish(cold, publisher, 2 * LAPS, 1)
        assert taken(cold, live) == [2 * LAPS]
        assert numbers(cold, sleeper) == list(range(2 * LAPS + 1))


def test_what_was_in_flight_is_read_back_too(bench: Bench, tmp_path: Path) -> None:
    with ColdLog.behind(bench, tmp_path) as cold:
        client = bench.client("c", clean_start=False)
        client.subscribe("t/#", qos=1)
        publisher = bench.client("p")
        publish(cold, publisher, 0, 30)
        sent = [packet.packet_id for packet in client.received() if isinstance(packet, Publish)]
        assert len(sent) == 10
        client.send(PubAck(sent[3]))  # a gap
        client.drop()
        publish(cold, publisher, 30, 3 * LAPS)
        client = back(bench, "c")
        client.received()
        cold.settle()
        again = [packet for packet in client.received() if isinstance(packet, Publish)]
        assert [packet.packet_id for packet in again if packet.dup] == sent[:3] + sent[4:]
        client.send(*(PubAck(packet.packet_id) for packet in again))
        rest = numbers(cold, client)
        assert rest[-1] == 30 + 3 * LAPS - 1
        assert len(again) + len(rest) + 1 == 30 + 3 * LAPS


def test_what_the_log_has_given_up_is_counted_as_overrun(bench: Bench, tmp_path: Path) -> None:
    with ColdLog.behind(bench, tmp_path, segment_bytes=64 << 10, retain_bytes=256 << 10) as cold:
        away(bench, "sleeper")
        publish(cold, bench.client("p"), 0, 12 * LAPS)
        got = numbers(cold, back(bench, "sleeper"))
        assert got == list(range(got[0], 12 * LAPS))
        assert 0 < got[0] == dropped(bench, "sleeper")["overrun"]
        assert bench.stats.dropped()["overrun"] == got[0]


def test_without_a_log_what_the_ring_lost_is_counted_as_overrun(bench: Bench) -> None:
    away(bench, "sleeper")
    publisher = bench.client("p")
    for n in range(4 * LAPS):
        publisher.send(Publish("t/a", b"%d" % n + bytes(BODY), 1, packet_id=1))
    sleeper = back(bench, "sleeper")
    got = []
    for _ in range(4 * LAPS):
        packets = [packet for packet in sleeper.received() if isinstance(packet, Publish)]
        got += [int(bytes(packet.payload).rstrip(b"\0")) for packet in packets]
        sleeper.send(*(PubAck(packet.packet_id) for packet in packets))
    assert got == list(range(got[0], 4 * LAPS))
    assert got[0] == dropped(bench, "sleeper")["overrun"] > LAPS


def test_a_client_that_leaves_while_its_records_are_read_finds_them_when_it_returns(
    bench: Bench, tmp_path: Path
) -> None:
    with ColdLog.behind(bench, tmp_path) as cold:
        away(bench, "sleeper")
        publish(cold, bench.client("p"), 0, 3 * LAPS)
        for _ in range(3):
            sleeper = back(bench, "sleeper")
            sleeper.received()
            bench.settle()
            sleeper.drop()
        assert numbers(cold, back(bench, "sleeper")) == list(range(3 * LAPS))


def test_a_disk_that_fails_is_asked_again(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.broker.log_backfill.RETRY_S", 0.001)
    with ColdLog.behind(bench, tmp_path) as cold:
        away(bench, "sleeper")
        publish(cold, bench.client("p"), 0, 2 * LAPS)
        failures = iter([True, True])

        def read_at(*where: object) -> object:
            if next(failures, False):
                raise OSError(5, "the disk has an error")
            return cold.log.reader.read_at(*where)  # type: ignore[arg-type]

        bench.broker.backfill.read_from(read_at)  # type: ignore[arg-type]
        assert numbers(cold, back(bench, "sleeper")) == list(range(2 * LAPS))
        assert next(failures, None) is None


def test_records_are_found_by_their_place_in_the_ring(bench: Bench, tmp_path: Path) -> None:
    with ColdLog.behind(bench, tmp_path, segment_bytes=64 << 10) as cold:
        publisher = bench.client("p")
        places = []
        for n in range(6 * LAPS):
            places.append(bench.partition.writer.end_position)
            publisher.send(Publish("t/a", b"%d" % n + bytes(BODY), 1, packet_id=1))
            if n % 40 == 0:
                cold.write()
        cold.write()
        log: Log = cold.log
        name, epoch = bench.partition.ring.name, bench.partition.ring.epoch
        assert len(log.reader.bases()) > 3
        for n in range(0, 6 * LAPS, 97):
            run = log.reader.read_at(name, epoch, places[n], 1)[0]
            assert run.position <= places[n] < run.position + len(run.view) or run.position < places[n + 1]
            assert run.offset <= n < run.offset + run.count
        assert log.reader.read_at(name, epoch, places[-1] + 4096, 1) == []
        assert log.reader.read_at(name, epoch + 1, 0, 1) == []
        assert log.reader.read_at(name, epoch, 0, 1)[0].offset == 0


def test_what_a_group_waits_for_is_read_back_and_goes_to_one_member_each(
    bench: Bench, tmp_path: Path
) -> None:
    with ColdLog.behind(bench, tmp_path) as cold:
        for client_id in ("one", "two"):
            member = bench.client(client_id, clean_start=False)
            member.subscribe("$share/group/t/#", qos=1)
            member.send(Disconnect())
        publish(cold, bench.client("p"), 0, 4 * LAPS)
        members = [back(bench, "one"), back(bench, "two")]
        got: list[list[int]] = [[], []]
        quiet = 0
        while quiet < 4:
            for member, its_numbers in zip(members, got, strict=True):
                more = taken(cold, member)
                its_numbers.extend(more)
                quiet = 0 if more else quiet + 1
        assert sorted(got[0] + got[1]) == list(range(4 * LAPS))
        assert all(numbers_of_it == sorted(numbers_of_it) and numbers_of_it for numbers_of_it in got)


SAFE = """
[[stream]]
name = "safe"
topics = ["safe/#"]
durability = "disk"
ring_bytes = "256 KiB"
sync_bytes = "64 KiB"
when_full = "block"
[limits]
packet_max_bytes = "8 KiB"
"""


def test_a_broker_with_a_log_delivers_five_rings_to_who_returns(
    runtime_directory: Path, tmp_path: Path
) -> None:
    count, size = 1_400, 1_000  # 1.4 MB through a ring of 256 KiB
    with BrimProcess(runtime_directory, tmp_path, SAFE) as broker:
        with RawClient(broker.port) as sleeper:
            sleeper.send(Connect("sleeper", clean_start=False), Subscribe(1, (Subscription("safe/#", 1),)))
            assert isinstance(sleeper.packet(), ConnAck)
            assert isinstance(sleeper.packet(), SubAck)
            sleeper.send(Disconnect())
        with RawClient(broker.port) as publisher:
            publisher.send(Connect("publisher"))
            assert isinstance(publisher.packet(), ConnAck)
            for first in range(0, count, 100):
                some = range(first, first + 100)
                publisher.send(
                    *(Publish("safe/a", n.to_bytes(4, "big") + bytes(size), 1, packet_id=n + 1) for n in some)
                )
                assert [publisher.packet() for _ in some] == [PubAck(n + 1) for n in some]
        with RawClient(broker.port) as sleeper:
            sleeper.send(Connect("sleeper", clean_start=False))
            assert sleeper.packet() == ConnAck(True)
            for n in range(count):
                message = sleeper.publish()
                assert int.from_bytes(message.payload[:4], "big") == n
                assert len(message.payload) == size + 4
                sleeper.send(PubAck(message.packet_id))
