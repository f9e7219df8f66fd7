"""Retained messages and sessions: state that outlives a message or a connection."""

import pytest

from edge.broker.dispatcher import BrokerLimits
from edge.broker.sessions import SessionLimits
from edge.engine.engine import EngineLimits
from edge.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    Unsubscribe,
)
from tests.support.mqtt_bench import Bench

# ---- retained messages ----


def test_a_retained_message_is_for_who_comes_later_and_live_for_who_is_there(bench: Bench) -> None:
    early, writer = bench.client("e"), bench.client("w")
    early.subscribe("t/#")
    writer.send(Publish("t/1", b"old", retain=True), Publish("t/1", b"new", 1, retain=True, packet_id=1))
    live = early.received()
    assert [packet.retain for packet in live if isinstance(packet, Publish)] == [
        False,
        False,
    ]  # [MQTT-3.3.1-9]
    late = bench.client("l")
    late.send(Subscribe(1, (Subscription("t/+", 1),)))
    assert late.received() == [
        SubAck(1, (ReasonCode.GRANTED_QOS_1,)),
        Publish("t/1", b"new", 1, retain=True, packet_id=1),
    ]


def test_an_empty_retained_message_clears(bench: Bench) -> None:
    writer, reader = bench.client("w"), bench.client("r")
    writer.send(Publish("t", b"x", retain=True), Publish("t", b"", retain=True))
    reader.send(Subscribe(1, (Subscription("t"),)))
    assert reader.received() == [SubAck(1, (ReasonCode.SUCCESS,))]
    assert bench.stats.gauges()["retained"] == 0
    assert bench.stats.gauges()["retained_bytes"] == 0


def test_each_new_subscription_gets_the_retained_messages_again(bench: Bench) -> None:
    writer, reader = bench.client("w"), bench.client("r")
    writer.send(Publish("a/b", b"x", retain=True))
    for topic_filter in ("a/b", "a/b", "#"):
        reader.send(Subscribe(1, (Subscription(topic_filter),)))
        assert reader.received()[1:] == [Publish("a/b", b"x", retain=True)]
    reader.send(Subscribe(1, (Subscription("$SYS/#"), Subscription("a/+/c"))))
    assert len(reader.received()) == 1


def test_a_retained_message_outlives_its_ring_and_its_replacement(bench: Bench) -> None:
    writer, reader = bench.client("w"), bench.client("r", clean_start=False)
    writer.send(Publish("t", b"kept", 1, retain=True, packet_id=1))
    reader.subscribe("t", qos=1)
    reader.drop()
    for _ in range(600):  # laps the ring
        writer.send(Publish("noise", bytes(4000)))
    writer.send(Publish("t", b"newer", 1, retain=True, packet_id=2))
    late = bench.client("l")
    late.send(Subscribe(1, (Subscription("t"),)))
    assert late.received()[1:] == [Publish("t", b"newer", retain=True)]


def test_the_retained_store_has_bounds_and_counts_what_it_refuses() -> None:
    with Bench(engine=EngineLimits(retained_max=2, retained_max_bytes=1000)) as bench:
        writer = bench.client("w")
        writer.send(*(Publish(f"t/{i}", b"x", retain=True) for i in range(3)))
        writer.send(Publish("t/0", bytes(2000), retain=True))
        assert bench.stats.gauges()["retained"] == 2
        assert bench.stats.totals()["retained_refused"] == 2
        assert len(bench.records()) == 4


def test_retained_messages_that_were_replaced_count_until_nobody_waits_for_them() -> None:
    limits = EngineLimits(retained_max_bytes=100_000)
    with Bench(engine=limits) as bench:
        publisher, hoarder = bench.client("p"), bench.client("hoarder")
        for n in range(50):  # who acknowledges nothing
            publisher.send(Publish("t", b"%d" % n + bytes(9_000), 1, retain=True, packet_id=1))
            hoarder.send(Subscribe(1, (Subscription("t", 1),)))
            hoarder.received()
            hoarder.send(Unsubscribe(2, ("t",)))
        assert 90_000 < bench.stats.gauges()["retained_bytes"] - 9_000 <= 100_000  # and the value of today
        assert bench.stats.totals()["retained_refused"] == 38
        hoarder.drop()
        publisher.send(Publish("t", b"again", retain=True))
        assert bench.stats.gauges()["retained_bytes"] < 1_000
        late = bench.client("late")
        late.send(Subscribe(1, (Subscription("t"),)))
        assert [it.payload for it in late.received() if isinstance(it, Publish)] == [b"again"]


