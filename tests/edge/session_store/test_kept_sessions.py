"""Kept sessions: a snapshot has all of them as they are, and copies only those that have changed."""

from edge.session_store.kept_sessions import CHANGED_MAX, KeptSessions
from tests.support.kept_bench import Lives
from tests.support.mqtt_bench import Bench


def filters_of(bench: Bench) -> dict[str, list[str]]:
    return {session.client_id: list(session.subscriptions) for session in bench.broker.sessions}


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
        bench.broker.journal.save_snapshot(at_once=True)
        for number, client in enumerate(clients[:5]):
            client.subscribe(f"u/{number}", qos=1)
        clients[-1].drop()
        bench.client5("c7", clean_start=True)  # its session ends
        bench.broker.journal.save_snapshot(at_once=True)
        expected = filters_of(bench)
        del expected["c7"]
        assert filters_of(lives.restart()) == expected
