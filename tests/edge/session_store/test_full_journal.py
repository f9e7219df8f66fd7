"""A full journal that cannot be freed: no client gets an answer until it can; nothing is lost.  A journal
that has a log is not full so soon.
"""

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from edge.broker.session_admin import SessionAdmin
from edge.mqtt import (
    ConnAck,
    Connect,
    PubAck,
    Publish,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    Version,
    Will,
)
from edge.session_store import journal_writer
from edge.session_store.snapshot_file import write_snapshot
from persistence import Log, LoggedRing, LogWriter
from tests.support.kept_bench import Lives
from tests.support.mqtt_bench import Bench, Wire
from tests.support.no_threads import no_threads

JOURNAL_BYTES = 1 << 16
BATCH = 50


def reader(bench: Bench) -> Wire:
    wire = bench.wire()
    wire.send(Connect("reader", clean_start=False))
    return wire


def begun(lives: Lives) -> tuple[Bench, Wire]:
    """A first life, with a subscription of the reader's at QoS 1; a publisher."""
    bench = lives.start()
    reader(bench).send(Subscribe(1, (Subscription("t", 1),)))
    return bench, bench.client("publisher")


@contextmanager
def started_without_room(lives: Lives) -> Iterator[Bench]:
    """A second life that begins without room for the snapshot; after the block there is room."""
    begun(lives)
    lives.kill()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal_writer, "write_snapshot", no_room)
        with pytest.raises(OSError, match="No space left"):
            lives.start()
        assert lives.bench is not None
        yield lives.bench


def publish(publisher: Wire, first: int) -> int:
    """A batch from that number on; how many are acknowledged by now."""
    numbers = range(first, first + BATCH)
    publisher.send(*(Publish("t", b"%d" % n, 1, packet_id=n % 60_000 + 1) for n in numbers))
    return len(publisher.received())


def flood(publisher: Wire) -> tuple[int, int]:
    """Batches until one is not acknowledged as a whole; how many messages were sent, and acknowledged."""
    sent = acknowledged = 0
    while acknowledged == sent:
        acknowledged += publish(publisher, sent)
        sent += BATCH
        assert sent < 50_000, "the journal has no end"
    return sent, acknowledged


def everything(client: Wire) -> list[int]:
    """All that there is for it, acknowledged."""
    found: list[int] = []
    while packets := [it for it in client.received() if isinstance(it, Publish)]:
        found += [int(bytes(it.payload)) for it in packets]
        client.send(*(PubAck(it.packet_id) for it in packets))
    return found


def no_room(*_: Any, **__: Any) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_flood_waits_for_a_snapshot_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    with Lives(journal_bytes=JOURNAL_BYTES, capacity_bytes=1 << 22) as lives:
        bench, publisher = begun(lives)
        with monkeypatch.context() as patch:
            patch.setattr(journal_writer, "write_snapshot", no_room)
            sent, acknowledged = flood(publisher)
            assert publish(publisher, sent) == 0
            sent += BATCH
            assert lives.journal_end() <= 2 * JOURNAL_BYTES
        bench.settle(2_000)  # it is tried again
        acknowledged += len(publisher.received())
        assert acknowledged == sent
        assert everything(reader(lives.restart())) == list(range(sent))


@pytest.mark.parametrize("killed", [True, False])
def test_a_start_without_room_for_the_snapshot_keeps_sessions_once_there_is_room(*, killed: bool) -> None:
    with Lives(journal_bytes=JOURNAL_BYTES, capacity_bytes=1 << 22) as lives:
        with started_without_room(lives) as bench:
            assert publish(bench.client("publisher"), 0) == BATCH
            bench.settle(2_000)
            assert "No space left" in bench.broker.journal.failure
        saved: list[int] = []
        bench.broker.journal.on_snapshot = saved.append
        bench.settle(2_000 if killed else 0)
        if killed:
            assert bench.broker.journal.failure == ""
            assert saved, "the log of the journal may remove what is before the snapshot"
        publisher = bench.client("publisher")
        assert publish(publisher, BATCH) == BATCH
        reader(bench).send(Subscribe(1, (Subscription("u", 1),)))
        sent = 2 * BATCH
        while sent < 10_000:  # more than the ring of the journal has
            assert publish(publisher, sent) == BATCH
            sent += BATCH
        lives.kill() if killed else lives.stop()
        bench = lives.start()
        assert bench.broker.journal.failure == ""
        assert everything(reader(bench)) == list(range(sent))


