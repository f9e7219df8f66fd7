"""Shared subscriptions: one member gets each message, and what a member leaves behind another gets."""

from typing import Any

import pytest

from edge.broker.dispatcher import BrokerLimits
from edge.broker.sessions import SessionLimits
from edge.engine.engine import EngineLimits
from edge.mqtt import (
    Connect,
    Properties,
    PubAck,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Version,
)
from tests.support.mqtt_bench import Bench, Wire

SHARE = "$share/g/t/#"


def member(
    bench: Bench, client_id: str, qos: int = 1, *, window: int = 100, topic_filter: str = SHARE, **fields: Any
) -> Wire:
    """A client that shares; its session stays with clean_start=False."""
    wants = Properties(
        receive_maximum=window, session_expiry_interval_s=0 if fields.get("clean_start", True) else 999
    )
    wire = bench.client(client_id, version=Version.V5, properties=wants, **fields)
    wire.send(Subscribe(1, (Subscription(topic_filter, qos),)))
    assert wire.received()[:1] == [SubAck(1, (ReasonCode(qos),))]
    return wire


def joins(bench: Bench, client_id: str) -> list[bytes]:
    """Payloads that a new member receives after its SUBACK."""
    wire = bench.client(client_id, version=Version.V5)
    wire.send(Subscribe(1, (Subscription(SHARE, 1),)))
    return payloads(wire)


def back(bench: Bench, client_id: str) -> Wire:
    """A member that was away; what it gets is not read yet."""
    wire = bench.wire(Version.V5)
    wants = Properties(session_expiry_interval_s=999)
    wire.send(Connect(client_id, clean_start=False, version=Version.V5, properties=wants))
    return wire


def publish(bench: Bench, *payloads: bytes, qos: int = 1, topic: str = "t/1") -> None:
    """One message each, by somebody else."""
    publisher = bench.client("publisher")
    publisher.send(
        *(Publish(topic, payload, qos, packet_id=i + 1 if qos else 0) for i, payload in enumerate(payloads))
    )


def payloads(wire: Wire) -> list[bytes]:
    """Of every PUBLISH there is for it now."""
    return [bytes(packet.payload) for packet in wire.received() if isinstance(packet, Publish)]


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % i for i in range(first, first + count)]


def test_members_take_turns() -> None:
    with Bench() as bench:
        wires = [member(bench, name, qos) for name, qos in (("a", 0), ("b", 1), ("c", 2))]
        for qos in (0, 1, 2):
            publish(bench, *numbers(3), qos=qos)
            assert [payloads(wire) for wire in wires] == [[b"0"], [b"1"], [b"2"]]


def test_a_group_a_filter_and_a_plain_subscription_each_get_their_own() -> None:
    with Bench() as bench:
        one = member(bench, "a")
        other_group, other_filter = (
            member(bench, "b", topic_filter="$share/h/t/#"),
            member(bench, "c", topic_filter="$share/g/+/1"),
        )
        one.send(Subscribe(2, (Subscription("t/1", 2),), Properties(subscription_identifiers=(5,))))
        one.received()
        publish(bench, b"x")
        assert payloads(one) == [b"x", b"x"]
        assert payloads(other_group) == payloads(other_filter) == [b"x"]


def test_an_old_client_may_share_too() -> None:
    with Bench() as bench:
        old, new = bench.client("old"), member(bench, "new")
        old.subscribe(SHARE, qos=1)
        publish(bench, *numbers(4))
        assert len(old.publishes()) == len(payloads(new)) == 2


@pytest.mark.parametrize("name", ["$share/", "$share/g", "$share/g/", "$share//t", "$share/+/t"])
def test_what_names_no_group_and_filter_is_refused_to_old_clients_too(name: str) -> None:
    with Bench() as bench:
        wire = bench.client()
        wire.send(Subscribe(1, (Subscription(name),)))
        assert wire.received() == [SubAck(1, (ReasonCode.UNSPECIFIED_ERROR,))]


def test_topics_that_begin_with_a_dollar_sign_are_not_under_a_shared_wildcard() -> None:
    with Bench() as bench:
        wires = [
            member(bench, "a", topic_filter="$share/g/#"),
            member(bench, "b", topic_filter="$share/g/+/x"),
        ]
        named = member(bench, "c", topic_filter="$share/g/$SYS/#")
        bench.broker.publish("$SYS/x", b"1")
        bench.settle()
        assert [payloads(wire) for wire in (*wires, named)] == [[], [], [b"1"]]


def test_nothing_retained_is_sent_for_a_shared_subscription() -> None:
    with Bench() as bench:
        bench.client("p").send(Publish("t/1", b"x", retain=True))
        assert joins(bench, "a") == []


