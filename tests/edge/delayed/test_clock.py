"""The scale of due times: monotonic during a run, never backwards over a restart, never early."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from edge.delayed.clock import StoreClock

S = 1_000_000_000


@dataclass
class Clocks:
    """A boot-time clock, and a wall clock that is set at will."""

    boot: int = 5 * S
    wall: int = 1_800_000_000 * S

    def pass_time(self, ns: int) -> None:
        self.boot += ns
        self.wall += ns

    def store(self, saved: tuple[int, int] | None = None) -> StoreClock:
        return StoreClock(saved, lambda: self.boot, lambda: self.wall)


def test_a_wall_clock_that_jumps_during_a_run_changes_nothing() -> None:
    clocks = Clocks()
    clock = clocks.store()
    before = clock.now_ns()
    clocks.wall += 10**9 * S
    clocks.pass_time(3 * S)
    assert clock.now_ns() - before == 3 * S
    assert clock.has_jumped()
    clock.pair()
    assert not clock.has_jumped()


def test_a_stop_counts_by_the_wall_clock_and_never_backwards() -> None:
    clocks = Clocks()
    pair = clocks.store().pair()
    clocks.boot, clocks.wall = 1, clocks.wall + 60 * S  # the machine has started again
    assert clocks.store(pair).now_ns() == pair[0] + 60 * S
    clocks.wall -= 3600 * S
    assert clocks.store(pair).now_ns() == pair[0]


@given(st.lists(st.tuples(st.integers(0, 10 * S), st.integers(-(10**6) * S, 10**6 * S)), max_size=8))
def test_a_record_never_arrives_before_it_was_sent(steps: list[tuple[int, int]]) -> None:
    """Whatever the wall clock does."""
    clocks = Clocks()
    clock = clocks.store()
    for passed, jump in steps:
        clocks.pass_time(passed)
        stamp, sent = clocks.wall, clock.now_ns()
        clocks.wall += jump  # between the record and its move into the store
        clocks.pass_time(S // 100)
        assert clock.arrived_ns()(stamp) >= sent


def test_a_record_of_an_earlier_run_has_waited() -> None:
    clocks = Clocks()
    pair, stamp = clocks.store().pair(), clocks.wall
    clocks.pass_time(20 * S)
    arrived = clocks.store(pair).arrived_ns()(stamp)
    assert arrived == pair[0]
