"""Many retained messages for a new subscription: all of them, once, and others are served meanwhile."""

from edge.broker.dispatcher import BrokerLimits
from edge.broker.sessions import SessionLimits
from edge.engine.engine import EngineLimits
from edge.mqtt import (
    Connect,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
)
from tests.support.frames import packets_of
from tests.support.mqtt_bench import Bench, Wire

MANY = 20_000
LIMITS = BrokerLimits(sessions=SessionLimits(queued_records_max=100))


def retain(bench: Bench, count: int = MANY) -> None:
    """`count` topics d/<n>/t that retain their number."""
    for name in range(count):
        topic = bench.broker.router.topic_of(f"d/{name}/t")
        assert topic is not None
        assert bench.engine.retain(topic, b"%d" % name, 1, b"", 0, b"", b"")


def ask(wire: Wire, topic_filter: str = "#", qos: int = 0) -> None:
    """SUBSCRIBE without a look at what comes."""
    wire.send(Subscribe(1, (Subscription(topic_filter, qos),)))


def pulled(wire: Wire) -> list[Publish]:
    """Packets of one turn of sending."""
    packets = packets_of(wire.bench.engine.pull(wire.handle))
    return [packet for packet in packets if isinstance(packet, Publish)]


def test_all_retained_messages_arrive_though_few_may_be_queued() -> None:
    with Bench(limits=LIMITS) as bench:
        retain(bench)
        for topic_filter in ("#", "d/+/t", "+/#"):
            wire = bench.client(topic_filter)
            ask(wire, topic_filter)
            answer, *publishes = wire.received()
            assert isinstance(answer, SubAck)
            assert len(publishes) == MANY
            assert {packet.payload for packet in publishes if isinstance(packet, Publish)} == {
                b"%d" % i for i in range(MANY)
            }
        assert sum(bench.stats.dropped().values()) == 0


def test_at_qos_1_they_come_as_they_are_acknowledged_and_go_on_with_the_next_connection() -> None:
    with Bench(limits=LIMITS) as bench:
        retain(bench, 1_000)
        wire = bench.client("c", clean_start=False)
        ask(wire, qos=1)
        got: list[bytes] = []
        for turn in range(12):
            if turn == 5:
                wire.drop()
                wire = bench.wire()
                wire.send(Connect("c", clean_start=False))
            for packet in wire.received():
                if isinstance(packet, Publish):
                    got += [] if packet.dup else [bytes(packet.payload)]
                    wire.send(PubAck(packet.packet_id))
        assert sorted(got) == sorted(b"%d" % i for i in range(1_000))


def test_others_are_served_and_live_messages_come_while_there_are_more() -> None:
    with Bench(limits=LIMITS) as bench:
        retain(bench)
        wire, other = bench.client(), bench.client("o")
        other.subscribe("live")
        ask(wire)
        pulled(wire)
        other.send(Publish("live", b"now"))
        assert other.publishes() == [("live", b"now", 0)]
        rest = pulled(wire)
        assert any(packet.topic == "live" for packet in rest + pulled(wire) + pulled(wire))
        assert len(bench.engine.pull(wire.handle)) > 0


def test_what_is_retained_or_cleared_meanwhile_comes_once() -> None:
    with Bench() as bench:
        retain(bench)
        wire, publisher = bench.client(), bench.client("p")
        ask(wire)
        first = pulled(wire)
        assert len(first) < MANY - 2
        sent = {packet.topic for packet in first}
        waiting = [f"d/{i}/t" for i in range(MANY) if f"d/{i}/t" not in sent]
        new, gone = waiting[-1], waiting[-2]
        publisher.send(Publish(new, b"new", retain=True), Publish(gone, b"", retain=True))
        rest = [packet for packet in wire.received() if isinstance(packet, Publish)]
        got = [packet for packet in rest if packet.topic in (new, gone)]
        assert sorted((packet.topic, packet.payload, packet.retain) for packet in got) == sorted(
            [(new, b"new", False), (gone, b"", False)]
        )
        assert len(first) + len(rest) == MANY


def test_who_unsubscribes_is_sent_no_more_of_them_and_who_subscribes_again_all() -> None:
    with Bench() as bench:
        retain(bench)
        wire = bench.client()
        ask(wire)
        few = len(pulled(wire))
        wire.send(Unsubscribe(2, ("#",)))
        answers = wire.received()
        assert UnsubAck(2) in answers
        assert few + len(answers) < MANY
        for _ in range(5):
            ask(wire)
        assert sum(isinstance(packet, Publish) for packet in wire.received()) == MANY


def test_a_look_through_topics_that_retain_nothing_lets_others_have_their_turn() -> None:
    with Bench(engine=EngineLimits(topics_max=100_000)) as bench:
        for name in range(40_000):
            bench.broker.router.topic_of(f"d/{name}/t")
        topic = bench.broker.router.topic_of("e/last")
        assert topic is not None
        bench.engine.retain(topic, b"x", 0, b"", 0, b"", b"")
        wire = bench.client()
        ask(wire)
        turns = 0
        while not any(packet.topic == "e/last" for packet in pulled(wire)):
            turns += 1
            assert turns < 10
        assert turns >= 1


def test_few_retained_messages_come_in_the_order_in_which_their_topics_were_published_to() -> None:
    with Bench() as bench:
        publisher = bench.client("p")
        for name in ("r/c", "r/a", "r/b"):
            publisher.send(Publish(name, name.encode(), retain=True))
        wire = bench.client()
        ask(wire, "r/#")
        got = [packet.topic for packet in wire.received() if isinstance(packet, Publish)]
        assert got == ["r/c", "r/a", "r/b"]
