"""A broker that is killed between two instructions and started again knows what its clients may rely on."""

from pathlib import Path
from typing import Any

import pytest

from edge.broker.dispatcher import BrokerLimits
from edge.broker.sessions import SessionLimits
from edge.mqtt import (
    Disconnect,
    Packet,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from edge.recovery.read_journal import read_saved_state
from edge.session_store.snapshot_file import Origin, write_snapshot
from ringbuf import Ring
from tests.support.kept_bench import Lives, connect, is_known
from tests.support.mqtt_bench import BEGIN_NS, Bench, Wire


def ends_after_a_restart(lives: Lives, within_ms: int) -> None:
    """Restart: the session of the client "c" is there, and has ended after this time."""
    bench = lives.restart()
    assert bench.broker.sessions.get("c") is not None
    bench.settle(within_ms)
    assert not is_known(bench)


def told(packets: list[Packet]) -> list[tuple[bytes, int, bool, int]]:
    """Payload, QoS, DUP and identifier of each PUBLISH; nothing else may be there."""
    found = []
    for packet in packets:
        assert isinstance(packet, Publish), packet
        found.append((bytes(packet.payload), packet.qos, packet.dup, packet.packet_id))
    return found


def took_all(client: Wire, packets: list[Packet]) -> list[bytes]:
    """Payloads of QoS 1, all acknowledged, from `packets` on."""
    found = []
    while packets:
        its = told(packets)
        found += [payload for payload, *_ in its]
        client.send(*(PubAck(number) for *_, number in its))
        packets = client.received()
    return found


def publish(bench: Bench, topic: str, *payloads: bytes, qos: int = 1, **fields: Any) -> None:
    publisher = bench.client("publisher")
    for number, payload in enumerate(payloads, 1):
        publisher.send(Publish(topic, payload, qos, packet_id=number, **fields))
        if qos == 2:
            publisher.send(PubRel(number))
    publisher.drop()


def subscriber(bench: Bench, *filters: str, qos: int = 2) -> Wire:
    client, _ = connect(bench)
    client.subscribe(*filters, qos=qos)
    return client


def test_a_session_and_its_subscriptions_are_there_again(lives: Lives) -> None:
    subscriber(lives.start(), "a/#", "b")
    bench = lives.restart()
    assert is_known(bench)
    client, waiting = connect(bench)
    assert waiting == []
    publish(bench, "a/x", b"1")
    publish(bench, "b", b"2")
    publish(bench, "c", b"3")
    assert [payload for payload, *_ in told(client.received())] == [b"1", b"2"]


def test_a_clean_session_is_not(lives: Lives) -> None:
    bench = lives.start()
    client = bench.client("c", clean_start=True)
    client.subscribe("a", qos=1)
    bench = lives.restart()
    assert lives.restored is not None
    assert lives.restored.sessions == 0
    assert not is_known(bench)


def test_what_waits_is_delivered_in_its_order(lives: Lives) -> None:
    bench = lives.start()
    subscriber(bench, "a").drop()
    publish(bench, "a", *(b"%d" % n for n in range(150)))
    bench = lives.restart()
    publish(bench, "a", b"150")
    client, packets = connect(bench)
    assert took_all(client, packets) == [b"%d" % n for n in range(151)]


def test_in_flight_goes_out_again_with_its_identifier(lives: Lives) -> None:
    bench = lives.start()
    client = subscriber(bench, "a")
    publish(bench, "a", b"1", b"2")
    publish(bench, "a", b"3", qos=2)
    assert [(payload, number) for payload, _, _, number in told(client.received())] == [
        (b"1", 1),
        (b"2", 2),
        (b"3", 3),
    ]
    client.send(PubAck(1))
    _, packets = connect(lives.restart())
    assert told(packets) == [(b"2", 1, True, 2), (b"3", 2, True, 3)]


def test_identifiers_go_on(lives: Lives) -> None:
    bench = lives.start()
    client = subscriber(bench, "a")
    publish(bench, "a", b"1", b"2", b"3")
    client.received()
    client.send(PubAck(2))
    bench = lives.restart()
    client, packets = connect(bench)
    publish(bench, "a", b"4")
    packets += client.received()
    assert [(payload, number) for payload, _, _, number in told(packets)] == [(b"1", 1), (b"3", 3), (b"4", 4)]


def test_a_received_message_of_qos_2_is_released_and_not_sent_again(lives: Lives) -> None:
    bench = lives.start()
    client = subscriber(bench, "a")
    publish(bench, "a", b"1", qos=2)
    client.received()
    client.send(PubRec(1))
    assert client.received() == [PubRel(1)]
    bench = lives.restart()
    client, packets = connect(bench)
    assert packets == [PubRel(1)]
    client.send(PubComp(1))
    assert connect(lives.restart())[1] == []


def test_what_a_client_sends_again_with_qos_2_is_stored_once(lives: Lives) -> None:
    bench = lives.start()
    client, _ = connect(bench)
    client.send(Publish("a", b"1", 2, packet_id=7))
    assert client.answer() == PubRec(7)
    bench = lives.restart()
    client, _ = connect(bench)
    client.send(Publish("a", b"1", 2, dup=True, packet_id=7), PubRel(7))
    assert client.received() == [PubRec(7), PubComp(7)]
    assert bench.records() == [("a", b"1")]
    client.send(Publish("a", b"2", 2, packet_id=7))
    assert bench.records() == [("a", b"1"), ("a", b"2")]


def test_a_released_identifier_is_free_after_a_restart(lives: Lives) -> None:
    bench = lives.start()
    client, _ = connect(bench)
    client.send(Publish("a", b"1", 2, packet_id=7), PubRel(7))
    bench = lives.restart()
    client, _ = connect(bench)
    client.send(Publish("a", b"2", 2, packet_id=7))
    assert bench.records() == [("a", b"1"), ("a", b"2")]


def test_options_and_identifiers_of_subscriptions_hold(lives: Lives) -> None:
    bench = lives.start()
    client, _ = connect(bench)
    client.send(
        Subscribe(1, (Subscription("a", 1, no_local=True),), Properties(subscription_identifiers=(5,))),
        Subscribe(2, (Subscription("b", 1, retain_as_published=True),)),
    )
    client.drop()
    publish(bench, "a", b"1")
    bench = lives.restart()
    client, packets = connect(bench)
    publish(bench, "b", b"2", retain=True)
    client.send(Publish("a", b"3", 1, packet_id=9))
    packets += [packet for packet in client.received() if isinstance(packet, Publish)]
    assert [payload for payload, *_ in told(packets)] == [b"1", b"2"]
    one, two = packets
    assert isinstance(one, Publish)
    assert one.properties.subscription_identifiers == (5,)
    assert isinstance(two, Publish)
    assert two.retain


def test_a_message_has_the_identifiers_for_its_publisher_after_a_restart(lives: Lives) -> None:
    """Its own messages are not of its no-local subscription, those of others are."""
    bench = lives.start()
    client, _ = connect(bench)
    for number, topic_filter in enumerate(("+", "#"), 5):
        subscription = Subscription(topic_filter, 1, no_local=topic_filter == "#")
        client.send(Subscribe(1, (subscription,), Properties(subscription_identifiers=(number,))))
    client.send(Publish("t", b"own", 1, packet_id=9))
    client.drop()
    publish(bench, "t", b"other")
    for _ in range(2):  # from the journal, then from a snapshot
        bench = lives.restart()
        client, packets = connect(bench)
        messages = [packet for packet in packets if isinstance(packet, Publish)]
        identifiers = {
            bytes(message.payload): set(message.properties.subscription_identifiers) for message in messages
        }
        assert identifiers == {b"own": {5}, b"other": {5, 6}}


@pytest.mark.parametrize("qos", [1, 2])
def test_a_client_without_local_messages_does_not_get_its_own_after_a_kill(lives: Lives, qos: int) -> None:
    """[MQTT-3.8.3-3], also for a message that the journal has no other entry of."""
    bench = lives.start()
    client, _ = connect(bench)
    client.send(Subscribe(1, (Subscription("a", 2, no_local=True), Subscription("+", 0))))
    client.send(Publish("a", b"own", qos, packet_id=9), *([PubRel(9)] if qos > 1 else []))
    bench = lives.restart()
    _, packets = connect(bench)
    assert told(packets) == []


def test_what_was_unsubscribed_stays_so(lives: Lives) -> None:
    bench = lives.start()
    client = subscriber(bench, "a", "b")
    client.send(Unsubscribe(2, ("a",)))
    bench = lives.restart()
    client, _ = connect(bench)
    publish(bench, "a", b"1")
    publish(bench, "b", b"2")
    assert [payload for payload, *_ in told(client.received())] == [b"2"]


def test_a_session_expires_while_the_broker_is_down(lives: Lives) -> None:
    bench = lives.start()
    for client_id, expiry_s in (("short", 10), ("long", 60)):
        connect(bench, client_id, expiry_s)[0].drop()
    bench.settle(5_000)
    bench = lives.restart(away_ms=6_000)
    assert not is_known(bench, "short")
    assert is_known(bench, "long")


def test_who_was_connected_has_been_away_since_the_last_sign_of_life(lives: Lives) -> None:
    bench = lives.start()
    connect(bench, "c", 10)
    bench = lives.restart(away_ms=9_000)
    bench.settle(500)
    bench = lives.restart(away_ms=9_000)  # the first restart was one: no client came
    assert not is_known(bench)


def test_messages_expire_while_the_broker_is_down(lives: Lives) -> None:
    bench = lives.start()
    subscriber(bench, "a").drop()
    publisher, _ = connect(bench, "p")
    publisher.send(Publish("a", b"1", 1, packet_id=1, properties=Properties(message_expiry_interval_s=5)))
    publisher.send(Publish("a", b"2", 1, packet_id=2, properties=Properties(message_expiry_interval_s=50)))
    _, (packet,) = connect(lives.restart(away_ms=10_000))
    assert isinstance(packet, Publish)
    assert bytes(packet.payload) == b"2"
    assert packet.properties.message_expiry_interval_s == 40


DAY_NS = 86_400 * 1_000_000_000


def before_the_clock_is_set(bench: Bench) -> None:
    """A session with a message of QoS 1 that has an interval, and a will that waits 30 s."""
    subscriber(bench, "a").drop()
    will = Will("gone", b"w", 1, properties=Properties(will_delay_interval_s=30))
    connect(bench, "w", will=will)[0].drop()
    connect(bench, "p", 0)[0].send(
        Publish("a", b"1", 1, packet_id=1, properties=Properties(message_expiry_interval_s=60))
    )


@pytest.mark.parametrize("step_ns", [BEGIN_NS, DAY_NS, -DAY_NS])
def test_a_clock_that_is_set_while_the_broker_runs_changes_no_time(lives: Lives, step_ns: int) -> None:
    lives.step_ns = -step_ns
    bench = lives.start()
    before_the_clock_is_set(bench)
    bench.settle(2_000)
    bench.step_ns = 0
    bench.settle()
    connect(bench, "after")[0].drop()
    bench = lives.restart()
    bench.settle(27_000)
    assert bench.records() == [("a", b"1")]
    bench.settle(2_000)
    assert bench.records() == [("a", b"1"), ("gone", b"w")]
    bench.settle(3_565_000)
    assert [is_known(bench, client_id) for client_id in ("c", "after")] == [True, True]
    bench = lives.restart(away_ms=3_601_000)
    assert [is_known(bench, client_id) for client_id in ("c", "after")] == [False, False]


@pytest.mark.parametrize("away_ms", [86_400_001, 30 * 365 * 86_400_000])
def test_a_clock_far_ahead_at_a_restart_ends_no_session_and_publishes_no_will(
    lives: Lives, away_ms: int
) -> None:
    bench = lives.start()
    subscriber(bench, "gone").drop()
    bench.settle(1_000_000)
    will = Will("gone", b"w", 1, properties=Properties(will_delay_interval_s=30))
    connect(bench, "w", will=will)[0].drop()
    bench = lives.restart(away_ms=away_ms)
    bench.settle(27_000)
    assert bench.records() == []
    bench.step_ns = -away_ms * 1_000_000  # the clock is set
    bench.settle(4_000)
    assert bench.records() == [("gone", b"w")]
    bench.settle(2_500_000)
    ends_after_a_restart(lives, 100_000)


def test_a_session_ages_by_a_day_without_the_broker(lives: Lives) -> None:
    connect(lives.start(), expiry_s=100_000)[0].drop()
    bench = lives.restart(away_ms=86_400_000)
    bench.settle(13_000_000)
    ends_after_a_restart(lives, 1_000_000)


def test_a_clock_that_is_behind_at_a_restart_prolongs_no_session(lives: Lives) -> None:
    bench = lives.start()
    connect(bench)[0].drop()
    bench.step_ns = -DAY_NS
    bench = lives.restart()
    bench.settle(3_601_000)
    assert not is_known(bench)


def test_a_step_of_the_clock_is_followed_while_no_client_comes_or_goes(lives: Lives) -> None:
    lives.step_ns = -DAY_NS
    bench = lives.start()
    connect(bench)[0].drop()
    bench.step_ns = 0
    bench.settle(2_000)
    assert is_known(lives.restart())


def test_a_client_that_leaves_at_a_step_of_the_clock_counts_from_the_time_after_it(lives: Lives) -> None:
    lives.step_ns = -DAY_NS
    bench = lives.start()
    client = connect(bench)[0]
    bench.step_ns = 0
    client.drop()
    bench.settle(2_000)
    assert not is_known(lives.restart(away_ms=3_601_000))


def test_a_clock_that_was_not_set_before_a_restart_ends_nothing(
    lives: Lives, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "edge.recovery")
    lives.step_ns = -BEGIN_NS
    before_the_clock_is_set(lives.start())
    lives.kill()
    lives.step_ns = 0
    bench = lives.start()
    assert "no journal entry for more than a day" not in caplog.text
    bench.settle(29_000)
    assert bench.records() == [("a", b"1")]
    _, (packet,) = connect(bench)
    assert isinstance(packet, Publish)
    assert packet.properties.message_expiry_interval_s == 31
    bench.settle(2_000)
    assert bench.records() == [("a", b"1"), ("gone", b"w")]


def test_a_will_that_waits_is_published_when_it_is_due(lives: Lives) -> None:
    bench = lives.start()
    will = Will("gone", b"w", 1, properties=Properties(will_delay_interval_s=30))
    connect(bench, "w", will=will)[0].drop()
    bench = lives.restart(away_ms=10_000)
    assert bench.records() == []
    bench.settle(19_000)
    assert bench.records() == []
    bench.settle(2_000)
    assert bench.records() == [("gone", b"w")]
    assert lives.restart().records() == [("gone", b"w")]


def test_a_will_is_void_when_its_client_is_back(lives: Lives) -> None:
    bench = lives.start()
    will = Will("gone", b"w", 1, properties=Properties(will_delay_interval_s=30))
    connect(bench, "w", will=will)[0].drop()
    bench = lives.restart()
    client, _ = connect(bench, "w")
    bench = lives.restart()
    bench.settle(60_000)
    assert bench.records() == []
    del client


def test_the_will_of_who_was_connected_is_published(lives: Lives) -> None:
    bench = lives.start()
    connect(bench, "w", will=Will("gone", b"w", 1))
    assert lives.restart().records() == [("gone", b"w")]


def test_so_is_that_of_who_had_a_session_for_the_connection_alone(lives: Lives) -> None:
    bench = lives.start()
    delayed = Properties(will_delay_interval_s=30)  # which ends with the session
    connect(bench, "a", 0, clean_start=True, will=Will("gone", b"a", 1, properties=delayed))
    for number in range(3):  # it is back before it is missed
        wire = bench.client("b", will=Will("gone", b"%d" % number, 1, retain=True))
    polite = bench.client("c", will=Will("gone", b"c", 1))
    polite.send(Disconnect())
    assert wire.is_open
    before = bench.records()
    bench = lives.restart()
    assert sorted(set(bench.records()) - set(before)) == [("gone", b"2"), ("gone", b"a")]
    assert lives.restart().records() == bench_records(lives)


def bench_records(lives: Lives) -> list[tuple[str, bytes]]:
    assert lives.bench is not None
    return lives.bench.records()


def test_a_session_that_was_ended_stays_ended(lives: Lives) -> None:
    bench = lives.start()
    client = subscriber(bench, "a")
    client.send(Disconnect(properties=Properties(session_expiry_interval_s=0)))
    connect(bench, "d", clean_start=True)[0].drop()
    connect(bench, "d", clean_start=True)
    bench = lives.restart()
    assert not is_known(bench)
    assert is_known(bench, "d")


def test_limits_of_queues_hold() -> None:
    limits = BrokerLimits(sessions=SessionLimits(queued_records_max=10))
    with Lives(limits=limits) as lives:
        bench = lives.start()
        subscriber(bench, "a").drop()
        publish(bench, "a", *(b"%d" % n for n in range(25)))
        bench = lives.restart()
        publish(bench, "a", b"25")
        _, packets = connect(bench)
        assert [payload for payload, *_ in told(packets)] == [b"%d" % n for n in range(16, 26)]


def test_a_group_gives_what_nobody_has_acknowledged_to_its_members(lives: Lives) -> None:
    bench = lives.start()
    clients = [connect(bench, name)[0] for name in "xy"]
    for client in clients:
        client.subscribe("$share/g/a", qos=1)
    publish(bench, "a", *(b"%d" % n for n in range(6)))
    done = told(clients[0].received())
    clients[0].send(PubAck(done[0][3]))
    clients[1].drop()
    bench = lives.restart()
    _, packets = connect(bench, "x")
    assert {payload for payload, *_ in told(packets)} == {b"%d" % n for n in range(6)} - {done[0][0]}


def test_qos_2_of_a_group_stays_with_the_member_that_has_it(lives: Lives) -> None:
    bench = lives.start()
    clients = [connect(bench, name)[0] for name in "xy"]
    for client in clients:
        client.subscribe("$share/g/a", qos=2)
    publish(bench, "a", b"1", b"2", qos=2)
    its = told(clients[0].received())
    bench = lives.restart()
    assert [payload for payload, *_ in told(connect(bench, "y")[1])] == [
        payload for payload in (b"1", b"2") if payload != its[0][0]
    ]
    _, packets = connect(bench, "x")
    assert told(packets) == [(its[0][0], 2, True, its[0][3])]


def test_a_clean_stop_keeps_it_all(lives: Lives) -> None:
    bench = lives.start()
    client = subscriber(bench, "a")
    publish(bench, "a", b"1")
    client.received()
    publish(bench, "a", b"2")
    client.drop()
    lives.stop(away_ms=1_000)
    client, packets = connect(lives.start())
    assert [(payload, dup) for payload, _, dup, _ in told(packets)] == [(b"1", True), (b"2", False)]


def test_snapshot_bound_the_journal(lives: Lives) -> None:
    bench = lives.start()
    subscriber(bench, "a", qos=1).drop()
    for _ in range(40):
        publish(bench, "a", *(b"x" for _ in range(500)))
        client, packets = connect(bench)
        assert len(took_all(client, packets)) == 500
        client.drop()
    assert bench.broker.journal.snapshots > 2
    publish(bench, "a", b"last")
    _, packets = connect(lives.restart())
    assert [payload for payload, *_ in told(packets)] == [b"last"]


@pytest.mark.parametrize("laps", [0, 2])
def test_of_what_was_stored_just_before_the_end_the_part_that_is_left_is_routed(
    lives: Lives, laps: int
) -> None:
    """The ring was written some laps on behind the last entry of the journal."""
    bench = lives.start()
    subscriber(bench, "a").drop()
    publish(bench, "a", b"1")
    topic = bench.broker.router.topic_of("a")
    assert topic is not None
    bench.engine.journal_close()  # as if the broker had died behind the commit
    count = 1 + laps * bench.partition.ring.capacity_bytes // 1024
    for number in range(count):
        bench.engine.publish(topic, b"%1024d" % number, 1, b"", b"", b"", 0)
        bench.settle()
    client, packets = connect(lives.restart())
    one, *numbers = (int(payload) for payload in took_all(client, packets))
    assert one == 1
    assert numbers == [*range(numbers[0], count)]
    assert (numbers[0] > 0) is (laps > 0)


def test_the_later_snapshot_counts_though_the_clock_was_set_back(tmp_path: Path) -> None:
    """A changed durability leaves a snapshot in the other directory."""
    with Ring.create(tmp_path / "sessions", capacity_bytes=1 << 16, epoch=1) as ring:
        files = [tmp_path / "before", tmp_path / "after"]
        write_snapshot(files[0], Origin(1, 0, DAY_NS), [], sync=False)
        ring.writer().publish(b"an entry")
        write_snapshot(files[1], Origin(1, ring.extremes().end_position, 5), [], sync=False)
        assert read_saved_state([[file] for file in files], ring, None).alive_ns == 5