def test_each_member_has_options_and_identifiers_of_its_own() -> None:
    with Bench() as bench:
        wires = [bench.client(name, version=Version.V5) for name in "ab"]
        for i, wire in enumerate(wires):
            wire.send(
                Subscribe(
                    1,
                    (Subscription(SHARE, i, retain_as_published=bool(i)),),
                    Properties(subscription_identifiers=(10 + i,)),
                )
            )
            wire.received()
        bench.client("p").send(*(Publish("t/1", b"x", 2, retain=True, packet_id=i) for i in (1, 2)))
        assert [wire.received() for wire in wires] == [
            [Publish("t/1", b"x", 0, properties=Properties(subscription_identifiers=(10,)))],
            [
                Publish(
                    "t/1",
                    b"x",
                    1,
                    retain=True,
                    packet_id=1,
                    properties=Properties(subscription_identifiers=(11,)),
                )
            ],
        ]


def test_a_subscription_that_is_replaced_counts_from_the_next_message_on() -> None:
    with Bench() as bench:
        wire = member(bench, "a", 0)
        wire.send(Subscribe(2, (Subscription(SHARE, 2),), Properties(subscription_identifiers=(3,))))
        wire.received()
        publish(bench, b"x", qos=2)
        (packet,) = wire.received()
        assert isinstance(packet, Publish)
        assert (packet.qos, packet.properties.subscription_identifiers) == (2, (3,))


# ---- members that are busy or away ----


def test_what_no_member_has_room_for_waits_until_one_has() -> None:
    with Bench() as bench:
        first, second = member(bench, "a", window=2), member(bench, "b", window=1)
        publish(bench, *numbers(6))
        assert (payloads(first), payloads(second)) == ([b"0", b"2"], [b"1"])
        second.send(PubAck(1))
        assert payloads(second) == [b"3"]
        first.send(PubAck(1), PubAck(2))
        assert payloads(first) == [b"4", b"5"]
        first.send(PubAck(3), PubAck(4))
        second.send(PubAck(2))
        assert payloads(first) == payloads(second) == []


def test_while_all_are_away_qos_1_waits_and_qos_0_does_not() -> None:
    with Bench() as bench:
        wire = member(bench, "a", clean_start=False)
        wire.drop()
        publish(bench, *numbers(2), qos=0)
        publish(bench, *numbers(3, 10))
        assert payloads(back(bench, "a")) == numbers(3, 10)


def test_what_waits_for_a_group_is_bounded() -> None:
    limits = BrokerLimits(sessions=SessionLimits(queued_records_max=10))
    with Bench(limits=limits) as bench:
        member(bench, "a", clean_start=False).drop()
        publish(bench, *numbers(15))
        assert payloads(back(bench, "a")) == numbers(10, 5)
        assert bench.stats.dropped()["queue"] == 5


def test_what_expired_while_it_waited_is_not_delivered() -> None:
    with Bench() as bench:
        member(bench, "a", clean_start=False).drop()
        publisher = bench.client("p", version=Version.V5)
        publisher.send(
            Publish("t/1", b"x", 1, packet_id=1, properties=Properties(message_expiry_interval_s=5))
        )
        bench.settle(5_000)
        assert payloads(back(bench, "a")) == []
        assert bench.stats.dropped()["expired"] == 1


# ---- members that leave ----


@pytest.mark.parametrize("clean", [True, False])
def test_what_a_member_leaves_behind_goes_to_another_at_once_in_order_and_as_published(clean: bool) -> None:
    with Bench() as bench:
        leaver = member(bench, "a", 1, clean_start=clean)
        publish(bench, *numbers(4), qos=2)
        assert payloads(leaver) == numbers(4)
        leaver.send(PubAck(2))
        other = member(bench, "b", 2)
        assert payloads(other) == []
        leaver.drop()
        got = [packet for packet in other.received() if isinstance(packet, Publish)]
        assert [(packet.payload, packet.qos, packet.dup) for packet in got] == [
            (b"0", 2, False),
            (b"2", 2, False),
            (b"3", 2, False),
        ]
        if not clean:
            assert payloads(back(bench, "a")) == []


def test_what_was_queued_for_a_member_that_leaves_comes_before_what_waited_for_the_group() -> None:
    with Bench() as bench:
        leaver = member(bench, "a", window=3, clean_start=False)
        publish(bench, *numbers(6))
        leaver.drop()
        publish(bench, b"6")
        assert joins(bench, "b") == numbers(7)


def test_what_the_only_member_had_comes_back_to_it() -> None:
    with Bench() as bench:
        wire = member(bench, "a", clean_start=False)
        publish(bench, *numbers(3))
        assert payloads(wire) == numbers(3)
        wire.drop()
        assert payloads(back(bench, "a")) == numbers(3)


