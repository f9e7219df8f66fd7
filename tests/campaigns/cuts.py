"""The power cut under a broker that is busy: what it acknowledged at `disk` is on the disk that is left.

The disk is a FUSE file system that loses what a real one may lose (tests/support/lossy_fs.py); the rings are
memory, and gone.  In each cycle publishers publish for a moment and the power goes in the middle of it; the
broker lives a little longer, without a disk, and must not acknowledge by it.  Then what the disk has kept is
recovered from a copy, and the broker is started on it, sometimes into the next cut.

Sometimes the broker is killed first, and started again: then the cut comes while it recovers, or when it has
told clients what it has found, in rings that survived and in the kernel's memory, both of which go with the
power.

Two clients keep their sessions through all of it, and say at once when the broker does not (exactly_once.py).
Two more do the same with delayed messages, which may come twice.
"""

import shutil
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
from tests.support.exactly_once import Collector, Sender
from tests.support.logged_broker import LoggedBroker, in_log
from tests.support.lossy_mount import LossyMount, missing
from tests.support.outside_client import Lost, OutsideClient, drain, pump
from tests.support.promises import Promises
from tests.support.waiting import PATIENCE_S

LEVELS = {"interval": "interval", "disk": "disk", "alone": "disk"}
KEPT = "kept"  # the stream of the clients that keep their sessions: they are shown what stays
KEPT_RING = f"{KEPT}-0"
LATE = "late"  # the stream of delayed messages
SETTINGS = f"""
isolated = true  # the last of the above
[[stream]]
name = "{KEPT}"
topics = ["{KEPT}/#"]
ring_bytes = 4194304
durability = "disk"
visible = "durable"
[[stream]]
name = "{LATE}"
topics = ["{LATE}/#"]
ring_bytes = 4194304
durability = "disk"
[delayed]
enabled = true
durability = "disk"
"""
WINDOWS = {"interval": 2, "disk": 64}  # So that what needs no sync does not fill the log.
LOAD_S = (0.001, 0.05)
AFTER_S = 0.01  # that the broker lives without power
START_S = 0.6
KILLED_FIRST = 0.3  # share of cuts
CYCLES = 10  # of one seed
FORGET_EVERY = 10  # cycles: what they publish is far less than what retention keeps


