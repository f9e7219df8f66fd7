"""The broker killed with -9 at random moments, under load: what it acknowledged is there after the restart.

A stream of each level with a publisher of QoS 1, and two with a publisher of QoS 2, whose session is kept;
two subscribers with sessions that are kept, one that is there when the broker dies and one that comes
afterwards.  All of them are another process than the broker, and their ledgers survive it.  In each
cycle they publish for a moment, the broker is killed, also while it starts, and started again.  Then every
number that was ever acknowledged must have been found in the rings, once and in order, and what is in the
rings must reach both subscribers, exactly once if it is of QoS 2; and at the end, after a clean stop, it must
be in the logs.
"""

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Self

from tests.campaigns.running import Campaign, Outcome
from tests.support.directories import memory_directory
from tests.support.logged_broker import LoggedBroker, in_log
from tests.support.outside_client import Lost, drain, pump
from tests.support.outside_subscriber import OutsideSubscriber
from tests.support.promises import Promises
from tests.support.waiting import PATIENCE_S

LEVELS = {
    "process": "process",
    "interval": "interval",
    "disk": "disk",
    "once": "process",
    "once-disk": "disk",
    "alone": "disk",
}
SETTINGS = "isolated = true"  # of the last one
LOAD_S = (0.001, 0.04)
START_S = 0.6  # a start that is killed lives at most so long
CYCLES = 10  # of one seed: what they publish is far less than what retention keeps


class KillCycles:
    """A broker under load, and what it promises.  A context manager: the broker is gone at the end."""

    def __init__(self, runtime_dir: Path, state_dir: Path, seed: int, *, module: str = "edge") -> None:
        self.random = Random(seed)
        self.broker = LoggedBroker(
            runtime_dir,
            state_dir,
            LEVELS,
            module=module,
            settings=SETTINGS,
            direct=self.random.random() < 0.5,
        )
        self.promises = {
            name: Promises(name, logged=level != "process", qos=2 if name.startswith("once") else 1)
            for name, level in LEVELS.items()
        }
        self.publishers = [it.publisher for it in self.promises.values()]
        topics = [it.topic for it in self.publishers]
        self.awake, self.asleep = (OutsideSubscriber(name, topics) for name in ("awake", "asleep"))
        self.counts: Counter[str] = Counter()

    def __enter__(self) -> Self:
        with ExitStack() as on_failure:
            on_failure.push(self)
            self.broker.start()
            for it in (self.awake, self.asleep):
                it.connect(self.broker.port)
            self._pump_until(lambda: self.awake.subscribed and self.asleep.subscribed, "no SUBACK")
            self.asleep.close()
            on_failure.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for it in (*self.publishers, self.awake, self.asleep):
            it.close()
        self.broker.close()

    def cycle(self) -> None:
        """Load, kill, start, look.  Raises Lost."""
        for it in self.publishers:
            it.connect(self.broker.port)
        everybody = [*self.publishers, self.awake]
        end = time.monotonic() + self.random.uniform(*LOAD_S)
        pump(everybody, lambda: time.monotonic() > end)
        self.broker.kill()
        drain(everybody)
        self.counts["kills under load"] += 1
        while self.random.random() < 0.15:
            self.broker.spawn()
            time.sleep(self.random.uniform(0, START_S))
            self.broker.kill()
            self.counts["kills in a start"] += 1
        self.broker.start()
        self._look()

    def _look(self) -> None:
        news = {it.publisher.topic: it.check_ring(self.broker.runtime_dir) for it in self.promises.values()}
        for subscriber in (self.awake, self.asleep):
            subscriber.connect(self.broker.port)
            wanted = {topic: set(numbers) for topic, numbers in news.items()}
            self._pump_until(
                lambda: all(wanted[it] <= subscriber.arrived[it] for it in wanted),  # noqa: B023
                f"what the rings hold does not reach {subscriber.client_id}",
            )
            for topic, numbers in subscriber.arrived.items():
                if beyond := numbers - wanted[topic]:
                    raise Lost(f"{subscriber.client_id}: {topic} {min(beyond)} arrived and is in no ring")
                self.counts[f"delivered to {subscriber.client_id}"] += len(numbers)
                subscriber.forget(topic)
        self.asleep.close()

    def _pump_until(self, condition: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        both = [self.awake, self.asleep]
        pump(both, lambda: condition() or time.monotonic() > deadline)
        if not condition():
            raise Lost(otherwise)

    def look_into_logs(self) -> None:
        """After a clean stop the logs have everything.  Raises Lost."""
        self.broker.stop()
        logged = [it for it in self.promises.values() if it.logged]
        directory = self.broker.state_dir / "log"
        found = in_log(directory, self.broker.state_dir / "copy", [it.ring_name for it in logged])
        for it in logged:
            it.check_log(found[it.ring_name])

    def acknowledged(self) -> dict[str, int]:
        """Messages by level."""
        return {f"acknowledged at {name}": it.acknowledged for name, it in self.promises.items()}


def run_seed(seed: int) -> Outcome:
    """One broker."""
    wrong = []
    with (
        memory_directory() as memory,
        TemporaryDirectory() as disk,
        KillCycles(memory / "run", Path(disk), seed) as campaign,
    ):
        try:
            for _ in range(CYCLES):
                campaign.cycle()
            campaign.look_into_logs()
        except Lost as error:
            wrong.append(f"seed {seed}: {error}")
        counts = campaign.counts + Counter(campaign.acknowledged())
    return counts, wrong


KILLS = Campaign(
    name="kill",
    what="the broker killed with -9 under load",
    unit="kills under load",
    wanted=1_000,
    run_seed=run_seed,
)
