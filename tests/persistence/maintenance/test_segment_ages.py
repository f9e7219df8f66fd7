"""Retention by age while the clock is set: what is young stays, and nothing stays for ever."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from persistence import Log, OsFiles
from persistence.maintenance.maintenance import Maintenance, MaintenanceRules
from persistence.maintenance.retention_rules import Retention, StreamRules
from persistence.maintenance.segment_ages import DOUBTED_NS, SegmentAges
from persistence.segment.segment_info import RingInfo, SegmentInfo
from ringbuf.constants import CLOCK_SET_NS
from tests.support.in_process_worker import InProcessWorker
from tests.support.kept_logs import NOON_NS, Kept, keep
from tests.support.simulated_maintenance import Clocks

SECOND_NS = 1_000_000_000
HOUR_NS, DAY_NS = 3600 * SECOND_NS, 86_400 * SECOND_NS
NOW_NS = CLOCK_SET_NS + 2000 * DAY_NS
KEEP_S = 2 * 3600


@dataclass
class Machine:
    """Both clocks, and the stamp that each segment has got."""

    wall_ns: int = NOW_NS
    monotonic_ns: int = 5 * SECOND_NS
    keep_s: int = KEEP_S

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
        rules = Retention(0, 0, 0, lambda _: StreamRules("a", retain_s=self.keep_s), lambda _: ())
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


def started_ahead() -> Machine:
    """Three segments, one an hour, and a start with a clock years ahead."""
    machine = Machine(keep_s=10 * 3600)
    machine.write(3)
    machine.restart()
    machine.wall_ns += 3000 * DAY_NS
    assert machine.let_go() == []
    return machine


def test_a_clock_that_is_years_ahead_at_a_start_and_set_right_within_the_hour_removes_nothing() -> None:
    machine = started_ahead()
    machine.pass_by(DOUBTED_NS - SECOND_NS)
    assert machine.let_go() == []
    machine.wall_ns -= 3000 * DAY_NS
    machine.pass_by(2 * SECOND_NS)
    assert machine.let_go() == []
    machine.pass_by(6 * HOUR_NS + SECOND_NS)
    assert machine.let_go() == [0], "10 h old by the right clock"


def test_after_an_hour_a_clock_that_is_years_ahead_counts() -> None:
    machine = started_ahead()
    machine.pass_by(DOUBTED_NS)
    assert machine.let_go() == [0, 1]


def test_segments_that_are_written_while_the_clock_is_doubted_keep_their_age() -> None:
    machine = started_ahead()
    machine.write(1)
    machine.wall_ns += 3000 * DAY_NS
    machine.write(1)
    assert machine.let_go() == []
    assert machine.left() == [3, 4]


def test_a_clock_far_ahead_at_a_start_is_reported_before_anything_is_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep(tmp_path, "a-0", [Kept("t", bytes(5000), minute) for minute in range(6)], segment_bytes=8192)
    clocks = Clocks(NOON_NS + 30 * 86_400 * SECOND_NS)
    rules = MaintenanceRules(retain_s=86_400, scrub_bytes_per_s=0)
    with Log(tmp_path, segment_bytes=8192, direct=False) as log:
        log.recover()
        maintenance = Maintenance(log, rules, InProcessWorker(OsFiles()), clock=clocks)
        count = len(maintenance.segments())
        for _ in range(count):
            clocks.pass_by(maintenance.step())
        assert log.epochs("a-0") == [(7, 0, 6)]
        assert caplog.text.count("removal by age begins in 3600 s; set the clock of the machine") == 1
        assert "newest_record_days=29" in caplog.text
        clocks.pass_by(3600)
        for _ in range(count):
            clocks.pass_by(maintenance.step())
        assert len(maintenance.segments()) == 1
