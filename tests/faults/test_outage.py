"""Seven days without the lake, in virtual time: the disk stays bounded, what waited is drained in its order,
and new records are drained at the same time.

Ring, log, drain and lake are real; the clock is not, and the way to the lake takes as long as it would.
"""

import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bridge.errors import SinkUnavailable
from bridge.format.drained_file import FileFooter
from bridge.format.file_builder import DrainedFile
from bridge.sinks.directory import DirectorySink
from persistence import Log, LoggedRing, LogWriter
from ringbuf import Ring
from tests.support.bridges import EPOCH, SteppedDrain, drain, publish, ring, settings
from tests.support.drained_files import footers, offsets_drained

HOUR_S = 3_600.0
EVERY_S = 12.0  # a record
WRITE_S = 3_600.0  # the log
LINGER_S = 10.0
LINK_BYTES_S = 20_000
LOG_BYTES = 64 << 20


class Plant:
    """Devices, a log, and the time, which passes when somebody waits."""

    def __init__(self, made: Ring, log: Log, writer: LogWriter) -> None:
        self.now = 0.0
        self.log_bytes_most = 0
        self.published: list[float] = []  # when, by offset
        self._stamps: list[int] = []
        self._made, self._log, self._writer = made, log, writer

    def monotonic(self) -> float:
        return self.now

    def wall_ns(self) -> int:
        return int((1_700_000_000 + self.now) * 1e9)

    def age_s(self, timestamp_ns: int) -> float:
        return self.now - self.published[max(bisect_right(self._stamps, timestamp_ns) - 1, 0)]

    def pass_by(self, seconds: float) -> None:
        until = self.now + seconds
        while (at := len(self.published) * EVERY_S) <= until:
            self.now = at
            self.published.append(at)
            self._stamps.append(time.time_ns())
            publish(self._made, 1, size=100)
            if at % WRITE_S == 0:
                assert self._writer.finish()
                self._log.run_maintenance()
        self.now = until


@contextmanager
def plant(runtime: Path, directory: Path, retain_bytes: int = LOG_BYTES) -> Iterator[tuple[Plant, Log]]:
    log = Log(directory, segment_bytes=1 << 20, retain_bytes=retain_bytes)
    with ring(runtime, capacity_bytes=1 << 18) as made, log:
        log.recover()
        writer = LogWriter(log)
        writer.add(LoggedRing(made, "interval"))
        try:
            yield Plant(made, log, writer), log
        finally:
            writer.close()


class Uplink(DirectorySink):
    """A lake at the end of a line that may be cut."""

    def __init__(self, root: Path, world: Plant) -> None:
        super().__init__(root)
        self.world = world
        self.cut = False
        self.landed: dict[int, float] = {}  # when, by offset

    def put(self, file: DrainedFile) -> None:
        if self.cut:
            raise SinkUnavailable("no line")
        self.world.pass_by(file.length / LINK_BYTES_S)
        super().put(file)
        for offset in range(file.footer.first_offset, file.footer.last_offset + 1):
            assert offset not in self.landed
            self.landed[offset] = self.world.now

    def delays(self, first: int, end: int) -> list[float]:
        """From the device to the lake, of these records."""
        return [self.landed[offset] - self.world.published[offset] for offset in range(first, end)]


def live_on(made: SteppedDrain, world: Plant, seconds: float) -> None:
    """The bridge as it runs: awake when a record comes, a minute of back-off after a failure."""
    until = world.now + seconds
    while world.now < until:
        try:
            world.pass_by(min(made.step(), 0.5))
        except SinkUnavailable:
            world.pass_by(60.0)


def test_after_a_week_offline_all_is_drained_in_order_and_live_data_is_late_by_twice_at_most(
    runtime_directory: Path,
) -> None:
    root = runtime_directory / "disk"  # memory: a thousand syncs of a shared disk would take their time
    root.mkdir()
    chosen = settings(runtime_directory, root, linger_ms=int(LINGER_S * 1000), scan_interval_ms=60_000)
    with plant(runtime_directory, root / "log") as (world, log):
        lake = Uplink(root / "lake", world)
        with drain(chosen, lake, log.reader, clock=world) as made:
            live_on(made, world, HOUR_S / 6)
            usual_s = max(lake.delays(0, len(lake.landed)))
            lake.cut = True
            before = len(world.published)
            live_on(made, world, 7 * 24 * HOUR_S)
            assert bytes_in(root / "log") < LOG_BYTES
            behind = len(world.published) - len(lake.landed)
            assert behind > 50_000
            lake.cut = False
            back = len(world.published)
            live_on(made, world, 60.0)
            assert len(world.published) - max(lake.landed) < 10  # live, while nearly all still waits
            assert len(lake.landed) < back / 2
            live_on(made, world, HOUR_S / 4)
            end = min(set(range(len(world.published))) - set(lake.landed))
            assert end >= back
            late = lake.delays(back + 1, end)
            print(f"usual {usual_s:.1f} s, beside the backlog {max(late):.1f} s")
            assert max(late) <= 2 * usual_s
    there = offsets_drained(root / "lake")["default", 0, EPOCH]
    assert sorted(there) == list(range(len(there)))
    found = list(footers(root))
    assert not any(footer.lost or footer.skipped for footer in found)
    in_its_order([it for it in found if before <= it.first_offset < back])


def in_its_order(waited: list[FileFooter]) -> None:
    """By the numbers of the files."""
    assert [it.first_offset for it in waited] == sorted(it.first_offset for it in waited)
    assert [it.drain_seq for it in waited] == sorted(it.drain_seq for it in waited)


def bytes_in(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def test_what_the_log_could_not_keep_for_a_week_is_declared_to_the_offset(runtime_directory: Path) -> None:
    root = runtime_directory / "disk"  # memory: a thousand syncs of a shared disk would take their time
    root.mkdir()
    chosen = settings(runtime_directory, root, linger_ms=int(LINGER_S * 1000), scan_interval_ms=60_000)
    with plant(runtime_directory, root / "log", retain_bytes=2 << 20) as (world, log):
        lake = Uplink(root / "lake", world)
        with drain(chosen, lake, log.reader, clock=world) as made:
            live_on(made, world, HOUR_S / 6)
            lake.cut = True
            live_on(made, world, 2 * 24 * HOUR_S)
            assert bytes_in(root / "log") < 4 << 20
            lake.cut = False
            live_on(made, world, HOUR_S / 2)
    there = offsets_drained(root / "lake")["default", 0, EPOCH]
    lost = [pair for footer in footers(root) for pair in footer.lost]
    declared = {offset for first, last in lost for offset in range(first, last + 1)}
    assert len(lost) == 1
    assert len(there) == len(set(there))
    assert declared == set(range(max(there) + 1)) - set(there)
