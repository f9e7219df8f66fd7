"""Simulated device: values that drift, messages at their rates, and a connection with faults."""

from __future__ import annotations

import asyncio
import heapq
import random
import time
from collections.abc import Callable
from contextlib import suppress
from string import Template

from msgspec import Struct

from edge.client import Client
from edge.client.errors import ClientError
from edge.sim.plan import DeviceKind, Value

ACKNOWLEDGED_S = 5.0  # for acknowledgements at the end
AGAIN_S = 1.0  # before a device that could not connect tries again, and up to twice that


class FleetCounts(Struct):
    """Work of all devices together."""

    connected: int = 0  # now
    published: int = 0
    failed: int = 0  # not acknowledged
    missing: int = 0  # left out by a fault
    outliers: int = 0
    cuts: int = 0
    refused: int = 0  # connections that the broker refused, or that could not be opened
    last_error: str = ""


class SimulatedDevice:
    """One device. `connect` makes its client, not yet connected."""

    def __init__(
        self,
        device: DeviceKind,
        number: int,
        seed: int | None,
        connect: Callable[[str], Client],
        counts: FleetCounts,
        ending: asyncio.Event,
    ) -> None:
        self.name = f"{device.name}-{number}"
        self._device, self._number, self._connect, self._counts = device, number, connect, counts
        self._random = random.Random(None if seed is None else f"{seed} {self.name}")
        self._values = {value.name: value.start for value in device.value}
        self._templates = [(Template(it.topic), Template(it.payload)) for it in device.message]
        self._sequence = 0
        self._ending = ending
        self._waiting: set[asyncio.Future[None]] = set()  # for acknowledgements

    async def run(self) -> None:
        """Connect, publish, break and connect again, until `ending` is set."""
        while not self._ending.is_set():
            try:
                async with self._connect(self.name) as client:
                    self._counts.connected += 1
                    try:
                        await self._publish(client)
                    finally:
                        self._counts.connected -= 1
                await self._pause(self._device.faults.offline_s)
            except ClientError as error:
                self._counts.refused += 1
                self._counts.last_error = str(error)
                await self._pause(AGAIN_S * (1 + self._random.random()))

    async def _publish(self, client: Client) -> None:
        """Publish each message at its rate, until a fault cuts the connection or the run ends."""
        loop = asyncio.get_running_loop()
        messages = self._device.message
        due = [(loop.time() + self._random.random() / it.rate, place) for place, it in enumerate(messages)]
        heapq.heapify(due)
        while True:
            at, place = due[0]
            await self._pause(at - loop.time())
            if self._ending.is_set():
                if self._waiting:
                    await asyncio.wait(self._waiting, timeout=ACKNOWLEDGED_S)
                return
            heapq.heapreplace(due, (at + 1 / messages[place].rate, place))
            if self._happens(self._device.faults.cut):
                self._counts.cuts += 1
                client.abort()
                return
            await self._send(client, place)

    async def _send(self, client: Client, place: int) -> None:
        message, (topic, payload) = self._device.message[place], self._templates[place]
        texts = self._texts()
        if self._happens(self._device.faults.missing):
            self._counts.missing += 1
            return
        acknowledged = await client.submit(
            topic.substitute(texts), payload.substitute(texts), message.qos, message.retain
        )
        self._waiting.add(acknowledged)
        acknowledged.add_done_callback(self._count)

    async def _pause(self, seconds: float) -> None:
        """Sleep, until the run ends at most."""
        if seconds > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._ending.wait()

    def _count(self, acknowledged: asyncio.Future[None]) -> None:
        self._waiting.discard(acknowledged)
        failed = acknowledged.cancelled() or acknowledged.exception() is not None
        self._counts.failed += failed
        self._counts.published += not failed

    def _texts(self) -> dict[str, str]:
        """Values of the next message, as text."""
        self._sequence += 1
        factor = 1.0
        if self._happens(self._device.faults.outlier):
            self._counts.outliers += 1
            factor = self._device.faults.outlier_factor
        for value in self._device.value:
            self._values[value.name] = self._walk(value)
        drawn = {it.name: f"{self._values[it.name] * factor:.{it.decimals}f}" for it in self._device.value}
        return drawn | {
            "device": self.name,
            "number": str(self._number),
            "sequence": str(self._sequence),
            "time_ms": str(time.time_ns() // 1_000_000),
        }

    def _walk(self, value: Value) -> float:
        """The next value, within its bounds."""
        step = self._values[value.name] + self._random.uniform(-value.drift, value.drift)
        low = step if value.min is None else max(step, value.min)
        return low if value.max is None else min(low, value.max)

    def _happens(self, share: float) -> bool:
        return share > 0 and self._random.random() < share
