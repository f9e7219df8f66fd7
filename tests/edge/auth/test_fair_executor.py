"""Work of many addresses for a few threads."""

import threading
from collections.abc import Iterator

import pytest

from edge.auth.fair_executor import FairExecutor, origin
from tests.support.no_threads import no_threads
from tests.support.waiting import PATIENCE_S


class Bench:
    """One thread that is kept busy until `go` is set, and what it has done since."""

    def __init__(self, waiting_max: int) -> None:
        self.go = threading.Event()
        self.done: list[str] = []
        self.turns = FairExecutor(1, waiting_max, "test")
        begun = threading.Event()

        def busy() -> bool:
            begun.set()
            return self.go.wait(10)

        self.busy, _ = self.turns.submit("", busy)
        assert begun.wait(10)

    def submit(self, source: str, name: str = ""):
        def work() -> bool:
            self.done.append(name or source)
            return True

        return self.turns.submit(source, work)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench(waiting_max=6)
    yield made
    made.go.set()
    made.turns.close()


def test_addresses_take_turns_each_in_its_own_order(bench):
    waiting = [bench.submit(name[0], name)[0] for name in ("a1", "a2", "a3", "b1", "c1")]
    bench.go.set()
    assert all(one.result(PATIENCE_S) for one in waiting)
    assert bench.done == ["a1", "b1", "c1", "a2", "a3"]


def test_when_it_is_full_who_has_most_waiting_makes_room(bench):
    a = [bench.submit("a")[0] for _ in range(5)]
    assert bench.submit("a") == (None, "a")
    b, refused = bench.submit("b")
    assert refused == "a"
    assert a[-1].result(0) is False
    assert bench.submit("b")[1] == "a"
    assert bench.submit("b") == (None, "b")  # both have about the same now
    assert bench.submit("c")[1] == "a"
    assert bench.submit("d")[1] == "a"
    assert bench.submit("e")[1] == "b"
    assert bench.submit("f") == (None, "f")  # no address has more than one
    bench.go.set()
    assert b.result(PATIENCE_S)
    assert [one.result(PATIENCE_S) for one in a] == [True, False, False, False, False]


def test_what_has_not_begun_at_the_end_is_given_up_and_nothing_is_taken_any_more(bench):
    late, _ = bench.submit("a")
    timer = threading.Timer(0.01, bench.go.set)
    timer.start()
    bench.turns.close()
    timer.join()
    assert bench.busy.result(0) is True
    assert late.cancelled()
    assert bench.submit("a") == (None, "a")
    assert bench.done == []


def test_what_fails_is_the_affair_of_who_waits_for_it(bench):
    failing, _ = bench.turns.submit("a", lambda: 1 // 0 == 0)
    after, _ = bench.submit("a")
    bench.go.set()
    assert after.result(PATIENCE_S)
    with pytest.raises(ZeroDivisionError):
        failing.result(PATIENCE_S)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("192.0.2.7:50123", "192.0.2.7"),
        ("[2001:db8:1:2:3::7]:50123", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2:ffff::1]:1", "2001:db8:1:2::/64"),
        ("127.0.0.1:1883", "127.0.0.0/8"),
        ("127.9.9.9:1883", "127.0.0.0/8"),
        ("", ""),
    ],
)
def test_an_origin_is_a_host_or_a_network_of_ipv6(address, expected):
    assert origin(address) == expected


def test_work_whose_thread_cannot_be_started_is_done_with_the_next(monkeypatch):
    turns = FairExecutor(1, 6, "test")
    with no_threads(monkeypatch):
        first, _ = turns.submit("a", lambda: True)
    second, _ = turns.submit("b", lambda: True)
    assert first is not None
    assert second is not None
    assert [first.result(PATIENCE_S), second.result(PATIENCE_S)] == [True, True]
    turns.close()
