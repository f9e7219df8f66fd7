"""Sessions of MQTT 5: how long they last, who takes them over, and what DISCONNECT may change."""

import pytest

from edge.broker.dispatcher import BrokerLimits
from edge.broker.sessions import NEVER_S, OVERDUE_MAX, SessionLimits
from edge.engine.timer_heap import TimerHeap
from edge.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    Properties,
    Publish,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Version,
)
from tests.support.mqtt_bench import Bench, Wire


def back(bench: Bench, expiry_s: int = 60) -> tuple[Wire, bool]:
    """A client that comes back, and whether it finds its session."""
    wire = bench.wire(Version.V5)
    wants = Properties(session_expiry_interval_s=expiry_s)
    wire.send(Connect("c", clean_start=False, version=Version.V5, properties=wants))
    answer = wire.answer()
    assert isinstance(answer, ConnAck)
    return wire, answer.session_present


def test_a_session_lasts_to_the_second_as_long_as_its_client_asked(bench: Bench) -> None:
    for away_ms, expected in ((9_900, True), (10_100, False)):
        bench.client5(expiry_s=10).drop()
        bench.settle(away_ms)
        assert back(bench)[1] == expected
    assert bench.broker.sessions.expired == 1


def test_a_fleet_that_left_together_expires_in_steps_between_which_clients_are_served(bench: Bench) -> None:
    count = 3 * OVERDUE_MAX + 1
    for number in range(count):
        bench.client5(f"c{number}", expiry_s=10).drop()
    steps, now_s = [], bench.now_ms / 1000 + 11
    while due := bench.broker.sessions.overdue(now_s):
        steps.append(len(due))
    assert steps == [OVERDUE_MAX] * 3 + [1]
    assert bench.broker.sessions.expired == count


def test_a_client_of_a_fleet_that_expired_gets_a_new_session_though_the_old_one_is_not_ended_yet(
    bench: Bench,
) -> None:
    for number in range(3 * OVERDUE_MAX):
        client = bench.client5(f"c{number}", expiry_s=10)
        client.subscribe("t/#", qos=1)
        client.drop()
    bench.now_ms += 11_000
    client = bench.client5(f"c{3 * OVERDUE_MAX - 1}", clean_start=False, present=False)
    client.send(Publish("t/1", b"x"))
    assert client.publishes() == []
    bench.settle()
    assert bench.broker.sessions.expired == 3 * OVERDUE_MAX
    assert len(bench.broker.sessions) == 1


def test_all_sessions_of_a_fleet_that_left_together_end_in_time(bench: Bench) -> None:
    for number in range(3 * OVERDUE_MAX + 1):
        client = bench.client5(f"c{number}", expiry_s=10)
        client.subscribe("t/#", qos=1)
        client.drop()
    bench.settle(11_000)
    assert len(bench.broker.sessions) == 0
    assert bench.broker.router.subscription_count == 0


def test_a_session_ends_with_its_connection_if_nothing_else_was_asked(bench: Bench) -> None:
    client = bench.client5(clean_start=False)
    client.subscribe("t", qos=1)
    client.drop()
    assert len(bench.broker.sessions) == 0
    assert not back(bench)[1]


def test_a_session_may_outlive_a_clean_start(bench: Bench) -> None:
    client = bench.client5(clean_start=True, expiry_s=60)
    client.subscribe("t", qos=1)
    client.drop()
    bench.client("w").send(Publish("t", b"x", 1, packet_id=1))
    again = bench.wire(Version.V5)
    again.send(Connect("c", clean_start=False, version=Version.V5))
    connack, publish = again.received()
    assert isinstance(connack, ConnAck)
    assert connack.session_present
    assert publish == Publish("t", b"x", 1, packet_id=1)


def test_a_session_never_expires_if_we_keep_them_for_ever() -> None:
    with Bench(limits=BrokerLimits(sessions=SessionLimits(session_expiry_s=NEVER_S))) as bench:
        bench.client5(expiry_s=NEVER_S).drop()
        bench.settle(1_000 * (NEVER_S + 1))
        assert back(bench)[1]


