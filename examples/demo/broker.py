"""The broker as a process: started, killed with -9, started again, stopped; and asked how it is.

Owns one child at a time.  It is `python -m edge run`, exactly what `brim run` is; ready when it says so.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from edge.control import Connection, Report, Status
from edge.errors import EdgeError
from examples.demo.processes import Child
from examples.demo.scene import Scene

__all__ = ["Broker", "BrokerFailed"]

COMMAND = ("-m", "edge", "run")
READY_S = 20.0
STOP_S = 40.0


class BrokerFailed(Exception):
    """It did not start, or ended by itself; the message says where its log is."""


class Broker:
    """Made once, started as often as it takes."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._child: Child | None = None
        self._wanted = False
        self._connection: Connection | None = None

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self._child is not None and not self._child.ended

    @property
    def lost(self) -> bool:
        """Whether it has ended though nobody told it to."""
        return self._wanted and not self.running

    @property
    def pid(self) -> int:
        """Of the process; 0: there is none."""
        return self._child.pid if self._child else 0

    async def start(self) -> float:
        """Start it; seconds until it said that it is ready.  Raises BrokerFailed."""
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
        """With -9, wherever it is."""
        self._wanted = False
        if self._child is not None:
            self._child.kill()

    async def wait(self) -> int:
        """Its exit status, once it is gone."""
        assert self._child is not None
        return await self._child.wait()

    async def stop(self) -> int:
        """With SIGTERM; its exit status."""
        self.disconnect()
        self._wanted = False
        return await self._child.end(STOP_S) if self._child is not None else 0

    async def report(self) -> dict[str, Any]:
        """What `brim status --json` shows; empty while there is no answer."""
        if not self.running:
            self.disconnect()
            return {}
        try:
            if self._connection is None:
                self._connection = Connection(self._scene.runtime)
            return (await self._connection.ask_async(Status(), Report)).report
        except EdgeError:
            self.disconnect()
            return {}

    def disconnect(self) -> None:
        """Ask no more."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def _log(self) -> Any:
        return self._scene.logs / "broker.log"

    def _last_words(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
