"""Crashes of the log, by the thousand: real rings, the real log and its writer, on a disk that forgets.

One run is a history of several lives.  In each, rings are published to and a LogWriter per log steps, its
disk failing now and then; a life ends with a clean stop, with the death of the process (the rings are taken
over) or with a power cut (they are gone).  Before each call that changes the disk, in recovery as well, the
machine may stop, or the process may die.  Each such state is recovered and judged:

  1. what was acknowledged (the ring's durable word) is there, and so is all that a start has shown before;
  2. what is there is a prefix of what was published, without a hole, byte for byte;
  3. a crash is not mistaken for damage;
  4. what is shown survives a power cut at once, and a second recovery shows the same;
  5. recovery that is itself cut short, anywhere, changes none of this;
  6. what is appended after recovery, and synced, is there after the next crash, behind what was there.

Everything follows from the seed, which a Violation names.
"""

import errno
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from persistence import Log, LoggedRing, LogWriter
from persistence.maintenance.maintenance import Maintenance, MaintenanceRules
from persistence.segment.clean_shutdown import MARKER_NAME
from ringbuf import Range, scan_records
from ringbuf.record import RecordHeader, encode, span
from tests.support.in_process_worker import InProcessWorker
from tests.support.ring_model import Life, RingModel
from tests.support.simfiles import PowerCut, SimFiles

DIRECTORY = "/log"
SEGMENT_BYTES = 12288
CHECKED_WITHOUT = 7  # of so many states one is recovered without its checkpoints, too
KEPT_BYTES = 3 << 16  # each segment counts as 64 KiB at least: three of them
STEPS = {"mixed": 12, "equal": 28, "large": 12}
WALL_NS, YEAR_NS = 1_700_000_000_000_000_000, 31_536_000_000_000_000
FAULTS = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EMFILE)

Shown = dict[str, int]  # by ring: the end offset of its current life


class Violation(BaseException):
    """An invariant does not hold.  Not an Exception: code that catches those must not hide it."""