def test_the_expiry_of_the_latest_connection_counts(bench: Bench) -> None:
    bench.client5(expiry_s=10).drop()
    wire, present = back(bench, expiry_s=100)
    assert present
    wire.drop()
    bench.settle(50_000)
    assert back(bench)[1]


# ---- DISCONNECT ----


@pytest.mark.parametrize(
    ("at_connect_s", "at_disconnect_s", "away_ms"), [(10, 100, 90_000), (100, 10, 9_000)]
)
def test_a_disconnect_may_change_how_long_the_session_lasts(
    bench: Bench, at_connect_s: int, at_disconnect_s: int, away_ms: int
) -> None:
    client = bench.client5(expiry_s=at_connect_s)
    client.send(Disconnect(properties=Properties(session_expiry_interval_s=at_disconnect_s)))
    assert not client.is_open
    bench.settle(away_ms)
    assert len(bench.broker.sessions) == 1
    bench.settle(at_disconnect_s * 1000 - away_ms + 100)
    assert len(bench.broker.sessions) == 0


def test_a_disconnect_may_end_the_session(bench: Bench) -> None:
    bench.client5(expiry_s=100).send(Disconnect(properties=Properties(session_expiry_interval_s=0)))
    assert len(bench.broker.sessions) == 0


def test_a_session_that_was_to_end_cannot_be_kept_after_all(bench: Bench) -> None:
    client = bench.client5()
    client.send(Disconnect(properties=Properties(session_expiry_interval_s=10)))
    last_words = client.answer()
    assert isinstance(last_words, Disconnect)
    assert last_words.reason_code is ReasonCode.PROTOCOL_ERROR
    assert not client.is_open
    assert len(bench.broker.sessions) == 0


def test_the_broker_says_why_when_it_stops(bench: Bench) -> None:
    new, old = bench.client5("n"), bench.client("o")
    bench.broker.stop()
    assert new.answer() == Disconnect(ReasonCode.SERVER_SHUTTING_DOWN)
    assert old.received() == []


def test_whoever_runs_the_broker_may_end_a_connection(bench: Bench) -> None:
    client = bench.client5(expiry_s=60)
    assert bench.broker.disconnect("c")
    assert client.answer() == Disconnect(ReasonCode.ADMINISTRATIVE_ACTION)
    assert not client.is_open
    assert len(bench.broker.sessions) == 1
    assert not bench.broker.disconnect("c")
    assert not bench.broker.disconnect("nobody")


# ---- take-over ----


def test_a_take_over_is_told_to_who_was_there_and_keeps_the_session(bench: Bench) -> None:
    old = bench.client5(expiry_s=60)
    old.subscribe("t", qos=1)
    new = bench.client5(expiry_s=60, clean_start=False, present=True)
    assert old.answer() == Disconnect(ReasonCode.SESSION_TAKEN_OVER)
    assert not old.is_open
    bench.client("w").send(Publish("t", b"x", 1, packet_id=1))
    assert new.publishes() == [("t", b"x", 1)]


def test_versions_may_take_over_from_each_other(bench: Bench) -> None:
    old = bench.client("c", clean_start=False)
    old.subscribe("t", qos=1)
    new = bench.client5("c", clean_start=False, present=True, expiry_s=60)
    assert old.received() == []
    new.drop()
    again = bench.client("c", clean_start=False, present=True)
    bench.client("w").send(Publish("t", b"x", 1, packet_id=1))
    assert again.publishes() == [("t", b"x", 1)]


# ---- SUBSCRIBE and UNSUBSCRIBE ----


