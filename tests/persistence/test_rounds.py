"""Rounds in C beside steps in Python: the same bytes, the same words, the same log to readers."""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from persistence import Log, LogWriter, Source
from persistence import rounds as rounds_module
from ringbuf import Ring
from ringbuf.core import ffi
from tests.support.called_disk import CalledDisk
from tests.support.logs import DIRECTORY, make_log, read_all, recovered
from tests.support.rings import fill, overwrite
from tests.support.simfiles import SimFiles

MS = 1_000_000
END_PAIRS = 0x88  # where the header of a ring says that it ends, twice

Round = Callable[..., object]


class Side:
    """A log writer with a clock of its own and its rings: the one side by rounds, the other by steps."""

    def __init__(self, memory: Path, *, in_c: bool, segment_bytes: int, direct: bool) -> None:
        self.files = SimFiles(Random(0))
        self.log: Log = make_log(self.files, segment_bytes=segment_bytes, direct=direct)
        self.log.recover()
        self.now = 0
        self.told: list[tuple[int, ...]] = []
        self.writer = LogWriter(self.log, self._tell, lambda: self.now)
        self.go: Round = self.writer.round if in_c else self.writer.step
        self.rings: list[Ring] = []
        self._memory = memory / ("c" if in_c else "python")
        self._memory.mkdir()

    def ring(self, durability: str, **options: int) -> Ring:
        name = f"r-{len(self.rings)}"
        ring = Ring.create(self._memory / name, capacity_bytes=65536, epoch=7)
        self.rings.append(ring)
        self.writer.add(Source(ring, durability, **options))  # type: ignore[arg-type]
        return ring

    def _tell(self) -> None:
        self.told.append(self.durable())

    def durable(self) -> tuple[int, ...]:
        return tuple(ring.extremes().durable_position for ring in self.rings)

    def rounds(self) -> int:
        """How many were C's."""
        return int(self.writer._rounds.c.rounds)

    def segments(self) -> dict[str, bytes]:
        """What the files hold up to where the log ends in each, the times in the records left out."""
        bases = self.log.reader.bases()
        ends = [*bases[1:], self.log.durable_position]
        names = [f"{DIRECTORY}/{base:020d}.log" for base in bases]
        spans = zip(names, bases, ends, strict=True)
        return {name: bytes(self.files.names[name].disk[: end - base]) for name, base, end in spans}

    def close(self) -> None:
        self.writer.close()
        self.log.close()
        for ring in self.rings:
            ring.close()


@contextmanager
def both(memory: Path, segment_bytes: int = 1 << 20, *, direct: bool = False) -> Iterator[tuple[Side, Side]]:
    made = (Side(memory, in_c=in_c, segment_bytes=segment_bytes, direct=direct) for in_c in (True, False))
    sides = tuple(made)
    try:
        yield sides[0], sides[1]
    finally:
        for side in sides:
            side.close()


def publish(sides: tuple[Side, Side], index: int, payloads: list[bytes]) -> None:
    """The same records, with the same times, to both."""
    for side in sides:
        side.rings[index].writer().publish_many(payloads, key="t")
    its, other = (side.rings[index] for side in sides)
    same_memory(its, other)


def same_memory(source: Ring, target: Ring) -> None:
    """The memory of one ring in the place of the other's: times and checksums are the same then."""
    end = source.extremes().end_position
    assert end == target.extremes().end_position < source.capacity_bytes
    data = source.path.with_name(source.name + ".ring").read_bytes()[16384 : 16384 + end]
    overwrite(target.path, 16384, data)


@pytest.mark.parametrize("seed", range(12))
def test_rounds_write_the_bytes_that_steps_write(runtime_directory: Path, seed: int) -> None:
    """Rings of both kinds, runs of all sizes, segments that fill up, disks that fail: never a difference."""
    random = Random(seed)
    with both(runtime_directory, segment_bytes=12288) as sides:
        for side in sides:
            side.ring("disk")
            side.ring("interval", sync_interval_ms=50)
            side.ring("interval", sync_interval_ms=400, sync_bytes=2000)
        for _ in range(24):
            for index in range(3):
                if random.random() < 0.5:
                    sizes = random.choices((0, 10, 200, 900), k=random.randrange(1, 4))
                    publish(sides, index, [random.randbytes(size) for size in sizes])
            passed = random.choice((1_000, 20 * MS, 300 * MS, 1_500 * MS))
            for side in sides:
                side.now += passed
                side.go(sync=True)  # When rounds come back from a segment, what waits there is synced.
            assert sides[0].durable() == sides[1].durable()
        assert sides[0].rounds() > 20 > sides[1].rounds() == 0
        assert sides[0].told[-1] == sides[1].told[-1]
        assert sides[0].segments() == sides[1].segments()
        assert sides[0].log.ends() == sides[1].log.ends()
        for side in sides:
            assert len(side.log.reader.bases()) > 1
        first, second = ([read_all(side.log, f"r-{index}", 7) for index in range(3)] for side in sides)
        assert first == second
        assert [len(it) for it in first] == [it.end_offset for it in map(Ring.extremes, sides[0].rings)]


