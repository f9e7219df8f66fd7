"""A log writer on a simulated disk, with a clock that a test turns, and its rings."""

from pathlib import Path
from random import Random
from typing import Any

from persistence import LoggedRing, LogWriter
from ringbuf import Ring
from tests.support.logs import make_log, read_all, recovered
from tests.support.simfiles import SimFiles

MS = 1_000_000


class Desk:
    """A log writer with a clock that stands still, and its rings."""

    def __init__(self, memory: Path, **options: Any) -> None:
        self.memory = memory
        self.files = SimFiles(Random(0))
        self.log = make_log(self.files, **options)
        self.log.recover()
        self.now = 0
        self.told = 0
        self.writer = LogWriter(self.log, self._tell, lambda: self.now)
        self.rings: list[Ring] = []

    def _tell(self) -> None:
        self.told += 1

    def ring(self, durability: str = "disk", *, name: str = "", epoch: int = 7, **options: Any) -> Ring:
        """A new ring that is logged."""
        ring = Ring.create(self.memory / (name or f"r-{len(self.rings)}"), capacity_bytes=65536, epoch=epoch)
        self.rings.append(ring)
        self.writer.add(LoggedRing(ring, durability, **options))  # type: ignore[arg-type]
        return ring

    def syncs(self) -> int:
        return self.log.stats.syncs

    def fail(self, code: int, *operations: str, times: int = 10**9) -> None:
        """The disk refuses these operations from now on, so often."""
        left = times

        def hook(operation: str, path: str) -> None:
            nonlocal left
            if operation in operations and left > 0:
                left -= 1
                raise OSError(code, "injected")

        self.files.hook = hook

    def close(self) -> None:
        self.writer.close()
        self.log.close()
        for ring in self.rings:
            ring.close()


def durable(ring: Ring) -> int:
    return ring.extremes().durable_position


def end(ring: Ring) -> int:
    return ring.extremes().end_position


def count(files: SimFiles, ring: Ring) -> int:
    """Records of a ring that a power cut now would leave."""
    return len(read_all(recovered(files.crash(Random(0)))[0], ring.name, ring.epoch))
