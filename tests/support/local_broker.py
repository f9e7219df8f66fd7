"""A broker without MQTT: its rings, control socket and ZeroMQ publisher, put together as the real one is.

In a test's own event loop, or (main) as a process to be killed, that publishes the lines of its
standard input: a line "topic payload", answered by the line "ring epoch offset".
"""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from edge.config.schema import Config, Stream
from edge.local.control_server import LocalEndpoint
from edge.local.producers import Producers
from edge.local.zmq_listener import ZmqListener
from edge.local.zmq_publisher import ZmqPublisher
from edge.streams.epochs import Epochs
from edge.streams.streams import Streams


class LocalBroker:
    """`async with`: everything but MQTT, in the running loop."""

    def __init__(self, config: Config) -> None:
        self.report: dict[str, Any] = {}  # instead of the usual one
        epochs = Epochs(config.state_dir / "epochs")
        self.streams = Streams.open(config, epochs)
        self.producers = Producers(config, epochs)
        self._listener = ZmqListener("zmq", config.zmq_endpoint)
        self.zmq = ZmqPublisher(self._listener, send_high_water=config.zmq.send_high_water)
        self.local = LocalEndpoint(
            config, self.streams, self.producers, report=self._report, on_writer_thread=self._run
        )
        for partition in self.streams.all():
            self.zmq.add(partition.ring)
        self.producers.on_ring.append(lambda added: self.zmq.add(added.ring, own=False))
        self.producers.attach_left_behind()

    async def __aenter__(self) -> Self:
        await self.local.start()
        self.zmq.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.local.stop()
        self.zmq.stop()
        self._listener.close()
        self.producers.close()
        self.streams.close()

    def publish(self, topic: str, payload: bytes | str) -> tuple[str, int, int | None]:
        """(ring, epoch, offset) of the record."""
        partition = self.streams.partition_of(topic)
        return partition.name, partition.ring.epoch, partition.writer.publish(payload, key=topic)

    async def _report(self) -> dict[str, Any]:
        return self.report or {"rings": [partition.name for partition in self.streams.all()]}

    async def _run(self, function: Callable[[], object]) -> object:
        return function()


def small_config(runtime_dir: Path, state_dir: Path, **settings: Any) -> Config:
    """Two partitions for a/#, one for the rest, of 64 KiB each."""
    some = Stream(name="some", topics=("a/#",), partitions=2, ring_bytes=1 << 16)
    rest = Stream(name="default", topics=("#",), ring_bytes=1 << 16)
    return Config(**{"runtime_dir": runtime_dir, "state_dir": state_dir, "stream": (some, rest), **settings})


async def main() -> None:
    """Until end of input."""
    runtime_dir, state_dir = map(Path, sys.argv[1:])
    async with LocalBroker(small_config(runtime_dir, state_dir)) as broker:
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            topic, _, payload = line.rstrip("\n").partition(" ")
            print(*broker.publish(topic, payload), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
