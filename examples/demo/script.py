"""The run, act by act: what is started, cut, killed and awaited, and what is measured meanwhile.

Owns the order of things and every process of the run.  Whatever way it ends, its processes have ended too.

    start      broker, two subscribers, three publishers
    cut        the sink fails for a while: the buffer grows, nothing else happens
    kill -9    the broker, under load; a second later it is started again
    finish     publishers stop, and wait for what they are owed
    drain      until the sink has every record
    table      Spark, on what was drained
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from examples.demo.broker import Broker
from examples.demo.journal import JournalFile
from examples.demo.lake import Arrived, Lake
from examples.demo.ledger import Stage, build
from examples.demo.plots import Outage, Sample
from examples.demo.processes import Child
from examples.demo.report import Report
from examples.demo.scene import Rings, Scene
from examples.demo.screen import Bridge, Publisher, Screen, Subscriber, View
from examples.demo.tally import Tally

__all__ = ["DemoFailed", "Options", "Script"]

ACTS = (
    "start",
    "load",
    "cut the sink",
    "load again",
    "kill -9",
    "load once more",
    "finish",
    "drain",
    "table",
)
TICK_S = 0.25
SAMPLE_S = 0.5
CUT_AT, CUT_FOR = 0.22, 0.15  # of the seconds of load
KILL_AT, DOWN_S = 0.65, 1.0
SETTLE_S = 60.0  # a back-off of the bridge may last half of it
LAKE_S = 240.0
AMQTT_SHARE, PAHO_SHARE = 0.2, 0.3  # of the rate; the replay has the rest
AMQTT_KINDS, PAHO_KINDS = ("cpu", "memory", "load", "temperature"), ("disk", "net", "process")
AMBER, RED = "#b7791f", "#c2352b"


class DemoFailed(Exception):
    """The run could not be brought to its end; the message says why."""


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    seconds: float  # of load
    rate: float  # messages a second, of all publishers
    spark: bool


@dataclass
class Script:
    """One run.  play() once; close() afterwards, whatever happened."""

    scene: Scene
    screen: Screen
    options: Options
    samples: list[Sample] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    events: list[tuple[float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.broker = Broker(self.scene)
        self._rings = Rings(self.scene.runtime)
        self._publishers: dict[str, Child] = {}
        self._subscribers: dict[str, Child] = {}
        self._lake: Child | None = None
        self._act = 0
        self._bridge_state = "starting"
        self._held = (0, 0)
        self._load_began = 0.0

    async def play(self) -> Report:
        """All of it.  Raises DemoFailed, BrokerFailed."""
        watching = asyncio.create_task(self._watch())
        try:
            began = time.time()
            await self._start()
            await self._load()
            await self._finish()
            ended = time.time()
            await self._stop()
            await self._make_table()
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
        return self._report(began, ended)

    async def close(self) -> None:
        """End every process that is still there."""
        children = [*self._publishers.values(), *self._subscribers.values(), self._lake]
        for child in children:
            if child is not None and not child.ended:
                child.kill()
                await child.wait()
        if self.broker.running:
            self.broker.kill()
            await self.broker.wait()
        self.broker.disconnect()
        self._rings.close()

    # ---- the acts ----

    async def _start(self) -> None:
        self._begin("start")
        took = await self.broker.start()
        self._rings.refresh()
        self._say(f"broker ready in {took:.2f} s on 127.0.0.1:{self.scene.port}, process {self.broker.pid}")
        for name, way in (("shared memory", "shm"), ("ZeroMQ", "zmq")):
            report = str(self.scene.counts / f"{way}.json")
            arguments = [way, "--runtime-dir", str(self.scene.runtime), "--report", report]
            self._subscribers[name] = await self._spawn(way, "subscribers", arguments)
        await self._until(
            lambda: all(child.facts for child in self._subscribers.values()), 20, "the subscribers"
        )
        self._say("two subscribers listen: one in shared memory, one by ZeroMQ")
        rate = self.options.rate
        for name, module, share, kinds in (
            ("amqtt", "device_amqtt", AMQTT_SHARE, AMQTT_KINDS),
            ("paho", "device_paho", PAHO_SHARE, PAHO_KINDS),
            ("replay", "burst", 1 - AMQTT_SHARE - PAHO_SHARE, ()),
        ):
            self._publishers[name] = await self._spawn(name, module, self._device(name, rate * share, kinds))
        await self._until(
            lambda: all(child.facts.get("connected") for child in self._publishers.values()),
            20,
            "the publishers",
        )
        self._say(
            f"three publishers are connected; together they are to publish {rate:,.0f} messages a second"
        )

    async def _load(self) -> None:
        self._load_began, seconds = time.monotonic(), self.options.seconds
        self._begin("load")
        await self._until_second(CUT_AT * seconds)
        self._begin("cut the sink")
        await self._cut(CUT_FOR * seconds)
        self._begin("load again")
        await self._until_second(KILL_AT * seconds)
        self._begin("kill -9")
        await self._kill()
        self._begin("load once more")
        await self._until_second(seconds)

    async def _cut(self, seconds: float) -> None:
        begin = time.time()
        self.scene.sink.cut()
        self._say("the sink is cut off: its directory was moved away, and a file put in its place")
        await self._rest(seconds)
        waiting = self._rings.stored() - self._held[1]
        self.scene.sink.mend()
        self.outages.append(Outage("sink cut off", begin, time.time(), AMBER))
        self._say(f"the sink is back after {seconds:.1f} s; {waiting:,} records have been waiting for it")

    async def _kill(self) -> None:
        before, begin, pid = self._rings.epochs(), time.time(), self.broker.pid
        self.broker.kill()
        await self.broker.wait()
        self._say(f"the broker (process {pid}) was killed with -9, under load")
        await self._rest(DOWN_S)
        took = await self.broker.start()
        self.outages.append(Outage("broker killed", begin, time.time(), RED))
        self._rings.refresh()
        same = sum(self._rings.epochs().get(name) == epoch for name, epoch in before.items())
        self._say(
            f"started again, ready in {took:.2f} s; {same} of {len(before)} rings go on where they were"
        )

    async def _finish(self) -> None:
        self._begin("finish")
        for child in self._publishers.values():
            child.terminate()
        for name, child in self._publishers.items():
            await self._ended(name, child)
        acked = sum(child.number("acked_count") for child in self._publishers.values())
        self._say(f"the publishers have ended; {acked:,} messages are acknowledged")
        self._begin("drain")
        stored = self._rings.stored()
        await self._until(
            lambda: all(child.number("records") >= stored for child in self._subscribers.values()),
            SETTLE_S,
            "the subscribers",
        )
        await self._until(lambda: self._held[1] >= stored, SETTLE_S, "the sink")
        self._say(f"the sink holds all {stored:,} records, in {self._held[0]} files")

    async def _stop(self) -> None:
        for child in self._subscribers.values():
            child.terminate()
        for name, child in self._subscribers.items():
            await self._ended(name, child)
        status = await self.broker.stop()
        if status:
            raise DemoFailed(f"the broker ended with status {status} on SIGTERM; see {self.scene.logs}")
        self._say("the broker has stopped cleanly on SIGTERM")

    async def _make_table(self) -> None:
        self._begin("table")
        arguments = ["--drained", str(self.scene.sink.directory), "--out", str(self.scene.table)]
        if not self.options.spark:
            arguments.append("--no-spark")
        self._lake = await self._spawn("table", "lake", arguments, self._tell_step)
        try:
            status = await self._lake.wait(LAKE_S)
        except TimeoutError:
            raise DemoFailed(f"no table after {LAKE_S:.0f} s; see {self.scene.logs / 'table.log'}") from None
        if status:
            raise DemoFailed(f"the table was not made: status {status}; {self._last_line('table')}")

    # ---- processes ----

    async def _spawn(
        self, name: str, module: str, arguments: list[str], on_line: Callable[[str], None] | None = None
    ) -> Child:
        command = ["-m", f"examples.demo.{module}", *arguments]
        return await Child.start(name, command, self.scene.logs / f"{name}.log", on_line=on_line)

    def _device(self, name: str, rate: float, kinds: tuple[str, ...]) -> list[str]:
        arguments = ["--port", str(self.scene.port), "--rate", f"{rate:.3f}", "--name", self.scene.machine]
        arguments += ["--journal", str(self.scene.counts / f"{name}.json")]
        return [*arguments, "--kinds", *kinds] if kinds else arguments

    async def _ended(self, name: str, child: Child) -> None:
        status = await child.wait(SETTLE_S)
        if status:
            raise DemoFailed(f"{name} ended with status {status}; {self._last_line(child.name)}")

    def _last_line(self, name: str) -> str:
        path = self.scene.logs / f"{name}.log"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        return f"{path}: {lines[-1] if lines else 'empty'}"

    # ---- time ----

    async def _until_second(self, second: float) -> None:
        await self._rest(self._load_began + second - time.monotonic())

    async def _rest(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._look_after()
            await asyncio.sleep(min(left, TICK_S))

    async def _until(self, is_so: Callable[[], bool], seconds: float, who: str) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            self._look_after()
            if time.monotonic() > deadline:
                raise DemoFailed(f"{who}: not done after {seconds:.0f} s; see {self.scene.logs}")
            await asyncio.sleep(TICK_S)

    def _look_after(self) -> None:
        """Nobody may end before its time."""
        for child in (*self._publishers.values(), *self._subscribers.values()):
            if child.ended and child.status:
                raise DemoFailed(
                    f"{child.name} ended by itself: status {child.status}; {self._last_line(child.name)}"
                )

    # ---- what is shown and measured ----

    def _begin(self, act: str) -> None:
        self._act = ACTS.index(act)

    def _say(self, text: str) -> None:
        self.events.append((time.time(), text))
        self.screen.happened(text)

    def _tell_step(self, line: str) -> None:
        with contextlib.suppress(ValueError, AttributeError):
            found = json.loads(line)
            took = f" ({found['seconds']:.1f} s)" if "seconds" in found else ""
            self._say(f"table: {found['step']}{took}")

    async def _watch(self) -> None:
        """Keep the screen and the samples going, whatever the acts do."""
        next_sample = 0.0
        while True:
            if time.monotonic() >= next_sample:
                next_sample = time.monotonic() + SAMPLE_S
                self._held = await asyncio.to_thread(self.scene.sink.held)
                await self._ask_broker()
                if self._publishers and self.broker.running and self._act < ACTS.index("table"):
                    self.samples.append(self._sample())
            self.screen.show(self._view())
            await asyncio.sleep(TICK_S)

    async def _ask_broker(self) -> None:
        report = await self.broker.report()
        bridges = report.get("bridges") or [{}]
        self._bridge_state = str(bridges[0].get("condition", "no broker" if not report else "unknown"))

    def _sample(self) -> Sample:
        published, acked = (
            sum(child.number(fact) for child in self._publishers.values())
            for fact in ("published_count", "acked_count")
        )
        shm, zmq = (child.number("records") for child in self._subscribers.values())
        return Sample(time.time(), published, acked, shm, zmq, self._held[1], self._rings.stored())

    def _view(self) -> View:
        acts = [
            (act, "done" if number < self._act else "now" if number == self._act else "next")
            for number, act in enumerate(ACTS)
        ]
        broker = f"broker: process {self.broker.pid}" if self.broker.running else "broker: not running"
        files, drained = self._held
        waiting = max(self._rings.stored() - drained, 0)
        bridge = Bridge(self._bridge_state, drained, files, waiting) if self._publishers else None
        publishers = [_publisher(name, child) for name, child in self._publishers.items()]
        subscribers = [_subscriber(name, child) for name, child in self._subscribers.items()]
        return View(acts, broker, publishers, subscribers, bridge)

    # ---- the end ----

    def _report(self, began: float, ended: float) -> Report:
        counts, table = self.scene.counts, self.scene.table
        journals = [JournalFile.load(counts / f"{name}.json") for name in self._publishers]
        lake = Lake.load(table)
        arrived = Arrived(
            **json.loads((table / "drained.json").read_text()), tally=Tally.load(table / "drained.tally")
        )
        stages = [
            _received("shared memory", counts / "shm.json"),
            _received("ZeroMQ", counts / "zmq.json"),
            Stage(
                "drained",
                arrived.records,
                arrived.twice,
                arrived.gaps,
                arrived.tally,
                f"{arrived.files} files",
            ),
            Stage("in the table", lake.records, lake.twice, lake.gaps, lake.tally, lake.made_by),
        ]
        versions = f"Linux {platform.release()}, Python {platform.python_version()}"
        machine = f"{self.scene.machine}, {os.cpu_count()} CPUs, {versions}"
        ledger = build(journals, stages)
        return Report(ledger, lake, arrived, self.samples, self.outages, self.events, machine, began, ended)


def _received(name: str, path: Path) -> Stage:
    facts = json.loads(path.read_text())
    fetched = facts["fetched"]
    note = f"{fetched:,} of them fetched from the ring" if fetched else ""
    return Stage(
        name, facts["records"], facts["twice"], facts["gaps"], Tally.load(path.with_suffix(".tally")), note
    )


def _publisher(name: str, child: Child) -> Publisher:
    state = "ended" if child.ended else "connected" if child.facts.get("connected") else "not connected"
    if not child.facts:
        state = "starting"
    published, acked = child.number("published_count"), child.number("acked_count")
    return Publisher(name, state, published, acked, child.rate("acked_count"), child.number("resent"))


def _subscriber(name: str, child: Child) -> Subscriber:
    state = "ended" if child.ended else "reading" if child.facts else "starting"
    return Subscriber(
        name,
        state,
        child.number("records"),
        child.rate("records"),
        child.number("gaps"),
        child.number("fetched"),
        float(child.facts.get("age_p50_us", 0)),
        float(child.facts.get("age_p99_us", 0)),
    )
