"""All features together on one broker that is killed, restarted, reloaded and backed up, with one ledger.

    streams     in memory (a), synced each 200 ms (b), at `disk` (c, isolated), at `disk` and visible when
                durable (d), at `upstream` (u); small segments, which become archives
    devices     publishers of QoS 1 to each, of QoS 2 to a and c, and one of delayed messages for b
    sessions    two subscribers of all topics: one that is there when the broker dies, and one that is away
    work        a consumer group of the topics b and c, whose members are killed
    lake        a bridge that writes Parquet, one that writes drained files, and one to a second broker,
                which is restarted too
    operator    SQL on all records, backups, reloads, by commands
    rules       with half of the seeds, an access list that permits all of it

After each kill the lake has all that was acknowledged at `upstream`.  In the end each acknowledged message
reached both subscribers, the group, both lakes and the second broker; messages of QoS 2 arrived once; no
identity of a record is twice in a lake; no query reported missing records; a restored backup has all that was
acknowledged before it was begun; no broker has logged an error.
"""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from subprocess import DEVNULL, PIPE
from tempfile import TemporaryDirectory
from typing import Self

from tests.campaigns.running import Campaign, Outcome, broken_by
from tests.support.brim_process import BrimProcess
from tests.support.children import ModuleChild
from tests.support.directories import memory_directory
from tests.support.mixed_clients import AnyOrderSubscriber, devices
from tests.support.mixed_ledger import MixedLedger, Numbers, lacking
from tests.support.outside_client import Lost, OutsideClient, drain, pump
from tests.support.project import ROOT

STEPS = (14, 24)  # of one seed
EVENTS = (
    "kill",
    "kill",
    "restart",
    "restart_second",
    "kill_member",
    "come_and_go",
    "query",
    "back_up",
    "reload",
)
LOAD_S = (0.1, 1.5)
MESSAGES_MAX = 2_000  # of a publisher in one step
SETTLE_S = 90.0
COMMAND_S = 120.0
STREAMS = """
[limits]
queued_records_max = 1000000
[delayed]
enabled = true
durability = "disk"
[log]
segment_bytes = "1 MiB"
archive = true
[[stream]]
name = "b"
topics = ["b/#"]
durability = "interval"
sync_interval_ms = 200
queue_timeout_ms = 60000
ring_bytes = "16 MiB"
[[stream]]
name = "c"
topics = ["c/#"]
durability = "disk"
isolated = true
queue_timeout_ms = 60000
ring_bytes = "16 MiB"
[[stream]]
name = "d"
topics = ["d/#"]
durability = "disk"
visible = "durable"
queue_timeout_ms = 60000
ring_bytes = "16 MiB"
"""
BRIDGES = """
[[stream]]
name = "u"
topics = ["u/#"]
durability = "upstream"
queue_timeout_ms = 60000
ring_bytes = "16 MiB"
[[bridge]]
name = "parquet"
to = "$DIR/parquet"
options = { format = "parquet" }
linger_ms = 500
[[bridge]]
name = "files"
to = "$DIR/files"
linger_ms = 300
[[bridge]]
name = "second"
to = "mqtt://127.0.0.1:$SECOND"
streams = ["b", "c", "d", "u"]
"""
RULES = "pattern readwrite #\ntopic readwrite #\ntopic readwrite $delayed/#\n"


