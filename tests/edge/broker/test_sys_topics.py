"""$SYS: messages of the broker about itself, their receivers, their times and their cost."""

import math
from collections.abc import Iterator

import pytest

from edge.broker.dispatcher import REST_S, BrokerLimits
from edge.broker.sys_topics import TOPICS
from edge.log.log_status import sys_numbers
from edge.mqtt import Publish, Subscribe, Subscription
from tests.support.mqtt_bench import Bench, Wire


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench(limits=BrokerLimits(sys_interval_s=10), version="brim 9") as made:
        yield made


def values(wire: Wire) -> dict[str, str]:
    """$SYS values that have come, by name behind $SYS/broker/."""
    found = {}
    for packet in wire.received():
        if isinstance(packet, Publish):
            assert packet.topic.startswith("$SYS/broker/")
            found[packet.topic.removeprefix("$SYS/broker/")] = bytes(packet.payload).decode()
    return found


def test_who_subscribes_gets_what_there_is_at_once(bench: Bench) -> None:
    watcher = bench.client("w")
    watcher.send(Subscribe(1, (Subscription("$SYS/#", 1),)))
    _, *publishes = watcher.received()
    assert all(isinstance(it, Publish) and it.retain for it in publishes)
    names = {it.topic for it in publishes if isinstance(it, Publish)}
    assert {"$SYS/broker/version", "$SYS/broker/load/bytes/sent/15min"} <= names
    assert len(names) == len(publishes) > 50


def test_what_has_changed_is_published_once_an_interval(bench: Bench) -> None:
    watcher = bench.client("w", keep_alive_s=0)
    watcher.send(Subscribe(1, (Subscription("$SYS/broker/#"),)))
    assert values(watcher)["version"] == "brim 9"
    bench.settle(9_900)
    assert watcher.received() == []
    bench.settle(200)
    said = values(watcher)
    assert said["uptime"] == "10 seconds"
    assert said["clients/connected"] == "1"
    assert said["clients/maximum"] == "1"
    assert said["subscriptions/count"] == "1"
    assert "version" not in said
    bench.settle(10_000)
    assert "clients/connected" not in values(watcher)


def test_numbers_are_those_of_the_broker(bench: Bench) -> None:
    watcher, writer = bench.client("w", keep_alive_s=0), bench.client("p", keep_alive_s=0)
    watcher.subscribe("t")
    bench.client("away", clean_start=False).drop()
    writer.send(*(Publish("t", b"12345", retain=True) for _ in range(4)))
    watcher.received()
    bench.settle(10_000)
    watcher.send(Subscribe(1, (Subscription("$SYS/broker/#"),)))
    said = values(watcher)
    expected = {
        "publish/messages/received": "4",
        "publish/messages/sent": "4",
        "publish/bytes/received": "20",
        "publish/bytes/sent": "20",
        "publish/messages/dropped": "0",
        "clients/total": "3",
        "clients/connected": "2",
        "clients/disconnected": "1",
        "clients/maximum": "3",
    }
    assert {name: said[name] for name in expected} == expected
    assert 1 << 20 < int(said["heap/current"]) <= int(said["heap/maximum"])
    assert float(said["load/publish/received/1min"]) == pytest.approx(24 * (1 - math.exp(-10 / 60)), abs=0.01)


def test_loads_forget_slowly(bench: Bench) -> None:
    watcher, writer = bench.client("w", keep_alive_s=0), bench.client("p", keep_alive_s=0)
    writer.send(*(Publish("t", b"x") for _ in range(60)))
    bench.settle(10_000)
    bench.settle(60_000)
    watcher.send(Subscribe(1, (Subscription("$SYS/broker/load/publish/received/+"),)))
    said = values(watcher)
    first = 360 * (1 - math.exp(-10 / 60)) * math.exp(-60 / 60)
    assert float(said["load/publish/received/1min"]) == pytest.approx(first, abs=0.01)
    assert said["load/publish/received/5min"] > "8"


def test_sys_is_for_who_asks_for_it_and_is_no_data(bench: Bench) -> None:
    greedy, writer = bench.client("g", keep_alive_s=0), bench.client("p")
    greedy.subscribe("#", "+/broker/#")
    writer.send(Publish("$SYS/broker/version", b"mine", retain=True))
    bench.settle(20_000)
    assert greedy.received() == []
    assert bench.records() == []


def test_nothing_is_said_where_it_is_switched_off() -> None:
    with Bench() as bench:
        bench.settle(100_000)
        watcher = bench.client("w")
        watcher.send(Subscribe(1, (Subscription("$SYS/#"),)))
        assert len(watcher.received()) == 1
        assert bench.broker.tick() == REST_S


def test_the_broker_sleeps_until_the_next_update(bench: Bench) -> None:
    bench.settle(4_000)
    assert bench.broker.tick() == pytest.approx(6.0)


def test_every_published_topic_is_in_the_table_and_no_other(bench: Bench) -> None:
    bench.broker.sys_topics.log = lambda: sys_numbers([])
    bench.broker.sys_topics.log_state = lambda: "takes records"
    bench.settle(10_000)
    watcher = bench.client("w", keep_alive_s=0)
    watcher.send(Subscribe(1, (Subscription("$SYS/broker/#"),)))
    assert set(values(watcher)) == set(TOPICS)
    assert all(TOPICS.values())
