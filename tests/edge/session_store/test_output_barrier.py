"""Durability "disk": a client gets only answers about its session that a power cut does not undo.

The log is the test: it has synced the journal when the test says so.
"""

from collections.abc import Callable, Iterator

import pytest

from edge.auth.interfaces import ClientInfo
from edge.config.schema import Durability
from edge.mqtt import (
    ConnAck,
    Connect,
    Packet,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
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
    Will,
)
from tests.support.kept_bench import Lives
from tests.support.mqtt_bench import Bench, Wire
from tests.support.rules import Anybody


@pytest.fixture
def lives() -> Iterator[Lives]:
    with Lives(output_waits=True, durability=Durability.DISK) as lives:
        yield lives


@pytest.fixture
def bench(lives: Lives) -> Bench:
    return lives.start()


def connect(lives: Lives, client_id: str = "c", *, clean_start: bool = False) -> Wire:
    assert lives.bench is not None
    wire = lives.bench.wire(Version.V5)
    properties = Properties(session_expiry_interval_s=0 if clean_start else 3600)
    wire.send(Connect(client_id, version=Version.V5, clean_start=clean_start, properties=properties))
    return wire


def kept(lives: Lives, *filters: str) -> Wire:
    """A client whose session is on the disk."""
    client = connect(lives)
    if filters:
        client.send(Subscribe(1, tuple(Subscription(it, 2) for it in filters)))
    lives.synced()
    client.received()
    return client


def name_ring(lives: Lives, client: Wire) -> None:
    """The ring has its first record, and its name is on the disk."""
    client.send(Publish("a", b"first"))
    lives.synced()


def stored(bench: Bench) -> None:
    """The log has synced the records."""
    bench.partition.ring.durable(bench.partition.writer.end_position)
    bench.settle()


def after(lives: Lives, client: Wire) -> list[Packet]:
    """Packets that the client receives only after the journal is synced."""
    assert client.received() == []
    lives.synced()
    return client.received()


def test_a_session_is_told_of_when_it_is_synced(lives: Lives, bench: Bench) -> None:
    (answer,) = after(lives, connect(lives))
    assert isinstance(answer, ConnAck)
    connect(lives).drop()
    (answer,) = after(lives, connect(lives))
    assert isinstance(answer, ConnAck)
    assert answer.session_present


def test_that_a_session_has_ended_is_told_when_it_is_synced(lives: Lives, bench: Bench) -> None:
    kept(lives).drop()
    (answer,) = after(lives, connect(lives, clean_start=True))
    assert isinstance(answer, ConnAck)
    assert not answer.session_present


def test_subscriptions_are_told_of_when_they_are_synced(lives: Lives, bench: Bench) -> None:
    client = kept(lives)
    client.send(Subscribe(1, (Subscription("a", 1),)))
    assert [type(it) for it in after(lives, client)] == [SubAck]
    client.send(Unsubscribe(2, ("a",)))
    assert [type(it) for it in after(lives, client)] == [UnsubAck]


def test_an_identifier_is_free_when_that_is_synced(lives: Lives, bench: Bench) -> None:
    client = kept(lives)
    client.send(Publish("a", b"1", 2, packet_id=7))
    lives.synced()
    stored(bench)
    assert client.received() == [PubRec(7)]
    client.send(PubRel(7))
    assert after(lives, client) == [PubComp(7)]


def test_what_a_client_gets_once_is_on_its_way_when_that_is_synced(lives: Lives, bench: Bench) -> None:
    client = kept(lives, "a")
    bench.client("p").send(Publish("a", b"1", 2, packet_id=1))
    (message,) = after(lives, client)
    assert isinstance(message, Publish)
    client.send(PubRec(message.packet_id))
    assert after(lives, client) == [PubRel(message.packet_id)]


def test_what_may_come_twice_does_not_wait(lives: Lives, bench: Bench) -> None:
    client = kept(lives, "a")
    bench.client("p").send(Publish("a", b"1", 1, packet_id=1), Publish("a", b"2", 0))
    assert [type(it) for it in client.received()] == [Publish, Publish]
    client.send(Publish("b", b"3", 1, packet_id=9))
    stored(bench)
    assert [type(it) for it in client.received()] == [PubAck]


def test_nobody_else_waits(lives: Lives, bench: Bench) -> None:
    connect(lives, "kept")  # there is something to be synced
    client = bench.client("other")
    client.subscribe("a", qos=2)
    bench.client("p").send(Publish("a", b"1", 2, packet_id=1))
    assert [type(it) for it in client.received()] == [Publish]


def test_a_pingresp_waits_for_no_disk(lives: Lives, bench: Bench) -> None:
    client, other = kept(lives), bench.client("other")
    client.send(Subscribe(1, (Subscription("a", 1),)), PingReq())
    assert client.received() == [PingResp()]
    other.send(Publish("a", b"1"))
    client.send(PingReq(), PingReq())
    assert client.received() == [PingResp()], "only one at a time: each moves the output that waits"
    assert [type(it) for it in after(lives, client)] == [SubAck, Publish, PingResp]
    client.send(PubAck(1), PingReq())
    assert client.received() == [PingResp()]


