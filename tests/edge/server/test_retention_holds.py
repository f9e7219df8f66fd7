"""Retention waits for MQTT sessions whose records have left the ring, and for no others."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from edge.broker.dispatcher import BrokerLimits
from edge.broker.sessions import SessionLimits
from edge.config.listener import Listener
from edge.config.schema import Config, Durability, Stream
from edge.mqtt import Connect, Disconnect, PubAck, Publish
from edge.server import retention_holds as holds
from edge.server.retention_holds import SessionHolds
from edge.server.server import BrokerServer
from persistence.errors import FormatError
from persistence.maintenance.retention_rules import Floor
from tests.support.cold_log import ColdLog
from tests.support.mqtt_bench import Bench

RING_BYTES = 1 << 16
BODY = bytes(1_000)


def at_once(function: Callable[[], Any]) -> Future[Any]:
    answer: Future[Any] = Future()
    answer.set_result(function())
    return answer


def never(function: Callable[[], Any]) -> Future[Any]:
    return Future()


@pytest.fixture
def bench() -> Iterator[Bench]:
    limits = BrokerLimits(sessions=SessionLimits(in_flight_max=10))
    with Bench(capacity_bytes=RING_BYTES, durability=Durability.INTERVAL, limits=limits) as made:
        yield made


def publish(bench: Bench, cold: ColdLog, count: int) -> None:
    publisher = bench.client("p")
    for number in range(1, count + 1):
        publisher.send(Publish("t", BODY, 1, packet_id=number))
        if number % 20 == 0:
            cold.write()
    cold.write()
    publisher.drop()


def floors(bench: Bench, cold: ColdLog, ring: str = "t-0") -> list[Floor]:
    return list(SessionHolds(bench.broker, at_once, cold.log.reader.read_at)(ring))


@pytest.mark.parametrize("step", [1, 1000])
def test_the_oldest_record_that_a_session_waits_for_is_wanted(
    bench: Bench, tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holds, "STEP_RECORDS", step)
    with ColdLog.behind(bench, tmp_path, segment_bytes=128 << 10) as cold:
        publish(bench, cold, 100)
        assert floors(bench, cold) == []
        for client_id in ("other", "sleeper"):  # both have what comes from here on
            client = bench.client(client_id, clean_start=False)
            client.subscribe("t", qos=1)
            client.send(Disconnect())
        publish(bench, cold, 200)
        (floor,) = floors(bench, cold)
        assert floor.consumer == "sessions"
        assert floor.epoch == bench.partition.ring.epoch
        assert 60 < floor.offset <= 100  # an extent is wanted as a whole
        assert floors(bench, cold, "t-1") == []
        bench.broker.sessions.close(bench.broker.sessions._by_client["other"])
        client, taken = bench.wire(), 0
        client.send(Connect("sleeper", clean_start=False))
        for _ in range(1_000):
            if taken >= 120:
                break
            cold.settle()
            for packet in client.received():
                if isinstance(packet, Publish):
                    client.send(PubAck(packet.packet_id))
                    taken += 1
        (floor,) = floors(bench, cold)
        assert 100 + taken - 40 < floor.offset <= 100 + taken


def test_everything_is_wanted_until_sessions_could_be_seen(bench: Bench, tmp_path: Path) -> None:
    with ColdLog.behind(bench, tmp_path) as cold:
        holds = SessionHolds(bench.broker, never, cold.log.reader.read_at)
        assert list(holds("t-0")) == [Floor("sessions", 0, 0)]


@pytest.mark.parametrize("error", [OSError, FormatError])
def test_what_cannot_be_read_is_wanted_and_does_not_stop_retention(
    bench: Bench, tmp_path: Path, error: type[Exception]
) -> None:
    with ColdLog.behind(bench, tmp_path, segment_bytes=128 << 10) as cold:
        client = bench.client("sleeper", clean_start=False)
        client.subscribe("t", qos=1)
        client.send(Disconnect())
        publish(bench, cold, 200)
        fails = True

        def read_at(*place: Any) -> Any:
            if fails:
                raise error("it cannot be read")
            return cold.log.reader.read_at(*place)

        holds = SessionHolds(bench.broker, at_once, read_at)
        epoch = bench.partition.ring.epoch
        assert list(holds("t-0")) == [Floor("sessions", epoch, 0)]
        fails = False
        holds._look()
        assert list(holds("t-0")) == floors(bench, cold)


async def test_records_are_also_in_the_rings_of_streams_and_of_producers(
    runtime_directory: Path, tmp_path: Path
) -> None:
    stream = Stream(name="default", topics=("#",), durability=Durability.DISK)
    config = Config(
        runtime_dir=runtime_directory,
        state_dir=tmp_path / "state",
        listener=(Listener(port=0),),
        stream=(stream,),
    )
    async with BrokerServer(config, "test", lambda: None) as broker:
        broker._core.producers.open("camera", "default", os.geteuid())
        assert broker.logs is not None
        maintenance: Any = broker.logs.maintenance
        maintenance.__self__.holds.append(lambda _: [Floor("group", 1, 0)])
        for ring in ("default-0", "default@camera"):
            assert maintenance.__self__._floors(ring)[-1].in_ring is not None, ring
