"""Trails: a reader that follows one takes the runs that it would find record by record."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from ringbuf import FLAG_UNCHECKED, RECORD_ALIGN, Ring, scan_records
from ringbuf.reader import Range
from ringbuf.record import RecordHeader
from tests.support.rings import new_ring, overwrite

MIB = 1 << 20
HELD_AT = 0x290  # c/ring/layout.h


@pytest.fixture
def ring(runtime_directory: Path) -> Iterator[Ring]:
    with new_ring(runtime_directory, capacity_bytes=4 * MIB) as made:
        yield made


def write_some(ring: Ring, random: Random) -> int:
    """Records of all kinds, as many as fit; how many."""
    writer, count = ring.writer(), 0
    for _ in range(random.randrange(1, 400)):
        if random.random() < 0.01:
            claim = writer.claim(random.randrange(5000, 300_000))
            if not claim:
                break
            if random.random() < 0.5:
                claim.abort()
                continue
            claim.commit()
            count += 1
        elif writer.publish(bytes(random.randrange(3000)), key="k") is None:
            break
        else:
            count += 1
    return count


def all_flags(run: memoryview) -> Iterator[int]:
    at = 0
    while at < len(run):
        length, *_, flags = RecordHeader.of(run, at)
        yield flags
        at += -(-length // RECORD_ALIGN) * RECORD_ALIGN


def check(found: list[Range], ring: Ring, offset: int) -> int:
    """Each is what its records are; the offset behind them."""
    for run in found:
        assert run.offset == offset
        if run.count == 1 and any(flags & FLAG_UNCHECKED for flags in all_flags(run.view)):
            offset += 1
            continue
        scan = scan_records(run.view, ring.epoch)
        assert (scan.count, scan.good_bytes) == (run.count, len(run.view))
        assert (scan.first_timestamp_ns, scan.last_timestamp_ns) == (
            run.first_timestamp_ns,
            run.last_timestamp_ns,
        )
        assert not any(flags & FLAG_UNCHECKED for flags in all_flags(run.view))
        offset += run.count
    return offset


@pytest.mark.parametrize("seed", range(6))
def test_runs_by_the_trail_are_what_their_records_are(ring: Ring, seed: int) -> None:
    """Whatever is written: many laps, records filled in place, claims that were given up, and a reader that
    follows, lags, and is joined by the commit index in the middle.
    """
    random = Random(seed)
    reader = ring.reader(local=True, blocks_writer=True)
    written = read = 0
    for turn in range(60):
        written += write_some(ring, random)
        if turn == 3:
            ring.followed_by(reader)
        if random.random() < 0.4:
            continue
        while found := reader.ranges(random.choice((1, 20_000, 200_000, MIB, 16 * MIB))):
            read = check(found, ring, read)
            reader.release(reader.cursor - reader.cursor % 16384)
    assert reader.cursor > 3 * ring.capacity_bytes
    while found := reader.ranges(MIB):
        read = check(found, ring, read)
    assert read == written == reader.offset


def test_what_the_trail_tells_is_not_looked_at(ring: Ring) -> None:
    """Else it would save nothing.  Damage in the middle of a run goes with it, and is found on the disk."""
    reader, looks = ring.reader(local=True, blocks_writer=True), ring.reader(local=True, blocks_writer=True)
    ring.followed_by(reader)
    writer = ring.writer()
    while writer.end_position < MIB:
        writer.publish(bytes(200))
    overwrite(ring.path, 16384 + 256 * 100, b"\xff" * 16)
    assert sum(it.count for it in looks.ranges(MIB)) == 100
    (run,) = reader.ranges(MIB // 2)
    assert run.count * 256 == len(run.view) == MIB // 2


def test_a_run_ends_about_where_it_was_asked_to(ring: Ring) -> None:
    reader = ring.reader(local=True, blocks_writer=True)
    ring.followed_by(reader)
    writer = ring.writer()
    while writer.end_position < 2 * MIB:
        writer.publish(bytes(999))
    lengths = [sum(len(it.view) for it in reader.ranges(100_000)) for _ in range(5)]
    assert all(100_000 <= it < 100_000 + 2 * 16384 for it in lengths)
    assert len(reader.ranges(1)[0].view) == 1056


def test_only_who_gates_follows(ring: Ring) -> None:
    """The writer skips the steps of readers that do not block it."""
    reader = ring.reader()
    ring.followed_by(reader)
    writer = ring.writer()
    while writer.end_position < MIB:
        writer.publish(bytes(200))
    overwrite(ring.path, 16384 + 256 * 100, b"\xff" * 16)
    assert sum(it.count for it in reader.ranges(MIB)) == 100


def test_what_is_held_from_the_log_is_not_in_a_run(ring: Ring) -> None:
    reader = ring.reader(local=True, blocks_writer=True, for_log=True)
    ring.followed_by(reader)
    writer = ring.writer()
    while writer.end_position < MIB:
        writer.publish(bytes(200))
    overwrite(ring.path, HELD_AT, (256 * 3000 + 1).to_bytes(8, "little"))
    assert sum(it.count for it in reader.ranges(2 * MIB)) == 3000
    overwrite(ring.path, HELD_AT, bytes(8))
    assert sum(it.count for it in reader.ranges(2 * MIB)) == 1096
