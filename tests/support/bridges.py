"""Rings, sinks and drains for tests of the bridge."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bridge.drain.bridge import Bridge as RunningBridge
from bridge.drain.checkpoint import Checkpoint
from bridge.drain.clock import SYSTEM, DrainClock
from bridge.drain.control_socket import ControlSocket
from bridge.drain.drain import Drain, ProgressReport
from bridge.drain.lag import LagMeter
from bridge.drain.settings import BridgeSettings
from bridge.errors import SinkError
from bridge.format.file_builder import DrainedFile
from bridge.sinks.directory import DirectorySink
from bridge.sinks.interface import Sink
from bridge.source.partition_source import RecordLog
from edge.config.schema import Bridge
from edge.server.bridge_settings import copied_settings
from ringbuf import Ring
from tests.support.waiting import PATIENCE_S

EPOCH = 1_700_000_000
RING_BYTES = 1 << 16


def ring(
    directory: Path,
    name: str = "default-0",
    *,
    epoch: int = EPOCH,
    capacity_bytes: int = RING_BYTES,
    first: int = 0,
) -> Ring:
    """A new ring, as the broker makes it."""
    return Ring.create(
        directory / name, capacity_bytes=capacity_bytes, epoch=epoch, first_offset=first, populate=False
    )


def publish(made: Ring, count: int, *, size: int = 20, topic: str = "plant/1") -> None:
    """`count` records of `size` payload bytes that say which offset they have."""
    writer = made.writer()
    for _ in range(count):
        offset = writer.publish(str(writer.end_offset).encode().rjust(size, b"."), topic)
        assert offset is not None


def settings(runtime: Path, root: Path, **changes: object) -> BridgeSettings:
    """Of a bridge that cuts a file whenever anything waits."""
    values: dict[str, object] = {
        **copied_settings(Bridge(name="lake", to=(root / "lake").as_uri())),
        "edge_id": "edge-1",
        "options": {},
        "spool_bytes": {},
        "runtime_dir": runtime,
        "state_dir": root / "state",
        "linger_ms": 0,
        "window": 1,  # step by step, on one thread
        "backoff_min_ms": 1,
        "backoff_max_ms": 5,
        "scan_interval_ms": 10,
    }
    return BridgeSettings(**{**values, **changes})  # type: ignore[arg-type]


@contextmanager
def running(
    chosen: BridgeSettings, sink: Sink | None = None, record_log: RecordLog | None = None
) -> Iterator[RunningBridge]:
    """A bridge that runs on its thread, and is stopped at the end, as its sink is."""
    made = RunningBridge(chosen, sink=sink, record_log=record_log)
    made.start()
    try:
        yield made
    finally:
        assert made.stop(20)
        if sink is not None:
            sink.close()


@contextmanager
def commanded(bridge: RunningBridge) -> Iterator[ControlSocket]:
    """The command socket of a bridge, served by a thread."""
    loop, control = asyncio.new_event_loop(), ControlSocket(bridge)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(control.start(), loop).result(PATIENCE_S)
        yield control
        asyncio.run_coroutine_threadsafe(control.stop(), loop).result(PATIENCE_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class SteppedDrain(Drain):
    """Knows when the sink has answered."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.answered = threading.Event()
        super().__init__(*arguments, on_answer=self.answered.set, **options)


@contextmanager
def drain(
    chosen: BridgeSettings,
    sink: Sink | None = None,
    record_log: RecordLog | None = None,
    clock: DrainClock = SYSTEM,
    on_progress: ProgressReport | None = None,
) -> Iterator[SteppedDrain]:
    """A drain that the test steps itself; at the end it is gone as a process is: nothing is saved."""
    target = sink or DirectorySink(chosen.state_dir.parent / "lake")
    checkpoint = Checkpoint.open(chosen.checkpoint_path, chosen.edge_id, target.url)
    made = SteppedDrain(chosen, target, checkpoint, record_log, on_progress, clock=clock)
    try:
        yield made
    finally:
        made.close()
        checkpoint.close()
        target.close()


def run_dry(made: SteppedDrain) -> None:
    """Steps until nothing waits."""
    for _ in range(10_000):
        made.answered.clear()
        if made.step() > 0:
            if made.in_flight:
                assert made.answered.wait(20)
            elif made.drained():
                return
    raise AssertionError(f"still waiting after 10,000 steps: {LagMeter(made).lags()}")


def drain_next_to_backlog(made: Ring, drained: SteppedDrain) -> None:
    """Publish 200 records, then 20; drain at least one of the 20 next to a backlog of the 200.

    The ring has 5 drained records, files have 4 KiB, live records do not wait.
    """
    publish(made, 200)
    while not drained.checkpoint.cursors["default", 0].ahead:
        drained.step()
    publish(made, 20)
    while drained.checkpoint.cursors["default", 0].live_offset <= 205:
        drained.step()


class FailingSink:
    """A directory that fails when told to: before anything is stored, or after, as when an answer is lost."""

    def __init__(self, root: Path) -> None:
        self.inner = DirectorySink(root)
        self.before: list[SinkError | None] = []  # one for each put to come; None lets it pass
        self.after: list[SinkError | None] = []
        self.puts: list[str] = []

    @property
    def url(self) -> str:
        return self.inner.url

    def put(self, file: DrainedFile) -> None:
        self.puts.append(file.name)
        if self.before and (error := self.before.pop(0)) is not None:
            raise error
        self.inner.put(file)
        if self.after and (error := self.after.pop(0)) is not None:
            raise error

    def names(self, prefix: str) -> Iterator[str]:
        return self.inner.names(prefix)

    def begin(self, edge: str) -> None:
        self.inner.begin(edge)

    def close(self) -> None:
        self.inner.close()


class Gates(FailingSink):
    """A lake that stores a file when its number is let through."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.open = {number: threading.Event() for number in range(1, 9)}
        self.there: set[int] = set()

    def put(self, file: DrainedFile) -> None:
        number = file.footer.drain_seq
        assert self.open[number].wait(20)
        super().put(file)
        self.there.add(number)


def begin_all(made: SteppedDrain, count: int) -> None:
    while made.in_flight < count:
        made.step()
