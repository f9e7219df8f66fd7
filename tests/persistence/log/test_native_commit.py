"""Rounds of the log: bytes as persistence/segment/format.py requires, and what readers and publishers see."""

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from persistence import Log, LoggedRing, LogWriter
from persistence.log import native_commit
from persistence.segment.format import (
    CATALOGUE_RING_ID,
    EXTENT_HEADER_BYTES,
    HEADER_PAGE_BYTES,
    SegmentHeader,
    extent_checks,
    unpack_extent,
)
from ringbuf import Ring
from ringbuf.native import ffi
from tests.support.called_disk import CalledDisk
from tests.support.logs import DIRECTORY, make_log, read_all, recovered
from tests.support.rings import fill, overwrite
from tests.support.simfiles import SimFiles

MS = 1_000_000
END_PAIRS = 0x88  # the end of the ring in its header, twice


class Side:
    """A log writer with a clock that a test turns, and its rings."""

    def __init__(self, memory: Path, *, segment_bytes: int, direct: bool) -> None:
        self.files = SimFiles(Random(0))
        self.log: Log = make_log(self.files, segment_bytes=segment_bytes, direct=direct)
        self.log.recover()
        self.now = 0
        self.told: list[tuple[int, ...]] = []
        self.writer = LogWriter(self.log, self._tell, lambda: self.now)
        self.go = self.writer.step
        self.rings: list[Ring] = []
        self._memory = memory

    def ring(self, durability: str, **options: int) -> Ring:
        name = f"r-{len(self.rings)}"
        ring = Ring.create(self._memory / name, capacity_bytes=65536, epoch=7)
        self.rings.append(ring)
        self.writer.add(LoggedRing(ring, durability, **options))  # type: ignore[arg-type]
        return ring

    def _tell(self) -> None:
        self.told.append(self.durable())

    def durable(self) -> tuple[int, ...]:
        return tuple(ring.extremes().durable_position for ring in self.rings)

    def rounds(self) -> int:
        return int(self.log.commit.c.rounds)

    def segments(self) -> list[bytes]:
        """Bytes of each segment file, up to the end of the log in it."""
        bases = self.log.reader.bases()
        ends = [*bases[1:], self.log.durable_position]
        names = [f"{DIRECTORY}/{base:020d}.log" for base in bases]
        spans = zip(names, bases, ends, strict=True)
        return [bytes(self.files.names[name].disk[: end - base]) for name, base, end in spans]

    def written(self) -> dict[int, bytes]:
        """By ring id, all bodies in the segments: each extent checked by the format's own definition."""
        found: dict[int, bytes] = {}
        for data in self.segments():
            header = SegmentHeader.unpack(data[:HEADER_PAGE_BYTES])
            at, durable = HEADER_PAGE_BYTES, header.base_position
            while at < len(data):
                extent = unpack_extent(data, at)
                body = data[at + EXTENT_HEADER_BYTES : at + EXTENT_HEADER_BYTES + extent.length]
                assert extent_checks(header.seed, extent, body)
                assert durable <= extent.durable_position <= header.base_position + at
                at, durable = at + EXTENT_HEADER_BYTES + extent.length, extent.durable_position
                if extent.ring_id != CATALOGUE_RING_ID:
                    assert extent.ring_epoch == 7
                    assert extent.ring_position == len(found.get(extent.ring_id, b""))
                    found[extent.ring_id] = found.get(extent.ring_id, b"") + body
            assert at == len(data)
        return found

    def check_all_is_written(self) -> None:
        """The log has the memory of each ring, byte for byte; none has wrapped."""
        ends = [ring.extremes() for ring in self.rings]
        assert self.durable() == tuple(it.end_position for it in ends)
        held = {self.log._ids[ring.name]: _memory(ring) for ring in self.rings}
        assert self.written() == {ring_id: data for ring_id, data in held.items() if data}
        assert self.log.ends() == {
            ring.name: (7, it.end_offset) for ring, it in zip(self.rings, ends, strict=True)
        }
        found = [sorted(read_all(self.log, ring.name, 7)) for ring in self.rings]
        assert found == [list(range(it.end_offset)) for it in ends]

    def close(self) -> None:
        self.writer.close()
        self.log.close()
        for ring in self.rings:
            ring.close()


