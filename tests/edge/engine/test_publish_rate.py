"""Publish rate of one client: its listener's `publish_rate_max` pauses reading from it."""

import pytest

from edge.engine.engine import EngineLimits, listener_of
from edge.mqtt import PingReq, PingResp, PubAck, Publish, Version
from tests.support.mqtt_bench import Bench
from tests.support.mqtt_served import served


def limited(bench: Bench, rate: int) -> None:
    listener_of(bench.engine, 0).publish_rate_max = rate


def test_a_client_may_send_what_a_second_allows_at_once_and_the_rest_as_time_passes() -> None:
    with Bench() as bench:
        limited(bench, 10)
        client = bench.client()
        client.send(*(Publish("t", b"%d" % i, 1, packet_id=i + 1) for i in range(25)), PingReq())
        assert len(bench.records()) == 10
        for expected in range(11, 26):
            bench.settle(99)
            assert len(bench.records()) == expected - 1
            bench.settle(1)
            assert len(bench.records()) == expected
        assert client.received() == [*(PubAck(i + 1) for i in range(25)), PingResp()]
        assert [payload for _, payload in bench.records()] == [b"%d" % i for i in range(25)]
        assert bench.stats.totals()["rate_waits"] > 0
        assert sum(bench.stats.dropped().values()) == 0


def test_silence_saves_up_no_more_than_a_second() -> None:
    with Bench() as bench:
        limited(bench, 5)
        client = bench.client()
        for _ in range(3):
            bench.settle(60_000)
            before = len(bench.records())
            client.send(*(Publish("t") for _ in range(5)), *(Publish("t") for _ in range(5)))
            assert len(bench.records()) - before == 5
            bench.settle(1_000)
            assert len(bench.records()) - before == 10


def test_only_what_is_consumed_is_paid_for() -> None:
    """Python decides about every one of these topics, and each packet is read twice."""
    with Bench() as bench:
        limited(bench, 8)
        client = bench.client()
        client.send(*(Publish(f"t/{i}") for i in range(9)))
        assert len(bench.records()) == 8


def test_each_client_has_its_own_and_other_listeners_have_none() -> None:
    with Bench() as bench:
        limited(bench, 2)
        bench.broker.policies[2] = bench.broker.policies[0]
        first, second, free = bench.client("a"), bench.client("b"), bench.client("c", listener=2)
        for client in (first, second, free):
            client.send(*(Publish("t") for _ in range(6)))
        assert len(bench.records()) == 2 + 2 + 6


@pytest.mark.parametrize("rate", [1, 1_000_000, 2**32 - 1])
def test_any_rate_lets_messages_through(rate: int) -> None:
    with Bench(capacity_bytes=1 << 22) as bench:
        limited(bench, rate)
        client = bench.client()
        client.send(*(Publish("t") for _ in range(3)))
        bench.settle(1_000)
        bench.settle(1_000)
        assert len(bench.records()) == 3


def test_who_is_not_read_is_not_silent() -> None:
    with Bench() as bench:
        limited(bench, 1)
        client = bench.client(keep_alive_s=1)
        client.send(*(Publish("t") for _ in range(30)))
        for _ in range(29):
            bench.settle(1_000)
            assert client.is_open
        bench.settle(1_000)
        bench.settle(2_000)
        assert len(bench.records()) == 30
        assert not client.is_open


def test_a_paused_client_can_go() -> None:
    with Bench(engine=EngineLimits(connections_max=10)) as bench:
        limited(bench, 1)
        client = bench.client(version=Version.V311)
        client.send(*(Publish("t") for _ in range(3)))
        client.drop()
        bench.settle(5_000)
        assert len(bench.records()) == 1


def test_the_loop_wakes_up_for_a_paused_client() -> None:
    with served() as there:
        listener_of(there.engine, 0).publish_rate_max = 40
        with there.client() as client:
            client.send(*(Publish("t", b"", 1, packet_id=i + 1) for i in range(50)))
            assert [client.packet() for _ in range(50)] == [PubAck(i + 1) for i in range(50)]
            assert there.stats.totals()["rate_waits"] > 0
