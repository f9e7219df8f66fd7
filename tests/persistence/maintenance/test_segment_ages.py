"""Retention by age while the clock is set: what is young stays, and nothing stays for ever."""

from dataclasses import dataclass

import pytest

from persistence.maintenance.retention_rules import Retention, StreamRules
from persistence.maintenance.segment_ages import SegmentAges
from persistence.segment.segment_info import RingInfo, SegmentInfo
from ringbuf.constants import CLOCK_SET_NS

SECOND_NS = 1_000_000_000
HOUR_NS, DAY_NS = 3600 * SECOND_NS, 86_400 * SECOND_NS
NOW_NS = CLOCK_SET_NS + 2000 * DAY_NS
KEEP_S = 2 * 3600


@dataclass
class Machine:
    """Both clocks, and the stamp that each segment has got."""

    wall_ns: int = NOW_NS
    monotonic_ns: int = 5 * SECOND_NS

    def __post_init__(self) -> None:
        self.segments: list[SegmentInfo] = []
        self.restart()

    def restart(self) -> None:
        """Another process, which knows nothing."""
        self.ages, self.monotonic_ns = SegmentAges(), self.monotonic_ns % (7 * SECOND_NS)

    def pass_by(self, ns: int) -> None:
        self.wall_ns += ns
        self.monotonic_ns += ns

    def write(self, count: int = 1) -> None:
        """So many segments, all but the last of them sealed, one an hour."""
        for _ in range(count):
            if self.segments:
                self.segments[-1] = _segment(self.segments[-1].base, self.segments[-1], "sealed")
            base = len(self.segments) * 1000 if not self.segments else self.segments[-1].base + 1000
            ring = RingInfo("a-0", 7, base, base + 10, 10, self.wall_ns, self.wall_ns, 100)
            self.segments.append(SegmentInfo(base, 100, 100, "active", 1, self.wall_ns, (ring,), ()))
            self.let_go()
            self.pass_by(HOUR_NS)

    def let_go(self) -> list[int]:
        """Segments that retention removes now."""
        rules = Retention(0, 0, 0, lambda _: StreamRules("a", retain_s=KEEP_S), lambda _: ())
        gone: list[int] = []
        while True:
            dated = self.ages.dated(self.segments, self.wall_ns, self.monotonic_ns)
            removal = rules.next(dated, self.wall_ns)
            if removal is None:
                return gone
            gone.append(removal.base // 1000)
            del self.segments[0]

    def left(self) -> list[int]:
        return [it.base // 1000 for it in self.segments]


def _segment(base: int, like: SegmentInfo, state: str) -> SegmentInfo:
    facts = (base, like.bytes, like.file_bytes, state, like.first_timestamp_ns, like.last_timestamp_ns)
    return SegmentInfo(*facts, like.rings, ())  # type: ignore[arg-type]


def test_while_nobody_sets_the_clock_the_stamps_say_it() -> None:
    machine = Machine()
    machine.write(6)
    assert machine.let_go() == [3]
    assert machine.left() == [4, 5]
    machine.restart()
    assert machine.let_go() == []
    machine.pass_by(HOUR_NS)
    assert machine.let_go() == [4]


@pytest.mark.parametrize("days", [-3000, -30, -1, 1, 30, 3000])
def test_a_clock_that_is_set_changes_nothing_for_what_is_there(days: int) -> None:
    machine = Machine()
    machine.write(2)
    machine.wall_ns += days * DAY_NS
    assert machine.let_go() == []
    assert machine.left() == [0, 1]
    machine.pass_by(HOUR_NS)
    assert machine.let_go() == [0]
    machine.write(4)
    assert machine.left() == [3, 4, 5]


@pytest.mark.parametrize("days", [-3000, -30, 30, 3000])
def test_stamps_of_a_clock_that_was_wrong_for_a_while_keep_nothing_for_ever(days: int) -> None:
    """Set wrong, written, set right; and the broker is started again, so that stamps are all there is."""
    machine = Machine()
    machine.write(2)
    machine.wall_ns += days * DAY_NS
    machine.write(2)
    machine.wall_ns -= days * DAY_NS
    machine.write(2)
    machine.restart()
    machine.let_go()
    assert {4, 5} <= set(machine.left()), "what is young has gone"
    machine.pass_by(KEEP_S * SECOND_NS + HOUR_NS)
    machine.let_go()
    assert machine.left() == [5], "something was kept for ever"


def test_a_machine_that_starts_in_1970_and_is_set_right_loses_nothing() -> None:
    machine = Machine(wall_ns=40 * SECOND_NS)
    machine.write(2)
    machine.wall_ns += NOW_NS
    assert machine.let_go() == []
    machine.restart()
    assert machine.let_go() == [], "stamps of 1970 say nothing"
    machine.pass_by(KEEP_S * SECOND_NS + SECOND_NS)
    assert machine.let_go() == [0]


def test_records_that_come_make_a_segment_young_again() -> None:
    machine = Machine()
    machine.write(1)
    machine.pass_by(5 * HOUR_NS)
    old = machine.segments[0]
    machine.segments[0] = SegmentInfo(
        0, old.bytes + 1, 200, "active", 1, old.last_timestamp_ns, old.rings, ()
    )
    machine.write(2)
    assert machine.left() == [0, 1, 2]


def test_what_has_gone_is_forgotten() -> None:
    machine = Machine()
    machine.write(50)
    assert len(machine.ages._known) == len(machine.segments) == 3
