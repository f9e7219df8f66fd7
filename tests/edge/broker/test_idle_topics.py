"""Topics that no client uses any more: they are forgotten, without a visible effect."""

from array import array

import pytest
from msgspec.structs import replace

from edge.broker import router
from edge.broker.dispatcher import BrokerLimits
from edge.broker.router import TopicLimits
from edge.engine.engine import NO_TOPIC
from edge.mqtt import Properties, Publish, Subscribe, Subscription
from tests.support.mqtt_bench import Bench, Wire

IDLE = BrokerLimits(topics=TopicLimits(topics_idle_s=100.0))
MANY = router.IDLE_TABLE_MIN


def names(count: int) -> list[str]:
    return [f"device/{n}/value" for n in range(count)]


def known(bench: Bench) -> int:
    """Number of topics."""
    return len(array("I", bench.engine.topics()))


def quiet(bench: Bench, name: str) -> Wire:
    """A client that need not say anything."""
    return bench.client(name, keep_alive_s=0)


def publish(bench: Bench, topics: list[str], payload: bytes = b"") -> None:
    client = bench.client("publisher")
    for at in range(0, len(topics), 1_000):
        client.send(*(Publish(topic, payload) for topic in topics[at : at + 1_000]))
    client.drop()


def pass_time(bench: Bench, seconds: int) -> None:
    for _ in range(seconds):
        bench.settle(1_000)


def test_topics_that_nobody_uses_are_forgotten_and_those_that_are_used_or_retain_stay() -> None:
    with Bench(limits=IDLE, capacity_bytes=16 << 20) as bench:
        publish(bench, names(MANY + 1))
        listener, device = quiet(bench, "listener"), quiet(bench, "device")
        listener.subscribe("device/#")
        device.send(Publish("device/7/value", b"kept", retain=True))
        listener.publishes()
        for _ in range(25):
            pass_time(bench, 10)
            device.send(Publish("device/8/value", b"alive"))
        assert known(bench) == 2
        assert listener.publishes() == [("device/8/value", b"alive", 0)] * 25
        late = bench.client("late")
        late.send(Subscribe(1, (Subscription("device/+/value"),)))
        (kept,) = (packet for packet in late.received() if isinstance(packet, Publish))
        assert (kept.topic, kept.retain) == ("device/7/value", True)


def test_few_topics_are_kept_for_ever() -> None:
    with Bench(limits=IDLE, capacity_bytes=16 << 20) as bench:
        publish(bench, names(MANY - 100))
        pass_time(bench, 300)
        assert known(bench) >= MANY - 100


def test_forgotten_topics_that_come_again_reach_who_has_subscribed() -> None:
    topics = names(MANY + 500)
    with Bench(limits=IDLE, capacity_bytes=16 << 20) as bench:
        listener = quiet(bench, "listener")
        listener.subscribe("device/3/+")
        for turn in (b"first", b"second", b"third"):
            publish(bench, topics, turn)
            assert listener.publishes() == [("device/3/value", turn, 0)]
            pass_time(bench, 250)
            assert known(bench) == 0
            assert bench.engine.topic_find(b"device/3/value") == NO_TOPIC


def test_a_client_that_remembers_a_forgotten_topic_is_not_given_the_one_in_its_place() -> None:
    """By an alias, behind which the topic is remembered."""
    with Bench(limits=IDLE, capacity_bytes=16 << 20) as bench:
        listener, device = quiet(bench, "listener"), bench.client5("device", keep_alive_s=0)
        listener.subscribe("#")
        for topic in ("mine", "", ""):
            device.send(Publish(topic, b"1", properties=Properties(topic_alias=1)))
        publish(bench, names(MANY + 1))
        pass_time(bench, 250)
        publish(bench, [f"other/{n}" for n in range(MANY + 2)])  # in the same memory
        listener.publishes()
        device.send(Publish("", b"2", properties=Properties(topic_alias=1)))
        assert listener.publishes() == [("mine", b"2", 0)]


@pytest.mark.parametrize("idle_s", [1.0, 1_000.0])
def test_idle_topics_go_a_few_at_a_time(idle_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[int] = []
    with Bench(limits=replace(IDLE, topics=TopicLimits(topics_idle_s=idle_s))) as bench:
        publish(bench, names(MANY + 1))
        for _ in range(3_000):
            before = known(bench)
            bench.broker.router.forget_idle_topics(bench.now_ms / 1000)
            forgotten.append(before - known(bench))
            bench.now_ms += 1_000
    assert sum(forgotten) == MANY + 1
    assert max(forgotten) <= router.IDLE_SEARCH_MAX
