"""The broker killed with -9 at random moments, under load: what it acknowledged is there after the restart.

A stream of each level, a publisher of QoS 1 to each; the publishers are another process than the broker, and
their ledgers die with nobody.  In each cycle they publish for a moment, the broker is killed, also while it
starts, and started again.  Then every number that was ever acknowledged must have been found in the rings,
once and in order; and now and then, and at the end, after a clean stop, in the logs.  What has been found is
forgotten, and retention takes it: a campaign may go on for days.
"""

from __future__ import annotations

import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Self

from tests.campaigns.ledger import Progress, show
from tests.support.directories import memory_directory
from tests.support.logged_broker import Found, LoggedBroker, in_log, in_ring
from tests.support.outside_publisher import OutsidePublisher, drain, pump

LEVELS = {"process": "process", "interval": "interval", "disk": "disk", "alone": "disk"}
SETTINGS = "isolated = true"  # of the last one
LOAD_S = (0.001, 0.04)
START_S = 0.6  # a start that is killed lives at most so long
LOGS_EVERY = 10  # cycles: what they publish is far less than what retention keeps


class Lost(AssertionError):
    """Something acknowledged is not there, or something is there twice or out of order."""


class Ledger:
    """What a stream has promised, and what of it has been seen."""

    def __init__(self, name: str, *, logged: bool) -> None:
        self.ring_name = f"{name}-0"
        self.publisher = OutsidePublisher(f"{name}/t")
        self.acknowledged = 0
        self.logged = logged
        self._last = (-1, -1)  # seen in the ring: place and number
        self._for_log: set[int] = set()  # acknowledged since the logs were looked into

    def check_ring(self, runtime_dir: Path) -> None:
        """All that was acknowledged since the last look is there, in order.  Raises Lost."""
        place, _ = self._last
        news = [it for it in in_ring(runtime_dir / self.ring_name, place) if it[0] > place]
        self._check([self._last, *news], self.publisher.acked, "the ring")
        self._last = news[-1] if news else self._last
        self.acknowledged += len(self.publisher.acked)
        if self.logged:
            self._for_log |= self.publisher.acked
        self.publisher.acked.clear()

    def check_log(self, found: Found) -> None:
        """The same for a log, of all that was acknowledged since the last look.  Raises Lost."""
        self._check(found, self._for_log, "the log")
        self._for_log.clear()

    def _check(self, found: Found, wanted: set[int], where: str) -> None:
        numbers = [number for _, number in found]
        if any(after <= before for before, after in pairwise(numbers)):
            raise Lost(f"{self.ring_name}: out of order, or twice, in {where}")
        if missing := wanted.difference(numbers):
            which = f"{min(missing)} to {max(missing)}"
            raise Lost(f"{self.ring_name}: {len(missing)} acknowledged are not in {where}: {which}")


class KillCycles:
    """A broker under load, and its ledgers.  A context manager: the broker is gone at the end."""

    def __init__(self, runtime_dir: Path, state_dir: Path, seed: int, *, module: str = "edge") -> None:
        self.random = Random(seed)
        self.broker = LoggedBroker(runtime_dir, state_dir, LEVELS, module=module, settings=SETTINGS)
        self.ledgers = {name: Ledger(name, logged=level != "process") for name, level in LEVELS.items()}
        self.publishers = [it.publisher for it in self.ledgers.values()]
        self.counts: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self.broker.start()
        return self

    def __exit__(self, *_: object) -> None:
        for it in self.publishers:
            it.close()
        self.broker.close()

    def cycle(self) -> None:
        """Load, kill, start, look.  Raises Lost."""
        for it in self.publishers:
            it.connect(self.broker.port)
        end = time.monotonic() + self.random.uniform(*LOAD_S)
        pump(self.publishers, lambda: time.monotonic() > end)
        self.broker.kill()
        drain(self.publishers)
        self.counts["kills under load"] += 1
        while self.random.random() < 0.15:
            self.broker.spawn()
            time.sleep(self.random.uniform(0, START_S))
            self.broker.kill()
            self.counts["kills in a start"] += 1
        self.broker.start()
        for ledger in self.ledgers.values():
            ledger.check_ring(self.broker.runtime_dir)

    def look_into_logs(self) -> None:
        """After a clean stop the logs have everything.  Raises Lost."""
        self.broker.stop()
        logged = [it for it in self.ledgers.values() if it.logged]
        directory = self.broker.state_dir / "log"
        found = in_log(directory, self.broker.state_dir / "copy", [it.ring_name for it in logged])
        for it in logged:
            it.check_log(found[it.ring_name])
        self.counts["looks into the logs"] += 1

    def acknowledged(self) -> dict[str, int]:
        """Messages by level."""
        return {name: it.acknowledged for name, it in self.ledgers.items()}


def run(cycles: int, seed: int) -> int:
    """Exit status."""
    progress = Progress("kill -9", cycles, "cycles")
    with (
        memory_directory() as memory,
        TemporaryDirectory() as disk,
        KillCycles(memory / "run", Path(disk), seed) as campaign,
    ):
        lost = ""
        done = 0
        try:
            for done in range(1, cycles + 1):
                campaign.cycle()
                if done % LOGS_EVERY == 0:
                    campaign.look_into_logs()
                    campaign.broker.start()
                progress.at(done, f"{sum(campaign.acknowledged().values()):,} acknowledged, 0 lost")
            campaign.look_into_logs()
        except Lost as error:
            lost = str(error)
        progress.end()
        facts = {"cycles": done, "lost": lost or 0, **campaign.counts}
        facts |= {f"acknowledged at {name}": count for name, count in campaign.acknowledged().items()}
    show("kill", {**facts, "seed": seed, "seconds": int(progress.seconds)})
    return 1 if lost else 0
