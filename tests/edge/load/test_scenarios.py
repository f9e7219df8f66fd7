"""Every scenario against real brokers: what is counted is what happened, and nothing went wrong."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from edge.load import SCENARIOS, Generator, LoadTarget, Scenario, Sink, calibrate, measure
from edge.load import runner as load_runner
from edge.mqtt import Version
from tests.support.mosquitto import BINARY, running
from tests.support.mqtt_served import Served, served

MESSAGES = 60


@pytest.fixture(scope="module")
def brim() -> Iterator[Served]:
    with served(capacity_bytes=1 << 24) as there:
        yield there


@pytest.fixture(
    scope="module", params=["brim 3.1.1", "brim 5", "mosquitto 3.1.1", "mosquitto 5", "sink 3.1.1", "sink 5"]
)
def target(
    request: pytest.FixtureRequest, brim: Served, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LoadTarget]:
    name, _, number = request.param.partition(" ")
    version = Version.V5 if number == "5" else Version.V311
    with port_of(name, brim, tmp_path_factory.mktemp(name)) as port:
        yield LoadTarget(port=port, version=version)


@contextmanager
def port_of(name: str, brim: Served, directory: Path) -> Iterator[int]:
    """Port of the broker of that name."""
    if name == "brim":
        yield brim.port
    elif name == "sink":
        with Sink() as sink:
            yield sink.port
    elif BINARY is None:
        pytest.skip("needs mosquitto: apt-get install mosquitto")
    else:
        with running(directory, "max_queued_messages 100000") as broker:
            yield broker.port


def small(name: str, **changes: Any) -> Scenario:
    """That scenario with few messages."""
    few: dict[str, Any] = {
        "messages": MESSAGES,
        "publishers": min(20, SCENARIOS[name].publishers),
        "payload_bytes": 40,
    }
    fields = {**few, "subscribers": min(10, SCENARIOS[name].subscribers), **changes}
    return dataclasses.replace(SCENARIOS[name], **fields)


@pytest.mark.parametrize("qos", [(0,), (1,), (2,), (0, 1, 2)])
def test_what_is_published_is_acknowledged(target: LoadTarget, qos: tuple[int, ...]) -> None:
    result = measure(target, small("publish", publishers=3, qos=qos, window=7, topics=4))
    assert (result.sent, result.connections, result.clean) == (3 * MESSAGES, 3, True)
    shares = sum(1 for it in qos if it) / len(qos)
    assert result.acknowledged == result.acknowledged_in.total == round(3 * MESSAGES * shares)
    assert result.received == 0
    assert result.rate == result.sent / result.seconds


@pytest.mark.parametrize(
    ("name", "changes", "deliveries"),
    [
        ("pair", {}, MESSAGES),
        ("pair", {"qos": (0, 1, 2)}, MESSAGES),
        ("pair", {"qos": (2,), "window": 1}, MESSAGES),
        ("pair", {"outstanding": 3}, MESSAGES),
        ("pair", {"payload_bytes": 10, "outstanding": 0}, MESSAGES),
        ("fanout", {}, 10 * MESSAGES),
        ("fanout", {"qos": (1,), "publishers": 2}, 20 * MESSAGES),
        ("devices", {}, 20 * MESSAGES),
        ("devices", {"subscribe_qos": 1, "topics": 3, "random_topics": True}, 20 * MESSAGES),
        ("pair", {"payload_bytes": 300_000, "messages": 5, "window": 2, "qos": (1,)}, 5),
    ],
)
def test_each_message_arrives_once_and_in_order(
    target: LoadTarget, name: str, changes: dict[str, Any], deliveries: int
) -> None:
    result = measure(target, small(name, **changes))
    assert (result.expected, result.delivered, result.received) == (deliveries,) * 3
    assert (result.lost, result.missing, result.foreign, result.clean) == (0, 0, 0, True)
    assert result.rate_of == "deliveries"


def test_a_subscriber_to_each_topic_by_name_gets_each_message_once(target: LoadTarget) -> None:
    result = measure(target, small("pair", topics=MESSAGES, filters_at_once=7))
    assert (result.sent, result.delivered, result.foreign, result.clean) == (MESSAGES, MESSAGES, 0, True)


def test_a_broker_that_is_told_nothing_forgets_nothing(brim: Served) -> None:
    """The messages that the generator counts are those that are in the ring."""
    before = len(brim.records())
    measure(LoadTarget(port=brim.port), small("publish", publishers=2, qos=(1,)))
    records = brim.records()[before:]
    assert len(records) == 2 * MESSAGES
    assert {len(topic) for topic, _ in records} == {20}
    assert {len(payload) for _, payload in records} == {40}


def test_pairs_get_what_is_theirs(brim: Served) -> None:
    scenario = small("pair", publishers=4, subscribers=4, pairing="pairs", qos=(1,), outstanding=0)
    result = measure(LoadTarget(port=brim.port), scenario)
    assert (result.delivered, result.received, result.clean) == (4 * MESSAGES, 4 * MESSAGES, True)


@pytest.mark.parametrize("name", ["brim", "mosquitto"])
def test_a_shared_subscription_gets_each_message_once_between_them(
    name: str, brim: Served, tmp_path: Path
) -> None:
    with port_of(name, brim, tmp_path) as port:
        scenario = small("shared", outstanding=0)
        with Generator(LoadTarget(port=port, version=Version.V5), scenario) as crowd:
            crowd.connect()
            crowd.publish(10.0)
            assert crowd.drain()
            assert (len(crowd.groups), crowd.counters.connected) == (1, 5)
            tally = crowd.tally(crowd.groups[0])
            assert (tally.received[1], tally.duplicates[1]) == (MESSAGES, 0)


def test_what_others_publish_is_counted_as_theirs(brim: Served) -> None:
    target = LoadTarget(port=brim.port)
    with Generator(target, dataclasses.replace(SCENARIOS["subscribe"], topic_filter="news/#")) as listener:
        listener.connect()
        measure(target, small("publish", prefix="news", qos=(1,)))
        while listener.counters.received < MESSAGES:
            listener.listen(0.05)
        assert listener.counters.foreign == listener.counters.received == MESSAGES


def test_a_schedule_is_kept_and_times_are_counted_from_it(target: LoadTarget) -> None:
    scenario = small("latency", messages=0, rate=2_000.0, duration_s=0.1, publishers=4)
    result = measure(target, scenario)
    assert (result.sent, result.delivered, result.unsent, result.clean) == (200, 200, 0, True)
    assert result.latency.total == 200
    assert 0 < result.latency.min_ns <= result.latency.percentile(50) <= result.latency.max_ns
    assert result.seconds >= 0.09  # the last one is due after 99.5 ms, whatever the broker does


def test_a_storm_of_connections_is_held_and_counted(target: LoadTarget) -> None:
    result = measure(target, small("connect", publishers=50, hold_s=0.01, connecting=8))
    assert (result.connections, result.connected_in.total, result.clean) == (50, 50, True)
    assert result.rate_of == "connections"
    assert result.rate == 50 / result.connect_s


def test_connections_are_made_at_the_rate_that_is_asked_for(brim: Served) -> None:
    result = measure(LoadTarget(port=brim.port), small("connect", publishers=20, connect_rate=400.0))
    assert result.connect_s >= 19 / 400


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_generator_measures_itself(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_runner, "CALIBRATION_S", 0.05)
    result = calibrate(dataclasses.replace(SCENARIOS[name], rate=min(500.0, SCENARIOS[name].rate)))
    assert result.rate > 0
    assert (result.missing, result.clean) == (0, True)