def _memory(ring: Ring) -> bytes:
    end = ring.extremes().end_position
    assert end < ring.capacity_bytes
    return ring.path.with_name(ring.name + ".ring").read_bytes()[16384 : 16384 + end]


@contextmanager
def side_of(memory: Path, segment_bytes: int = 1 << 20, *, direct: bool = False) -> Iterator[Side]:
    side = Side(memory, segment_bytes=segment_bytes, direct=direct)
    try:
        yield side
    finally:
        side.close()


def test_a_round_has_no_more_than_a_slow_disk_writes_in_its_time(runtime_directory: Path) -> None:
    """Otherwise a flood into one ring delays the acknowledgements of all rings of the log."""
    with side_of(runtime_directory) as side:
        flooded, c = side.ring("disk"), side.log.commit.c
        c.extent_bytes = c.step_bytes = 2048
        c.round_bytes = 16384
        rounds: list[int] = []

        def round_of_flood() -> int:
            fill(flooded.writer())
            before = side.durable()[0]
            side.go()
            rounds.append(side.durable()[0] - before)
            return rounds[-1]

        round_of_flood()  # begins the segment
        side.files.hook = lambda operation, _: time.sleep(0.3 if operation == "fdatasync" else 0)
        full, next_one = round_of_flood(), round_of_flood()
        assert full >= 16384
        assert next_one <= 8192
        side.files.hook = None
        for _ in range(20):
            round_of_flood()
        assert max(rounds[3:]) >= 16384, "the disk is fast again"


def test_a_disk_whose_small_syncs_take_long_keeps_its_full_rounds(runtime_directory: Path) -> None:
    """Shorter rounds have syncs of the same length: they would only write less."""
    with side_of(runtime_directory) as side:
        flooded, c = side.ring("disk"), side.log.commit.c
        c.extent_bytes, c.step_bytes, c.round_bytes = 2048, 8192, 16384
        writer = flooded.writer()
        side.files.hook = lambda operation, _: time.sleep(0.1 if operation == "fdatasync" else 0)
        for _ in range(12):
            writer.publish(b"small")
            side.go()
        for _ in range(3):
            fill(writer)
            before = side.durable()[0]
            side.go()
            assert side.durable()[0] - before >= 16384


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_the_segments_have_the_bytes_of_the_rings_in_the_format_of_extents(
    runtime_directory: Path, seed: int, direct: bool
) -> None:
    """Rings of both kinds, runs of all sizes, segments that fill up, pauses that let the end be proven."""
    random = Random(seed)
    with side_of(runtime_directory, segment_bytes=12288, direct=direct) as side:
        side.ring("disk")
        side.ring("interval", sync_interval_ms=50)
        side.ring("interval", sync_interval_ms=400, sync_bytes=2000)
        for _ in range(24):
            for ring in side.rings:
                if random.random() < 0.5:
                    sizes = random.choices((0, 10, 200, 900), k=random.randrange(1, 4))
                    ring.writer().publish_many([random.randbytes(size) for size in sizes], key="t")
            side.now += random.choice((1_000, 20 * MS, 300 * MS, 1_500 * MS))
            side.go(sync=random.random() < 0.7)
        side.go(sync=True)
        assert side.rounds() > 20
        assert side.told[-1] == side.durable()
        side.check_all_is_written()
        assert len(side.log.reader.bases()) > 1


