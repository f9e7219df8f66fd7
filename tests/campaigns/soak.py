"""The soak: a broker under mixed load for minutes, and a ledger of what its clients were promised.

    steady     publishers of QoS 0, 1 and 2 at a pace, each with a subscriber; now and then one loses its
               connection (tests/support/soak_clients.py).  Streams: in memory, logged, logged at `disk`
    guests     sessions of MQTT 3.1.1 and 5 that come and go, wills, retained messages, groups of subscribers
               (soak_guests.py, a process)
    slow       subscribers that read a little, and one that never acknowledges
    lake       a bridge to a directory
    work       a consumer group whose members join and leave (soak_member.py, processes)
    operator   management commands: status, clients, tap, reload of a changed bridge, backup and so on
               (soak_operator.py, a process)
    honest     clients with an exact schedule: the longest time from a PUBLISH that was due to its delivery is
               the longest pause of service (honest_clients.py, a process)

In the end everything that was acknowledged has arrived, and QoS 2 once; memory and descriptors are as they
were; the broker has logged no error.  The campaign also judges the pause and the pace, which need a machine
that has nothing else to do; the default test does not.

Memory is that in use without the queues of messages (tests/support/measured_broker.py).  Queues of slow
subscribers fill for a minute or more, and again whenever the machine is busy; the resident memory keeps their
largest size.  Rings, the session journal and the spill file are shared memory of a fixed size.  The log is
small, so that its tables reach their limits in the first third.  From then on memory may not grow: judged is
the median of the slopes between any two samples of the rest (Theil-Sen), as growth a minute, and times the
time as growth in all.
"""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from itertools import combinations
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple, Self

from tests.campaigns.running import Campaign, Outcome, broken_by
from tests.support.brim_process import BrimProcess
from tests.support.children import ModuleChild
from tests.support.dense_number_set import DenseNumberSet
from tests.support.directories import memory_directory
from tests.support.drained_files import payloads_drained
from tests.support.outside_client import Lost, number_of
from tests.support.project import ROOT
from tests.support.soak_clients import PacedPublisher, SlowSubscriber, SteadySubscriber
from tests.support.waiting import PATIENCE_S

MINUTES, RATE = 10.0, 20_000.0
PAUSE_MAX_MS = 1_000
PACE_MIN = 0.9  # of the rate
SAMPLE_S = 2.0
SETTLE_S = 60.0  # for what was acknowledged to arrive
LOSE_S = (0.5, 3.0)  # between two steady clients that lose their connection
REPORT_S = 15.0
MEMBERS = 2
WARNINGS_SHOWN = 10
GROWTH_MAX_KIB_PER_MINUTE = 512  # of the broker's own memory, behind the warm-up
WARM_UP = 1 / 3  # of the time
DESCRIPTORS_MAX = 16  # more than before the load, after it: segments, threads that were not there
SETTINGS = """
[consumers]
enabled = true
[log]
segment_bytes = "1 MiB"
retain_bytes = "16 MiB"
[[stream]]
name = "disk"
topics = ["disk/#"]
durability = "disk"
queue_timeout_ms = 10000
ring_bytes = "16 MiB"
[[stream]]
name = "interval"
topics = ["interval/#"]
durability = "interval"
sync_interval_ms = 200
queue_timeout_ms = 10000
ring_bytes = "16 MiB"
[[stream]]
name = "lake"
topics = ["lake/#"]
durability = "interval"
queue_timeout_ms = 10000
ring_bytes = "16 MiB"
[[stream]]
name = "work"
topics = ["work/#"]
ring_bytes = "64 MiB"
[[bridge]]
name = "lake"
to = "$SINK"
streams = ["lake"]
"""
# Topic, QoS, share of the rate, whether a steady subscriber takes it.
LOAD = (
    ("plain/a", 0, 0.25, True),
    ("plain/b", 0, 0.20, True),
    ("plain/c", 1, 0.15, True),
    ("plain/d", 1, 0.10, True),
    ("interval/a", 1, 0.12, True),
    ("disk/a", 1, 0.08, True),
    ("plain/e", 2, 0.03, True),
    ("disk/b", 2, 0.02, True),
    ("lake/a", 1, 0.03, False),
    ("work/a", 1, 0.02, False),
)


class Terms(NamedTuple):
    """Size of a soak, and whether time is judged."""

    seconds: float = MINUTES * 60
    rate: float = RATE  # messages a second of the steady publishers
    guests: float = 120.0  # operations of guests a second
    honest: float = 200.0  # messages a second of the honest clients
    tick_s: float = 0.005  # between two looks at the steady clients
    sample_s: float = SAMPLE_S
    settle_s: float = SETTLE_S
    noise_kib: int = 2 << 10  # total growth that is permitted: of a short soak the warm-up is not over
    judged: bool = True
    module: str = "tests.support.measured_broker"  # of the broker


