"""Broker as a process: started, killed with -9, started again, stopped; and requested for its status.

Owns one child at a time. The child is `python -m edge run`, the same as `brim run`; it prints a line when it
is ready.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from edge.errors import EdgeError
from edge.local.protocol import Connection, Report, Status
from examples.demo.processes import Child
from examples.demo.scene import Scene

COMMAND = ("-m", "edge", "run")
READY_S = 20.0
STOP_S = 40.0


class BrokerFailed(Exception):
    """The broker did not start, or ended by itself. The message has the path of its log."""


class Broker:
    """Broker process. Created once, started any number of times."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._child: Child | None = None
        self._wanted = False
        self._connection: Connection | None = None

    @property
    def running(self) -> bool:
        """True if the process runs."""
        return self._child is not None and not self._child.ended

    @property
    def lost(self) -> bool:
        """True if the process has ended without a command."""
        return self._wanted and not self.running

    @property
    def pid(self) -> int:
        """Process id; 0: no process."""
        return self._child.pid if self._child else 0

    async def start(self) -> float:
        """Start it. Returns the seconds until it was ready. Raises BrokerFailed."""
        begin = time.monotonic()
        ready = asyncio.Event()
        arguments = [*COMMAND, "--config", str(self._scene.config)]

        def look(line: str) -> None:
            if "ready" in line:
                ready.set()

        self._child = await Child.start("broker", arguments, self._log, on_line=look)
        ended = asyncio.create_task(self._child.wait())
        saying = asyncio.create_task(ready.wait())
        await asyncio.wait([ended, saying], timeout=READY_S, return_when=asyncio.FIRST_COMPLETED)
        saying.cancel()
        if not ready.is_set():
            self.kill()
            await ended
            raise BrokerFailed(f"the broker did not become ready; its last words:\n{self._last_words()}")
        ended.cancel()
        self._wanted = True
        return time.monotonic() - begin

    def kill(self) -> None:
        """Kill it with -9, at any point of its work."""
        self._wanted = False
        if self._child is not None:
            self._child.kill()

    async def wait(self) -> int:
        """Wait for its end. Returns its exit status."""
        assert self._child is not None
        return await self._child.wait()

    async def stop(self) -> int:
        """Stop it with SIGTERM. Returns its exit status."""
        self.disconnect()
        self._wanted = False
        return await self._child.end(STOP_S) if self._child is not None else 0

    async def report(self) -> dict[str, Any]:
        """Output of `brim status --json`; empty while the broker does not answer."""
        if not self.running:
            self.disconnect()
            return {}
        try:
            if self._connection is None:
                self._connection = Connection(self._scene.runtime)
            return (await self._connection.request_async(Status(), Report)).report
        except EdgeError:
            self.disconnect()
            return {}

    def disconnect(self) -> None:
        """Close the connection for status requests."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def _log(self) -> Any:
        return self._scene.logs / "broker.log"

    def _last_words(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
