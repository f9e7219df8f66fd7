"""A QoS 2 message that waits for room, in its ring or in the journal, leaves nothing behind meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest

from edge.mqtt import Publish, PubRec
from edge.session_store import journal_writer
from tests.edge.session_store.test_full_journal import no_room
from tests.support.kept_bench import Lives
from tests.support.mqtt_bench import Bench, Wire

JOURNAL_BYTES = 1 << 16
BLOCK = {"when_full": "block", "queue_timeout_ms": 200}


@pytest.fixture
def lives() -> Iterator[Lives]:
    with Lives(journal_bytes=JOURNAL_BYTES, capacity_bytes=1 << 16, writer=BLOCK) as lives:
        yield lives


@contextmanager
def full_ring(bench: Bench) -> Iterator[None]:
    """The ring is full: a blocking reader of this process stands at its beginning."""
    with bench.partition.ring.reader(start="oldest", blocks_writer=True, local=True):
        while bench.partition.writer.publish(bytes(100), key="filler") is not None:
            pass
        while bench.partition.writer.publish(b"", key="filler") is not None:
            pass
        yield


def payloads(bench: Bench) -> list[bytes]:
    return [payload for topic, payload in bench.records() if topic == "t"]


def kept(bench: Bench, *, present: bool = False) -> Wire:
    return bench.client("kept", clean_start=False, present=present)


def message(*, again: bool = False) -> Publish:
    return Publish("t", b"1", 2, dup=again, packet_id=7)


def test_a_full_ring_costs_no_room_in_the_journal(lives: Lives) -> None:
    bench = lives.start()
    client = kept(bench)
    client.send(Publish("t", b"0"))
    with full_ring(bench):
        client.send(message())
        before = lives.journal_end()
        for _ in range(10):
            bench.settle(5)
        assert bench.stats.gauges()["blocked"] == 1
        assert lives.journal_end() == before
    bench.settle(5)
    assert client.received() == [PubRec(7)]
    client.drop()
    bench = lives.restart()
    client = kept(bench, present=True)
    client.send(message(again=True))
    assert client.received() == [PubRec(7)]
    assert payloads(bench)[-1:] == [b"1"]
    assert payloads(bench).count(b"1") == 1


@pytest.mark.parametrize("entries", [0, 1])
def test_another_record_at_its_position_does_not_count_for_it(
    lives: Lives, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal is full as well while the message is tried: `entries` decides after which entry."""
    bench = lives.start()
    client, other = kept(bench), bench.client("other")
    client.send(Publish("t", b"0"), *(Publish("t", b"0", 2, packet_id=it + 1) for it in range(entries)))
    end = lives.journal_end()
    with monkeypatch.context() as patch, full_ring(bench):
        patch.setattr(journal_writer, "write_snapshot", no_room)
        client.send(message())
        while lives.journal_end() > end:  # tried again, until nothing more fits
            end = lives.journal_end()
            bench.settle()
        client.drop()
    other.send(Publish("t", b"of another client"))
    lives.kill()
    bench = lives.start()
    client = kept(bench, present=True)
    client.send(message(again=True))
    assert client.received() == [PubRec(7)]
    assert payloads(bench)[-2:] == [b"of another client", b"1"]


@pytest.mark.parametrize("fills", [False, True])
def test_a_full_journal_leaves_no_identifier_to_be_written_later(
    fills: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log makes room in the journal; `fills`: before that, other records take the message's position."""
    lives = Lives(journal_bytes=JOURNAL_BYTES, in_log_bytes=1 << 30, capacity_bytes=1 << 16, writer=BLOCK)
    with lives:
        kept(lives.start())
        bench = lives.restart()  # the snapshot has the session
        client, number = kept(bench, present=True), 1
        with monkeypatch.context() as patch:
            patch.setattr(journal_writer, "write_snapshot", no_room)
            client.send(Publish("t", b"%d" % number, 2, packet_id=number))
            while client.received() == [PubRec(number)]:
                number += 1
                client.send(Publish("t", b"%d" % number, 2, packet_id=number))
            with full_ring(bench) if fills else nullcontext():
                lives.synced()
                bench.settle(5)
                assert client.received() == ([] if fills else [PubRec(number)])
                lives.kill()
        client = kept(lives.start(), present=True)
        client.send(Publish("t", b"%d" % number, 2, dup=True, packet_id=number))
        assert lives.bench is not None
        assert client.received() == [PubRec(number)]
        assert payloads(lives.bench).count(b"%d" % number) == 1
