"""Size of notes: what CONNECT is refused for, because the journal cannot take it; requested snapshots."""

import threading
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from edge.auth.interfaces import ClientInfo
from edge.session_store import journal_writer
from edge.session_store.journal_records import SessionOpened, encode_record
from edge.session_store.journal_writer import (
    RECORD_HEAD_BYTES,
    JournalTarget,
    SessionJournal,
    _longest_record_bytes,
)
from edge.session_store.snapshot_file import ENTRIES, Frame, Origin, read_snapshot, write_snapshot
from ringbuf import Ring
from tests.support.directories import memory_directory
from tests.support.mqtt_bench import Bench
from tests.support.waiting import PATIENCE_S, wait_until

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(
    ["\U0010ffff" * 70_000]
)
NAMES = TEXTS | st.none()


@given(
    TEXTS, NAMES, TEXTS, NAMES, st.sampled_from(["tcp", "wss", "unix"]), st.binary(max_size=300) | st.none()
)
def test_no_note_of_a_session_is_longer_than_its_upper_limit(
    client_id: str,
    username: str | None,
    address: str,
    certificate: str | None,
    transport: str,
    der: bytes | None,
) -> None:
    facts = ClientInfo(
        client_id,
        username,
        address,
        (1 << 31) - 1,
        certificate=certificate,
        transport=transport,
        certificate_der=der,
    )
    record = SessionOpened((1 << 32) - 1, replace(facts, identity=username, verified=True), (1 << 32) - 1)
    assert len(encode_record(record)) + RECORD_HEAD_BYTES <= _longest_record_bytes(facts)


@contextmanager
def kept_journal(capacity_bytes: int) -> Iterator[tuple[Bench, Ring, list[Callable[[], object]]]]:
    """A broker with a journal, its ring, and the ends of snapshots, which wait for a call."""
    finished: list[Callable[[], object]] = []
    with (
        memory_directory() as directory,
        Bench(directory=directory) as bench,
        Ring.create(directory / "sessions", capacity_bytes=capacity_bytes, epoch=1) as ring,
    ):
        bench.broker.call = finished.append
        bench.broker.keep(JournalTarget(ring, ring.writer(), ((directory / "sessions.state", False),)))
        yield bench, ring, finished


def test_a_snapshot_that_is_requested_while_another_is_written_follows_it() -> None:
    """A backup waits for it: the first one may lack the last changes."""
    with kept_journal(1 << 20) as (bench, _, finished):
        journal = bench.broker.journal
        rounds = [journal.request_snapshot(), journal.request_snapshot()]
        assert journal.saved_round < rounds[0] < rounds[1]
        for saved_round in rounds:
            wait_until(lambda: finished)
            finished.pop()()
            assert journal.saved_round == saved_round
        assert not journal.writing
        bench.broker.stop()


def test_a_record_that_does_not_fit_is_confirmed_by_the_snapshot_that_has_it() -> None:
    with kept_journal(1 << 16) as (bench, ring, finished):
        journal = bench.broker.journal
        for _ in range(2):
            journal.will_done("c" * ring.capacity_bytes)
            is_confirmed = journal.confirmation()
            assert not is_confirmed()
            wait_until(lambda: finished)
            finished.pop()()
            assert is_confirmed()
        bench.broker.stop()


def test_a_stop_writes_its_snapshot_after_the_one_that_is_being_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the older one would be the last, and a start would miss what came between."""
    with (
        memory_directory() as directory,
        Bench(directory=directory) as bench,
        Ring.create(directory / "sessions", capacity_bytes=1 << 20, epoch=1) as ring,
    ):
        file, journal = directory / "sessions.state", bench.broker.journal
        bench.broker.call = lambda function: None
        bench.broker.keep(JournalTarget(ring, ring.writer(), ((file, False),)))
        begun, continued = threading.Event(), threading.Event()
        assert journal._thread is not None
        submit = journal._thread.submit

        def written(path: Path, origin: Origin, *arguments: Any, **options: Any) -> int:
            if threading.current_thread() is threading.main_thread():
                size = write_snapshot(path, origin, *arguments, **options)
                continued.set()  # too early
                return size
            begun.set()
            assert continued.wait(PATIENCE_S)
            return write_snapshot(path, origin, *arguments, **options)

        def submitted(function: Callable[..., Any], *arguments: Any) -> Any:
            result = submit(function, *arguments)
            if function is int:  # the stop waits for the thread
                continued.set()
            return result

        monkeypatch.setattr(journal_writer, "write_snapshot", written)
        monkeypatch.setattr(journal._thread, "submit", submitted)
        journal.request_snapshot()
        assert begun.wait(PATIENCE_S)
        journal.will_done("c")
        end = ring.extremes().end_position
        bench.broker.stop()
        snapshot = read_snapshot(file, [])
        assert snapshot is not None
        assert snapshot.origin.position >= end > 0


def test_the_journal_has_failed_before_it_asks_if_its_ring_is_away(tmp_path: Path) -> None:
    """The log's thread may otherwise take the ring back between the question and the failure."""
    failures: list[str] = []
    with (
        memory_directory() as directory,
        Bench(directory=directory) as bench,
        Ring.create(directory / "sessions", capacity_bytes=1 << 20, epoch=1) as ring,
    ):
        journal = bench.broker.journal

        def may_spare() -> bool:
            failures.append(journal.failure)
            return True

        files = ((tmp_path / "absent" / "sessions.state", True),)
        spare = (directory / "spare.state",)
        bench.broker.keep(JournalTarget(ring, ring.writer(), files, spare=spare, may_spare=may_spare))
        assert spare[0].exists()
        bench.broker.stop()
    assert failures
    assert all(failures)


def test_a_snapshot_is_in_memory_piece_by_piece(tmp_path: Path) -> None:
    frames = ((ENTRIES, bytes(1 << 20)) for _ in range(60))
    tracemalloc.start()
    try:
        size = write_snapshot(tmp_path / "sessions.state", Origin(1, 0, 0), frames, sync=False)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 8 << 20 < size


def test_a_start_and_a_stop_read_a_piece_of_the_queues_when_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps: list[str] = []

    def sections(_: SessionJournal) -> Iterator[bytes]:
        for number in range(2):
            steps.append(f"read {number}")
            yield b"%d" % number

    def written(path: Path, origin: Origin, frames: Iterable[Frame], **options: Any) -> int:
        steps.extend(f"write {body.decode()}" for kind, body in frames if kind == ENTRIES)
        return 0

    monkeypatch.setattr(SessionJournal, "_sections", sections)
    monkeypatch.setattr(journal_writer, "write_snapshot", written)
    in_turn = ["read 0", "write 0", "read 1", "write 1"]
    with kept_journal(1 << 16) as (bench, _, finished):
        assert steps == in_turn
        bench.broker.journal.request_snapshot()  # on its thread, while the queues change
        wait_until(lambda: bool(finished))
        assert steps == [*in_turn, "read 0", "read 1", "write 0", "write 1"]
        finished.pop()()
        steps.clear()
        bench.broker.stop()
        assert steps == in_turn
