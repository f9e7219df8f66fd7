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
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Self

from tests.campaigns.ledger import Progress, show
from tests.support.directories import memory_directory
from tests.support.logged_broker import LoggedBroker, Lost, in_log
from tests.support.outside_publisher import drain, pump
from tests.support.promises import Promises

LEVELS = {"process": "process", "interval": "interval", "disk": "disk", "alone": "disk"}
SETTINGS = "isolated = true"  # of the last one
LOAD_S = (0.001, 0.04)
START_S = 0.6  # a start that is killed lives at most so long
LOGS_EVERY = 10  # cycles: what they publish is far less than what retention keeps


class KillCycles:
    """A broker under load, and what it promises.  A context manager: the broker is gone at the end."""

    def __init__(self, runtime_dir: Path, state_dir: Path, seed: int, *, module: str = "edge") -> None:
        self.random = Random(seed)
        self.broker = LoggedBroker(runtime_dir, state_dir, LEVELS, module=module, settings=SETTINGS)
        self.promises = {name: Promises(name, logged=level != "process") for name, level in LEVELS.items()}
        self.publishers = [it.publisher for it in self.promises.values()]
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
        for its in self.promises.values():
            its.check_ring(self.broker.runtime_dir)

    def look_into_logs(self) -> None:
        """After a clean stop the logs have everything.  Raises Lost."""
        self.broker.stop()
        logged = [it for it in self.promises.values() if it.logged]
        directory = self.broker.state_dir / "log"
        found = in_log(directory, self.broker.state_dir / "copy", [it.ring_name for it in logged])
        for it in logged:
            it.check_log(found[it.ring_name])
            it.forget()
        self.counts["looks into the logs"] += 1

    def acknowledged(self) -> dict[str, int]:
        """Messages by level."""
        return {name: it.acknowledged for name, it in self.promises.items()}


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
