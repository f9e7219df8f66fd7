"""Running bridges: those in the broker's process, and the reported state of those in other processes.

Owns their start, stop and replacement. A bridge that cannot start is reported and shown in the status;
clients are served nevertheless. Never decides which bridges there are: the configuration does.

The checkpoint of a bridge belongs to its name. So a changed bridge continues behind the last drained record
of the earlier one, if its sink is the same.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from edge.config.schema import Bridge as BridgeConfig
from edge.config.schema import Config
from edge.errors import EdgeError, with_hint
from edge.logging_setup import pairs
from edge.server.bridge_settings import bridge_settings, known_streams, separate_bridge

if TYPE_CHECKING:
    from bridge.drain.bridge import Bridge
    from bridge.drain.control_socket import ControlSocket
    from bridge.drain.settings import BridgeSettings
    from edge.server.mqtt_startup import MqttServer

log = logging.getLogger(__name__)

_DRAINS = ("starting", "idle", "draining")  # conditions of a bridge whose sink is not known to be away
_UNANSWERED = ("starting", "retrying")  # conditions of a bridge whose sink may not answer
STILL_ENDS = "its files in flight are not complete yet; reload again"
DRAIN_AT_STOP_S = 5.0  # at most, for the records that linger when the broker stops


class UnchangedBridge(Struct, frozen=True):
    """A bridge that is not as configured, and the reason."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"bridge.{self.name}: {self.reason}"


class _Running(Struct):
    """One bridge of this process. `control`: None if it did not start."""

    bridge: Bridge
    control: ControlSocket | None = None
    trouble: dict[str, str] = {}

    def state(self) -> dict[str, Any]:
        return {**self.bridge.state().as_dict(), **self.trouble}