class Simulation:
    """One seed.  `log_type` and `writer_type` may have a mistake planted; `forced` says what of the first
    lines here is not left to the seed.
    """

    def __init__(
        self,
        seed: int,
        memory: Path,
        log_type: type[Log] = Log,
        writer_type: type[LogWriter] = LogWriter,
        **forced: Any,
    ) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.log_type, self.writer_type = log_type, writer_type
        self.kind = self.random.choice(("mixed", "mixed", "equal", "large"))
        self.keep_bytes = self.random.choice((0, KEPT_BYTES))
        self.upkept = (
            self.random.random() < 0.4
        )  # Retention is the maintenance's then, and segments are archived.
        self.aged = self.upkept and self.random.random() < 0.5  # And by age, by a clock that jumps.
        self.failures = 0.3 if self.kind == "large" else 0.12  # Share of steps whose disk fails soon.
        self.bad_starts = 0.2  # Share of lives whose disk fails at the start.
        self.cuts = 0.5  # Share of lives that end with a power cut.
        self.direct = self.random.random() < 0.5  # Past the page cache.
        self.block_bytes = self.random.choice((512, 512, 512, 4096))
        self.segment_bytes = self.random.choice((1, 1, 4)) * SEGMENT_BYTES
        self.world = self._world()
        vars(self).update(forced)
        self.counts: Counter[str] = Counter()  # what was done, for the ledger
        self.now = 0
        self._wall_now_ns = WALL_NS
        self.rings = [RingModel(memory / name, seed + 1, level, place) for name, level, place in self.world]
        self.files = self._disk(SimFiles(self.random, block_bytes=self.block_bytes))
        self._judged: set[int] = set()
        self._salts = count(seed << 8)
        self._failing = 0  # operations of the disk that are still to fail
        self._error = errno.EIO
        self._upset = False  # the last operation failed: what the kernel holds is not what the disk holds
        self._only = ""  # the operation that fails; "" is any

    def _world(self) -> list[tuple[str, str, str]]:
        """Name, durability and log of each ring: most often two in one log."""
        luck = self.random.random()
        if luck < 0.6:
            return [("a-0", "disk", DIRECTORY), ("b-0", "interval", DIRECTORY)]
        if luck < 0.8:
            levels = self.random.choices(("disk", "interval"), k=self.random.randrange(1, 5))
            return [(f"r-{index}", level, DIRECTORY) for index, level in enumerate(levels)]
        return [("a-0", "disk", DIRECTORY), ("b-0", "disk", f"{DIRECTORY}/b-0")]

    def _disk(self, files: SimFiles) -> SimFiles:
        files.short_writes = True
        files.hook = self._hook
        return files

    @property
    def states(self) -> int:
        """Crash states that were looked at; those alike are judged once."""
        return self.counts["states"]

    def run(self) -> Counter[str]:
        """Run all steps; return their counts.  Raises Violation."""
        try:
            for last in (False,) * self.random.randrange(3) + (True,):
                self._live()
                if not last:
                    self._die()
        except Violation as violation:
            raise Violation(f"seed {self.seed}, state {self.states}: {violation}") from None
        finally:
            for model in self.rings:
                model.close()
        self.counts["histories"] += 1
        return self.counts

    def directories(self) -> list[str]:
        """Of the logs, each once."""
        return list(dict.fromkeys(model.directory for model in self.rings))

    def log(self, files: SimFiles, directory: str = DIRECTORY) -> Log:
        """A log on that disk."""
        return self.log_type(
            directory,
            files,
            segment_bytes=self.segment_bytes,
            retain_bytes=0 if self.upkept else self.keep_bytes,
            direct=self.direct,
            clock_ns=self.wall_ns,
            salt=lambda: next(self._salts) & 0xFFFFFFFF,
        )

    # ---- one life ----

    def _live(self) -> None:
        """From a start to the last step, on self.files."""
        self.counts["lives"] += 1
        if self.random.random() < self.bad_starts:
            self._fail_soon()
        logs = {directory: self.log(self.files, directory) for directory in self.directories()}
        for log in logs.values():
            self._start(log)
        self._failing = 0
        writers = [self._writer(log, directory) for directory, log in logs.items()]
        maintenances = [self._maintenance(log) for log in logs.values()] if self.upkept else []
        for _ in range(STEPS[self.kind]):
            for model in self._publishers():
                model.publish(self.random, self.kind)
            if self.random.random() < self.failures:
                self._fail_soon()
            self._run_maintenance(logs.values(), maintenances)
            self._pass_time()
            for writer in self.random.sample(writers, len(writers)):
                writer.step()
        if self.random.random() < 0.3:
            for writer in writers:
                writer.finish()
        self.counts["archived"] += sum(it.stats.archived for it in maintenances)
        self.counts["segments removed"] += sum(log.stats.segments_removed for log in logs.values())
        for writer in writers:
            writer.close()
        if self.random.random() < 0.5:
            for log in logs.values():
                log.close()
                self.counts["clean stops"] += 1

    def _run_maintenance(self, logs: Iterable[Log], maintenances: Iterable[Maintenance]) -> None:
        """Work of other threads meanwhile."""
        for log in logs:
            if log.needs_maintenance and self.random.random() < 0.5:
                with suppress(OSError):
                    log.run_maintenance()
        for maintenance in maintenances:
            if self.random.random() < 0.7:
                with suppress(OSError):
                    maintenance.step()

    def _maintenance(self, log: Log) -> Maintenance:
        retain_s, age_s = (86_400, 3_600) if self.aged else (0, 0)
        rules = MaintenanceRules(self.keep_bytes, retain_s, age_s, archive=True, scrub_bytes_per_s=0)
        return Maintenance(log, rules, InProcessWorker(self.files), clock=self)

    @property
    def _keeps_all(self) -> bool:
        """True if no record may be removed."""
        return not self.keep_bytes and not self.aged

    def wall_ns(self) -> int:
        """As maintenance's clock."""
        return self._wall_now_ns

    def monotonic_s(self) -> float:
        """As maintenance's clock, which goes fast: what has failed is tried again in this life."""
        return self.now / 10_000_000

    def _start(self, log: Log) -> None:
        """As often as it takes: a disk that fails may keep a log from starting, but not from being whole."""
        while True:
            try:
                log.recover()
            except OSError:
                self.counts["starts refused by the disk"] += 1
            else:
                return

    def _writer(self, log: Log, directory: str) -> LogWriter:
        """Of all rings of a log, that are taken over or new."""
        writer = self.writer_type(log, clock_ns=lambda: self.now)
        ends = log.ends()
        for model in self.rings:
            if model.directory != directory:
                continue
            self._check_end(model, ends.get(model.name))
            durability = "disk" if model.durability == "disk" else "interval"
            writer.add(LoggedRing(model.ring, durability, sync_interval_ms=50))  # type: ignore[arg-type]
        return writer

    def _check_end(self, model: RingModel, end: object) -> None:
        if end is None and model.acknowledged():
            raise Violation(f"{model.name}: a start has forgotten {model.acknowledged()} records")

    def _pass_time(self) -> None:
        longest = 20_000_000 if self.kind == "equal" else 1_100_000_000  # Proofs would move what follows.
        self.now += self.random.choice((1_000, 20_000_000, longest))
        self._wall_now_ns += self.random.choice((0, 1_000, 1_000_000_000, -3_600_000_000_000))
        self._wall_now_ns = max(self._wall_now_ns, 0)  # No kernel goes back further.
        if self.random.random() < 0.05:  # Somebody sets it, wrong or right.
            self._wall_now_ns = self.random.choice((0, WALL_NS, time.time_ns(), time.time_ns() + YEAR_NS))

    def _publishers(self) -> list[RingModel]:
        if self.kind == "equal":
            return self.rings
        return self.random.choices(self.rings, k=self.random.randrange(12 if self.kind == "mixed" else 5))

    def _fail_soon(self) -> None:
        self._failing, self._error = self.random.randrange(1, 9), self.random.choice(FAULTS)
        self._only = self.random.choice(("", "fdatasync"))

    def _die(self) -> None:
        """The end of a life that is not the last one: the process, or the power."""
        self._failing = 0
        if self.random.random() >= self.cuts:
            self.counts["deaths between lives"] += 1
            self.files = self._disk(self.files.kill())
            return
        self.counts["power cuts between lives"] += 1
        crashed = self.files.crash()
        shown = self._recovered(crashed)
        for model in self.rings:
            self._check_acknowledged(model, shown[model.name])
            model.lose_memory(shown[model.name])
        self.files = self._disk(crashed.kill())  # What looked at it has died, too.

    # ---- what may happen at any moment ----

    def _hook(self, operation: str, path: str) -> None:
        """Before each operation of the log that runs."""
        most = 5 if operation == "fdatasync" or self._upset else 2  # Before a sync there is most to lose.
        for _ in range(self.random.randint(0, most)):
            cut = self.random.random() < (0.3 if self._upset else 0.8)
            self.counts["power cuts" if cut else "deaths"] += 1
            self._judge(self.files.crash() if cut else self.files.kill(), killed=not cut)
        self._upset = False
        if self._failing and self._only in ("", operation):
            self._failing -= self.random.randrange(1, self._failing + 1)
            self._upset = True
            self.counts[f"{errno.errorcode[self._error]} injected"] += 1
            raise OSError(self._error, "injected")

    # ---- one state ----

    def _judge(self, files: SimFiles, *, killed: bool) -> None:
        self.counts["states"] += 1
        state = hash((*files.contents(), *(model.acknowledged() for model in self.rings)))
        if state in self._judged:  # Nothing was unsynced, or all of it was lost once more.
            return
        self._judged.add(state)
        self.counts["different states"] += 1
        if self.random.random() < 0.25:
            files = self._cut_recovery_short(files)
        bare = _without_checkpoints(files.kill()) if self.states % CHECKED_WITHOUT == 0 else None
        logs = [self.log(files, directory) for directory in self.directories()]
        shown = self._shown(logs)
        if bare is not None:
            self._check_without(bare, shown)
        for model in self.rings:
            self._check_acknowledged(model, shown[model.name])
        if self.random.random() < (0.5 if killed else 0.2):
            again = files.crash(Random(0)) if self.random.random() < 0.5 else files.kill()
            if (now := self._recovered(again)) != shown:
                raise Violation(f"shown at first: {shown}, after a second crash: {now}")
        elif self.random.random() < 0.3:
            self._go_on(files, logs[0], shown)

    def _check_without(self, bare: SimFiles, shown: Shown) -> None:
        """A start without checkpoints finds the same.  What else the seed brings about does not depend on
        this.
        """
        luck = self.random.getstate()
        if (found := self._recovered(bare)) != shown:
            raise Violation(f"shown: {shown}, and without the checkpoint: {found}")
        self.random.setstate(luck)

    def _check_acknowledged(self, model: RingModel, end: int) -> None:
        if end < model.acknowledged():
            raise Violation(f"{model.name}: {model.acknowledged()} acknowledged, {end} recovered")

    def _cut_recovery_short(self, files: SimFiles) -> SimFiles:
        self.counts["crashes in recovery"] += 1
        left = self.random.randrange(4 + 6 * len(self.directories()))
        tended = self.random.random() < 0.5  # Indexes and room for what comes belong to a start, too.

        def hook(operation: str, path: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise PowerCut

        files.hook = hook
        with suppress(PowerCut):
            for directory in self.directories():
                log = self.log(files, directory)
                log.recover()
                if tended:
                    log.run_maintenance()
        files.hook = None
        return files.crash()

    def _recovered(self, files: SimFiles) -> Shown:
        return self._shown([self.log(files, directory) for directory in self.directories()])

    def _shown(self, logs: list[Log]) -> Shown:
        """Compare logs that are recovered here with all lives of all rings."""
        shown: Shown = {}
        for log in logs:
            report = log.recover()
            if report.damage or report.notes:
                raise Violation(f"a crash was taken for damage: {report}")
            ends = log.ends()
            for model in self.rings:
                if model.directory == log.directory:
                    end = ends.get(model.name)
                    known = end is not None and end.epoch == model.life.epoch
                    at = end.end_offset if known and end is not None else model.life.first_offset
                    self._check_ring(log, model, at)
                    shown[model.name] = at
        return shown

    def _check_ring(self, log: Log, model: RingModel, end: int) -> None:
        """Records of a ring's current life in the log, up to `end`; earlier lives must be complete."""
        for life in model.past if self.random.random() < 0.2 else []:
            self._check_life(log, model.name, life, life.first_offset, life.end_offset)
        begin = first = model.life.first_offset
        if self.random.random() < 0.8:  # What was sealed long ago is not looked at each time.
            begin = first + int((end - first) * self.random.random() ** 0.2)
        self._check_life(log, model.name, model.life, begin, end)

    def _check_life(self, log: Log, name: str, life: Life, begin: int, end: int) -> None:
        """The log has of that life what is between two offsets."""
        first, data, offset = None, b"", begin
        beyond = self.random.random() < 0.1  # Whether to look for what should not be there.
        for it in _ranges(log, name, life.epoch, offset, end + beyond):
            first = it.offset if first is None else first
            if it.offset not in {first, offset}:
                raise Violation(f"{name}: a hole from {offset} to {it.offset}")
            data += it.view
            offset = it.offset + it.count
        first = end if first is None else first
        if first > begin and self._keeps_all:
            raise Violation(f"{name}: the records {begin} to {first} are gone")
        if first < end != offset or end > life.end_offset or data != life.expected(first, end):
            raise Violation(f"{name}: {first} to {end} of {life.end_offset} is not what was published")

    def _go_on(self, files: SimFiles, log: Log, shown: Shown) -> None:
        """Appends to the recovered log, cuts the power, and looks for all of it."""
        model = self.rings[0]
        end = shown[model.name]
        epoch = model.life.epoch + 1
        made = b"".join(encode(end + i, b"new" * i, epoch=epoch) for i in range(3))
        log.append(log.join(model.name, epoch, end), [run_of(made, epoch)])
        log.write()
        log.sync()
        if log.queued or log.ends()[model.name] != (epoch, end + 3):
            raise Violation("what was appended after recovery was not said to be durable")
        later = self.log(files.crash(), model.directory)
        report = later.recover()
        if report.damage:
            raise Violation(f"damage after a crash behind recovery: {report.damage}")
        found = later.read(model.name, epoch, end, 1 << 16)
        if b"".join(it.view for it in found) != made:
            raise Violation("what was appended after recovery is gone")
        self._check_ring(later, model, end)


def _without_checkpoints(files: SimFiles) -> SimFiles:
    for name in [it for it in files.names if it.endswith(f"/{MARKER_NAME}")]:
        del files.names[name]
    return files


def _ranges(log: Log, name: str, epoch: int, offset: int, end: int) -> Iterator[Range]:
    """Records of a log from an offset on, up to `end`."""
    while offset < end and (found := log.read(name, epoch, offset, 1 << 20)):
        for it in found:
            yield it
            offset = it.offset + it.count


def run_of(data: bytes, epoch: int, position: int = 0) -> Range:
    """Records as one range."""
    scan = scan_records(data, epoch)
    assert scan.good_bytes == len(data)
    times = scan.first_timestamp_ns, scan.last_timestamp_ns
    return Range(position, epoch, scan.first_offset, scan.count, *times, memoryview(data))


def records_in(data: bytes) -> list[tuple[int, int, int]]:
    """Offset, begin and end of each record in a run, the padding behind it left out."""
    found, at = [], 0
    while at < len(data):
        length, _, offset, *_ = RecordHeader.of(data, at)
        found.append((offset, at, at + length))
        at += span(length)
    return found
