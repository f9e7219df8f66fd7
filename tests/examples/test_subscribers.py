"""Gaps of a subscriber: the records have addresses, and the ring still holds them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.demo.subscribers import Received, fetch
from examples.demo.tally import Tally
from ringbuf import Ring

EPOCH = 9


def payload(n: int) -> bytes:
    return json.dumps({"n": n, "value": 1.5, "sent_ns": 0, "details": {}}).encode()


@pytest.fixture
def ring(runtime_directory: Path) -> Iterator[Ring]:
    """Of a small ring with ten messages of one device."""
    with Ring.create(runtime_directory / "vitals-0", capacity_bytes=1 << 16, epoch=EPOCH) as made:
        for n in range(10):
            made.writer().publish(payload(n), key="host/me/load")
        yield made


def test_what_zeromq_passed_over_is_fetched_from_the_ring(
    ring: Ring, runtime_directory: Path, tmp_path: Path
) -> None:
    received = Received(tmp_path / "zmq.json")
    for offset in (0, 1, 4, 9):
        assert received.take("vitals-0", EPOCH, offset, "host/me/load", payload(offset))
    assert received.offsets.gaps == 6
    fetch(runtime_directory, received)
    assert (received.fetched, received.offsets.gaps, received.offsets.records) == (6, 0, 10)
    received.close()
    facts = json.loads((tmp_path / "zmq.json").read_text())
    assert (facts["records"], facts["gaps"], facts["twice"], facts["fetched"]) == (10, 0, 0, 6)
    tally = Tally.load(tmp_path / "zmq.tally")
    assert (tally.count("host/me/load"), tally.total()) == (10, 10)


def test_what_the_ring_no_longer_holds_stays_a_gap(
    ring: Ring, runtime_directory: Path, tmp_path: Path
) -> None:
    received = Received(tmp_path / "zmq.json")
    received.take("vitals-0", EPOCH, 0, "host/me/load", payload(0))
    last = 0
    for n in range(10, 1_000):  # several times around
        offset = ring.writer().publish(payload(n), key="host/me/load")
        assert offset is not None
        last = offset
    received.take("vitals-0", EPOCH, last, "host/me/load", payload(999))
    fetch(runtime_directory, received)
    assert 0 < received.offsets.gaps < 998
    assert received.offsets.gaps + received.offsets.records == 1_000


def test_a_record_that_comes_twice_is_counted_once_and_told(tmp_path: Path) -> None:
    received = Received(tmp_path / "shm.json")
    assert received.take("vitals-0", EPOCH, 0, "host/me/load", payload(0))
    assert not received.take("vitals-0", EPOCH, 0, "host/me/load", payload(0))
    assert (received.offsets.records, received.offsets.twice) == (1, 1)
