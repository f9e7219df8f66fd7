"""Wills: published for whoever goes without a word, at the right time, as they were given."""

from __future__ import annotations

import pytest

from edge.access import ClientFacts
from edge.engine import DropCause
from edge.mqtt import (
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
        "clients_most": 1,
        "wills_waiting": 1,
        "own_messages_waiting": 0,
        "own_messages_dropped": 0,
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


class Ward:
    """Whether wills may be published can change."""

    allows = True

    def may_publish(self, client: ClientFacts, topic: str) -> bool:
        return self.allows

    def may_subscribe(self, client: ClientFacts, topic_filter: str) -> bool:
        return True

    def may_receive(self, client: ClientFacts, topic: str) -> bool:
        return True


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
