"""Wills: published for a client that disconnects without DISCONNECT, at the right time, as given."""

import pytest

from edge.auth.interfaces import ClientInfo
from edge.broker.dispatcher import BrokerLimits
from edge.broker.wills import WillLimits, will_bytes
from edge.engine.engine import DropCause
from edge.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    Properties,
    Publish,
    ReasonCode,
    Subscribe,
    Subscription,
    Version,
    Will,
)
from tests.support.mqtt_bench import Bench, Wire
from tests.support.rules import AnyTopic

DELAYED = Will("gone", b"bye", properties=Properties(will_delay_interval_s=10))


@pytest.mark.parametrize("how", ["drop", "malformed", "keep alive", "take-over"])
def test_a_will_is_published_when_a_client_goes_without_a_word(bench: Bench, how: str) -> None:
    watcher = bench.client("watcher", keep_alive_s=0)
    watcher.subscribe("gone/#", qos=1)
    client = bench.client("c", will=Will("gone/c", b"bye", 1, retain=True), keep_alive_s=10)
    if how == "drop":
        client.drop()
    elif how == "malformed":
        client.raw(b"\x30\x00")
    elif how == "keep alive":
        bench.settle(14_000)
        assert client.is_open
        bench.settle(1_500)
    else:
        bench.client("c")
    assert not client.is_open
    assert watcher.publishes() == [("gone/c", b"bye", 1)]
    late = bench.client("late")
    late.send(Subscribe(1, (Subscription("gone/#"),)))
    assert late.received()[1:] == [Publish("gone/c", b"bye", retain=True)]


def test_a_disconnect_discards_the_will(bench: Bench) -> None:
    client = bench.client("c", will=Will("gone", b"bye"))
    client.send(Disconnect())
    assert not client.is_open
    assert bench.records() == []


def test_a_stop_publishes_the_wills(bench: Bench) -> None:
    bench.client("c", will=Will("gone", b"bye"))
    bench.broker.stop()
    assert bench.records() == [("gone", b"bye")]


# ---- MQTT 5 ----


def watching(bench: Bench) -> Wire:
    """A client that sees every will."""
    watcher = bench.client5("watcher", keep_alive_s=0)
    watcher.subscribe("gone/#")
    return watcher


@pytest.mark.parametrize(
    ("reason", "published"),
    [
        (ReasonCode.SUCCESS, False),
        (ReasonCode.DISCONNECT_WITH_WILL, True),
        (ReasonCode.UNSPECIFIED_ERROR, True),
    ],
)
def test_only_a_normal_disconnection_discards_the_will(
    bench: Bench, reason: ReasonCode, published: bool
) -> None:
    watcher = watching(bench)
    bench.client5(will=Will("gone", b"bye")).send(Disconnect(reason))
    assert watcher.publishes() == ([("gone", b"bye", 0)] if published else [])


def test_a_will_waits_as_long_as_its_client_asked(bench: Bench) -> None:
    watcher = watching(bench)
    bench.client5(will=DELAYED, expiry_s=60).drop()
    bench.settle(9_900)
    assert watcher.publishes() == []
    bench.settle(200)
    assert watcher.publishes() == [("gone", b"bye", 0)]
    bench.settle(100_000)
    assert watcher.publishes() == []


def test_a_will_is_not_published_for_a_client_that_is_back_in_time(bench: Bench) -> None:
    watcher = watching(bench)
    bench.client5(will=DELAYED, expiry_s=60).drop()
    bench.settle(9_000)
    bench.client5(expiry_s=60, clean_start=False, present=True)
    bench.settle(100_000)
    assert watcher.publishes() == []


def test_the_broker_counts_wills_that_wait_and_sessions_that_have_expired(bench: Bench) -> None:
    bench.client5("a", will=DELAYED, expiry_s=60).drop()
    bench.client5("b", expiry_s=5).drop()
    bench.settle(6_000)
    assert bench.broker.counts() == {
        "sessions_away": 1,
        "sessions_expired": 1,
        "clients_max_seen": 1,
        "wills_waiting": 1,
        "wills_bytes": will_bytes(DELAYED),
        "own_messages_waiting": 0,
        "own_messages_dropped": 0,
        "sys_topics": 0,
    }