class PowerCuts:
    """A broker on a lossy disk, and what it promises.  A context manager."""

    def __init__(
        self,
        memory: Path,
        mount: LossyMount,
        seed: int,
        *,
        module: str = "edge",
        killed_first: float = KILLED_FIRST,
    ) -> None:
        self.random = Random(seed)
        self.killed_first = killed_first
        self.mount = mount
        self.memory = memory
        self.broker = LoggedBroker(
            memory / "run",
            mount.path / "state",
            LEVELS,
            module=module,
            settings=SETTINGS,
            retain_mib=48,
            direct=self.random.random() < 0.5,
        )
        self.promises = {
            name: Promises(name, logged=level == "disk", window=WINDOWS[level])
            for name, level in LEVELS.items()
        }
        self.publishers = [it.publisher for it in self.promises.values()]
        self.sender, self.collector = Sender("sender", f"{KEPT}/t"), Collector("collector", f"{KEPT}/#")
        self.delaying = Sender("delaying", f"$delayed/1/{LATE}/t")
        self.late = Collector("late", f"{LATE}/#", repeated=True)
        self.senders, self.collectors = [self.sender, self.delaying], [self.collector, self.late]
        self.clients: list[OutsideClient] = [*self.publishers, *self.senders, *self.collectors]
        self.counts: Counter[str] = Counter()

    def __enter__(self) -> Self:
        with ExitStack() as on_failure:
            on_failure.push(self)
            self.broker.start()
            for collector in self.collectors:
                collector.connect(self.broker.port)
            self._until(lambda: all(collector.subscribed for collector in self.collectors))
            on_failure.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for it in self.clients:
            it.close()
        self.broker.close()

    def cycle(self) -> None:
        """Load, cut, look, start.  Raises Lost."""
        for it in self.clients:
            it.connect(self.broker.port)
        self._pump(self.random.uniform(*LOAD_S))
        if self.random.random() < self.killed_first:
            self._kill_first()
        self._cut(AFTER_S)
        self.counts["power cuts under load"] += 1
        while self.random.random() < 0.15:
            self.broker.spawn()
            time.sleep(self.random.uniform(0, START_S))
            self._cut(0)
            self.counts["power cuts in a start"] += 1
        self._look()
        if self.counts["power cuts under load"] % FORGET_EVERY == 0:
            for its in self.promises.values():
                its.forget()
        self.broker.start()

    def _kill_first(self) -> None:
        """With -9; and the next start, of which the cut will see the beginning, or what it tells clients."""
        self.broker.kill()
        drain(self.clients)
        self.counts["kills before a cut"] += 1
        if self.random.random() < 0.3:
            self.broker.spawn()
            time.sleep(self.random.uniform(0, START_S))
            return
        self.broker.start()
        for it in self.clients:
            it.connect(self.broker.port)
        self._pump(self.random.uniform(*LOAD_S))

    def settle(self) -> None:
        """Those who keep their sessions have all there is.  Raises Lost."""
        pairs = list(zip(self.senders, self.collectors, strict=True))
        for sender, collector in pairs:
            sender.resting = True
            sender.connect(self.broker.port)
            collector.connect(self.broker.port)
        self._until(lambda: all(sent.waiting == 0 and len(got.numbers) >= sent.sent for sent, got in pairs))
        for sender, collector in pairs:
            sender.resting = False
            if missing := set(range(sender.sent)) - collector.numbers:
                which = f"of QoS 2 to {sender.topic.decode()} are lost, the first is {min(missing)}"
                raise Lost(f"{len(missing)} messages {which}")

    def _until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_S
        pump([*self.senders, *self.collectors], lambda: condition() or time.monotonic() > end)

    def _pump(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        pump(self.clients, lambda: time.monotonic() > end)

    def _cut(self, after_s: float) -> None:
        self.mount.cut(self.random.randrange(1 << 32))
        self._pump(after_s)
        self.broker.kill()
        drain(self.clients)
        shutil.rmtree(self.memory / "run", ignore_errors=True)
        self.mount.boot()

    def _look(self) -> None:
        names = [*(it.ring_name for it in self.promises.values()), KEPT_RING]
        with TemporaryDirectory() as copy:
            found = in_log(self.mount.path / "state" / "log", Path(copy) / "log", names)
        for its in self.promises.values():
            its.check_log(found[its.ring_name])
        logged = Counter(number for _, number in set(found[KEPT_RING]))
        if lost := self.collector.numbers.difference(logged):
            which = f"{min(lost)} to {max(lost)}"
            raise Lost(f"{len(lost)} were shown as durable and are not in the log: {which}")
        if doubled := [number for number, count in logged.items() if count > 1]:
            which = f"{min(doubled)} to {max(doubled)}"
            raise Lost(f"{len(doubled)} of QoS 2 are in the log more than once: {which}")
        self.counts["shown, and looked for"] += len(self.collector.numbers)

    def acknowledged(self) -> dict[str, int]:
        """Messages by level."""
        levels = {name: it.acknowledged for name, it in self.promises.items()}
        levels |= {KEPT: self.sender.done, LATE: self.delaying.done}
        return {f"acknowledged at {name}": count for name, count in levels.items()}


def run_seed(seed: int) -> Outcome:
    """One broker and its disk."""
    wrong = []
    with memory_directory() as memory, LossyMount() as mount, PowerCuts(memory, mount, seed) as campaign:
        try:
            for _ in range(CYCLES):
                campaign.cycle()
            campaign.settle()
        except Lost as error:
            wrong.append(f"seed {seed}: {error}")
        counts = campaign.counts + Counter(campaign.acknowledged())
    return counts, wrong


CUTS = Campaign(
    name="cut",
    what="power cuts under the broker, on a file system that loses what was not synced",
    unit="power cuts under load",
    wanted=300,
    run_seed=run_seed,
    missing=missing,
)