@pytest.mark.parametrize("seed", range(8))
def test_rounds_past_the_cache_hold_what_steps_hold(
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
        old = sides[0].files.read(disk.handle, length, place)
        known = max(
            int(sides[0].writer._rounds.c.durable_position) - sides[0].log.reader.bases()[-1] - place, 0
        )
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
    with both(runtime_directory, segment_bytes=12288, direct=True) as sides:
        sides[0].files.short_writes = True
        for side in sides:
            side.ring("disk")
            side.ring("interval", sync_interval_ms=50)
        for _ in range(40):
            for index in range(2):
                sizes = random.choices((0, 10, 200, 900), k=random.randrange(4))
                publish(sides, index, [random.randbytes(size) for size in sizes])
            passed, sync = random.choice((1_000, 20 * MS, 300 * MS, 1_500 * MS)), random.random() < 0.5
            for side in sides:
                side.now += passed
                side.go(sync=sync)
        for side in sides:
            side.go(sync=True)
        assert sides[0].rounds() > 20
        assert written > 20
        assert sides[0].durable() == sides[1].durable()
        assert sides[0].log.ends() == sides[1].log.ends()
        first, second = ([read_all(side.log, f"r-{index}", 7) for index in range(2)] for side in sides)
        assert first == second
        assert [len(it) for it in first] == [it.end_offset for it in map(Ring.extremes, sides[0].rings)]
        again, report = recovered(sides[0].files.crash(Random(seed)))
        assert report.damage == ()
        assert [read_all(again, f"r-{index}", 7) for index in range(2)] == first


def test_what_was_staged_and_could_not_be_handed_over_is_written_again(runtime_directory: Path) -> None:
    with both(runtime_directory, direct=True) as (side, _):
        ring = side.ring("interval", sync_interval_ms=400)
        ring.writer().publish(b"before")
        for _ in range(2):
            side.go(sync=True)
        ring.writer().publish(b"staged")
        side.go()
        side.files.hook = failing_once("pwritev")
        side.writer._rounds.leave()
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
    with both(runtime_directory, direct=direct) as (side, _):
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
    with both(runtime_directory) as (side, _):
        ring = side.ring("disk")
        for number in range(20):
            ring.writer().publish(b"%d" % number)
            side.go()
            assert side.log._rounds is not None
            assert side.log._rounds.lent or number < 2
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
    monkeypatch.setattr(rounds_module, "ROWS_MOST", 5)
    with both(runtime_directory, segment_bytes=12288) as (side, _):
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
    with both(runtime_directory) as (side, _):
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
    with both(runtime_directory) as (side, _):
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
    with both(runtime_directory) as (side, _):
        busy, quiet = side.ring("disk"), side.ring("disk")
        side.go()
        for _ in range(2):
            quiet.writer().publish(b"x")
            side.go()
        c = side.writer._rounds.c
        c.extent_bytes, c.step_bytes, c.round_bytes = 2000, 4000, 8000
        fill(busy.writer())
        quiet.writer().publish(b"x")
        side.go()
        assert side.durable()[1] == quiet.extremes().end_position
        assert 0 < side.durable()[0] < busy.extremes().end_position


def test_rings_that_have_little_at_a_time_leave_the_others_their_turn(runtime_directory: Path) -> None:
    """Two fill a round together, again and again: the third gets its own all the same."""
    with both(runtime_directory) as (side, _):
        rings = [side.ring("disk") for _ in range(3)]
        for _ in range(2):
            rings[0].writer().publish(b"x")
            side.go()
        c = side.writer._rounds.c
        c.extent_bytes, c.step_bytes, c.round_bytes = 4000, 4000, 4000
        for _ in range(4):
            for ring in rings:
                ring.writer().publish(bytes(2500))
            side.go()
        assert side.rounds() >= 4
        assert side.durable()[2] > 0


def test_a_sync_of_very_many_extents_lets_every_ring_go(runtime_directory: Path) -> None:
    with both(runtime_directory, segment_bytes=4 << 20) as (side, _):
        others = [side.ring("interval", sync_interval_ms=60_000) for _ in range(18)]
        full = side.ring("interval", sync_interval_ms=60_000)
        for _ in range(2):
            full.writer().publish(b"x")
            side.go(sync=True)
        for _ in range(240):
            for ring in others:
                ring.writer().publish(b"x")
            side.go()
        c = side.writer._rounds.c
        assert c.extents_queued - c.extents_settled > 4096
        fill(full.writer())
        side.go(sync=True)
        side.go(sync=True)
        assert side.durable()[-1] == full.extremes().end_position
        assert fill(full.writer()) > 50
