"""QoS 2 at durability "upstream": a record that the sinks never get is never reported as received, and the
client may send it again; a record that they have is stored once.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from edge.broker.durability import RingDurability
from edge.config.schema import Durability
from edge.engine.engine import EngineLimits
from edge.mqtt import Connect, PubComp, Publish, PubRec, PubRel, ReasonCode, Version
from edge.recovery.read_journal import SavedState, read_saved_state
from edge.session_store.snapshot_file import ENTRIES
from tests.support import kept_bench
from tests.support.kept_bench import Lives
from tests.support.mqtt_bench import Bench, Wire

FREED = 8  # MQ_J_FREED, in the fourth byte of an entry
VERSIONS = pytest.mark.parametrize("version", [Version.V311, Version.V5])


@pytest.fixture
def lives() -> Iterator[Lives]:
    with Lives(durability=Durability.UPSTREAM) as lives:
        yield lives


@pytest.fixture
def bench(lives: Lives) -> Bench:
    return lives.start()


def connect(bench: Bench, version: Version, *, present: bool = False) -> Wire:
    """A client whose session outlasts its connection."""
    if version == Version.V5:
        return bench.client5("c", expiry_s=3600, clean_start=False, present=present)
    return bench.client("c", clean_start=False, present=present)


def publish(client: Wire, number: int, payload: bytes, *, again: bool = False) -> None:
    client.send(Publish("t", payload, 2, dup=again, packet_id=number))


def drained(bench: Bench, offset: int, *lost: tuple[int, int]) -> None:
    """The sinks have all records below `offset`, except the lost ones."""
    rings_of(bench).upstream("t-0", offset, lost)
    bench.settle()


def rings_of(bench: Bench) -> RingDurability:
    return bench.broker.router.durability


def payloads(bench: Bench) -> list[bytes]:
    return [payload for _, payload in bench.records()]


@VERSIONS
def test_a_lost_message_of_a_connected_client_is_stored_when_it_comes_again(
    bench: Bench, version: Version
) -> None:
    client = connect(bench, version)
    publish(client, 7, b"1")
    drained(bench, 1, (0, 0))
    if version == Version.V5:
        assert client.received() == [PubRec(7, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)]
    else:
        assert not client.is_open
        client = connect(bench, version, present=True)
    publish(client, 7, b"1", again=version != Version.V5)
    assert client.received() == []
    assert payloads(bench) == [b"1", b"1"]
    drained(bench, 2)
    assert client.received() == [PubRec(7)]


@VERSIONS
def test_a_message_lost_while_its_client_is_away_is_stored_when_it_comes_again(
    bench: Bench, version: Version
) -> None:
    client = connect(bench, version)
    publish(client, 7, b"1")
    client.drop()
    drained(bench, 1, (0, 0))
    client = connect(bench, version, present=True)
    publish(client, 7, b"1", again=True)
    assert client.received() == []
    drained(bench, 2)
    assert client.received() == [PubRec(7)]
    assert payloads(bench) == [b"1", b"1"]
    client.send(PubRel(7))
    assert client.received() == [PubComp(7)]


@VERSIONS
def test_a_repeated_message_waits_for_its_own_record_only(bench: Bench, version: Version) -> None:
    client = connect(bench, version)
    publish(client, 7, b"1")
    client.drop()
    bench.client("other").send(Publish("t", b"2", 1, packet_id=1))
    client = connect(bench, version, present=True)
    publish(client, 7, b"1", again=True)
    drained(bench, 1)
    assert client.received() == [PubRec(7)]
    assert payloads(bench) == [b"1", b"2"]


@VERSIONS
def test_a_bridge_that_begins_again_holds_no_acknowledgement_of_what_the_sinks_had(
    bench: Bench, version: Version
) -> None:
    client = connect(bench, version)
    publish(client, 7, b"1")
    drained(bench, 1)
    assert client.received() == [PubRec(7)]
    drained(bench, 0)
    publish(client, 7, b"1", again=True)
    assert client.received() == [PubRec(7)]
    assert payloads(bench) == [b"1"]


@VERSIONS
def test_losses_around_a_message_do_not_store_it_twice(bench: Bench, version: Version) -> None:
    """Two lost ranges are not joined: a message of QoS 2 between them would be stored again."""
    client, other = connect(bench, version), bench.client("other")
    other.send(Publish("t", b"0", 0))
    publish(client, 7, b"1")
    other.send(Publish("t", b"2", 0))
    drained(bench, 3, (0, 0), (2, 2))
    assert client.received() == [PubRec(7)]


@VERSIONS
@pytest.mark.parametrize("snapshot", [False, True])
def test_after_a_restart_a_message_that_is_lost_is_stored_when_it_comes_again(
    lives: Lives, bench: Bench, version: Version, snapshot: bool
) -> None:
    client = connect(bench, version)
    publish(client, 7, b"1")
    publish(client, 8, b"2")
    if snapshot:
        lives.restart()  # the second restart reads what the first has written
    bench = lives.restart()
    drained(bench, 2, (1, 1))
    client = connect(bench, version, present=True)
    publish(client, 7, b"1", again=True)
    publish(client, 8, b"2", again=True)
    assert client.received() == [PubRec(7)]
    assert payloads(bench) == [b"1", b"2", b"2"]
    drained(bench, 3)
    assert client.received() == [PubRec(8)]


@VERSIONS
def test_a_loss_is_known_after_a_restart(lives: Lives, bench: Bench, version: Version) -> None:
    client = connect(bench, version)
    publish(client, 7, b"1")
    client.drop()
    drained(bench, 1, (0, 0))
    bench = lives.restart()
    drained(bench, 1)
    client = connect(bench, version, present=True)
    publish(client, 7, b"1", again=True)
    assert client.received() == []
    assert payloads(bench) == [b"1", b"1"]


def test_an_identifier_waits_for_its_last_record_if_the_journal_has_lost_its_release(
    lives: Lives, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged entry of the journal: the identifier has two receipts."""
    client = connect(bench, Version.V311)
    publish(client, 7, b"1")
    drained(bench, 1)
    client.send(PubRel(7))
    assert client.received() == [PubRec(7), PubComp(7)]
    publish(client, 7, b"2")

    def damaged(*arguments: Any) -> SavedState:
        state = read_saved_state(*arguments)
        whole = list(state.frames)
        state.frames = kept = [(kind, body) for kind, body in whole if kind != ENTRIES or body[3] != FREED]
        assert len(kept) == len(whole) - 1
        return state

    monkeypatch.setattr(kept_bench, "read_saved_state", damaged)
    bench = lives.restart()
    client = connect(bench, Version.V311, present=True)
    publish(client, 7, b"2", again=True)
    drained(bench, 1)
    assert client.received() == []
    drained(bench, 2)
    assert client.received() == [PubRec(7)]
    assert payloads(bench) == [b"1", b"2"]


