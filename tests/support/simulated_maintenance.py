"""The maintenance of a log on a simulated disk, with clocks that a test turns."""

from dataclasses import dataclass, field
from typing import Any

from persistence.maintenance.maintenance import Maintenance, MaintenanceRules
from persistence.maintenance.retention_rules import Floor, StreamRules
from tests.support.in_process_worker import InProcessWorker
from tests.support.logs import Written

SECOND_NS = 1_000_000_000


@dataclass
class Clocks:
    """Both clocks; records of tests/support/logs.py are of the first microseconds of 1970."""

    now_ns: int = 0

    def wall_ns(self) -> int:
        return self.now_ns

    def monotonic_s(self) -> float:
        return self.now_ns / SECOND_NS

    def pass_by(self, seconds: float) -> None:
        self.now_ns += int(seconds * SECOND_NS)


def stream_of(ring_name: str) -> str:
    """As the broker names them."""
    return ring_name.partition("@")[0] if "@" in ring_name else ring_name.rpartition("-")[0]


@dataclass
class Kept:
    """A log that is kept by these rules; step() until there is nothing to do."""

    written: Written
    rules: MaintenanceRules
    streams: tuple[StreamRules, ...] = ()
    clocks: Clocks = field(default_factory=Clocks)
    floors: dict[str, list[Floor]] = field(default_factory=dict)
    fulls: list[set[str]] = field(default_factory=list)
    blocked: str = ""

    def __post_init__(self) -> None:
        self.written.log.on_sealed.clear()
        self.maintenance = self.begin(self.written)

    def begin(self, written: Written, **options: Any) -> Maintenance:
        """The maintenance of that log, from the start."""
        named = {rules.name: rules for rules in self.streams}

        def block(reason: str) -> None:
            self.blocked = reason

        return Maintenance(
            written.log,
            self.rules,
            InProcessWorker(written.files),
            stream_of=lambda ring: named.get(stream_of(ring), StreamRules(stream_of(ring))),
            floors=lambda ring: self.floors.get(ring, []),
            on_full=lambda full: self.fulls.append(set(full)),
            block=block,
            clock=self.clocks,
            **options,
        )

    def steps(self, count: int = 60) -> None:
        """So many steps, each when the one before asked for it."""
        for _ in range(count):
            self.clocks.pass_by(self.maintenance.step())

    def bases(self) -> list[int]:
        """Bases of the segments, archived or not."""
        return [it.base for it in self.maintenance.segments()]
