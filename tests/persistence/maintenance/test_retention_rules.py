"""Retention of a log: by bytes, by age, by stream, by retention holds, and by free disk space."""

from collections.abc import Sequence
from random import Random

import pytest

from persistence.free_disk_space import DiskRules, disk_step
from persistence.maintenance.maintenance import MaintenanceRules
from persistence.maintenance.retention_rules import Floor, Retention, StreamRules
from persistence.segment.segment_info import RingInfo, SegmentInfo
from tests.support.logs import Written
from tests.support.simulated_maintenance import SECOND_NS, Clocks, Kept, stream_of

NOW_S = 100_000
MIB = 1 << 20


def segment(number: int, age_s: int, state: str = "sealed", /, **megabytes: int) -> SegmentInfo:
    """Segment `number`: each ring with 100 records of so many MiB, the newest of that age."""
    last_ns = (NOW_S - age_s) * SECOND_NS
    rings = tuple(
        RingInfo(
            name.replace("_", "-"), 7, number * 100, number * 100 + 100, 100, last_ns - 1, last_ns, size * MIB
        )
        for name, size in megabytes.items()
    )
    total = sum(megabytes.values()) * MIB
    return SegmentInfo(number * 1000, total, total, state, 0, last_ns, rings, ())  # type: ignore[arg-type]


def retention(
    *streams: StreamRules, retain_bytes: int = 0, retain_s: int = 0, floors: Sequence[Floor] = ()
) -> Retention:
    named = {rules.name: rules for rules in streams}
    return Retention(
        retain_bytes,
        retain_s,
        0,
        lambda ring: named.get(stream_of(ring), StreamRules(stream_of(ring))),
        lambda ring: floors,
    )