def test_a_pingresp_is_not_sent_before_the_connack(lives: Lives, bench: Bench) -> None:
    wire = bench.wire(Version.V5)
    properties = Properties(session_expiry_interval_s=3600)
    wire.send(Connect("c", version=Version.V5, properties=properties), PingReq())
    assert [type(it) for it in after(lives, wire)] == [ConnAck, PingResp]


def test_who_is_told_something_all_the_time_waits_for_two_syncs_at_most(lives: Lives, bench: Bench) -> None:
    client = kept(lives)
    for number in range(1, 6):
        client.send(Publish("a", b"x", 2, packet_id=number))
        stored(bench)
    lives.synced()
    stored(bench)
    client.received()
    told = []
    for number in range(1, 6):
        client.send(PubRel(number))
        told += client.received()
        if number < 5:
            lives.synced()
    assert told == [PubComp(number) for number in range(1, 5)]
    assert after(lives, client) == [PubComp(5)]


def test_the_log_may_have_a_message_of_qos_2_when_its_identifier_is_synced(
    lives: Lives, bench: Bench
) -> None:
    client = kept(lives)
    name_ring(lives, client)
    ring = bench.partition.ring
    with ring.reader(name="log", local=True, for_log=True) as log, ring.reader() as reader:

        def seen() -> int:
            return sum(run.count for run in log.ranges(1 << 20))

        client.send(Publish("a", b"0", 1, packet_id=1), Publish("a", b"1", 2, packet_id=2))
        assert seen() == 1
        client.send(Publish("a", b"2", 1, packet_id=3), Publish("a", b"3", 2, packet_id=4))
        assert seen() == 0
        assert len(list(iter(reader.poll, None))) == 4
        lives.synced()
        assert seen() == 3
        client.send(Publish("a", b"4", 2, packet_id=5))
        lives.synced()
        assert seen() == 1


def test_the_log_may_have_the_first_record_of_a_ring_when_the_name_of_the_ring_is_synced(
    lives: Lives, bench: Bench
) -> None:
    kept(lives, "#")
    client = connect(lives, "publisher", clean_start=True)
    with bench.partition.ring.reader(name="log", local=True, for_log=True) as log:
        client.send(Publish("a", b"0", 1, packet_id=1))
        assert not log.ranges(1 << 20)
        lives.synced()
        assert sum(run.count for run in log.ranges(1 << 20)) == 1
        client.send(Publish("b", b"1", 1, packet_id=2))
        assert sum(run.count for run in log.ranges(1 << 20)) == 1


def test_a_log_that_waits_is_not_held_longer_by_what_comes_meanwhile(lives: Lives, bench: Bench) -> None:
    client = kept(lives)
    name_ring(lives, client)
    ring = bench.partition.ring
    with ring.reader(name="log", local=True, for_log=True) as log:
        client.send(Publish("a", b"1", 2, packet_id=1))
        position = lives.journal_end()
        for number in range(2, 5):
            client.send(Publish("a", b"2", 2, packet_id=number))
        lives.synced(position)
        assert sum(run.count for run in log.ranges(1 << 20)) == 1
        lives.synced()
        assert sum(run.count for run in log.ranges(1 << 20)) == 3


def test_the_log_may_have_no_message_whose_identifier_came_behind_others_that_are_synced(
    lives: Lives, bench: Bench
) -> None:
    client = kept(lives)
    name_ring(lives, client)
    with bench.partition.ring.reader(name="log", local=True, for_log=True) as log:
        client.send(Publish("a", b"1", 2, packet_id=1))
        client.send(Publish("a", b"2", 2, packet_id=2))
        position = lives.journal_end()
        client.send(Publish("a", b"3", 2, packet_id=3))
        lives.synced(position)
        assert sum(run.count for run in log.ranges(1 << 20)) == 1
        lives.synced()
        assert sum(run.count for run in log.ranges(1 << 20)) == 2


def test_a_broker_that_stops_leaves_nothing_held(lives: Lives, bench: Bench) -> None:
    client = kept(lives)
    ring = bench.partition.ring
    with ring.reader(name="log", local=True, for_log=True) as log:
        client.send(Publish("a", b"1", 2, packet_id=1))
        assert not log.ranges(1 << 20)
        bench.broker.stop()
        assert log.ranges(1 << 20)