def test_retained_messages_come_back_from_the_ring_after_a_restart(bench: Bench) -> None:
    writer = bench.client("w")
    writer.send(
        Publish("t/1", b"old", retain=True),
        Publish("t/2", b"cleared", retain=True),
        Publish("t/1", b"new", 1, retain=True, packet_id=1),
        Publish("t/2", b"", retain=True),
        Publish("t/3", b"not retained"),
    )
    with Bench() as restarted:
        reader = bench.partition.ring.reader(start="oldest")
        records = []
        while (record := reader.poll()) is not None:
            records.append(record)
        assert restarted.broker.retained.restore(records) == 1
        late = restarted.client("l")
        late.send(Subscribe(1, (Subscription("#", 1),)))
        assert late.received()[1:] == [Publish("t/1", b"new", 1, retain=True, packet_id=1)]
        records.clear()
        reader.close()


# ---- sessions ----


def test_a_persistent_session_gets_what_was_published_meanwhile(bench: Bench) -> None:
    reader, writer = bench.client("r", clean_start=False), bench.client("w")
    reader.subscribe("t/#", qos=1)
    reader.send(Disconnect())
    writer.send(
        Publish("t/1", b"a", 1, packet_id=1),
        Publish("t/2", b"QoS 0 is not kept"),
        Publish("t/3", b"b", 2, packet_id=2),
    )
    reader = bench.wire()
    reader.send(Connect("r", clean_start=False))
    assert reader.received() == [
        ConnAck(True),
        Publish("t/1", b"a", 1, packet_id=1),
        Publish("t/3", b"b", 1, packet_id=2),
    ]


def test_a_clean_session_leaves_nothing(bench: Bench) -> None:
    reader = bench.client("r", clean_start=False)
    reader.subscribe("t", qos=1)
    reader.drop()
    assert bench.broker.sessions.away == 1
    bench.client("r").drop()
    assert len(bench.broker.sessions) == 0
    bench.client("r", clean_start=False, present=False)


def test_what_was_not_acknowledged_is_sent_again_in_order_with_dup(bench: Bench) -> None:
    reader, writer = bench.client("r", clean_start=False), bench.client("w")
    reader.subscribe("t", qos=2)
    writer.send(*(Publish("t", b"%d" % i, 1 + i % 2, packet_id=i + 1) for i in range(6)))
    assert [payload for _, payload, _ in reader.publishes()] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    reader.send(PubAck(3), PubRec(4), PubRec(2), PubComp(4))
    assert reader.received() == [PubRel(4), PubRel(2)]
    reader.drop()
    writer.send(Publish("t", b"later", 1, packet_id=10))
    reader = bench.wire()
    reader.send(Connect("r", clean_start=False))
    assert reader.received() == [
        ConnAck(True),
        Publish("t", b"0", 1, dup=True, packet_id=1),
        PubRel(2),
        Publish("t", b"4", 1, dup=True, packet_id=5),
        Publish("t", b"5", 2, dup=True, packet_id=6),
        Publish("t", b"later", 1, packet_id=7),
    ]
    assert bench.stats.totals()["redelivered"] == 3


def test_the_window_bounds_what_is_in_flight_and_opens_with_acknowledgements() -> None:
    with Bench(limits=BrokerLimits(sessions=SessionLimits(in_flight_max=3))) as bench:
        reader, writer = bench.client("r"), bench.client("w")
        reader.subscribe("t", qos=1)
        writer.send(*(Publish("t", b"%d" % i, 1, packet_id=i + 1) for i in range(8)))
        assert [payload for _, payload, _ in reader.publishes()] == [b"0", b"1", b"2"]
        reader.send(PubAck(2))
        assert [payload for _, payload, _ in reader.publishes()] == [b"3"]
        reader.send(PubAck(1), PubAck(3), PubAck(3), PubAck(77))
        assert [payload for _, payload, _ in reader.publishes()] == [b"4", b"5"]