@pytest.mark.parametrize("expiry_s", [0, 3])
def test_a_will_does_not_wait_longer_than_its_session(bench: Bench, expiry_s: int) -> None:
    watcher = watching(bench)
    bench.client5(will=DELAYED, expiry_s=expiry_s).drop()
    if expiry_s:
        bench.settle(2_900)
        assert watcher.publishes() == []
        bench.settle(200)
    assert watcher.publishes() == [("gone", b"bye", 0)]
    assert len(bench.broker.wills) == 0


def test_a_will_is_published_when_a_new_session_begins_in_place_of_the_old(bench: Bench) -> None:
    watcher = watching(bench)
    bench.client5(will=DELAYED, expiry_s=60).drop()
    bench.client5(clean_start=True)
    assert watcher.publishes() == [("gone", b"bye", 0)]


def test_a_take_over_publishes_the_will_unless_it_may_wait_and_the_session_goes_on(bench: Bench) -> None:
    watcher = watching(bench)
    bench.client5("a", will=DELAYED, expiry_s=60)
    bench.client5("a", expiry_s=60, clean_start=False, present=True)
    assert watcher.publishes() == []
    bench.client5("b", will=DELAYED, expiry_s=60)
    bench.client5("b", expiry_s=60, clean_start=True)
    assert watcher.publishes() == [("gone", b"bye", 0)]
    bench.client5("c", will=Will("gone", b"now"), expiry_s=60)
    bench.client5("c", expiry_s=60, clean_start=False, present=True)
    assert watcher.publishes() == [("gone", b"now", 0)]


def test_a_will_has_its_properties_in_its_record_and_its_delivery(bench: Bench) -> None:
    watcher = watching(bench)
    message = Properties(
        payload_format_indicator=1,
        message_expiry_interval_s=100,
        content_type="text/plain",
        response_topic="answers",
        correlation_data=b"7",
        user=(("a", "1"), ("a", "2")),
    )
    will = Will("gone", b"bye", 0, properties=message)
    bench.client5(will=will).drop()
    (publish,) = watcher.received()
    assert isinstance(publish, Publish)
    assert publish.properties == message
    reader = bench.partition.ring.reader(start="oldest")
    record = reader.poll()
    assert record is not None
    assert record.properties[1:6] == b"\x02\x00\x00\x00\x64"  # expiry first, behind the length
    del record
    reader.close()


def test_a_will_that_may_be_kept_for_some_time_only_is_not_kept_longer(bench: Bench) -> None:
    properties = Properties(message_expiry_interval_s=5)
    bench.client5(will=Will("gone", b"bye", 1, retain=True, properties=properties)).drop()
    bench.settle(6_000)
    late = bench.client5("late")
    late.subscribe("gone")
    assert late.received() == []
    assert bench.stats.dropped()[DropCause.EXPIRED.words] == 1


class Ward(AnyTopic):
    """Rules that may change: they permit or refuse wills."""

    allows = True

    def may_publish(self, client: ClientInfo, topic: str) -> bool:
        return self.allows


def test_a_will_is_judged_at_connect_and_again_when_it_is_published() -> None:
    ward = Ward()
    with Bench(access=ward) as bench:
        watcher = watching(bench)
        client = bench.client5(will=Will("gone", b"bye"))
        ward.allows = False
        client.drop()
        assert watcher.publishes() == []
        refused = bench.wire(Version.V5)
        refused.send(Connect("r", version=Version.V5, will=Will("gone", b"bye")))
        assert not refused.is_open


def test_a_stop_does_not_wait_for_any_will(bench: Bench) -> None:
    bench.client5("away", will=DELAYED, expiry_s=60).drop()
    bench.client5("here", will=DELAYED, expiry_s=60)
    bench.broker.stop()
    assert bench.records() == [("gone", b"bye"), ("gone", b"bye")]


# ---- memory ----

SMALL = WillLimits(will_max_bytes=4_096, wills_max_bytes=400_000)