def test_qos_2_in_flight_stays_with_its_session_and_goes_with_it() -> None:
    with Bench() as bench:
        leaver, other = member(bench, "a", 2, clean_start=False), member(bench, "b", 2)
        publish(bench, *numbers(4), qos=2)
        assert (payloads(leaver), payloads(other)) == ([b"0", b"2"], [b"1", b"3"])
        leaver.send(PubRec(1))
        assert leaver.received() == [PubRel(1)]
        leaver.drop()
        assert payloads(other) == []
        wire = back(bench, "a")
        assert wire.received()[1:] == [PubRel(1), Publish("t/1", b"2", 2, packet_id=2, dup=True)]
        wire.drop()
        bench.client("a", clean_start=True)
        assert payloads(other) == []


def test_what_is_its_own_stays_in_order_when_all_memory_of_queues_is_taken() -> None:
    with Bench(engine=EngineLimits(queues_max_bytes=16 << 10)) as bench:
        leaver = member(bench, "leaver", window=65_535, clean_start=False)
        leaver.send(Subscribe(2, (Subscription("own/#", 1),)))
        leaver.received()
        publisher = bench.client("publisher")
        for n in range(238):  # some are its own
            topic = "t/1" if n % 3 and n < 150 else "own"
            publisher.send(Publish(topic, b"%d" % n, 1, packet_id=n + 1))
        for n in range(32):  # whose queue needs the smallest piece of memory there is
            keeper = bench.client(f"keeper-{n}", clean_start=False)
            keeper.subscribe("kept", qos=1)
            keeper.drop()
        publisher.send(Publish("kept", b"", 1, packet_id=1))
        assert bench.stats.gauges()["queues_bytes"] == 16 << 10
        leaver.drop()
        (row,) = [it for it in bench.stats.clients(bench.broker.sessions) if it.client_id == "leaver"]
        assert row.dropped == {}
        own = [b"%d" % n for n in range(238) if not (n % 3 and n < 150)]
        assert payloads(back(bench, "leaver")) == own[:100]


def test_a_member_of_two_groups_is_served_by_both_in_turn() -> None:
    with Bench() as bench:
        wire = member(bench, "a", window=1)
        wire.send(Subscribe(2, (Subscription("$share/h/u/#", 1),)))
        wire.received()
        publish(bench, *numbers(20), topic="t/1")
        publish(bench, *numbers(20), topic="u/1")
        topics = []
        for _ in range(20):
            (packet,) = [it for it in wire.received() if isinstance(it, Publish)]
            topics.append(packet.topic)
            wire.send(PubAck(packet.packet_id))
        assert topics.count("u/1") >= 9, topics


def test_a_plain_subscription_of_a_member_that_leaves_keeps_its_own() -> None:
    with Bench() as bench:
        wire = member(bench, "a", window=1, clean_start=False)
        wire.send(Subscribe(2, (Subscription("plain", 1),)))
        wire.received()
        publish(bench, *numbers(2))
        publish(bench, *numbers(2, 10), topic="plain")
        wire.drop()
        assert joins(bench, "b") == numbers(2)
        assert payloads(back(bench, "a")) == numbers(2, 10)


def test_who_unsubscribes_gets_no_more_and_the_last_takes_all_with_it() -> None:
    with Bench() as bench:
        publish(bench, b"known")
        one, other = member(bench, "a", window=1), member(bench, "b", window=1)
        publish(bench, *numbers(2))
        assert (payloads(one), payloads(other)) == ([b"0"], [b"1"])
        publish(bench, *numbers(3, 2))
        one.send(Unsubscribe(3, (SHARE,)))
        assert one.received() == [UnsubAck(3, (ReasonCode.SUCCESS,))]
        one.send(PubAck(1))
        assert payloads(one) == []
        before = bench.stats.gauges()["queues_bytes"]
        other.send(Unsubscribe(3, (SHARE,)))
        other.received()
        assert bench.stats.gauges()["queues_bytes"] < before
        other.send(PubAck(1))
        assert payloads(other) == []
        assert bench.engine.subscription_ids_count() == 0
        assert bench.engine.routes_of(bench.engine.topic_find(b"t/1")) == []
        assert joins(bench, "a") == []


def test_groups_that_come_and_go_leave_nothing() -> None:
    with Bench() as bench:
        before = bench.stats.gauges()
        for i in range(300):
            wires = [member(bench, f"{i % 7}{name}", clean_start=i % 2 == 0) for name in "ab"]
            publish(bench, *numbers(5))
            wires[i % 2].drop()
            wires[1 - i % 2].send(Unsubscribe(3, (SHARE,)))
            if i % 3:
                wires[1 - i % 2].drop()
        for name in [f"{i}{name}" for i in range(7) for name in "ab"] + ["publisher"]:
            bench.client(name).drop()
        publish(bench, b"x")
        bench.client("publisher").drop()
        assert bench.engine.subscription_ids_count() == 0
        gauges = bench.stats.gauges()
        left = {name for name in gauges if gauges[name] != before[name]} - {
            "topics",
            "topics_bytes",
            "connections",
        }
        assert not left, gauges