def test_identifiers_go_round_and_skip_none_that_is_in_flight(bench: Bench) -> None:
    reader, writer = bench.client("r"), bench.client("w")
    reader.subscribe("t", qos=1)
    expected = 0
    for _ in range(700):
        writer.send(*(Publish("t", b"x", 1, packet_id=i + 1) for i in range(100)))
        got = [packet.packet_id for packet in reader.received() if isinstance(packet, Publish)]
        assert got == [(expected + i) % 65_535 + 1 for i in range(100)]
        expected += 100
        reader.send(*(PubAck(identifier) for identifier in reversed(got)))
        writer.received()
    assert [row.in_flight for row in bench.stats.clients(bench.broker.sessions)] == [0, 0]


@pytest.mark.parametrize("newest", [False, True])
def test_a_full_queue_drops_by_its_policy_and_counts(newest: bool) -> None:
    limits = SessionLimits(queued_records_max=50, drop_newest=newest)
    with Bench(limits=BrokerLimits(sessions=limits)) as bench:
        reader, writer = bench.client("r", clean_start=False), bench.client("w")
        reader.subscribe("t", qos=1)
        reader.drop()
        writer.send(*(Publish("t", b"%d" % i, 1, packet_id=i + 1) for i in range(80)))
        (row,) = [row for row in bench.stats.clients(bench.broker.sessions) if row.client_id == "r"]
        assert (row.queued, row.dropped) == (50, {"queue": 30})
        assert bench.stats.dropped()["queue"] == 30
        reader = bench.wire()
        reader.send(Connect("r", clean_start=False))
        payloads = [packet.payload for packet in reader.received() if isinstance(packet, Publish)]
        assert payloads == [b"%d" % i for i in (range(50) if newest else range(30, 80))]


def test_records_that_the_ring_gave_up_are_counted_as_overrun_not_delivered() -> None:
    with Bench(engine=EngineLimits(spill_max_bytes=0)) as bench:
        overrun(bench)


def overrun(bench: Bench) -> None:
    reader, writer = bench.client("r", clean_start=False), bench.client("w")
    reader.subscribe("t", qos=1)
    writer.send(Publish("t", b"in flight", 1, packet_id=1))
    assert len(reader.received()) == 1
    reader.drop()
    writer.send(Publish("t", b"queued", 1, packet_id=2))
    writer.send(*(Publish("noise", bytes(4000)) for _ in range(600)))
    writer.send(Publish("t", b"there", 1, packet_id=3))
    reader = bench.wire()
    reader.send(Connect("r", clean_start=False))
    assert reader.received() == [ConnAck(True), Publish("t", b"there", 1, packet_id=2)]
    assert bench.stats.dropped()["overrun"] == 2


def test_sessions_of_clients_that_stay_away_expire_and_are_bounded() -> None:
    limits = BrokerLimits(sessions=SessionLimits(session_expiry_s=100))
    with Bench(limits=limits, engine=EngineLimits(sessions_max=3)) as bench:
        for i in range(3):
            bench.client(f"c{i}", clean_start=False).drop()
            bench.settle(1_000)
        refused = bench.wire()
        refused.send(Connect("c3", clean_start=False))
        assert refused.received() == [ConnAck(False, ReasonCode.SERVER_UNAVAILABLE)]
        bench.settle(31_000)
        assert sorted(session.client_id for session in bench.broker.sessions) == ["c0", "c1", "c2"]
        bench.client("c2", clean_start=False, present=True, keep_alive_s=0)
        bench.client("short").drop()  # its session ends with it
        bench.settle(100_000)
        assert [session.client_id for session in bench.broker.sessions] == ["c2"]
        bench.client("c3", clean_start=False)


def test_a_take_over_closes_the_old_connection_and_keeps_the_session(bench: Bench) -> None:
    old, writer = bench.client("r", clean_start=False), bench.client("w")
    old.subscribe("t", qos=1)
    new = bench.client("r", clean_start=False, present=True)
    assert not old.is_open
    writer.send(Publish("t", b"x", 1, packet_id=1))
    assert new.publishes() == [("t", b"x", 1)]
    assert bench.stats.gauges()["sessions"] == 2
