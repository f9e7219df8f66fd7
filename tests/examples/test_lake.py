"""Drained files into the demo's table, without Spark; gaps and doubles are planted as whole files."""

from pathlib import Path

import pytest

from bridge.errors import DrainedFileError
from examples.demo.lake import Aggregate, Lake, read_drained
from tests.support.vital_files import drain


@pytest.fixture
def root(tmp_path: Path) -> Path:
    drain(tmp_path, 1, 0, 50)
    drain(tmp_path, 2, 50, 30)
    return tmp_path


def test_every_record_of_every_file_is_counted_and_aggregated_by_minute(root: Path) -> None:
    arrived, minutes, seconds = read_drained(root)
    assert (arrived.files, arrived.records, arrived.twice, arrived.gaps) == (2, 80, 0, 0)
    assert arrived.tally.count("host/a/load") == arrived.tally.total() == 80
    assert minutes == [
        Aggregate("host/a/load", 60, 60, 29.5, 0.0, 59.0),
        Aggregate("host/a/load", 120, 20, 69.5, 60.0, 79.0),
    ]
    assert [it.messages for it in seconds] == [1] * 80


def test_a_file_that_is_missing_shows_as_a_gap(root: Path) -> None:
    drain(root, 4, 90, 10)
    arrived, _, _ = read_drained(root)
    assert (arrived.records, arrived.gaps) == (90, 10 + 1)  # offsets, and the drain number


def test_the_same_records_under_another_drain_number_are_there_twice(root: Path) -> None:
    drain(root, 3, 70, 20)
    arrived, _, _ = read_drained(root)
    assert (arrived.records, arrived.twice, arrived.gaps) == (90, 10, 0)
    assert arrived.tally.total() - arrived.tally.count() == 10


def test_a_damaged_file_is_refused_by_name(root: Path) -> None:
    path = next(root.rglob("*-e0000000007-*.brim"))
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    with pytest.raises(DrainedFileError, match=path.name):
        read_drained(root)


def test_what_was_aggregated_is_read_back(root: Path, tmp_path: Path) -> None:
    arrived, minutes, seconds = read_drained(root)
    steps = [("decode", 1.0, "2 files")]
    lake = Lake("ringbuf", 1.0, 80, 0, 0, minutes, seconds, steps, arrived.tally)
    lake.save(tmp_path)
    found = Lake.load(tmp_path)
    assert (found.by_minute, found.by_second, found.steps) == (minutes, seconds, steps)
    assert found.tally.total() == 80