def goes(rules: Retention, segments: Sequence[SegmentInfo], *, forced: bool = False) -> list[int]:
    """Which segments go, one after the other."""
    left, gone = list(segments), []
    while (removal := rules.next(left, NOW_S * SECOND_NS, forced=forced)) is not None:
        assert removal.base == left[0].base
        gone.append(removal.base // 1000)
        del left[0]
    return gone


def hourly(count: int, **megabytes: int) -> list[SegmentInfo]:
    """Segments of one hour each, the last one active."""
    found = [segment(number, 3600 * (count - 1 - number), **megabytes) for number in range(count - 1)]
    return [*found, segment(count - 1, 0, "active", **megabytes)]


# ---- rules ----


def test_without_rules_everything_stays() -> None:
    assert goes(retention(), hourly(9, a_0=10)) == []


def test_the_log_keeps_what_fits() -> None:
    assert goes(retention(retain_bytes=45 * MIB), hourly(9, a_0=10)) == [0, 1, 2, 3]


def test_the_log_keeps_what_is_young() -> None:
    assert goes(retention(retain_s=3 * 3600), hourly(9, a_0=10)) == [0, 1, 2, 3, 4]


def test_a_stream_keeps_at_least_its_bytes() -> None:
    assert goes(retention(StreamRules("a", retain_bytes=25 * MIB)), hourly(9, a_0=10)) == [0, 1, 2, 3, 4, 5]


def test_a_stream_keeps_what_is_young() -> None:
    assert goes(retention(StreamRules("a", retain_s=3600)), hourly(9, a_0=10)) == [0, 1, 2, 3, 4, 5, 6]


def test_a_segment_goes_when_every_stream_in_it_lets_it_go() -> None:
    short, long = StreamRules("a", retain_s=3600), StreamRules("b", retain_s=5 * 3600)
    shared = hourly(9, a_0=5, b_0=5)
    assert goes(retention(short, long), shared) == [0, 1, 2]
    only = [*hourly(9, a_0=10)[:4], *shared[4:]]
    assert goes(retention(short, long), only) == [0, 1, 2, 3]


def test_a_stream_without_rules_has_the_log_s() -> None:
    shared = hourly(9, a_0=5, b_0=5)
    assert goes(retention(StreamRules("a", retain_s=3600)), shared) == []
    assert goes(retention(StreamRules("a", retain_s=3600), retain_s=4 * 3600), shared) == [0, 1, 2, 3]


def test_partitions_of_a_stream_count_together() -> None:
    rules = retention(StreamRules("a", retain_bytes=25 * MIB))
    assert goes(rules, hourly(9, a_0=5, a_1=5)) == [0, 1, 2, 3, 4, 5]


def test_the_last_segment_stays() -> None:
    rules = retention(StreamRules("a", retain_s=1), retain_bytes=1)
    assert goes(rules, [segment(0, 5000, a_0=9)], forced=True) == []
    assert goes(rules, [segment(0, 5000, a_0=9), segment(1, 5000, a_0=9)], forced=True) == [0]


def test_what_cannot_be_read_goes_with_what_is_behind_it() -> None:
    lost = SegmentInfo(0, 0, 10 * MIB, "lost", 0, 0, (), ())
    young = [lost, *hourly(9, a_0=10)[7:]]
    assert goes(retention(StreamRules("a", retain_s=3600 * 2)), young) == []
    assert goes(retention(StreamRules("a", retain_s=3600)), [lost, *hourly(9, a_0=10)[6:]]) == [0, 6]
    assert goes(retention(), [lost, young[-1]]) == []
    assert goes(retention(), [lost, young[-1]], forced=True) == [0]


def test_what_is_compressed_counts_as_what_it_takes() -> None:
    archived = [
        SegmentInfo(it.base, it.bytes, it.bytes // 10, "archived", 0, 0, it.rings, ())
        for it in hourly(9, a_0=10)[:8]
    ]
    segments = [*archived, hourly(9, a_0=10)[8]]
    assert goes(retention(retain_bytes=5 * MIB), segments) == [0, 1, 2]
    assert goes(retention(StreamRules("a", retain_bytes=15 * MIB)), segments) == [0, 1, 2]


# ---- force ----


def test_the_log_s_cap_asks_no_stream_and_counts_what_went_early() -> None:
    wants = StreamRules("a", retain_s=1_000_000)
    removal = retention(wants, retain_bytes=45 * MIB).next(hourly(9, a_0=5, b_0=5), NOW_S * SECOND_NS)
    assert removal is not None
    assert removal.forced_records == {"a": 100}
    assert goes(retention(wants, retain_bytes=45 * MIB), hourly(9, a_0=5, b_0=5)) == [0, 1, 2, 3]


def test_a_full_disk_asks_no_stream_either() -> None:
    rules = retention(StreamRules("a", retain_s=1_000_000))
    assert goes(rules, hourly(4, a_0=10)) == []
    assert goes(rules, hourly(4, a_0=10), forced=True) == [0, 1, 2]


@pytest.mark.parametrize(
    ("used", "step"),
    [(10, "ok"), (75, "warn"), (84, "warn"), (85, "delete"), (95, "read_only"), (100, "read_only")],
)
def test_a_disk_is_warned_of_then_relieved_then_left_alone(used: int, step: str) -> None:
    assert disk_step(DiskRules(), (100 - used) << 24, 100 << 24) == step


def test_a_tenth_of_a_large_disk_is_room_enough() -> None:
    assert disk_step(DiskRules(), 90 << 30, 1000 << 30) == "ok"
    assert disk_step(DiskRules(), 15 << 30, 1000 << 30) == "warn"
    assert disk_step(DiskRules(), 9 << 30, 1000 << 30) == "delete"
    assert disk_step(DiskRules(), 3 << 30, 1000 << 30) == "read_only"


# ---- who still reads ----


def test_what_somebody_has_not_read_is_kept() -> None:
    rules = StreamRules("a", retain_s=3600, hold_bytes=1 << 40)
    reads = Floor("bridge lake", 7, 250)
    assert goes(retention(rules, floors=[reads]), hourly(9, a_0=10)) == [0, 1]
    assert goes(retention(rules, floors=[reads, Floor("b", 7, 120)]), hourly(9, a_0=10)) == [0]
    assert goes(retention(rules, floors=[Floor("new", 8, 0)]), hourly(9, a_0=10)) == [0, 1, 2, 3, 4, 5, 6]
    assert goes(retention(rules, floors=[Floor("old", 6, 900)]), hourly(9, a_0=10)) == []


def test_a_hold_has_an_end_and_then_somebody_loses() -> None:
    rules = retention(
        StreamRules("a", retain_s=3600, hold_bytes=30 * MIB), floors=[Floor("bridge lake", 7, 50)]
    )
    segments = hourly(9, a_0=10)
    assert goes(rules, segments) == [0, 1, 2, 3]
    removal = rules.next(segments, NOW_S * SECOND_NS)
    assert removal is not None
    assert [tuple(it) for it in removal.losses] == [("bridge lake", "a-0", 50)]
    assert removal.forced_records == {}


# ---- discard ----


def test_a_stream_that_discards_the_new_is_full_and_keeps_the_old() -> None:
    rules = retention(StreamRules("a", retain_bytes=25 * MIB, discard="new"))
    assert rules.full(hourly(2, a_0=10)) == set()
    assert rules.full(hourly(3, a_0=10)) == {"a"}
    assert goes(rules, hourly(9, a_0=10)) == []


def test_it_has_room_again_when_all_who_read_have_read() -> None:
    rules = StreamRules("a", retain_bytes=25 * MIB, discard="new")
    assert goes(retention(rules, floors=[Floor("b", 7, 250)]), hourly(4, a_0=10)) == [0, 1]
    assert goes(retention(rules, floors=[Floor("b", 7, 0)]), hourly(4, a_0=10)) == []
    old = rules._replace(retain_s=3600)
    assert goes(retention(old), hourly(4, a_0=10)) == [0, 1]


# ---- with a log ----


def filled(count: int = 14, **options: int) -> Written:
    """A log that is open, of several segments of rings a-0 and b-0."""
    written = Written.empty(segment_bytes=8192, **options)
    for i in range(count):
        written.add("a-0", 7, [bytes([i]) * 500] * 3)
        written.add("b-0", 7, [bytes([i]) * 100])
        written.sync()
    return written


def test_maintenance_lets_one_file_go_at_a_time() -> None:
    kept = Kept(filled(40), MaintenanceRules(retain_bytes=3 << 16, scrub_bytes_per_s=0))
    counts: list[int] = []
    while not counts or len(kept.bases()) < counts[-1]:
        counts.append(len(kept.bases()))
        kept.clocks.pass_by(kept.maintenance.step())
    assert counts == list(range(counts[0], 2, -1))
    assert kept.maintenance.stats.deleted == len(counts) - 1
    epochs = kept.written.log.epochs("a-0")
    assert epochs[0].first_offset > 60
    assert epochs[0].end_offset == 120


def test_a_segment_from_a_time_to_come_is_ended_when_the_clock_has_been_set_right() -> None:
    kept = Kept(filled(1), MaintenanceRules(segment_age_s=100))
    kept.clocks.now_ns = 1_700_000_000 * SECOND_NS - 99 * SECOND_NS  # a little before it began
    kept.steps(1)
    assert kept.written.log.active_since_ns is not None
    kept.clocks.now_ns -= 20 * SECOND_NS
    kept.steps(1)
    assert kept.written.log.active_since_ns is None


def test_an_old_segment_is_ended_and_goes_when_another_follows() -> None:
    kept = Kept(filled(1), MaintenanceRules(segment_age_s=100, retain_s=200))
    written = kept.written
    kept.clocks.now_ns = 1_700_000_000 * SECOND_NS + 99 * SECOND_NS  # the segment's own clock
    kept.steps(1)
    assert written.log.active_since_ns is not None
    kept.clocks.pass_by(1)
    kept.steps(1)
    assert written.log.active_since_ns is None
    (base,) = written.log.sealed()
    handle = written.files.open(f"/log/{base:020d}.log")
    assert written.files.size(handle) < 8192
    kept.steps(5)
    assert kept.bases() == [base]
    kept.clocks.pass_by(200)  # its records say 1970, so they age from when they were first seen
    written.add("a-0", 7, [b"later"])
    written.sync()
    kept.steps(5)
    assert len(kept.bases()) == 1
    assert kept.bases() != [base]
    assert written.log.epochs("a-0") == [(7, 3, 4)]


@pytest.mark.parametrize("days", [-400, 400])
def test_a_clock_that_is_set_while_maintenance_runs_takes_nothing_and_keeps_nothing(days: int) -> None:
    kept = Kept(filled(14), MaintenanceRules(retain_bytes=0, retain_s=1000, scrub_bytes_per_s=0))
    kept.clocks.now_ns = 1_700_000_000 * SECOND_NS
    monotonic = Clocks()
    kept.clocks.monotonic_s = monotonic.monotonic_s  # type: ignore[method-assign]
    kept.steps(3)
    before = kept.bases()
    assert len(before) > 2
    kept.clocks.now_ns += days * 86_400 * SECOND_NS
    kept.steps(20)
    assert kept.bases() == before
    monotonic.pass_by(1001)
    kept.steps(2 * len(before))
    assert kept.bases() == before[-1:]


def test_the_disk_s_three_steps() -> None:
    kept = Kept(filled(20), MaintenanceRules(retain_bytes=0), (StreamRules("a", retain_s=1 << 40),))
    files = kept.written.files
    before = len(kept.bases())
    files.total_bytes, files.free_bytes = 1000 << 20, 200 << 20
    kept.steps(3)
    assert (kept.maintenance.step_of_disk, len(kept.bases()), kept.blocked) == ("warn", before, "")
    files.free_bytes = 100 << 20
    kept.steps(3)
    assert (kept.maintenance.step_of_disk, len(kept.bases()), kept.blocked) == ("delete", before - 3, "")
    assert kept.maintenance.forced_records["a"] > 0
    assert kept.maintenance.forced_records["b"] == 0
    files.free_bytes = 10 << 20
    kept.steps(1)
    assert kept.blocked == f"{50 << 20} bytes of the disk are kept free"
    files.free_bytes = 900 << 20
    kept.steps(1)
    assert (kept.maintenance.step_of_disk, kept.blocked) == ("ok", "")
    assert kept.maintenance.status()["forced_records"] == {"a": kept.maintenance.forced_records["a"]}


def test_who_is_full_is_told_when_it_changes() -> None:
    kept = Kept(
        filled(20),
        MaintenanceRules(scrub_bytes_per_s=0),
        (StreamRules("a", 20_000, 50, "new"), StreamRules("b", retain_s=50)),
    )
    kept.steps(3)
    assert kept.fulls == [{"a"}]
    kept.clocks.pass_by(100)
    kept.steps(20)
    assert kept.fulls == [{"a"}, set()]


def test_what_is_removed_unread_is_counted_by_consumer() -> None:
    kept = Kept(filled(40), MaintenanceRules(retain_bytes=3 << 16, scrub_bytes_per_s=0))
    kept.floors["a-0"] = [Floor("bridge lake", 7, 10)]
    kept.steps()
    first = kept.written.log.epochs("a-0")[0].first_offset
    assert kept.maintenance.lost == {"bridge lake": first - 10}


def test_a_record_that_a_ring_has_is_not_lost() -> None:
    kept = Kept(filled(40), MaintenanceRules(retain_bytes=3 << 16, scrub_bytes_per_s=0))
    in_ring = {"all": (7, 5), "some": (7, 12), "another epoch": (8, 0)}
    kept.floors["a-0"] = [Floor(name, 7, 10, place) for name, place in in_ring.items()]
    kept.steps()
    first = kept.written.log.epochs("a-0")[0].first_offset
    assert kept.maintenance.lost == {"some": 2, "another epoch": first - 10}


def test_any_rules_keep_what_is_wanted_and_order() -> None:
    """Whatever the rules: files go from the oldest on, and unforced none that a stream's own rule wants."""
    random = Random(5)
    for _ in range(300):
        count = random.randrange(1, 9)
        segments = [
            segment(number, 3600 * (count - number), a_0=random.randrange(5), b_0=random.randrange(1, 5))
            for number in range(count)
        ]
        age = random.choice((0, 3600, 3 * 3600))
        streams = [
            StreamRules("a", random.choice((0, 8 * MIB)), age, hold_bytes=0),
            StreamRules("b", retain_s=7200),
        ]
        rules = retention(*streams, retain_s=random.choice((0, 3600)))
        gone = goes(rules, segments)
        assert gone == list(range(len(gone)))
        assert len(gone) < count
        assert all(3600 * (count - number) > 7200 for number in gone)


def test_many_removals_make_one_warning_for_each_consumer_in_ten_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = Kept(filled(40), MaintenanceRules(retain_bytes=3 << 16, scrub_bytes_per_s=0))
    kept.floors["a-0"] = [Floor("bridge lake", 7, 10), Floor("sessions", 7, 0)]
    before = len(kept.bases())
    kept.steps()
    kept.maintenance.close()
    lines = [record.getMessage() for record in caplog.records if "removed unread" in record.message]
    assert before - len(kept.bases()) > len(lines) / 2
    for consumer in ("bridge lake", "sessions"):
        own = [
            dict(word.split("=") for word in line.rsplit(" ", 2)[1:]) for line in lines if consumer in line
        ]
        assert sum(int(it["records"]) for it in own) == kept.maintenance.lost[consumer] > 0
        assert sum(int(it["segments"]) for it in own) > len(own)