def test_snapshots_are_written_while_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    with Lives(journal_bytes=JOURNAL_BYTES, capacity_bytes=1 << 22) as lives:
        bench, publisher = begun(lives)
        with no_threads(monkeypatch):
            for first in range(0, 10_000, BATCH):  # more than the ring of the journal has
                assert publish(publisher, first) == BATCH
        assert bench.broker.journal.failure == ""
        assert everything(reader(lives.restart())) == list(range(10_000))


def test_a_snapshot_at_once_leaves_the_thread_for_later_ones() -> None:
    with Lives() as lives:
        bench, _ = begun(lives)
        journal = bench.broker.journal
        journal.save_snapshot(at_once=True)
        due_round = journal.request_snapshot()
        bench.settle(2_000)
        assert journal.saved_round == due_round


def test_a_request_for_room_during_a_failing_retry_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    with Lives() as lives:
        bench, _ = begun(lives)
        journal, tries = bench.broker.journal, []

        def fails(path: Path, *_: object, **__: object) -> int:
            tries.append(path)
            raise OSError(errno.ENOSPC, "full")

        monkeypatch.setattr(journal_writer, "write_snapshot", fails)
        journal.save_snapshot(spare=False)
        journal.save_snapshot()
        bench.settle()  # no time passes
        assert len(tries) == 2


def test_a_directory_in_place_of_the_snapshot_is_named_with_its_remedy() -> None:
    with Lives() as lives:
        bench, _ = begun(lives)
        place = lives.directory / "sessions.state"
        place.unlink(missing_ok=True)
        (place / "content").mkdir(parents=True)
        bench.broker.journal.save_snapshot()
        bench.settle(2_000)
        assert bench.broker.journal.failure == f"{place}: Is a directory; move or remove it"


