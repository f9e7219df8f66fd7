"""Processes of a run: the broker, publishers, subscribers, and the process that makes the table.

Owns their arguments, and their end: no process outlives the run. A process that ends too early is detected
here, and reported together with the last line of its log.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from examples.demo.broker import Broker
from examples.demo.processes import Child
from examples.demo.scene import Scene

# Module, share of the rate, kinds of vital signs.
PUBLISHERS: dict[str, tuple[str, float, tuple[str, ...]]] = {
    "amqtt": ("device_amqtt", 0.2, ("cpu", "memory", "load", "temperature")),
    "paho": ("device_paho", 0.3, ("disk", "net", "process")),
    "replay": ("burst", 0.5, ()),
}
SUBSCRIBERS = {"shared memory": "shm", "ZeroMQ": "zmq"}
END_S = 60.0  # time for the last acknowledgements of a publisher


class DemoFailed(Exception):
    """The run could not be completed; the message has the reason."""


class Cast:
    """The processes of one run."""

    def __init__(self, scene: Scene) -> None:
        self.broker = Broker(scene)
        self.publishers: dict[str, Child] = {}
        self.subscribers: dict[str, Child] = {}
        self.lake: Child | None = None
        self._scene = scene

    async def start_subscribers(self) -> None:
        """Start both. A subscriber is ready when it has written facts."""
        for name, way in SUBSCRIBERS.items():
            report = self._scene.counts / f"{way}.json"
            arguments = [way, "--runtime-dir", str(self._scene.runtime), "--report", str(report)]
            self.subscribers[name] = await self._start(way, "subscribers", arguments)

    async def start_publishers(self, rate: float) -> None:
        """Start all three, with `rate` messages per second in total."""
        for name, (module, share, kinds) in PUBLISHERS.items():
            arguments = [
                *("--port", str(self._scene.port)),
                *("--rate", f"{rate * share:.3f}"),
                *("--name", self._scene.machine),
                *("--journal", str(self._scene.counts / f"{name}.json")),
                *(("--kinds", *kinds) if kinds else ()),
            ]
            self.publishers[name] = await self._start(name, module, arguments)

    async def start_lake(self, *, spark: bool, on_line: Callable[[str], None]) -> Child:
        """Start the process that makes the table; it reports its steps as JSON lines."""
        arguments = ["--drained", str(self._scene.sink.directory), "--out", str(self._scene.table)]
        temporary = str(self._scene.temporary)  # Spark's own files are removed with the scene, also after -9
        environment = {
            "TMPDIR": temporary,
            "SPARK_LOCAL_DIRS": temporary,
            "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={temporary} {os.environ.get('JAVA_TOOL_OPTIONS', '')}",
        }
        command = ["-m", "examples.demo.lake", *arguments, *([] if spark else ["--no-spark"])]
        log = self._scene.logs / "table.log"
        self.lake = await Child.start("table", command, log, environment=environment, on_line=on_line)
        return self.lake

    async def end(self, children: dict[str, Child]) -> None:
        """Terminate the processes, and wait. Raises DemoFailed if one does not end, or fails."""
        for child in children.values():
            child.terminate()
        for name, child in children.items():
            try:
                status = await child.wait(END_S)
            except TimeoutError:
                raise DemoFailed(f"{name} does not end; {self.last_line(child)}") from None
            if status:
                raise DemoFailed(f"{name} ended with status {status}; {self.last_line(child)}")

    def look_after(self) -> None:
        """Raise DemoFailed if a process has ended by itself."""
        if self.broker.lost:
            raise DemoFailed(f"the broker has ended by itself; its log is in {self._scene.logs}")
        for child in (*self.publishers.values(), *self.subscribers.values()):
            if child.ended and child.status:
                raise DemoFailed(f"{child.name} ended with status {child.status}; {self.last_line(child)}")

    def last_line(self, child: Child) -> str:
        """The last line of its log, and the path of the log."""
        path = self._scene.logs / f"{child.name}.log"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        return f"{path} ends with: {lines[-1] if lines else 'nothing'}"

    async def close(self) -> None:
        """Kill all remaining processes with -9."""
        for child in (*self.publishers.values(), *self.subscribers.values(), self.lake):
            if child is not None and not child.ended:
                child.kill()
                await child.wait()
        if self.broker.running:
            self.broker.kill()
            await self.broker.wait()
        self.broker.disconnect()

    async def _start(self, name: str, module: str, arguments: list[str]) -> Child:
        command = ["-m", f"examples.demo.{module}", *arguments]
        return await Child.start(name, command, self._scene.logs / f"{name}.log")