def test_a_stop_waits_for_records_that_wait_for_the_journal(lives: Lives, bench: Bench) -> None:
    client = kept(lives)
    name_ring(lives, client)
    counts = []
    with bench.partition.ring.reader(name="log", local=True, for_log=True) as log:

        def wait(look: Callable[[], object]) -> None:
            assert lives.ring is not None
            lives.ring.durable(lives.journal_end())
            assert not log.ranges(1 << 20)
            look()
            counts.append(sum(run.count for run in log.ranges(1 << 20)))

        bench.broker.journal.records_synced = lambda: wait
        client.send(Publish("a", b"1", 2, packet_id=1))
        log.ranges(1 << 20)
        bench.broker.stop()
    assert counts == [1]


def test_at_other_levels_nobody_waits() -> None:
    with Lives(durability=Durability.DISK) as lives:
        bench = lives.start()
        client = connect(lives)
        assert [type(it) for it in client.received()] == [ConnAck]
        with bench.partition.ring.reader(name="log", local=True, for_log=True) as log:
            client.send(Publish("a", b"1", 2, packet_id=1))
            assert log.ranges(1 << 20)


def test_a_broken_log_begins_no_session_that_it_cannot_keep(lives: Lives, bench: Bench) -> None:
    kept(lives).drop()
    bench.broker.journal_failed("No space left on device (ENOSPC)")
    for clean_start in (False, True):  # the session of "c" can neither continue nor end
        (answer,) = connect(lives, clean_start=clean_start).received()
        assert isinstance(answer, ConnAck)
        assert answer.reason_code.failed
        assert "ENOSPC" in str(answer.properties.reason_string)
    bench.client("clean")


BROKEN = "00001.log: Is a directory (EISDIR)"


@pytest.mark.parametrize("clean_start", [False, True])
@pytest.mark.parametrize("version", [Version.V311, Version.V5])
def test_a_log_that_breaks_before_the_sync_of_a_session_refuses_its_client(
    lives: Lives, bench: Bench, version: Version, clean_start: bool
) -> None:
    """Also a client whose earlier session ends, because that waits for the log as well."""
    before = kept(lives)
    before.drop()
    lives.synced()
    away, will = bench.client("away"), Will("will", b"x")
    away.subscribe("will")
    wire = bench.wire(version)
    expiry_s = None if clean_start or version != Version.V5 else 3600
    properties = Properties(session_expiry_interval_s=expiry_s)
    wire.send(Connect("c", version=version, clean_start=clean_start, will=will, properties=properties))
    assert wire.received() == []
    bench.broker.journal_failed(BROKEN)
    bench.settle()
    (answer,) = wire.received()
    assert isinstance(answer, ConnAck)
    unavailable = ReasonCode.SERVER_UNAVAILABLE
    assert (answer.reason_code, answer.session_present) == (unavailable, False)
    assert version != Version.V5 or BROKEN in str(answer.properties.reason_string)
    assert not wire.is_open
    assert away.publishes() == [], "no will of a client that was never accepted"
    bench.client("clean")
    bench.broker.journal_failed("")
    lives.synced()
    again = connect(lives)
    lives.synced()
    (answer,) = again.received()
    assert isinstance(answer, ConnAck)
    assert not answer.reason_code.failed


def test_a_refusal_by_a_broken_log_is_as_short_as_its_client_requires(lives: Lives, bench: Bench) -> None:
    wire = bench.wire(Version.V5)
    properties = Properties(session_expiry_interval_s=3600, maximum_packet_size_bytes=20)
    wire.send(Connect("c", version=Version.V5, properties=properties))
    bench.broker.journal_failed(BROKEN)
    bench.settle()
    (answer,) = wire.received()
    assert isinstance(answer, ConnAck)
    assert answer.reason_code is ReasonCode.SERVER_UNAVAILABLE
    assert answer.properties.reason_string is None


def test_a_log_that_breaks_ends_no_connection_that_has_its_connack(lives: Lives, bench: Bench) -> None:
    client, other = kept(lives), bench.client("clean")
    client.send(Subscribe(1, (Subscription("a", 1),)))
    bench.broker.journal_failed(BROKEN)
    bench.settle()
    assert client.received() == [], "its SUBACK waits"
    assert client.is_open
    other.send(Publish("a", b"1"))
    bench.broker.journal_failed("")
    lives.synced()
    assert [type(packet) for packet in client.received()] == [SubAck, Publish]


class BreaksTheLog(Anybody):
    """The log breaks while this authenticator decides."""

    bench: Bench

    def authenticate(self, client: ClientInfo, password: bytes | None) -> bool:
        self.bench.broker.journal_failed(BROKEN)
        return True


def test_a_client_that_is_authenticated_while_the_log_breaks_is_refused() -> None:
    authenticator = BreaksTheLog()
    with Lives(output_waits=True, durability=Durability.DISK, authenticator=authenticator) as lives:
        bench = authenticator.bench = lives.start()
        wire = bench.wire(Version.V311)
        wire.send(Connect("c", username="ann", password=b"x", clean_start=False))
        (answer,) = wire.received()
        assert isinstance(answer, ConnAck)
        assert answer.reason_code == ReasonCode.SERVER_UNAVAILABLE
