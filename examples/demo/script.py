"""Script of the run, act by act: starts, cuts, kills and waits.

    start      broker, two subscribers, three publishers
    cut        the sink fails for a while: only the buffer grows; then the sink returns, and the bridge finds
               it by itself
    kill -9    the broker, under load; a second later it is started again
    finish     publishers stop, and wait for their acknowledgements
    drain      until subscribers and sink have every record; then all stop, the broker by SIGTERM
    table      Spark, on the drained files

Owns the order of the steps and the waits. At its end, normal or not, its processes have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from examples.demo.cast import Cast, DemoFailed
from examples.demo.plots import Outage
from examples.demo.report import Report, gather
from examples.demo.scene import Scene
from examples.demo.screen import Screen
from examples.demo.watch import TICK_S, Watch

ACTS = (
    "start",
    "load",
    "sink cut off",
    "sink back",
    "broker killed",
    "broker back",
    "finish",
    "drain",
    "table",
)
CUT_AT, CUT_FOR = 0.22, 0.15  # of the seconds of load
KILL_AT, DOWN_S = 0.65, 1.0
START_S = 20.0
SETTLE_S = 60.0  # a back-off of the bridge may last half of this time
LAKE_S = 240.0
AMBER, RED = "#b7791f", "#c2352b"


@dataclass(frozen=True)
class Options:
    """Options of the command line."""

    seconds: float  # of load
    rate: float  # messages per second, of all publishers
    spark: bool


@dataclass
class Script:
    """One run. Call play() once, and close() afterwards in all cases."""

    scene: Scene
    screen: Screen
    options: Options
    outages: list[Outage] = field(default_factory=list)
    events: list[tuple[float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._cast = Cast(self.scene)
        self._watch = Watch(self.scene, self._cast, self.screen, ACTS)
        self._load_began = 0.0

    async def play(self) -> Report:
        """Run all acts. Raises DemoFailed, BrokerFailed."""
        watching = asyncio.create_task(self._watch.run())
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
        return gather(self.scene, self._watch.samples, self.outages, self.events, began, ended)

    async def close(self) -> None:
        """End all remaining processes."""
        await self._cast.close()
        self._watch.rings.close()

    # ---- the acts ----

    async def _start(self) -> None:
        self._begin("start")
        cast = self._cast
        took = await cast.broker.start()
        self._watch.rings.refresh()
        self._announce(
            f"broker ready in {took:.2f} s on 127.0.0.1:{self.scene.port}, process {cast.broker.pid}"
        )
        await cast.start_subscribers()
        await self._until(
            lambda: all(child.latest for child in cast.subscribers.values()), START_S, "subscribers"
        )
        self._announce("two subscribers listen: one in shared memory, one by ZeroMQ")
        await cast.start_publishers(self.options.rate)
        self._watch.sampling = True
        await self._until(
            lambda: all(child.latest.get("connected") for child in cast.publishers.values()),
            START_S,
            "publishers",
        )
        self._announce(f"three publishers are connected; together {self.options.rate:,.0f} messages a second")

    async def _load(self) -> None:
        self._load_began, seconds = time.monotonic(), self.options.seconds
        self._begin("load")
        await self._until_second(CUT_AT * seconds)
        self._begin("sink cut off")
        await self._cut(CUT_FOR * seconds)
        self._begin("sink back")
        await self._find_sink()
        await self._until_second(KILL_AT * seconds)
        self._begin("broker killed")
        await self._kill()
        self._begin("broker back")
        await self._subscribed_again()
        await self._until_second(seconds)

    async def _cut(self, seconds: float) -> None:
        begin = time.time()
        self.scene.sink.cut()
        self._announce("the sink is cut off: its directory was moved away, and a file put in its place")
        await self._rest(seconds)
        self.scene.sink.mend()
        self.outages.append(Outage("sink cut off", begin, time.time(), AMBER))
        self._announce(f"the sink is back after {seconds:.1f} s; the bridge has yet to find out")

    async def _find_sink(self) -> None:
        """Wait until the bridge has tried again: its back-off has grown meanwhile."""
        watch, begin, before = self._watch, time.monotonic(), self._watch.drained
        await self._until(lambda: watch.drained > before, SETTLE_S, "the bridge, after the sink came back")
        waiting, took = watch.stored - before, time.monotonic() - begin
        self._announce(f"the bridge has found it {took:.1f} s later; {waiting:,} records had been waiting")

    async def _kill(self) -> None:
        broker, rings = self._cast.broker, self._watch.rings
        before, begin, pid = rings.epochs(), time.time(), broker.pid
        broker.kill()
        await broker.wait()
        self._announce(f"the broker (process {pid}) was killed with -9, under load")
        await self._rest(DOWN_S)
        took = await broker.start()
        self.outages.append(Outage("broker killed", begin, time.time(), RED))
        rings.refresh()
        same = sum(rings.epochs().get(name) == epoch for name, epoch in before.items())
        self._announce(
            f"started again, ready in {took:.2f} s; {same} of {len(before)} rings continue where they were"
        )

    async def _subscribed_again(self) -> None:
        """Wait until each subscriber has a record of this broker, from each ring that it knows.

        A ZeroMQ subscriber learns from a later record that it has missed some. So publishers end after this.
        """
        ends, subscribers = self._watch.rings.ends(), self._cast.subscribers.values()
        await self._until(
            lambda: all(
                after > ends[ring]
                for child in subscribers
                for ring, (_, after) in child.latest["places"].items()
            ),
            SETTLE_S,
            "subscribers, after the broker came back",
        )

    async def _finish(self) -> None:
        cast, watch = self._cast, self._watch
        self._begin("finish")
        await cast.end(cast.publishers)
        acked = sum(child.number("acked_count") for child in cast.publishers.values())
        self._announce(f"the publishers have ended; {acked:,} messages are acknowledged")
        self._begin("drain")
        stored = watch.stored
        subscribers = cast.subscribers.values()
        await self._until(
            lambda: all(child.number("records") >= stored for child in subscribers), SETTLE_S, "subscribers"
        )
        await self._until(lambda: watch.drained >= stored, SETTLE_S, "the sink")
        self._announce(f"the sink holds all {stored:,} records, in {watch.files} files")
        watch.sampling = False

    async def _stop(self) -> None:
        await self._cast.end(self._cast.subscribers)
        status = await self._cast.broker.stop()
        if status:
            raise DemoFailed(f"the broker ended with status {status} on SIGTERM; see {self.scene.logs}")
        self._announce("the broker has stopped cleanly on SIGTERM")

    async def _make_table(self) -> None:
        self._begin("table")
        lake = await self._cast.start_lake(spark=self.options.spark, on_line=self._report_step)
        try:
            status = await lake.wait(LAKE_S)
        except TimeoutError:
            raise DemoFailed(f"no table after {LAKE_S:.0f} s; {self._cast.last_line(lake)}") from None
        if status:
            raise DemoFailed(f"no table, status {status}; {self._cast.last_line(lake)}")

    # ---- time ----

    async def _until_second(self, second: float) -> None:
        await self._rest(self._load_began + second - time.monotonic())

    async def _rest(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._cast.look_after()
            await asyncio.sleep(min(left, TICK_S))

    async def _until(self, is_so: Callable[[], bool], seconds: float, subject: str) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            self._cast.look_after()
            if time.monotonic() > deadline:
                raise DemoFailed(f"{subject}: still waiting after {seconds:.0f} s; see {self.scene.logs}")
            await asyncio.sleep(TICK_S)

    # ---- texts ----

    def _begin(self, act: str) -> None:
        self._watch.act = ACTS.index(act)

    def _announce(self, text: str) -> None:
        self.events.append((time.time(), text))
        self.screen.happened(text)

    def _report_step(self, line: str) -> None:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            message = json.loads(line)
            if "seconds" in message:
                self._announce(f"table: {message['step']} ({message['seconds']:.1f} s)")
            else:  # begin of an act: shown on the screen only
                self.screen.happened(f"table: {message['step']}")
