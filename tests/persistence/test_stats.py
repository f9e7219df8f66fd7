"""Statistics of a log: durations by bounds, disk space, and bytes read back."""

import pytest

from persistence.stats import LatencyHistogram, LogStats, disk_usage
from tests.support.logs import Written, read_all


def test_a_duration_is_counted_below_the_bounds_above_it_and_not_below_the_one_under_it():
    found = LatencyHistogram()
    for duration_us in (0, 1, 3, 3, 1000):
        found.add(duration_us * 1000)
    below = found.below_us()
    assert (below["1"], below["2"], below["4"], below["512"], below["1024"]) == (1, 2, 4, 4, 5)
    assert list(below)[-1] == "1024"
    assert found.as_dict()["total_us"] == 1007


def test_what_is_beyond_every_bound_is_in_the_count_alone():
    found = LatencyHistogram()
    found.add(3600 * 10**9)
    assert found.count == 1
    assert set(found.below_us().values()) == {0}


def test_bytes_written_for_each_byte_of_records():
    stats = LogStats(record_bytes=1000, written_bytes=1250)
    assert stats.as_dict()["written_per_record_byte"] == 1.25
    assert LogStats().as_dict()["written_per_record_byte"] == 0.0


def test_each_write_each_sync_and_the_wait_of_its_oldest_record_is_timed():
    written = Written.empty()
    for _ in range(3):
        written.add("a-0", 1, [b"x"])
        written.sync()
    stats = written.log.stats
    assert stats.write.count >= 3
    assert stats.fsync.count == stats.commit.count == stats.syncs == 3
    assert stats.commit.total_ns > stats.fsync.total_ns
    written.log.close()


def test_what_is_read_back_is_counted():
    written = Written.empty()
    found = written.add("a-0", 1, [b"x" * 100] * 5)
    written.sync()
    assert written.log.reader.stats.as_dict()["log_reads"] == 0
    assert len(read_all(written.log, "a-0", 1)) == 5
    assert written.log.reader.stats.log_reads == 1
    assert written.log.reader.stats.log_bytes == len(found.view)
    written.log.close()


def test_the_disk_that_a_log_takes_is_that_of_all_its_files(tmp_path):
    (tmp_path / "archive").mkdir()
    for name, size in (("1.log", 10_000), ("archive/2", 5_000)):
        (tmp_path / name).write_bytes(b"x" * size)
    usage = disk_usage(tmp_path)
    assert 15_000 <= usage.used_bytes < 50_000
    assert 0 < usage.free_bytes < usage.disk_bytes


def test_there_is_no_usage_of_what_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        disk_usage(tmp_path / "log")
