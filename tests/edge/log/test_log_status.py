"""Status of several logs together: counters added, times merged, and the disk under them."""

from edge.log.log_status import read_status, sys_numbers, together
from persistence.stats import LatencyHistogram, LogState, LogStats, ReadStats


def status(*durations_us: int, **numbers: object) -> dict[str, object]:
    """Of one log, as LogThread.status() gives it."""
    stats = LogStats(records=10, record_bytes=1000, written_bytes=1100, syncs=2, synced_bytes=1100)
    for duration_us in durations_us:
        stats.fsync.add(duration_us * 1000)
    own = {"directory": "/log", "segments": 3, "damaged_places": 1, "broken_rings": {}}
    return {**own, **LogState().as_dict(), **stats.as_dict(), **numbers}


def test_one_log_speaks_for_itself():
    assert together([status(5)]) == status(5)


def test_counters_are_added_and_ratios_worked_out_anew():
    total = together([status(records=1), status(records=2, record_bytes=3400)])
    assert (total["records"], total["segments"], total["damaged_places"]) == (3, 6, 2)
    assert total["bytes_per_sync"] == 550
    assert total["written_per_record_byte"] == 0.5
    assert [it["records"] for it in total["logs"]] == [1, 2]


def test_times_are_merged_as_if_one_log_had_taken_them():
    durations = [(3, 5, 900), (5, 70_000)]
    both = LatencyHistogram()
    for duration_us in sum(durations, ()):
        both.add(duration_us * 1000)
    merged = together([status(*its) for its in durations])["fsync"]
    expected = both.as_dict()
    assert merged.pop("below_us").items() >= both.below_us().items()
    assert expected.pop("below_us") == both.below_us()
    assert merged == expected


def test_the_worst_is_said_and_every_broken_ring():
    total = together([
        status(read_only=True, reason="disk full", broken_rings={"a-0": "x"}),
        status(broken_rings={"b-0": "y"}),
    ])  # fmt: skip
    assert (total["read_only"], total["reason"]) == (True, "disk full")
    assert total["broken_rings"] == {"a-0": "x", "b-0": "y"}


def test_without_a_log_that_is_written_there_are_zeros():
    numbers = sys_numbers([])
    assert set(numbers.values()) == {0}
    assert {"records", "unsynced_bytes", "fsync_p99_us"} <= numbers.keys()


def test_reads_of_all_logs_and_the_disk_under_them(tmp_path):
    (tmp_path / "1.log").write_bytes(b"x" * 10_000)
    facts = read_status(tmp_path, [ReadStats(1, 10, 2, 20), ReadStats(3, 30)])
    assert facts["reads"] == {"log_reads": 4, "log_bytes": 40, "archive_reads": 2, "archive_bytes": 20}
    assert facts["disk"]["used_bytes"] >= 10_000
    assert read_status(tmp_path / "away", [])["disk"] is None