class RunningBridges:
    """The bridges of a broker. Everything runs on the event loop."""

    def __init__(self, core: MqttServer) -> None:
        self._core = core
        self._config = core.config
        self._running: dict[str, _Running] = {}  # by name
        self._known: dict[str, tuple[str, ...] | None] = {}  # by name: all streams at its start

    def states(self) -> list[dict[str, Any]]:
        """State of each configured bridge, for `brim status`."""
        running = self._running
        return [
            running[bridge.name].state() if bridge.name in running else separate_bridge(bridge, self._config)
            for bridge in self._config.bridge
        ]

    async def start(self, settings: Sequence[BridgeSettings]) -> None:
        """Start the bridges of the configuration. A failure is reported in the log and the status."""
        for each in settings:
            await self._start(each, waits=True)

    async def stop(self) -> None:
        """Drain the records that linger, then stop every bridge, the last one first.

        After the stop the machine may be switched off, and rings are in memory. A bridge that is
        paused, or whose sink is away, drains nothing; the others take at most DRAIN_AT_STOP_S together.
        No client is served meanwhile. So all bridges are notified first, and those whose sinks do not answer
        get DRAIN_AT_STOP_S together. A file that is in flight then is sent again after the next start.
        """
        drains = [
            running.bridge
            for running in self._running.values()
            if running.bridge.state().condition in _DRAINS
        ]
        await asyncio.gather(*(asyncio.to_thread(bridge.flush, DRAIN_AT_STOP_S) for bridge in drains))
        for running in self._running.values():
            running.bridge.stop(0)
        until_s = time.monotonic() + DRAIN_AT_STOP_S
        for name, running in reversed(list(self._running.items())):
            is_unanswered = running.bridge.state().condition in _UNANSWERED
            await self._stop(name, max(until_s - time.monotonic(), 0) if is_unanswered else None)

    def schema_of(self, name: str) -> str:
        """Id of the payload schema of a bridge of this process; "": none."""
        running = self._running.get(name)
        return running.bridge.state().payload_schema if running is not None else ""

    async def replace(
        self, config: Config, reread: Collection[str] = ()
    ) -> tuple[Config, list[UnchangedBridge]]:
        """Stop, start and replace bridges so that they are those of `config`.

        `reread`: names of bridges with a changed payload schema, which are replaced as well.

        Returns `config` with the bridges that are in effect, and those that are not as configured: a bridge
        that did not stop, or did not start; the earlier bridge of its name runs then.
        """
        earlier = {bridge.name: bridge for bridge in self._config.bridge}
        bridges: list[BridgeConfig] = []
        failed: list[UnchangedBridge] = []
        for name in [name for name in earlier if name not in {bridge.name for bridge in config.bridge}]:
            if not await self._stop(name):
                failed.append(UnchangedBridge(name, STILL_ENDS))
                bridges.append(earlier[name])
        for bridge in config.bridge:
            before = earlier.get(bridge.name)
            same = before == bridge and bridge.name not in reread and not self._lacks_streams(bridge, config)
            reason = "" if same else await self._change(before, bridge, config)
            if reason:
                failed.append(UnchangedBridge(bridge.name, reason))
            bridges += [bridge] if not reason else [before] if before is not None else []
        self._config = replace(config, bridge=tuple(bridges))
        return self._config, failed

    def _lacks_streams(self, bridge: BridgeConfig, config: Config) -> bool:
        """True if a bridge of this process drains all streams, and the streams are not those of its start."""
        known = known_streams(config)
        return not bridge.streams and self._known.get(bridge.name, known) != known

    async def _change(self, before: BridgeConfig | None, bridge: BridgeConfig, config: Config) -> str:
        """Replace one bridge. Returns the reason why it is not changed; "": it is."""
        earlier = self._running.get(bridge.name)
        if not await self._stop(bridge.name):
            return STILL_ENDS
        if not bridge.in_broker:
            return ""
        try:
            reason = await self._start(bridge_settings(bridge, config))
        except EdgeError as error:  # a file has changed since it was checked
            reason = with_hint(error)
        if reason:
            await self._stop(bridge.name)
            again = await self._start(earlier.bridge.settings) if earlier is not None else reason
            runs = not again or (before is not None and not before.in_broker)
            state = "the earlier bridge continues" if runs else "no bridge of that name runs"
            return f"{reason}; {state}"
        return ""

    async def _stop(self, name: str, timeout_s: float | None = None) -> bool:
        """Stop a bridge, which completes its files in flight. False: it has not ended in time.

        `timeout_s`: None: the longest that a put takes.
        """
        running = self._running.get(name)
        if running is None:
            return True
        if running.control is not None:
            await running.control.stop()
            running.control = None
        stop = running.bridge.stop
        if not await asyncio.to_thread(stop if timeout_s is None else partial(stop, timeout_s)):
            return False
        del self._running[name]
        self._known.pop(name, None)
        return True

    async def _start(self, settings: BridgeSettings, *, waits: bool = False) -> str:
        """Start a bridge. Returns the reason of a failure, which is logged; "": it runs.

        `waits`: a bridge whose checkpoint belongs to another edge or sink waits for a matching checkpoint.
        """
        core = self._core
        from bridge.drain.bridge import Bridge
        from bridge.drain.control_socket import ControlSocket
        from bridge.errors import BridgeError, CheckpointMismatch

        on_progress = partial(core.upstream.report_progress, settings.name)
        try:
            bridge = Bridge(
                settings, record_log=core.logs.reader if core.logs else None, on_progress=on_progress
            )
        except BridgeError as error:  # a file has changed since it was checked
            log.error("bridge not started %s", pairs(name=settings.name, reason=error, remedy=error.hint))
            return with_hint(error)
        running = _Running(bridge)
        self._running[settings.name] = running
        self._known[settings.name] = settings.known_streams
        try:
            try:
                running.bridge.start()
            except CheckpointMismatch as error:
                if not waits:
                    raise
                details = pairs(name=settings.name, reason=error, remedy=error.hint)
                log.error("bridge waits for its checkpoint %s", details)
                running.bridge.start_when_matching(error)
            control = ControlSocket(running.bridge)
            await control.start()
            running.control = control
        except (BridgeError, EdgeError) as error:
            log.error("bridge not started %s", pairs(name=settings.name, reason=error, remedy=error.hint))
            running.trouble = {"condition": "failed", "last_error": str(error), "remedy": error.hint}
            return with_hint(error)
        return ""
