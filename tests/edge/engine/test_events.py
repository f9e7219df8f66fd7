"""Events between the engine and Python: none is lost, whatever is called between two polls."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from edge.engine.engine import Event, EventKind
from edge.mqtt import Connect, Publish, Subscribe, Subscription, Version, encode
from edge.session_store import journal_writer as keeper
from edge.session_store.journal_writer import JournalTarget
from edge.session_store.snapshot_file import write_snapshot
from ringbuf import Ring
from tests.support.directories import memory_directory
from tests.support.kept_bench import Lives
from tests.support.mqtt_bench import Bench
from tests.support.mqtt_served import served
from tests.support.mqtt_socket import RawClient
from tests.support.waiting import wait_until

REMIND_MS = 1_000  # of ringbuf/c/mqtt/events.c
JOURNAL_BYTES = 1 << 16
NOTE = b"\x91\xa1x" + bytes(4_000)  # of any kind: nothing reads it back here


def kinds(events: list[Event]) -> list[tuple[int, int]]:
    return [(kind, detail if kind == EventKind.JOURNAL else 0) for kind, _, detail, _ in events]


def notes(bench: Bench) -> tuple[int, int]:
    """Python writes down so much that a snapshot is due."""
    for _ in range(JOURNAL_BYTES // 4 // len(NOTE) + 1):
        assert bench.engine.journal_append(NOTE)
    return EventKind.JOURNAL, 0


def retains(bench: Bench) -> tuple[int, int]:
    """Python publishes so much that what is retained is to be written down."""
    bench.engine.begin_retained_save(False)
    topic = bench.broker.own_messages.topic_of("own")
    assert topic is not None
    for _ in range(20):
        bench.engine.publish(topic, bytes(100_000), 0, b"", b"", b"", 0)
    return EventKind.JOURNAL, 1


def packet(bench: Bench) -> tuple[int, int]:
    """Somebody sends a control packet on a connection that Python feeds."""
    bench.engine.feed(bench.engine.open(0), encode(Connect("late"), Version.V311))
    return EventKind.PACKET, 0


def topic(bench: Bench) -> tuple[int, int]:
    """Publish to a topic that the engine has not seen."""
    client = next(it for it in bench.broker.clients if it.client_info.client_id == "early")
    bench.engine.feed(client.connection, encode(Publish("new", b"1"), Version.V311))
    return EventKind.TOPIC, 0


@pytest.mark.parametrize("arises", [notes, retains, packet, topic])
def test_what_arises_while_python_handles_events_is_reported_next(
    arises: Callable[[Bench], tuple[int, int]],
) -> None:
    with Lives(journal_bytes=JOURNAL_BYTES) as lives:
        bench = lives.start()
        bench.client("early")
        bench.engine.feed(bench.engine.open(0), encode(Connect("other"), Version.V311))
        taken = bench.engine.events()
        assert kinds(taken) == [(EventKind.PACKET, 0)]
        expected = arises(bench)
        bench.broker.handle(taken)
        assert bench.engine.step(bench.now_ms, bench.now_ns)
        assert expected in kinds(bench.engine.events())


def test_an_event_is_given_once_and_its_connection_waits_until_then() -> None:
    with Bench() as bench:
        bench.engine.feed(bench.engine.open(0), encode(Connect("c"), Version.V311))
        for _ in range(3):
            assert bench.engine.step(bench.now_ms, bench.now_ns) == 1
        assert kinds(bench.engine.events()) == [(EventKind.PACKET, 0)]
        assert bench.engine.events() == []


def test_a_part_of_the_queued_events_is_given_and_all_of_the_others() -> None:
    """A crowd that connects without end keeps no snapshot from being requested."""
    with Lives(journal_bytes=JOURNAL_BYTES) as lives:
        bench = lives.start()
        for number in range(10):
            bench.engine.feed(bench.engine.open(0), encode(Connect(f"c{number}"), Version.V311))
        journal = notes(bench)
        assert bench.engine.step(bench.now_ms, bench.now_ns) == 11
        assert kinds(bench.engine.events(4)) == [(EventKind.PACKET, 0)] * 4 + [journal]
        bench.engine.step(bench.now_ms, bench.now_ns)  # resumes four connections, and not the others
        assert kinds(bench.engine.events(4)) == [(EventKind.PACKET, 0)] * 4
        assert kinds(bench.engine.events()) == [(EventKind.PACKET, 0)] * 2
        assert bench.engine.events() == []


def test_a_checkpoint_that_python_does_not_begin_is_requested_again() -> None:
    """Once a second, and not in each round: a failure there delays it, and costs little meanwhile."""
    with Lives(journal_bytes=JOURNAL_BYTES) as lives:
        bench = lives.start()
        notes(bench)
        found = []
        for ms in range(0, 5 * REMIND_MS, 50):
            bench.engine.step(bench.now_ms + ms, bench.now_ns)
            found += kinds(bench.engine.events())
        assert found == [(EventKind.JOURNAL, 0)] * 5


def test_a_bug_in_writing_a_checkpoint_delays_it_and_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only an error of the disk: whatever is raised on that thread, it is tried again."""
    tries = 0

    def fails_twice(*arguments: Any, **options: Any) -> int:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise MemoryError
        return write_snapshot(*arguments, **options)

    with Lives(journal_bytes=JOURNAL_BYTES) as lives:
        bench = lives.start()
        monkeypatch.setattr(keeper, "write_snapshot", fails_twice)
        notes(bench)
        for _ in range(5):
            bench.settle(REMIND_MS)
        assert tries == 3
        lives.stop()


def test_a_full_journal_does_not_keep_the_thread_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets that are readable and may not be read must not make every wait return at once."""
    writes = threading.Event()

    def waits(*arguments: Any, **options: Any) -> int:
        writes.wait()
        return write_snapshot(*arguments, **options)

    with (
        memory_directory() as directory,
        Ring.create(directory / "sessions", capacity_bytes=JOURNAL_BYTES, epoch=1) as ring,
        served() as there,
    ):
        broker = there.listener.broker
        place = JournalTarget(ring, ring.writer(), ((directory / "sessions.state", False),))
        there.ask(lambda: broker.keep(place))
        monkeypatch.setattr(keeper, "write_snapshot", waits)
        with there.client("reader", clean_start=False) as reader, there.client("publisher") as publisher:
            reader.send(Subscribe(1, (Subscription("t", 1),)))
            reader.packet()
            flood = threading.Thread(target=flood_with, args=(publisher,))
            flood.start()
            try:
                wait_until(lambda: not is_read(there, publisher))
                before, began_s = there.stats.totals()["wakeups"], time.monotonic()
                time.sleep(0.3)
                woken, passed_s = there.stats.totals()["wakeups"] - before, time.monotonic() - began_s
                assert woken < 1_000 * passed_s
            finally:
                writes.set()
            flood.join()
        there.ask(broker.journal.stop)


FLOOD = 8_000


def flood_with(publisher: RawClient) -> None:
    """More than a journal holds; all of it is acknowledged at last."""
    for first in range(0, FLOOD, 100):
        publisher.send(
            *(Publish("t", bytes(1_000), 1, packet_id=n % 60_000 + 1) for n in range(first, first + 100))
        )
    for _ in range(FLOOD):
        publisher.packet()


def is_read(there: Any, publisher: RawClient) -> bool:
    before = there.stats.totals()["bytes_in"]
    time.sleep(0.05)
    return bool(there.stats.totals()["bytes_in"] > before or before < 1_000_000)