def test_a_session_has_a_limit_of_messages_that_wait_for_the_sinks() -> None:
    """Over all its connections; it continues when the sinks have some of them."""
    with Bench(engine=EngineLimits(receive_max=3), durability=Durability.UPSTREAM) as bench:
        for connection in range(4):
            client = connect(bench, Version.V311, present=connection > 0)
            numbers = range(1 + 3 * connection, 4 + 3 * connection)
            client.send(*(Publish("t", b"%d" % it, 2, packet_id=it) for it in numbers))
            if connection < 3:
                client.drop()
        assert payloads(bench) == [b"1", b"2", b"3"]
        drained(bench, 2)
        assert payloads(bench) == [b"1", b"2", b"3", b"10", b"11"]
        drained(bench, 5)
        assert payloads(bench)[5:] == [b"12"]
        drained(bench, 6)
        assert client.received() == [PubRec(10), PubRec(11), PubRec(12)]


def test_a_paused_client_continues_when_what_it_waited_for_is_lost() -> None:
    with Bench(engine=EngineLimits(receive_max=2), durability=Durability.UPSTREAM) as bench:
        client = connect(bench, Version.V311)
        client.send(*(Publish("t", b"%d" % it, 2, packet_id=it) for it in (1, 2)))
        client.drop()
        client = connect(bench, Version.V311, present=True)
        publish(client, 3, b"3")
        assert payloads(bench) == [b"1", b"2"]
        rings_of(bench).upstream("t-0", None, [(0, 1)])
        bench.settle()
        assert payloads(bench) == [b"1", b"2", b"3"]


def test_without_a_receipt_all_records_of_the_ring_and_a_report_are_waited_for() -> None:
    """Here of an empty ring: the record is elsewhere, as after a power cut in an epoch before."""
    with Bench(durability=Durability.UPSTREAM, by_rules=False) as bench:
        other = bench.add_partition(bench.directory, "other-0")
        bench.partition_of = lambda topic: other if topic == "other" else bench.partition
        client = bench.client()
        client.send(Publish("other", b"1", 2, packet_id=7), Publish("t", b"1", 2, dup=True, packet_id=7))
        assert client.received() == [PubRec(7)]
        drained(bench, 0)
        assert client.received() == [PubRec(7)]


def test_a_session_that_ends_leaves_no_message_waiting() -> None:
    with Bench(durability=Durability.UPSTREAM) as bench:
        publish(connect(bench, Version.V311), 7, b"1")
        bench.wire().send(Connect("c"))
        drained(bench, 1, (0, 0))
        client = connect(bench, Version.V311)
        publish(client, 7, b"2")
        drained(bench, 2)
        assert client.received() == [PubRec(7)]
