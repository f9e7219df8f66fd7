"""Crashes of the log, by the thousand: real rings, the real log and its writer, on a disk that forgets.

One run: rings are published to and a LogWriter steps, its disk failing now and then; before each call that
changes the disk, the machine may stop, or the process may die.  Each such state is recovered and judged:

  1. what was acknowledged (the ring's durable word) is there;
  2. what is there is a prefix of what was published, without a hole, byte for byte;
  3. a crash is not mistaken for damage;
  4. what is shown survives a power cut at once, and a second recovery shows the same;
  5. recovery that is itself cut short, anywhere, changes none of this;
  6. what is appended after recovery, and synced, is there after the next crash, behind what was there.

Everything follows from the seed, which a Violation names.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random

from persistence import Log, LogWriter, Source
from ringbuf import Range, Ring, scan_records
from ringbuf.record import HEADER, encode, span
from tests.support.simfiles import PowerCut, SimFiles

DIRECTORY = "/log"
SEGMENT_BYTES = 12288
KEPT_BYTES = 3 << 16  # each segment counts as 64 KiB at least: three of them
STEPS = {"mixed": 12, "equal": 16, "large": 12}
FAULTS = (errno.EIO, errno.ENOSPC, errno.EROFS)


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass
class RingModel:
    """A ring and all that was ever published to it."""

    ring: Ring
    data: bytearray = field(
        default_factory=bytearray
    )  # the records as they stand in the ring, without padding
    begins: list[int] = field(default_factory=list)  # of each record in `data`
    ends: list[int] = field(default_factory=list)  # ring position behind each record

    def __post_init__(self) -> None:
        self.name = self.ring.name
        self.writer = self.ring.writer()
        self.tap = self.ring.reader(start="oldest")

    def publish(self, random: Random, kind: str) -> None:
        """One record, sometimes large and filled in place; none if the ring is full."""
        sizes = {
            "mixed": (0, 1, random.randrange(200), random.randrange(200), random.randrange(2000)),
            "equal": (900,),  # extents stand where those of an earlier life of the file stood
            "large": (random.randrange(4000, 14000),),  # the ring comes round within some steps
        }
        size = random.choice(sizes[kind])
        if kind == "mixed" and random.random() < 0.03:
            claim = self.writer.claim(random.randrange(4097, 6000), key=b"place")
            if claim is None:
                return
            memoryview(claim)[:] = random.randbytes(len(memoryview(claim)))
            claim.commit()
        elif self.writer.publish(random.randbytes(size), key=f"t/{size % 3}") is None:
            return
        self.ends.append(self.ring.extremes().end_position)
        for found in self.tap.ranges(1 << 20):
            self.begins.append(len(self.data))
            self.data += found.view

    def acknowledged(self) -> int:
        """How many records have been said to be durable."""
        return bisect_right(self.ends, self.ring.extremes().durable_position)

    def expected(self, first: int, end: int) -> bytes:
        """Records first <= offset < end."""
        if first == end:
            return b""
        stop = self.begins[end] if end < len(self.begins) else len(self.data)
        return bytes(self.data[self.begins[first] : stop])


class Simulation:
    """One seed.  `log_type` and `writer_type` may have a mistake planted."""

    def __init__(
        self, seed: int, memory: Path, log_type: type[Log] = Log, writer_type: type[LogWriter] = LogWriter
    ) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.log_type, self.writer_type = log_type, writer_type
        self.kind = self.random.choice(("mixed", "mixed", "equal", "large"))
        self.keep_bytes = self.random.choice((0, KEPT_BYTES))
        self.files = SimFiles(self.random)
        self.files.short_writes = True
        self.files.hook = self._hook
        self.rings = [RingModel(_new_ring(memory / name, seed + 1)) for name in ("a-0", "b-0")]
        self.now = 0
        self.states = 0
        self._judged: set[int] = set()
        self._salts = count(seed << 8)
        self._failing = 0  # operations of the disk that are still to fail
        self._error = errno.EIO
        self._upset = False  # the last operation failed: what the kernel holds is not what the disk holds
        self._only = ""  # the operation that fails; "" is any

    def run(self) -> int:
        """How many crash states have been judged.  Raises Violation."""
        try:
            self._work()
        except Violation as violation:
            raise Violation(f"seed {self.seed}, state {self.states}: {violation}") from None
        finally:
            for model in self.rings:
                model.tap.close()
                model.ring.close()
                model.ring.unlink()
        return self.states

    def log(self, files: SimFiles) -> Log:
        """A log on that disk."""
        return self.log_type(
            DIRECTORY,
            files,
            segment_bytes=SEGMENT_BYTES,
            retain_bytes=self.keep_bytes,
            clock_ns=lambda: self.now,
            salt=lambda: next(self._salts) & 0xFFFFFFFF,
        )

    def _work(self) -> None:
        log = self.log(self.files)
        log.recover()
        writer = self.writer_type(log, clock_ns=lambda: self.now)
        for model, durability in zip(self.rings, ("disk", "interval"), strict=True):
            writer.add(Source(model.ring, durability, sync_interval_ms=50))  # type: ignore[arg-type]
        for _ in range(STEPS[self.kind]):
            for model in self._publishers():
                model.publish(self.random, self.kind)
            if self.random.random() < (0.3 if self.kind == "large" else 0.12):
                self._failing, self._error = self.random.randrange(1, 9), self.random.choice(FAULTS)
                self._only = self.random.choice(("", "fdatasync"))
            if log.wants_tending and self.random.random() < 0.5:
                self._tend(log)
            self.now += self.random.choice((1_000, 20_000_000, 1_100_000_000))
            writer.step()
        writer.close()
        log.close()

    def _publishers(self) -> list[RingModel]:
        if self.kind == "equal":
            return self.rings
        return self.random.choices(self.rings, k=self.random.randrange(12 if self.kind == "mixed" else 5))

    def _tend(self, log: Log) -> None:
        with suppress(OSError):
            log.tend()

    def _hook(self, operation: str, path: str) -> None:
        """Before each operation of the log that runs."""
        most = 5 if operation == "fdatasync" or self._upset else 2  # Before a sync there is most to lose.
        for _ in range(self.random.randint(0, most)):
            cut = self.random.random() < (0.3 if self._upset else 0.8)
            self._judge(self.files.crash() if cut else self.files.kill(), killed=not cut)
        self._upset = False
        if self._failing and self._only in ("", operation):
            self._failing -= self.random.randrange(1, self._failing + 1)
            self._upset = True
            raise OSError(self._error, "injected")

    # ---- one state ----

    def _judge(self, files: SimFiles, *, killed: bool) -> None:
        self.states += 1
        state = hash((*files.contents(), *(model.acknowledged() for model in self.rings)))
        if state in self._judged:  # Nothing was unsynced, or all of it was lost once more.
            return
        self._judged.add(state)
        if self.random.random() < 0.25:
            files = self._cut_recovery_short(files)
        log = self.log(files)
        shown = self._shown(log)
        for model, (first, end) in zip(self.rings, shown, strict=True):
            if end < model.acknowledged():
                raise Violation(f"{model.name}: {model.acknowledged()} acknowledged, {end} recovered")
            if first > 0 and not self.keep_bytes:
                raise Violation(f"{model.name}: the first {first} records are gone")
        if self.random.random() < (0.5 if killed else 0.2):
            again = self.log(files.crash(Random(0)) if self.random.random() < 0.5 else files.kill())
            if (now := self._shown(again)) != shown:
                raise Violation(f"shown at first: {shown}, after a second crash: {now}")
        elif self.random.random() < 0.3:
            self._go_on(files, log, shown)

    def _cut_recovery_short(self, files: SimFiles) -> SimFiles:
        left = self.random.randrange(4)

        def hook(operation: str, path: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise PowerCut

        files.hook = hook
        with suppress(PowerCut):
            self.log(files).recover()
        files.hook = None
        return files.crash()

    def _shown(self, log: Log) -> list[tuple[int, int]]:
        """First and end offset of each ring in a log that is recovered here."""
        report = log.recover()
        if report.damage or report.notes:
            raise Violation(f"a crash was taken for damage: {report}")
        ends = log.ends()
        return [self._check_ring(log, model, ends[model.name].end_offset if model.name in ends else 0)
                for model in self.rings]  # fmt: skip

    def _check_ring(self, log: Log, model: RingModel, end: int) -> tuple[int, int]:
        first, data, offset = None, b"", 0
        while found := log.read(model.name, model.ring.epoch, offset, 1 << 16):
            for it in found:
                first = it.offset if first is None else first
                if it.offset not in {first, offset}:
                    raise Violation(f"{model.name}: a hole from {offset} to {it.offset}")
                data += it.view
                offset = it.offset + it.count
        first = end if first is None else first
        if first < end != offset or data != model.expected(first, end):
            raise Violation(f"{model.name}: {first} to {end} of {len(model.ends)} is not what was published")
        return first, end

    def _go_on(self, files: SimFiles, log: Log, shown: list[tuple[int, int]]) -> None:
        """Appends to the recovered log, cuts the power, and looks for all of it."""
        model, (_, end) = self.rings[0], shown[0]
        epoch = model.ring.epoch + 1
        made = b"".join(encode(end + i, b"new" * i, epoch=epoch) for i in range(3))
        ring_id = log.join(model.name, epoch, end)
        log.append(ring_id, [run_of(made, epoch)])
        log.write()
        log.sync()
        if log.take_durable().get(ring_id, (0, 0))[0] != end + 3:
            raise Violation("what was appended after recovery was not said to be durable")
        later = self.log(files.crash())
        report = later.recover()
        if report.damage:
            raise Violation(f"damage after a crash behind recovery: {report.damage}")
        found = later.read(model.name, epoch, end, 1 << 16)
        if b"".join(it.view for it in found) != made:
            raise Violation("what was appended after recovery is gone")
        if not self.keep_bytes and self._check_ring(later, model, end) != shown[0]:
            raise Violation("what was recovered is gone after what was appended")


def _new_ring(path: Path, epoch: int) -> Ring:
    return Ring.create(path, capacity_bytes=65536, epoch=epoch, populate=False)


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
        length, _, offset, *_ = HEADER.unpack_from(data, at)
        found.append((offset, at, at + length))
        at += span(length)
    return found