def test_each_filter_has_an_answer_of_its_own() -> None:
    with Bench(limits=BrokerLimits(subscriptions_max=2)) as bench:
        client = bench.client5()
        client.send(Subscribe(1, tuple(Subscription(it, 2) for it in ("a", "b/" * 201, "b", "c"))))
        answer = client.answer()
        assert isinstance(answer, SubAck)
        assert answer.reason_codes == (
            ReasonCode.GRANTED_QOS_2,
            ReasonCode.TOPIC_FILTER_INVALID,
            ReasonCode.GRANTED_QOS_2,
            ReasonCode.QUOTA_EXCEEDED,
        )
        assert "topic_levels_max = 201" in str(answer.properties.reason_string)
        client.send(Unsubscribe(2, ("a", "c")))
        expected = (ReasonCode.SUCCESS, ReasonCode.NO_SUBSCRIPTION_EXISTED)
        assert client.answer() == UnsubAck(2, expected)


@pytest.mark.parametrize(("handling", "sent"), [(0, [True, True]), (1, [True, False]), (2, [False, False])])
def test_retained_messages_are_sent_as_the_subscription_wants(
    bench: Bench, handling: int, sent: list[bool]
) -> None:
    bench.client("w").send(Publish("t", b"x", retain=True))
    client = bench.client5()
    for is_sent in sent:
        client.send(Subscribe(1, (Subscription("t", retain_handling=handling),)))
        _, *publishes = client.received()
        assert publishes == ([Publish("t", b"x", retain=True)] if is_sent else [])


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        ("82 06 0001 00 0000 00", ReasonCode.MALFORMED_PACKET),  # an empty filter
        ("82 03 0001 00", ReasonCode.PROTOCOL_ERROR),  # no filter
        ("82 09 0001 02 0b00 0001 61 00", ReasonCode.PROTOCOL_ERROR),  # identifier 0
        ("82 07 0001 00 0001 61 30", ReasonCode.MALFORMED_PACKET),  # retain handling 3
        ("82 10 0001 00 000a 2473686172652f672f61 04", ReasonCode.PROTOCOL_ERROR),  # shared and no-local
        ("a2 03 0001 00", ReasonCode.PROTOCOL_ERROR),
    ],
)
def test_a_subscribe_that_breaks_a_rule_ends_the_connection(
    bench: Bench, packet: str, reason: ReasonCode
) -> None:
    client = bench.client5()
    client.raw(bytes.fromhex(packet))
    last_words = client.answer()
    assert isinstance(last_words, Disconnect)
    assert last_words.reason_code is reason
    assert not client.is_open


def test_an_answer_that_is_too_long_for_a_client_ends_its_connection(bench: Bench) -> None:
    client = bench.client5(wants=Properties(maximum_packet_size_bytes=30))
    client.send(Subscribe(1, tuple(Subscription(f"t/{i}") for i in range(50))))
    assert client.answer() == Disconnect(ReasonCode.PACKET_TOO_LARGE)
    assert not client.is_open


# ---- deadlines ----


def test_deadlines_come_in_order_once_and_only_the_last_of_a_key_counts() -> None:
    deadlines: TimerHeap[str] = TimerHeap()
    for key, due_s in (("a", 5.0), ("b", 3.0), ("c", 4.0), ("a", 1.0), ("d", 2.0), ("b", 6.0)):
        deadlines.set(key, due_s)
    deadlines.cancel("d")
    assert deadlines.next_s == 1.0
    assert list(deadlines.due(4.0)) == ["a", "c"]
    assert list(deadlines.due(5.9)) == []
    assert deadlines.next_s == 6.0
    assert list(deadlines.due(6.0)) == ["b"]
    assert deadlines.next_s == float("inf")


def test_deadlines_that_are_moved_for_ever_take_no_more_room() -> None:
    deadlines: TimerHeap[int] = TimerHeap()
    for turn in range(1000):
        for key in range(10):
            deadlines.set(key, turn + key)
    assert len(deadlines._heap) <= 2 * 10 + 64 + 1
    assert list(deadlines.due(2000)) == list(range(10))