class Mixed:
    """Both brokers and all clients.  A context manager: all processes are gone at the end."""

    def __init__(self, memory: Path, disk: Path, seed: int, events: Sequence[str]) -> None:
        self.ledger = MixedLedger()
        self._memory, self._disk, self._seed, self._events = memory, disk, seed, events
        self._random = Random(seed)
        for name in ("first", "second", "backup"):
            (disk / name).mkdir()
        self._second = BrimProcess(memory / "run2", disk / "second", bridge=False, edge="second")
        bridges = BRIDGES.replace("$DIR", disk.as_uri()).replace("$SECOND", str(self._second.port))
        rules = self._rules() if self._random.random() < 0.5 else ""
        self._broker = BrimProcess(memory / "run", disk / "first", rules + STREAMS + bridges, bridge=False)
        self._devices = devices()
        topics = [it.topic for it in self._devices]
        self._awake, self._away = (AnyOrderSubscriber(name, topics) for name in ("awake", "away"))
        self._behind = AnyOrderSubscriber("behind", [*self._acknowledged(logged=True)])
        self._members: list[ModuleChild] = []
        self._noted: list[Path] = []
        self._backups: list[tuple[Path, Numbers]] = []

    def _rules(self) -> str:
        (self._disk / "rules").write_text(RULES)
        self.ledger.counts["with rules"] += 1
        return f"[auth]\nacl_file = {json.dumps(str(self._disk / 'rules'))}\n"

    def __enter__(self) -> Self:
        with ExitStack() as on_failure:
            on_failure.push(self)
            self._second.start()
            self._broker.start()
            takers = (self._awake, self._away, self._behind)
            for it in takers:
                it.connect(self._second.port if it is self._behind else self._broker.port)
            self._until(lambda: all(it.subscribed for it in takers), "no SUBACK")
            self._away.close()
            self._join()
            on_failure.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.close()
        for member in self._members:
            member.__exit__(None)
        for broker in (self._broker, self._second):
            if broker.running:
                broker.kill()

    @property
    def _clients(self) -> list[OutsideClient]:
        return [*(it.publisher for it in self._devices), self._awake, self._away, self._behind]

    def _acknowledged(self, *, logged: bool) -> Numbers:
        return {it.topic: set(it.publisher.acked) for it in self._devices if it.logged or not logged}

    # ---- steps ----

    def run(self) -> None:
        """Load and one event after the other, then the end."""
        for event in self._events:
            self._load()
            getattr(self, f"_{event}")()
        self._load()
        self._settle()

    def _load(self) -> None:
        for it in self._devices:
            it.publisher.limit = it.publisher.sent + self._random.randrange(MESSAGES_MAX)
        for client in self._clients:
            if client is not self._away and not client.connected:
                client.connect(self._second.port if client is self._behind else self._broker.port)
        self._work(self._random.uniform(*LOAD_S))

    def _work(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        pump(self._clients, lambda: time.monotonic() > end)

    def _kill(self) -> None:
        self._broker.kill()
        self._begin_again()
        self.ledger.counts["kills"] += 1

    def _restart(self) -> None:
        self.ledger.read_log(self._broker.stop())
        self._begin_again()
        self.ledger.counts["restarts"] += 1

    def _begin_again(self) -> None:
        drain([it for it in self._clients if it is not self._behind])
        upstream = {"u/1": self._acknowledged(logged=True)["u/1"]}
        self.ledger.compare_rows(self._disk / "parquet", upstream, "the lake at an end")
        self._broker.start()

    def _restart_second(self) -> None:
        self._second.kill()
        drain([self._behind])
        self._second.start()
        self.ledger.counts["kills of the second broker"] += 1

    def _come_and_go(self) -> None:
        """The subscriber that is away comes for a moment."""
        self._away.connect(self._broker.port)
        self._work(self._random.uniform(0.0, 0.3))
        self._away.close()

    def _join(self) -> None:
        """A member of the consumer group."""
        self._noted.append(self._disk / f"member-{len(self._noted)}")
        words = (self._broker.runtime_dir, self._noted[-1], "+/1", self._seed + len(self._noted), "received")
        self._members.append(ModuleChild("tests.support.soak_member", *words))

    def _kill_member(self) -> None:
        self._members.pop().kill()
        self._join()
        self.ledger.counts["kills of members"] += 1

    # ---- the operator ----

    def _command(self, *words: object, allowed: Iterable[int] = (0,)) -> None:
        """Run a command while the clients work."""
        command = [sys.executable, "-m", "edge", *map(str, words)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=DEVNULL, stderr=PIPE, text=True)
        deadline = time.monotonic() + COMMAND_S
        pump(self._clients, lambda: process.poll() is not None or time.monotonic() > deadline)
        if process.poll() is None and time.monotonic() > deadline:
            process.kill()
        _, errors = process.communicate()
        if process.returncode not in allowed:
            self.ledger.wrong.append(f"brim {words} ended with {process.returncode}: {errors[-600:]}")
        self.ledger.counts[f"brim {words[0]}"] += 1

    def _query(self) -> None:
        query = "SELECT topic, count(*) FROM records GROUP BY 1"
        self._command("sql", "--runtime-dir", self._broker.runtime_dir, query)

    def _reload(self) -> None:
        self._command("reload", "--runtime-dir", self._broker.runtime_dir)

    def _back_up(self) -> None:
        copy = self._disk / "backup" / str(len(self._backups))
        before = self._acknowledged(logged=True)
        del before["b/late"]  # delayed messages are in the log when they are due
        self._command("backup", copy, "--runtime-dir", self._broker.runtime_dir, allowed=(0, 1))
        self._backups.append((copy, before))

    # ---- the end ----

    def _until(self, condition: Callable[[], bool], otherwise: str = "") -> None:
        """Let all clients work until that holds; too late is an error, if `otherwise` describes it."""
        deadline = time.monotonic() + SETTLE_S
        pump(self._clients, lambda: condition() or time.monotonic() > deadline)
        if otherwise and not condition():
            raise Lost(otherwise)

    def _settle(self) -> None:
        publishers = [it.publisher for it in self._devices]
        for it in publishers:
            it.is_paused = True
        self._until(lambda: not any(it.waiting for it in publishers), "no PUBACK")
        self._away.connect(self._broker.port)
        wanted = self._acknowledged(logged=False)
        self.ledger.counts["acknowledged"] = sum(map(len, wanted.values()))
        for taker in (self._awake, self._away, self._behind):
            its = {topic: wanted[topic] for topic in taker.topics}
            self._until(lambda: all(its[it] <= taker.arrived[it] for it in its))  # noqa: B023
            self.ledger.compare(its, taker.arrived, taker.client_id)
        self._settle_group({topic: wanted[topic] for topic in wanted if topic.endswith("/1")})
        self.ledger.read_log(self._broker.stop())
        logged = self._acknowledged(logged=True)
        self.ledger.compare_rows(self._disk / "parquet", logged, "the lake")
        self.ledger.compare_drained(self._disk / "files", logged)
        for copy, before in self._backups:
            self._restore(copy, before)

    def _settle_group(self, wanted: Numbers) -> None:
        deadline = time.monotonic() + SETTLE_S
        while lacking(self._noted, wanted) and time.monotonic() < deadline:
            self._work(0.5)
        self.ledger.compare_group(self._noted, wanted)
        for member in self._members:
            status, _, errors = member.stop()
            if status or errors:
                self.ledger.wrong.append(f"a member of the group ended with {status}: {errors[-300:]}")

    def _restore(self, copy: Path, before: Numbers) -> None:
        """Start a broker on a backup, and query its log, whose last records only a start can prove."""
        place = self._disk / f"restored-{copy.name}"
        place.mkdir()
        broker = BrimProcess(self._memory / f"run-{copy.name}", place, STREAMS, bridge=False)
        where = ("--state-dir", place / "state", "--runtime-dir", broker.runtime_dir)
        self._command("restore", copy, *where, allowed=(0, 1))
        result = place / "records.parquet"
        with broker:
            self._command("sql", "--runtime-dir", broker.runtime_dir, "-o", result, "SELECT * FROM records")
        self.ledger.compare_rows(result, before, f"backup {copy.name}")


def run_seed(seed: int, events: Sequence[str] = ()) -> Outcome:
    """One history, of random events if `events` is empty."""
    random = Random(seed)
    events = events or random.choices(EVENTS, k=random.randint(*STEPS))
    with (
        memory_directory() as memory,
        TemporaryDirectory() as disk,
        Mixed(memory, Path(disk), seed, events) as mixed,
    ):
        wrong = broken_by(mixed.run, seed, mixed.ledger.wrong)
    return mixed.ledger.counts + Counter(histories=1), wrong


MIXED = Campaign(
    name="mixed",
    what="all features on one broker that is killed, restarted, reloaded and backed up",
    unit="histories",
    wanted=20,
    run_seed=run_seed,
)
