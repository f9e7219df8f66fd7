"""Drained files into the demo's table, without Spark; gaps and doubles are planted as whole files."""

import json
from pathlib import Path

import pytest

from bridge.errors import DrainedFileError
from bridge.unit import Batch, Intent, Run, build
from examples.demo.lake import Aggregate, Lake, read_drained
from ringbuf.record import encode

EPOCH = 7
SECOND = 1_000_000_000
MINUTE = 60 * SECOND


def drain(root: Path, drain_seq: int, first: int, count: int) -> Path:
    """A file with messages first .. first+count-1 of one device, one a second from minute 1 on."""
    records = b"".join(
        encode(
            n,
            json.dumps({"n": n, "value": float(n), "sent_ns": 0, "details": {}}).encode(),
            epoch=EPOCH,
            key=b"host/a/load",
            timestamp_ns=MINUTE + n * SECOND,
        )
        for n in range(first, first + count)
    )
    last, stamps = first + count - 1, (MINUTE + first * SECOND, MINUTE + (first + count - 1) * SECOND)
    batch = Batch(EPOCH, first, last, *stamps, (Run.of(memoryview(records)),))
    intent = Intent(drain_seq, MINUTE, "vitals", 0, EPOCH, 0, None, first, last, (), ())
    unit = build("edge", intent, batch)
    path = root / unit.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(unit.parts))
    return path


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