@pytest.mark.parametrize("seed", range(8))
def test_direct_writes_are_whole_blocks_and_touch_no_durable_byte(
    runtime_directory: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Whole blocks at every write, also where writes are short; and not one that is durable is touched."""
    random = Random(seed)
    disk_type, written = CalledDisk, 0
    write, submit = disk_type._on_write, disk_type._on_submit

    def check(disk: Any, data: Any, length: int, place: int) -> None:
        nonlocal written
        written += 1
        assert (place % 512, length % 512) == (0, 0)
        old = side.files.read(disk.handle, length, place)
        known = max(side.log.durable_position - side.log.reader.bases()[-1] - place, 0)
        assert bytes(ffi.buffer(data, length))[:known] == old[:known]

    def checked_write(disk: Any, context: Any, pieces: Any, count: int, place: int) -> int:
        assert count == 1
        check(disk, pieces[0].base, pieces[0].length, place)
        return write(disk, context, pieces, count, place)

    def checked_submit(disk: Any, context: Any, data: Any, length: int, place: int, slot: int) -> int:
        check(disk, data, length, place)
        return submit(disk, context, data, length, place, slot)

    monkeypatch.setattr(disk_type, "_on_write", checked_write)
    monkeypatch.setattr(disk_type, "_on_submit", checked_submit)
    with side_of(runtime_directory, segment_bytes=12288, direct=True) as side:
        side.files.short_writes = True
        side.ring("disk")
        side.ring("interval", sync_interval_ms=50)
        for _ in range(40):
            for ring in side.rings:
                sizes = random.choices((0, 10, 200, 900), k=random.randrange(4))
                ring.writer().publish_many([random.randbytes(size) for size in sizes], key="t")
            side.now += random.choice((1_000, 20 * MS, 300 * MS, 1_500 * MS))
            side.go(sync=random.random() < 0.5)
        side.go(sync=True)
        assert written > 20
        side.check_all_is_written()
        first = [read_all(side.log, ring.name, 7) for ring in side.rings]
        again, report = recovered(side.files.crash(Random(seed)))
        assert report.damage == ()
        assert [read_all(again, ring.name, 7) for ring in side.rings] == first


def test_what_was_staged_and_could_not_be_handed_over_is_written_again(runtime_directory: Path) -> None:
    with side_of(runtime_directory, direct=True) as side:
        ring = side.ring("interval", sync_interval_ms=400)
        ring.writer().publish(b"before")
        side.go(sync=True)
        ring.writer().publish(b"staged")
        side.go()
        side.files.hook = failing_once("pwritev")
        with pytest.raises(OSError, match="Input/output error"):
            side.log.write()
        assert side.log.stats.failed_writes == 1
        side.go(sync=True)
        assert sorted(read_all(recovered(side.files.crash(Random(0)))[0], "r-0", 7)) == [0, 1]
        assert side.durable() == (ring.extremes().end_position,)
        assert len(side.log.reader.bases()) == 2


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("operation", ["pwritev", "fdatasync"])
def test_what_a_round_could_not_bring_to_the_disk_is_written_again(
    runtime_directory: Path, operation: str, direct: bool
) -> None:
    with side_of(runtime_directory, direct=direct) as side:
        ring = side.ring("disk")
        ring.writer().publish(b"before")
        for _ in range(2):
            side.go()
        side.files.hook = failing_once(operation)
        ring.writer().publish(b"during")
        before = side.durable()
        side.go()
        assert side.durable() == before
        assert "EIO" in side.writer.state.reason
        side.go()
        assert side.durable() == (ring.extremes().end_position,)
        assert side.writer.state.reason == ""
        assert sorted(read_all(recovered(side.files.crash(Random(0)))[0], "r-0", 7)) == [0, 1]
        stats = side.log.stats
        assert (stats.failed_syncs, stats.failed_writes) == ((0, 1) if operation == "pwritev" else (1, 0))
        assert stats.records == 2


def failing_once(operation: str) -> Callable[[str, str], None]:
    left = 1

    def hook(name: str, path: str) -> None:
        nonlocal left
        if name == operation and left:
            left -= 1
            raise OSError(errno.EIO, "injected")

    return hook


def test_the_live_segment_is_read_while_rounds_have_it(runtime_directory: Path) -> None:
    with side_of(runtime_directory) as side:
        ring = side.ring("disk")
        for number in range(20):
            ring.writer().publish(b"%d" % number)
            side.go()
            assert sorted(read_all(side.log, "r-0", 7)) == list(range(number + 1))
            assert side.log.ends() == {"r-0": (7, number + 1)}
            assert side.log.stats.records == number + 1
        ring.writer().publish(b"not durable")
        side.files.hook = failing_once("fdatasync")
        side.go()
        assert len(read_all(side.log, "r-0", 7)) == 20


def test_a_segment_of_very_many_extents_is_read_from_its_file(
    runtime_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_commit, "ROWS_MAX", 5)
    with side_of(runtime_directory, segment_bytes=12288) as side:
        ring = side.ring("disk")
        for _ in range(100):
            assert ring.writer().publish(bytes(300)) is not None
            side.go()
        assert len(side.log.reader.bases()) > 2
        assert sorted(read_all(side.log, "r-0", 7)) == list(range(100))
        assert side.log.reader.damaged == {}


@pytest.mark.parametrize("damage", [b"\xff" * 8, bytes(32)], ids=["garbage", "zeros"])
def test_rounds_pass_over_damaged_records_and_serve_publishers(
    runtime_directory: Path, damage: bytes
) -> None:
    with side_of(runtime_directory) as side:
        bad, good = side.ring("disk"), side.ring("disk")
        for ring in (bad, good):
            ring.writer().publish(b"x")
        for _ in range(2):
            side.go()
        at = bad.writer().end_position
        bad.writer().publish(b"y")
        overwrite(bad.path, 16384 + at + (8 if damage[0] else 0), damage)
        for ring in (bad, good):
            ring.writer().publish(b"z")
        for _ in range(3):
            side.go()
        assert side.durable() == tuple(ring.extremes().end_position for ring in (bad, good))
        assert (side.writer.broken, side.writer.lost_records) == ({}, 1)
        assert [sorted(read_all(side.log, name, 7)) for name in ("r-0", "r-1")] == [[0, 2], [0, 1]]


def test_a_ring_whose_end_is_damaged_too_is_left_by_rounds_and_the_others_go_on(
    runtime_directory: Path,
) -> None:
    with side_of(runtime_directory) as side:
        bad, good = side.ring("disk"), side.ring("disk")
        for ring in (bad, good):
            ring.writer().publish(b"x")
        for _ in range(2):
            side.go()
        at = bad.writer().end_position
        bad.writer().publish(b"y")
        overwrite(bad.path, 16384 + at + 8, b"\xff" * 8)
        overwrite(bad.path, END_PAIRS, bytes(32))
        good.writer().publish(b"y")
        side.go()
        assert list(side.writer.broken) == [bad.name]
        assert bad.slots() == []
        assert side.durable()[1] == good.extremes().end_position
        assert side.told[-1] == side.durable(), "who waits for the other ring has been told"
        good.writer().publish(b"z")
        side.go()
        assert side.durable()[1] == good.extremes().end_position
        assert all(bad.writer().publish(b"x" * 1000) is not None for _ in range(200))


def test_a_ring_that_is_full_is_read_a_part_at_a_time_with_the_others(
    runtime_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with side_of(runtime_directory) as side:
        busy, quiet = side.ring("disk"), side.ring("disk")
        side.go()
        for _ in range(2):
            quiet.writer().publish(b"x")
            side.go()
        c = side.log.commit.c
        c.extent_bytes, c.step_bytes, c.round_bytes = 2000, 4000, 8000
        fill(busy.writer())
        quiet.writer().publish(b"x")
        side.go()
        assert side.durable()[1] == quiet.extremes().end_position
        assert 0 < side.durable()[0] < busy.extremes().end_position


def test_rings_that_have_little_at_a_time_leave_the_others_their_turn(runtime_directory: Path) -> None:
    """Two fill a round together, again and again: the third gets its own all the same."""
    with side_of(runtime_directory) as side:
        rings = [side.ring("disk") for _ in range(3)]
        for _ in range(2):
            rings[0].writer().publish(b"x")
            side.go()
        c = side.log.commit.c
        c.extent_bytes, c.step_bytes, c.round_bytes = 4000, 4000, 4000
        for _ in range(4):
            for ring in rings:
                ring.writer().publish(bytes(2500))
            side.go()
        assert side.rounds() >= 4
        assert side.durable()[2] > 0


def test_a_sync_of_very_many_extents_lets_every_ring_go(runtime_directory: Path) -> None:
    with side_of(runtime_directory, segment_bytes=4 << 20) as side:
        others = [side.ring("interval", sync_interval_ms=60_000) for _ in range(18)]
        full = side.ring("interval", sync_interval_ms=60_000)
        for _ in range(2):
            full.writer().publish(b"x")
            side.go(sync=True)
        for _ in range(240):
            for ring in others:
                ring.writer().publish(b"x")
            side.go()
        c = side.log.commit.c
        assert c.extents_queued - c.extents_synced > 4096
        fill(full.writer())
        side.go(sync=True)
        side.go(sync=True)
        assert side.durable()[-1] == full.extremes().end_position
        assert fill(full.writer()) > 50
