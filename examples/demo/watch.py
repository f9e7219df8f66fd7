"""Measurements during a run, for its results and its screen.

Owns the samples. Reads the sink by the names of its files and the rings by their memory, so both are known
while the broker is dead. Requests only the state of the bridge from the broker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from examples.demo.cast import Cast
from examples.demo.plots import Sample
from examples.demo.processes import Child
from examples.demo.scene import Rings, Scene
from examples.demo.screen import Bridge, Publisher, Screen, Subscriber, View

TICK_S = 0.25
SAMPLE_S = 0.5


class Watch:
    """Sampling task, next to the script."""

    def __init__(self, scene: Scene, cast: Cast, screen: Screen, acts: Sequence[str]) -> None:
        self.samples: list[Sample] = []
        self.rings = Rings(scene.runtime)
        self.act = 0
        self.sampling = False
        self.files = self.drained = 0  # in the sink
        self._scene, self._cast, self._screen, self._acts = scene, cast, screen, acts
        self._bridge = "starting"

    @property
    def stored(self) -> int:
        """Number of records in the rings, from the first one on."""
        return self.rings.stored()

    async def run(self) -> None:
        """Run until cancelled."""
        next_sample = 0.0
        while True:
            if time.monotonic() >= next_sample:
                next_sample = time.monotonic() + SAMPLE_S
                self.files, self.drained = await asyncio.to_thread(self._scene.sink.held)
                self._bridge = await self._request_state()
                if self.sampling:
                    self.samples.append(self._sample())
            self._screen.show(self._view())
            await asyncio.sleep(TICK_S)

    async def _request_state(self) -> str:
        report = await self._cast.broker.report()
        if not report:
            return "no broker" if self.sampling else "finished"
        bridges = report.get("bridges") or [{}]
        return str(bridges[0].get("condition", "unknown"))

    def _sample(self) -> Sample:
        published, acked = (
            sum(child.number(fact) for child in self._cast.publishers.values())
            for fact in ("published_count", "acked_count")
        )
        shm, zmq = (child.number("records") for child in self._cast.subscribers.values())
        return Sample(time.time(), published, acked, shm, zmq, self.drained, self.stored)

    def _view(self) -> View:
        states = [
            "done" if number < self.act else "now" if number == self.act else "next"
            for number in range(len(self._acts))
        ]
        broker = self._cast.broker
        waiting = max(self.stored - self.drained, 0)
        return View(
            list(zip(self._acts, states, strict=True)),
            f"broker: process {broker.pid}" if broker.running else "broker: not running",
            [_publisher(name, child) for name, child in self._cast.publishers.items()],
            [_subscriber(name, child) for name, child in self._cast.subscribers.items()],
            Bridge(self._bridge, self.drained, self.files, waiting) if self._cast.publishers else None,
        )


def _publisher(name: str, child: Child) -> Publisher:
    state = "connected" if child.latest.get("connected") else "connecting"
    return Publisher(
        name,
        "finished" if child.ended else state if child.latest else "starting",
        child.number("published_count"),
        child.number("acked_count"),
        child.rate("acked_count"),
        child.number("resent"),
    )


def _subscriber(name: str, child: Child) -> Subscriber:
    return Subscriber(
        name,
        "finished" if child.ended else "reading" if child.latest else "starting",
        child.number("records"),
        child.rate("records"),
        child.number("gaps"),
        child.number("fetched"),
        float(child.latest.get("age_p50_us", 0)),
        float(child.latest.get("age_p99_us", 0)),
    )
