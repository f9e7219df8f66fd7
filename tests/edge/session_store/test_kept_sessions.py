"""Kept sessions: a snapshot has all of them as they are, and copies only those that have changed."""

from collections.abc import Callable

import pytest

from edge.mqtt import Unsubscribe
from edge.session_store.journal_records import JournalRecord
from edge.session_store.kept_sessions import CHANGED_MAX, KeptSessions
from edge.session_store.snapshot import KeptSession
from tests.support.kept_bench import Lives
from tests.support.mqtt_bench import Bench


def filters_of(bench: Bench) -> dict[str, list[str]]:
    return {session.client_id: list(session.subscriptions) for session in bench.broker.sessions}


def in_snapshot(bench: Bench) -> dict[int, KeptSession]:
    return {session.number: session for session in bench.broker.journal._kept.saved()}


def copied_now(bench: Bench) -> dict[int, KeptSession]:
    """All kept sessions, copied at this moment."""
    kept = KeptSessions()
    for session in bench.broker.sessions:
        kept.changed(session)
    return {session.number: session for session in kept.saved()}


def test_each_change_of_a_session_is_in_the_next_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next snapshot may come before the record of the change, if the journal has no room for it."""
    with Lives() as lives:
        lives.start().client5("a", expiry_s=60).subscribe("t/1", qos=1)
        bench = lives.restart()
        assert in_snapshot(bench) == copied_now(bench)
        record_change = bench.broker.journal._record

        def record_after_snapshot(record: JournalRecord) -> None:
            assert in_snapshot(bench) == copied_now(bench)
            record_change(record)

        monkeypatch.setattr(bench.broker.journal, "_record", record_after_snapshot)
        client = bench.client5("a", expiry_s=90, clean_start=False, present=True)
        assert in_snapshot(bench) == copied_now(bench)
        assert [session.left_ns for session in in_snapshot(bench).values()] == [None]

        def step_the_clock() -> None:
            bench.step_ns += 3_600_000_000_000
            bench.settle(2_000)

        changes: list[Callable[[], object]] = [
            lambda: client.subscribe("t/2", qos=1),
            lambda: client.send(Unsubscribe(8, ("t/1",))),
            client.drop,
            step_the_clock,
            lambda: bench.client5("b", expiry_s=5).drop(),
            lambda: bench.settle(6_000),  # that session expires
            lambda: bench.client5("a", expiry_s=60),  # a new session
            lambda: bench.client5("a", clean_start=False, present=True),  # that is not kept any more
        ]
        for change in changes:
            before = in_snapshot(bench)
            change()
            assert before != in_snapshot(bench) == copied_now(bench)
        assert in_snapshot(bench) == {}


def test_a_snapshot_copies_only_the_sessions_that_have_changed_since_the_last() -> None:
    with Lives() as lives:
        bench = lives.start()
        for number in range(3):
            bench.client5(f"c{number}", expiry_s=60).subscribe(f"t/{number}", qos=1)
        kept, sessions = KeptSessions(), list(bench.broker.sessions)
        for session in sessions:
            kept.changed(session)
        before = kept.saved()
        sessions[1].subscriptions["more"] = 1
        kept.changed(sessions[1])
        after = kept.saved()
        assert [old is new for old, new in zip(before, after, strict=True)] == [True, False, True]
        assert [list(session.subscriptions) for session in before] == [
            [{f"t/{number}": 1}] for number in range(3)
        ]
        assert after[1].subscriptions == ({"t/1": 1, "more": 1},)
        sessions[0].kept = False
        kept.changed(sessions[0])
        assert kept.saved() == after[1:]


def test_a_snapshot_has_sessions_that_changed_long_before_it_and_those_that_changed_last() -> None:
    count = CHANGED_MAX + 20
    with Lives() as lives:
        bench = lives.start()
        clients = [bench.client5(f"c{number}", expiry_s=60) for number in range(count)]
        for number, client in enumerate(clients):
            client.subscribe(f"t/{number}", qos=1)
        assert len(bench.broker.journal._kept._changed) == CHANGED_MAX
        bench.broker.journal.save_snapshot(at_once=True)
        for number, client in enumerate(clients[:5]):
            client.subscribe(f"u/{number}", qos=1)
        clients[-1].drop()
        bench.client5("c7", clean_start=True)  # its session ends
        bench.broker.journal.save_snapshot(at_once=True)
        expected = filters_of(bench)
        del expected["c7"]
        assert filters_of(lives.restart()) == expected