@pytest.mark.parametrize("version", [Version.V311, Version.V5])
def test_a_will_beyond_the_limit_of_one_client_is_refused(version: Version) -> None:
    with Bench(limits=BrokerLimits(wills=SMALL)) as bench:
        wire = bench.wire(version)
        wire.send(Connect("c", version=version, will=Will("t", bytes(4_000)), keep_alive_s=0))
        answer = wire.answer()
        assert isinstance(answer, ConnAck)
        expected = ReasonCode.QUOTA_EXCEEDED if version is Version.V5 else ReasonCode.SERVER_UNAVAILABLE
        assert answer.reason_code is expected
        assert not wire.is_open
        assert bench.broker.wills.held_bytes == 0
        if version is Version.V5:
            assert "will_max_bytes = 4096" in (answer.properties.reason_string or "")


def test_all_wills_have_a_limit_and_large_ones_are_refused_before_small_ones() -> None:
    def is_let_in(client_id: str, size: int) -> bool:
        wire = bench.wire()
        wire.send(Connect(client_id, will=Will("t", bytes(size)), keep_alive_s=0))
        answer = wire.answer()
        return isinstance(answer, ConnAck) and not answer.reason_code.failed

    with Bench(limits=BrokerLimits(wills=SMALL)) as bench:
        large = sum(is_let_in(f"large-{n}", 3_000) for n in range(100))
        small = sum(is_let_in(f"small-{n}", 100) for n in range(600))
        assert 10 < large < 60
        assert small > 200
        assert 0.9 * SMALL.wills_max_bytes < bench.broker.wills.held_bytes <= SMALL.wills_max_bytes
        for client in bench.broker.clients:
            bench.broker.clients.end(client.connection, will=False)
        assert bench.broker.wills.held_bytes == 0
        assert is_let_in("again", 1_000)


def test_the_memory_of_a_will_is_counted_until_it_is_published_or_cancelled(bench: Bench) -> None:
    wills = bench.broker.wills
    bench.client("c", will=Will("gone", b"bye")).drop()
    assert wills.held_bytes == 0
    bench.client5("c", will=DELAYED, expiry_s=60).drop()
    assert wills.held_bytes == will_bytes(DELAYED)
    bench.client5("c", expiry_s=60, clean_start=False, present=True)
    assert wills.held_bytes == 0
    bench.client5("c", will=DELAYED, expiry_s=60, clean_start=False, present=True).drop()
    bench.settle(11_000)
    assert wills.held_bytes == 0
    assert bench.records() == [("gone", b"bye"), ("gone", b"bye")]


# ---- many at once ----


def lost_at_once(bench: Bench, count: int, payload: bytes) -> None:
    """So many clients are lost in one turn of the broker's thread."""
    wires = [bench.client(f"c{n}", will=Will(f"gone/{n}", payload), keep_alive_s=0) for n in range(count)]
    for wire in wires:
        bench.broker.clients.end(wire.handle, will=True)


def test_many_wills_at_once_are_published_in_slices_in_order() -> None:
    with Bench(capacity_bytes=8 << 20) as bench:
        lost_at_once(bench, 300, bytes(2_000))
        first = len(bench.records())
        assert 0 < first < 50
        bench.broker.tick()
        assert first < len(bench.records()) < 100
        assert bench.broker.tick() == 0.0  # at once
        bench.client("c299")  # which is back before its will was published: that comes first
        while len(bench.broker.wills):
            bench.broker.tick()
        topics = [topic for topic, _ in bench.records()]
        assert topics.index("gone/299") < topics.index("gone/200")
        assert sorted(topics) == sorted(f"gone/{n}" for n in range(300))
        assert [it for it in topics if it != "gone/299"] == [f"gone/{n}" for n in range(299)]


def test_no_will_is_dropped_while_the_ring_is_full() -> None:
    block = {"when_full": "block", "queue_timeout_ms": 3_600_000}
    with Bench(capacity_bytes=1 << 16, writer=block) as bench:
        reader = bench.partition.ring.reader(blocks_writer=True)
        lost_at_once(bench, 2_000, bytes(200))
        found = 0
        while found < 2_000:
            bench.settle(5)
            while reader.poll() is not None:
                found += 1
        reader.close()
        assert bench.broker.own_messages.dropped == 0
        assert len(bench.broker.wills) == 0


def test_a_stop_publishes_wills_that_are_due_although_others_wait(bench: Bench) -> None:
    lost_at_once(bench, 100, bytes(100))
    assert len(bench.records()) < 100
    bench.broker.stop()
    assert len(bench.records()) == 100