def test_subscriptions_leave_room_in_the_journal_for_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """One client's long filters fill the journal faster than snapshots make room, and only it waits."""
    journal_bytes, each = 1 << 20, 1_000
    packets = [
        Subscribe(7, tuple(Subscription(f"{packet}/{n}/{'x' * 200}") for n in range(each)))
        for packet in range(2 * journal_bytes // (200 * each))
    ]
    with Lives(journal_bytes=journal_bytes, capacity_bytes=1 << 22) as lives:
        bench, publisher = begun(lives)
        assert publish(publisher, 0) == BATCH  # a new topic is work, too, and would wait
        greedy = bench.client("greedy", clean_start=False)
        with monkeypatch.context() as patch:
            patch.setattr(journal_writer, "write_snapshot", no_room)
            greedy.send(*packets)
            answers = greedy.received()
            assert len(answers) < len(packets)
            assert publish(publisher, BATCH) == BATCH
        bench.settle(2_000)  # it is tried again
        greedy.raw(b"")
        answers += greedy.received()
        assert answers == [SubAck(7, (ReasonCode.SUCCESS,) * each)] * len(packets)
        assert everything(reader(lives.restart())) == list(range(2 * BATCH))


def test_what_is_let_go_of_meanwhile_costs_nobody_anything() -> None:
    with Lives(journal_bytes=JOURNAL_BYTES, capacity_bytes=1 << 22) as lives:
        bench, publisher = begun(lives)
        for first in range(0, 20_000, BATCH):
            assert publish(publisher, first) == BATCH
        assert bench.broker.journal.snapshots > 3
        assert lives.journal_end() > 3 * JOURNAL_BYTES
        assert everything(reader(lives.restart())) == list(range(20_000))


def test_what_is_acknowledged_while_the_journal_is_full_outlives_a_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A piece that does not fit is dropped for a snapshot with its content. A smaller one, which would fit,
    must not be written before that snapshot: a restart would take the dropped one for done.
    """
    with Lives(journal_bytes=JOURNAL_BYTES, capacity_bytes=1 << 22) as lives:
        bench, publisher = begun(lives)
        with monkeypatch.context() as patch:
            patch.setattr(journal_writer, "write_snapshot", no_room)
            sent, acknowledged = flood(publisher)
            for _ in range(20):
                bench.settle(100)
                publisher.send(Publish("t", b"%d" % sent, 1, packet_id=sent % 60_000 + 1))
                sent += 1
                acknowledged += len(publisher.received())
            lives.kill()
        assert everything(reader(lives.start()))[:acknowledged] == list(range(acknowledged))


def test_a_client_is_told_of_nothing_that_could_not_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    with Lives(journal_bytes=JOURNAL_BYTES, capacity_bytes=1 << 22) as lives:
        bench, publisher = begun(lives)
        with monkeypatch.context() as patch:
            patch.setattr(journal_writer, "write_snapshot", no_room)
            first = 0
            while publish(publisher, first) == BATCH:
                first += BATCH
            late = bench.wire()
            late.send(Connect("late", clean_start=False))
            bench.settle(5_000)
            assert late.received() == []
        bench.settle(2_000)
        assert isinstance(late.answer(), ConnAck)


def test_no_snapshot_is_written_on_the_thread_that_serves_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not for a note that finds no room: everybody would wait for the disk, and first for the snapshot
    in progress.
    """
    served: list[bool] = []
    is_room = False

    def written(*arguments: Any, **options: Any) -> int:
        served.append(threading.current_thread() is threading.main_thread())
        return write_snapshot(*arguments, **options) if is_room else no_room()

    with Lives(journal_bytes=JOURNAL_BYTES, capacity_bytes=1 << 22) as lives:
        bench, publisher = begun(lives)
        monkeypatch.setattr(journal_writer, "write_snapshot", written)
        sent, _ = flood(publisher)
        late = bench.wire()
        late.send(Connect("late", clean_start=False))
        is_room = True
        bench.settle(2_000)
        assert isinstance(late.answer(), ConnAck)
        assert served
        assert not any(served)
        assert everything(reader(lives.restart())) == list(range(sent))


# ---- with a log ----


@contextmanager
def logged(lives: Lives, directory: Path) -> Iterator[LogWriter]:
    """Writes the journal of the life that has begun to a log; round() writes and syncs what there is."""
    assert lives.ring is not None
    with Log(directory, retain_bytes=0, segment_bytes=1 << 20) as log:
        log.recover()
        writer = LogWriter(log)
        writer.add(LoggedRing(lives.ring, "disk"))
        yield writer
        writer.close()


@contextmanager
def past_of(lives: Lives, directory: Path) -> Iterator[None]:
    """A start reads that log."""
    with Log(directory, retain_bytes=0, segment_bytes=1 << 20) as log:
        log.recover()
        lives.past = log.reader
        yield
        lives.past = None


def test_a_journal_that_has_a_log_waits_for_no_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to a limit: then the copy waits, and continues after a snapshot."""
    in_log = 8 * JOURNAL_BYTES
    with Lives(journal_bytes=JOURNAL_BYTES, in_log_bytes=in_log, capacity_bytes=1 << 22) as lives:
        bench, publisher = begun(lives)
        sent = acknowledged = 0
        with logged(lives, tmp_path) as log:
            with monkeypatch.context() as patch:
                patch.setattr(journal_writer, "write_snapshot", no_room)
                while acknowledged == sent:
                    acknowledged += publish(publisher, sent)
                    sent += BATCH
                    log.step()
                assert in_log <= lives.journal_end() <= in_log + 2 * JOURNAL_BYTES
            bench.settle(6_000)
            acknowledged += len(publisher.received())
            assert acknowledged == sent
            lives.kill()
        with past_of(lives, tmp_path):
            assert everything(reader(lives.start())) == list(range(sent))


def test_a_log_that_does_not_sync_is_not_waited_for_when_a_snapshot_can_be_written() -> None:
    with Lives(journal_bytes=JOURNAL_BYTES, in_log_bytes=1 << 30, capacity_bytes=1 << 22) as lives:
        _, publisher = begun(lives)
        for first in range(0, 15_000, BATCH):
            assert publish(publisher, first) == BATCH
        assert lives.journal_end() > 3 * JOURNAL_BYTES


class Ledger:
    """Messages sent in all lives, and those acknowledged."""

    def __init__(self) -> None:
        self.sent = 0
        self.acknowledged: list[int] = []
        self._waiting: list[int] = []

    def publish(self, publisher: Wire) -> None:
        """A batch."""
        count = publish(publisher, self.sent)
        self._waiting += range(self.sent, self.sent + BATCH)
        self.sent += BATCH
        self.acknowledged += self._waiting[:count]
        del self._waiting[:count]

    def killed(self) -> None:
        """Messages without an acknowledgement may be there or not."""
        self._waiting.clear()


@pytest.mark.parametrize("seed", range(4))
def test_what_was_acknowledged_is_found_in_snapshot_log_and_ring_after_any_crash(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lives end anywhere: with a snapshot or none for long, the log behind the ring, or level with it."""
    random, ledger, laps = Random(seed), Ledger(), 0
    with Lives(journal_bytes=JOURNAL_BYTES, in_log_bytes=1 << 20, capacity_bytes=1 << 22) as lives:
        bench = lives.start()
        reader(bench).send(Subscribe(1, (Subscription("t", 1),)))
        for life in range(4):
            publisher, begun = bench.client("publisher"), lives.journal_end()
            with logged(lives, tmp_path) as log, monkeypatch.context() as patch:
                if life != random.randrange(4):
                    patch.setattr(journal_writer, "write_snapshot", no_room)
                for _ in range(random.randrange(150)):
                    ledger.publish(publisher)
                    if random.random() < 0.7:
                        log.step()
                laps += lives.journal_end() > begun + JOURNAL_BYTES
                lives.kill()
            ledger.killed()
            with past_of(lives, tmp_path):
                bench = lives.start()
        assert laps, "no life was longer than the ring"
        found = everything(reader(bench))
        assert found == sorted(set(found))
        assert set(ledger.acknowledged) <= set(found) <= set(range(ledger.sent))


@pytest.mark.parametrize("version", [Version.V311, Version.V5])
def test_a_client_too_long_for_the_journal_is_refused_and_costs_no_snapshot(version: Version) -> None:
    will = Will("t", bytes(JOURNAL_BYTES // 8))
    with Lives(journal_bytes=JOURNAL_BYTES) as lives:
        bench = lives.start()
        before = bench.broker.journal.snapshots
        for fields in ({"will": will}, {"username": "u" * (JOURNAL_BYTES // 16)}):
            wire = bench.wire(version)
            wire.send(Connect("c", version=version, **fields))
            answer = wire.answer()
            assert isinstance(answer, ConnAck)
            assert answer.reason_code.failed
            assert not wire.is_open
        assert bench.broker.journal.snapshots == before
        bench.client("c", will=Will("t", bytes(JOURNAL_BYTES // 8 - 200)))


def test_a_removal_without_room_in_the_journal_is_confirmed_by_the_next_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Lives(journal_bytes=JOURNAL_BYTES, capacity_bytes=1 << 22) as lives:
        bench, publisher = begun(lives)
        assert bench.broker.journal.confirmation()()
        with monkeypatch.context() as patch:
            patch.setattr(journal_writer, "write_snapshot", no_room)
            flood(publisher)
            assert SessionAdmin(bench.broker, bench.stats).remove("reader")
            is_confirmed = bench.broker.journal.confirmation()
            assert not is_confirmed()
        bench.settle(2_000)
        assert is_confirmed()
        assert lives.restart().broker.sessions.get("reader") is None


def test_a_removal_is_confirmed_when_a_start_without_room_has_its_first_snapshot() -> None:
    with Lives(journal_bytes=JOURNAL_BYTES, capacity_bytes=1 << 22) as lives:
        with started_without_room(lives) as bench:
            assert SessionAdmin(bench.broker, bench.stats).remove("reader")
            is_confirmed = bench.broker.journal.confirmation()
            assert not is_confirmed()
        bench.settle(2_000)
        assert is_confirmed()
