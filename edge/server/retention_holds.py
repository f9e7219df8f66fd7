"""Retention holds: the lowest log offset that bridges, consumer groups and MQTT sessions still need.

Owns only cached values. A bridge that has never drained a partition, and begins at the oldest record, needs
everything; so does one whose checkpoint is unreadable.
"""

from __future__ import annotations

import logging
import os
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge.drain.checkpoint import cursors_in, streams_in
from bridge.format.lake_epoch import ring_epoch
from bridge.source.partition_source import RingName
from edge.config.schema import Bridge, Config
from edge.logging_setup import pairs
from edge.recovery.restore_sessions import NOTHING_WAITS
from edge.server.bridge_settings import known_streams
from persistence.errors import LogError
from persistence.maintenance.retention_rules import Floor

if TYPE_CHECKING:
    from edge.broker.dispatcher import Broker
    from edge.broker.log_backfill import ReadAt

log = logging.getLogger(__name__)

Offsets = dict[str, tuple[int, int]]
Submit = Callable[[Callable[[], Any]], Future[Any]]  # runs a function on the broker's thread

LOOK_S = 5.0  # at least between two reads of session state
STEP_RECORDS = 50_000  # of queues, in one turn of the broker: a fraction of a millisecond
ANSWER_S = 0.5
UNKNOWN = -1  # a position that must be read again


class ConsumerHolds:
    """Offsets that consumer groups need. Until the groups are known, they need everything."""

    def __init__(self) -> None:
        self.groups: Callable[[], Sequence[dict[str, Any]]] | None = None  # ConsumersEndpoint.all_groups()

    def __call__(self, ring_name: str) -> Iterator[Floor]:
        """Holds of one ring."""
        if self.groups is None:
            yield Floor("consumers", 0, 0)
            return
        for group in self.groups():
            for place in group["places"]:
                if place["ring"] == ring_name:
                    yield Floor(f"consumers {group['name']}", place["epoch"], place["floor"])


class SessionHolds:
    """Offsets that MQTT sessions need: queued or in flight. Until they were read once, everything is needed.

    Called on the maintenance thread. The broker is queried in small steps, so that its clients are not
    delayed.
    """

    def __init__(self, broker: Broker, submit: Submit, read_at: ReadAt) -> None:
        """Create the holds. `read_at`: of the log, which knows the offsets of positions."""
        self._broker = broker
        self._submit = submit
        self._read_at = read_at
        self._floors: dict[tuple[str, int], tuple[int, int]] | None = None  # position and offset
        self._next_s = 0.0

    def __call__(self, ring_name: str) -> Iterator[Floor]:
        """Holds of one ring."""
        if time.monotonic() >= self._next_s:
            self._look()
            self._next_s = time.monotonic() + LOOK_S
        if self._floors is None:
            yield Floor("sessions", 0, 0)
            return
        for (name, epoch), (_, offset) in self._floors.items():
            if name == ring_name:
                yield Floor("sessions", epoch, offset)

    def _look(self) -> None:
        lowest: dict[tuple[str, int], int] = {}
        first: int | None = 0
        while first is not None:
            try:
                positions, first = self._submit(partial(self._some, first)).result(ANSWER_S)
            except (TimeoutError, CancelledError):
                return  # the broker starts or stops: the last values stay valid
            for ring, position in positions.items():
                lowest[ring] = min(position, lowest.get(ring, position))
        before = self._floors or {}
        floors: dict[tuple[str, int], tuple[int, int]] = {}
        for ring, position in lowest.items():
            if ring in before and before[ring][0] == position:
                floors[ring] = before[ring]
                continue
            try:
                runs = self._read_at(*ring, position, 1)
            except (LogError, OSError) as error:  # the earlier hold stays until the log is readable
                log.warning(
                    "log read failed, retention hold of sessions kept %s", pairs(ring=ring[0], reason=error)
                )
                floors[ring] = UNKNOWN, before.get(ring, (0, 0))[1]
                continue
            if runs:
                floors[ring] = position, runs[0].offset
        self._floors = floors

    def _some(self, first: int) -> tuple[dict[tuple[str, int], int], int | None]:
        """Lowest positions of some sessions, by ring and epoch. On the broker's thread."""
        positions, following = self._broker.engine.lowest_positions(first, STEP_RECORDS)
        floors = array("Q", positions)
        rings = self._broker.journal.rings.items()
        return {ring: floors[handle] for handle, ring in rings if floors[handle] != NOTHING_WAITS}, following


class BridgeHolds:
    """Offsets that the bridges of a configuration need; a checkpoint is read again after a change."""

    def __init__(self, config: Config) -> None:
        self._bridges = config.bridge
        self._directory = config.state_dir / "bridge"
        self._configured = set(known_streams(config))
        self._streams: dict[str, frozenset[str]] = {}  # of each bridge, at the start of this process
        self._read: dict[Path, tuple[tuple[int, int], Offsets | None]] = {}

    def apply(self, config: Config) -> None:
        """Hold records for the bridges of another configuration from now on."""
        self._bridges, self._configured = config.bridge, set(known_streams(config))
        self._streams.clear()

    def __call__(self, ring_name: str) -> Iterator[Floor]:
        """Holds of one ring."""
        for bridge in self._bridges:
            name = RingName.parse(ring_name)
            if name is None or not (name.belongs_to(bridge.streams) or self._is_left(bridge, name)):
                continue
            floor = self._floor(bridge, ring_name)
            if floor is not None:
                yield Floor(f"bridge {bridge.name}", *floor)

    def _is_left(self, bridge: Bridge, name: RingName) -> bool:
        """True if the stream is no longer configured, but this bridge still drains its rest."""
        known = self._streams.get(bridge.name)
        if known is None:  # they change only when a bridge starts
            known = self._streams[bridge.name] = streams_in(self._path(bridge))
        return name.stream in known and name.stream not in self._configured

    def _path(self, bridge: Bridge) -> Path:
        return self._directory / f"{bridge.name}.checkpoint"

    def _floor(self, bridge: Bridge, ring_name: str) -> tuple[int, int] | None:
        path = self._path(bridge)
        offsets = self._offsets(path)
        if offsets is not None and ring_name in offsets:
            return offsets[ring_name]
        # a renamed checkpoint: the sink knows the progress
        files = path, path.with_name(f"{path.name}.damaged")
        unreadable = offsets is None and any(file.exists() for file in files)
        return (0, 0) if unreadable or bridge.start == "oldest" else None

    def _offsets(self, path: Path) -> Offsets | None:
        try:
            status = os.stat(path)
        except OSError:
            return None
        stamp = status.st_mtime_ns, status.st_size
        known = self._read.get(path)
        if known is not None and known[0] == stamp:
            return known[1]
        cursors = cursors_in(path)
        offsets = (
            None
            if cursors is None
            else {
                RingName(cursor.stream, cursor.partition).ring: (ring_epoch(cursor.epoch), cursor.next_offset)
                for cursor in cursors
            }
        )
        self._read[path] = stamp, offsets
        return offsets