class Sample(NamedTuple):
    """Resources of the broker's process at one moment."""

    at_s: float  # of the monotonic clock
    memory_kib: int  # in use, without queues of messages
    descriptors: int


def sample_of(pid: int, measured: Path) -> Sample:
    """Of a running process, which writes `measured`."""
    return Sample(time.monotonic(), int(measured.read_text()), len(list(Path(f"/proc/{pid}/fd").iterdir())))


def growth_of(samples: Sequence[Sample]) -> float:
    """Return the KiB a minute by which memory grows: the median of the slopes between any two samples."""
    slopes = [(b.memory_kib - a.memory_kib) / (b.at_s - a.at_s) for a, b in combinations(samples, 2)]
    return 60 * median(slopes or [0.0])


class Soak:
    """One broker, its load and its ledger.  A context manager: all processes are gone at the end."""

    def __init__(self, memory: Path, disk: Path, options: Terms, seed: int) -> None:
        self.terms = options
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.samples: list[Sample] = []
        self._random = Random(seed)
        self._seed = seed
        self._disk = disk
        self._measured = disk / "memory"
        settings = SETTINGS.replace("$SINK", (disk / "lake").as_uri())
        self.broker = BrimProcess(
            memory / "run", disk, settings, bridge=False, log_level="warning", module=options.module
        )
        self.publishers = [PacedPublisher(topic, qos, options.rate * share) for topic, qos, share, _ in LOAD]
        self.subscribers = [SteadySubscriber(topic, qos) for topic, qos, _, taken in LOAD if taken]
        self._slow = [
            SlowSubscriber("interval/a", 1, acknowledges=True),
            SlowSubscriber("plain/a", 0, acknowledges=True),
            SlowSubscriber("plain/c", 1, acknowledges=False),
        ]
        self._children = ExitStack()
        self._ledgers = [disk / f"member-{number}" for number in range(MEMBERS)]

    def __enter__(self) -> Self:
        with ExitStack() as on_failure:
            on_failure.push(self)
            self.broker.start(MEASURED=str(self._measured))
            on_failure.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for it in self._clients:
            it.close()
        self._children.close()
        if self.broker.running:
            self.broker.kill()

    def run(self) -> None:
        """All of it."""
        self._begin()
        before = sample_of(self.broker.pid, self._measured)
        self._load()
        self._end()
        self._settle()
        self._judge_samples(before)
        self._judge_log()
        self._judge_lake()

    # ---- the load ----

    def _begin(self) -> None:
        port = self.broker.port
        for it in (*self.subscribers, *self._slow):
            it.connect(port)
        self._work_until(lambda: all(it.subscribed for it in self.subscribers), "no SUBACK")
        self._guests = self._child("tests.support.soak_guests", port, 4, self.terms.guests, self._seed)
        self._honest = self._child("tests.support.honest_clients", port, 10, self.terms.honest)
        for child in (self._guests, self._honest):
            child.lines_until("ready")
        place = self.broker.runtime_dir
        (backups := self._disk / "backups").mkdir()
        self._operator = self._child(
            "tests.support.soak_operator", place, self.broker.config, backups, self._seed
        )
        self._members = [
            self._child("tests.support.soak_member", place, ledger, "work/#", self._seed + number)
            for number, ledger in enumerate(self._ledgers)
        ]

    def _child(self, module: str, *arguments: object) -> ModuleChild:
        return self._children.enter_context(ModuleChild(module, *arguments))

    @property
    def _clients(self) -> list[PacedPublisher | SteadySubscriber | SlowSubscriber]:
        return [*self.publishers, *self.subscribers, *self._slow]

    def _load(self) -> None:
        for it in self.publishers:
            it.connect(self.broker.port)
        began_s = time.monotonic()
        sample_s = lose_s = began_s
        report_s = began_s + REPORT_S
        while (now_s := time.monotonic()) < began_s + self.terms.seconds:
            self._work(now_s)
            if now_s > sample_s:
                sample_s = now_s + self.terms.sample_s
                self.samples.append(sample_of(self.broker.pid, self._measured))
            if now_s > lose_s:
                lose_s = now_s + self._random.uniform(*LOSE_S)
                self._lose()
            if now_s > report_s:
                report_s = now_s + REPORT_S
                self._report(now_s - began_s)
            time.sleep(max(0.0, self.terms.tick_s - (time.monotonic() - now_s)))
        sent, seconds = sum(it.sent for it in self.publishers), time.monotonic() - began_s
        self._report(seconds)
        self.counts["messages a second"] = int(sent / seconds)
        self._judge_pace()

    def _work(self, now_s: float) -> None:
        for it in self._clients:
            it.work(now_s)

    def _lose(self) -> None:
        """The connection of one; of QoS 0 that would lose messages, which are not promised."""
        lasting: list[PacedPublisher | SteadySubscriber] = [*self.publishers, *self.subscribers]
        client = self._random.choice(lasting)
        if client.qos and client.connected:
            client.connect(self.broker.port)
            self.counts["connections lost"] += 1

    def _report(self, seconds: float) -> None:
        """Ask the honest clients about the time since the last report."""
        self._honest.say("")
        honest = json.loads(self._honest.line())
        pause_ms = round(honest["max_ms"])
        self.counts["honest messages"] += honest["sent"]
        self.counts["longest pause ms"] = max(self.counts["longest pause ms"], pause_ms)
        if honest["lost"]:
            self.wrong.append(f"{honest['lost']} messages of honest clients did not arrive")
        if self.terms.judged:
            sent, now = sum(it.sent for it in self.publishers), self.samples[-1]
            print(
                f"soak  {seconds:.0f} of {self.terms.seconds:.0f} s  {sent:,} messages  "
                f"pause {pause_ms} ms  memory {now.memory_kib:,} KiB  descriptors {now.descriptors}",
                flush=True,
            )

    def _judge_pace(self) -> None:
        if not self.terms.judged:
            return
        pause_ms, pace = self.counts["longest pause ms"], self.counts["messages a second"]
        if pause_ms > PAUSE_MAX_MS:
            self.wrong.append(f"a pause of {pause_ms} ms (allowed: {PAUSE_MAX_MS})")
        if pace < PACE_MIN * self.terms.rate:
            self.wrong.append(f"{pace} messages a second (of {self.terms.rate:.0f})")

    # ---- the end ----

    def _end(self) -> None:
        self._end_operator()
        for it in self.publishers:
            it.rest()
        self._guests.say("")
        self._honest.kill()
        self._work_until(lambda: all(it.waiting == 0 for it in self.publishers), "publishers get no answer")
        ledger = json.loads(self._guests.line())
        self.counts += Counter({f"guests {name}": count for name, count in ledger["counts"].items()})
        self.counts["guests longest wait ms"] = ledger["longest_ms"]
        self.wrong += ledger["wrong"]

    def _end_operator(self) -> None:
        """After the load, since a command may take long; its ledger is part of that of the soak."""
        status, out, errors = self._operator.stop()
        if status:
            self.wrong.append(f"the operator ended with {status}: {errors[-300:]}")
            return
        ledger = json.loads(out)
        self.counts += Counter({f"operator {verb}": count for verb, count in ledger["counts"].items()})
        self.wrong += ledger["wrong"]

    def _settle(self) -> None:
        taken = {it.topic: it for it in self.subscribers}
        pairs = [(it, taken[it.topic]) for it in self.publishers if it.topic in taken]
        sure = [(publisher, taker) for publisher, taker in pairs if publisher.qos]
        self._work_until(
            lambda: all(taker.arrived.next >= publisher.acked.next for publisher, taker in sure), ""
        )
        for publisher, taker in sure:
            self._compare(publisher.topic, publisher.acked, taker.arrived, "subscriber")
            if taker.arrived.lacks(publisher.acked):
                self.wrong.append(f"{publisher.topic}: the broker counts {self._drops_of(taker.client_id)}")
        for publisher in self.publishers:
            self.counts["messages"] += publisher.sent
            self.counts["acknowledged"] += len(publisher.acked)
            self.counts["paced too slow"] += publisher.skipped
        for taker in self.subscribers:
            self.counts["delivered"] += taker.count
            self.counts["delivered again, QoS 1"] += taker.again
        self.counts["read slowly"] = sum(it.count for it in self._slow)
        self._settle_group(self._publisher("work/a").acked)

    def _drops_of(self, client_id: str) -> str:
        """Records that the broker dropped for a client, by cause: a queue may have been full."""
        words = ("-m", "edge", "status", "--json", "--clients", "--runtime-dir", self.broker.runtime_dir)
        status = subprocess.run([sys.executable, *words], capture_output=True, cwd=ROOT, check=False)
        rows = json.loads(status.stdout)["clients"]
        return next((str(row["dropped"]) for row in rows if row["client_id"] == client_id), "no such client")

    def _publisher(self, topic: str) -> PacedPublisher:
        return next(it for it in self.publishers if it.topic == topic)

    def _compare(self, topic: str, wanted: DenseNumberSet, found: DenseNumberSet, where: str) -> None:
        if missing := found.lacks(wanted):
            text = f"{topic}: {len(missing)} acknowledged did not reach the {where}"
            self.wrong.append(f"{text}: {missing[0]} to {missing[-1]}")

    def _settle_group(self, wanted: DenseNumberSet) -> None:
        found, at = DenseNumberSet(), [0] * MEMBERS

        def has_all() -> bool:
            for index, ledger in enumerate(self._ledgers):
                data = ledger.read_bytes()[at[index] :] if ledger.exists() else b""
                whole = data[: data.rfind(b"\n") + 1]
                at[index] += len(whole)
                for number in whole.replace(b"\n", b",").split(b",")[:-1]:
                    found.add(int(number))
            return found.next >= wanted.next

        self._work_until(has_all, "", step_s=0.2)
        self._compare("work/a", wanted, found, "consumer group")
        self.counts["consumed"] = len(found)
        for member in self._members:
            status, _, errors = member.stop()
            if status or errors:
                self.wrong.append(f"a member of the group ended with {status}: {errors[-300:]}")

    def _work_until(self, condition: object, otherwise: str, *, step_s: float = 0.005) -> None:
        """Let all clients work until that holds; too late is wrong, if `otherwise` says what."""
        assert callable(condition)
        deadline = time.monotonic() + self.terms.settle_s
        while not condition():
            if (now_s := time.monotonic()) > deadline:
                if otherwise:
                    raise Lost(otherwise)
                return
            self._work(now_s)
            time.sleep(step_s)

    # ---- judging ----

    def _judge_samples(self, before: Sample) -> None:
        """Memory behind the warm-up, and descriptors when all clients are gone."""
        self._judge_memory()
        for it in self._clients:
            it.close()
        deadline = time.monotonic() + PATIENCE_S
        most = before.descriptors + DESCRIPTORS_MAX
        while (
            after := sample_of(self.broker.pid, self._measured)
        ).descriptors > most and time.monotonic() < deadline:
            time.sleep(0.1)
        self.counts["descriptors"], self.counts["descriptors at the end"] = (
            before.descriptors,
            after.descriptors,
        )
        if after.descriptors > most:
            self.wrong.append(f"descriptors grew from {before.descriptors} to {after.descriptors}")

    def _judge_memory(self) -> None:
        warm = self.samples[int(len(self.samples) * WARM_UP) :]
        growth = growth_of(warm)
        grown = growth * (warm[-1].at_s - warm[0].at_s) / 60
        self.counts["memory KiB"] = warm[0].memory_kib
        self.counts["memory KiB at the end"] = warm[-1].memory_kib
        self.counts["memory growth KiB a minute"] = round(growth)
        if growth > GROWTH_MAX_KIB_PER_MINUTE and grown > self.terms.noise_kib:
            limit = GROWTH_MAX_KIB_PER_MINUTE
            self.wrong.append(f"memory grows by {growth:.0f} KiB a minute (allowed: {limit})")

    def _judge_log(self) -> None:
        log = self.broker.stop()
        errors = [line for line in log.splitlines() if " ERROR " in line or line.startswith("Traceback")]
        warnings = [line for line in log.splitlines() if " WARNING " in line]
        self.counts["warnings"] = len(warnings)
        for line in warnings[:WARNINGS_SHOWN]:
            print(f"the broker warned: {line}", flush=True)
        self.wrong += [f"the broker logged: {line}" for line in errors[:WARNINGS_SHOWN]]

    def _judge_lake(self) -> None:
        """After a clean stop, which drains what there is; the next start drains the rest."""
        wanted, publisher = DenseNumberSet(), self._publisher("lake/a")
        for payload in payloads_drained(self._disk / "lake"):
            wanted.add(number_of(payload))
        self.counts["drained"] = len(wanted)
        self._compare("lake/a", publisher.acked, wanted, "lake")


def run_soak(options: Terms, seed: int) -> Outcome:
    """One soak."""
    with (
        memory_directory() as memory,
        TemporaryDirectory() as disk,
        Soak(memory, Path(disk), options, seed) as soak,
    ):
        wrong = broken_by(soak.run, seed, soak.wrong)
    return soak.counts + Counter(soaks=1), wrong


def soak_for(minutes: float, rate: float) -> Campaign:
    """The campaign of that length."""
    options = Terms(seconds=minutes * 60, rate=rate)
    return SOAK._replace(run_seed=partial(run_soak, options))


SOAK = Campaign(
    name="soak",
    what="a broker under mixed load for minutes: nothing lost, memory flat, no pause",
    unit="soaks",
    wanted=1,
    run_seed=partial(run_soak, Terms()),
)
