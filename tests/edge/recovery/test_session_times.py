"""A restart counts the times of sessions and wills from the last event of each client."""

import pytest

from edge.auth.interfaces import ClientInfo
from edge.engine.subscription_options import options_of
from edge.mqtt import (
    Disconnect,
    Properties,
    PubAck,
    Publish,
    Subscription,
    Will,
)
from edge.session_store.journal_records import JournalRecord, SessionOpened, Subscribed, encode_record
from edge.session_store.snapshot_file import RECORD, Origin, write_snapshot
from tests.support.kept_bench import Lives, connect, is_known
from tests.support.mqtt_bench import BEGIN_NS


def test_a_client_that_returned_is_away_since_the_last_journal_entry(lives: Lives) -> None:
    bench = lives.start()
    connect(bench, "c", 10)[0].drop()
    bench.settle(8_000)
    connect(bench, "c", 10)
    assert is_known(lives.restart(away_ms=5_000))


@pytest.mark.parametrize(("first_s", "then_s"), [(10, 3600), (3600, 10)])
def test_the_expiry_of_the_last_connect_counts_after_a_restart(
    lives: Lives, first_s: int, then_s: int
) -> None:
    bench = lives.start()
    connect(bench, "c", first_s)[0].drop()
    connect(bench, "c", then_s)
    assert is_known(lives.restart(away_ms=11_000)) == (then_s > 11)


def test_the_expiry_of_a_disconnect_counts_after_a_restart(lives: Lives) -> None:
    client, _ = connect(lives.start())
    client.send(Disconnect(properties=Properties(session_expiry_interval_s=10)))
    assert not is_known(lives.restart(away_ms=11_000))


def test_the_delayed_will_of_a_connected_client_waits_after_a_restart(lives: Lives) -> None:
    delayed = Properties(will_delay_interval_s=30)
    connect(lives.start(), "w", 3600, will=Will("gone", b"w", 1, properties=delayed))
    bench = lives.restart()
    bench.settle(29_000)
    assert bench.records() == []
    bench.settle(2_000)
    assert bench.records() == [("gone", b"w")]


def test_records_of_a_group_without_connected_members_wait_and_are_counted(lives: Lives) -> None:
    bench = lives.start()
    member, _ = connect(bench, "m")
    member.subscribe("$share/g/a/+", qos=1)
    member.drop()
    publisher = bench.client("publisher")
    for number in range(1, 4):
        publisher.send(Publish(f"a/{number}", b"%d" % number, 1, packet_id=number))
    publisher.drop()
    bench = lives.restart()
    assert lives.restored is not None
    assert lives.restored.queued == 3
    _, packets = connect(bench, "m")
    assert [packet.payload for packet in packets if isinstance(packet, Publish)] == [b"1", b"2", b"3"]


def test_a_second_session_of_a_client_replaces_the_first_if_its_end_is_missing(lives: Lives) -> None:
    lives.start()
    end = lives.journal_end()
    lives.kill()
    client = ClientInfo("c", None, "127.0.0.1", 0)
    records: list[JournalRecord] = [
        SessionOpened(1, client, 3600),
        Subscribed(1, "a", options_of(Subscription("a", 1))),
        SessionOpened(2, client, 3600),
        Subscribed(2, "b", options_of(Subscription("b", 1))),
    ]
    write_snapshot(
        lives.directory / "sessions.state",
        Origin(1, end, BEGIN_NS),
        [(RECORD, encode_record(record)) for record in records],
        sync=False,
    )
    bench = lives.start()
    assert lives.restored is not None
    assert lives.restored[:2] == (1, 1)
    assert is_known(bench)
    client_wire, _ = connect(bench)
    publisher = bench.client("publisher")
    for topic in "ab":
        publisher.send(Publish(topic, topic.encode(), 1, packet_id=1))
        assert isinstance(publisher.answer(), PubAck)
    assert [payload for _, payload, _ in client_wire.publishes()] == [b"b"]
