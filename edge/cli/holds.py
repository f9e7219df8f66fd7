"""Who still wants what of the log: bridges, by their checkpoints, whoever runs them; named consumers; and
MQTT sessions, whose queues have left the ring.

Owns nothing but what it has read.  A bridge that has never drained a partition, and begins at the oldest
record, wants everything; so does one whose checkpoint cannot be read.
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

from bridge.checkpoint import cursors_in, streams_in
from bridge.drained import ring_epoch
from bridge.source import RingName
from edge.config import Bridge, Config
from edge.logs import pairs
from edge.state.restoring import NOTHING_WAITS
from persistence.errors import LogError
from persistence.retention import Floor

if TYPE_CHECKING:
    from edge.broker import Broker
    from edge.cold import ReadAt

__all__ = ["BridgeHolds", "ConsumerHolds", "SessionHolds"]

log = logging.getLogger(__name__)

Offsets = dict[str, tuple[int, int]]
Ask = Callable[[Callable[[], Any]], Future[Any]]  # runs a function on the broker's thread

LOOK_S = 5.0  # sessions are looked at no more often
STEP_RECORDS = 50_000  # of queues, in one turn of the broker: a fraction of a millisecond
ANSWER_S = 0.5
UNKNOWN = -1  # a position that is read again


class ConsumerHolds:
    """What groups of named consumers want.  Until it is known which there are, they want everything."""

    def __init__(self) -> None:
        self.groups: Callable[[], Sequence[dict[str, Any]]] | None = None  # ConsumersEndpoint.all_groups()

    def __call__(self, ring_name: str) -> Iterator[Floor]:
        """Of one ring."""
        if self.groups is None:
            yield Floor("consumers", 0, 0)
            return
        for group in self.groups():
            for place in group["places"]:
                if place["ring"] == ring_name:
                    yield Floor(f"consumers {group['name']}", place["epoch"], place["floor"])


class SessionHolds:
    """What MQTT sessions wait for, or have in flight.  Until that could be seen once, they want everything.

    Called on the upkeep's thread; the broker is asked in small steps, so that nobody it serves notices.
    """

    def __init__(self, broker: Broker, ask: Ask, read_at: ReadAt) -> None:
        """`read_at`: of the log, which knows the offsets of positions."""
        self._broker = broker
        self._ask = ask
        self._read_at = read_at
        self._floors: dict[tuple[str, int], tuple[int, int]] | None = None  # position and offset
        self._next_s = 0.0

    def __call__(self, ring_name: str) -> Iterator[Floor]:
        """Of one ring."""
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
                found, first = self._ask(partial(self._some, first)).result(ANSWER_S)
            except (TimeoutError, CancelledError):
                return  # it starts, or stops: what was seen last holds on
            for ring, position in found.items():
                lowest[ring] = min(position, lowest.get(ring, position))
        before = self._floors or {}
        floors: dict[tuple[str, int], tuple[int, int]] = {}
        for ring, position in lowest.items():
            if ring in before and before[ring][0] == position:
                floors[ring] = before[ring]
                continue
            try:
                runs = self._read_at(*ring, position, 1)
            except (LogError, OSError) as error:  # what was wanted before is, until it can be read
                log.warning("the log cannot be read, sessions hold it %s", pairs(ring=ring[0], reason=error))
                floors[ring] = UNKNOWN, before.get(ring, (0, 0))[1]
                continue
            if runs:
                floors[ring] = position, runs[0].offset
        self._floors = floors

    def _some(self, first: int) -> tuple[dict[tuple[str, int], int], int | None]:
        """On the broker's thread: the lowest positions of some sessions, by ring and epoch."""
        words, following = self._broker.engine.sources_floors(first, STEP_RECORDS)
        floors = array("Q", words)
        sources = self._broker.keeper.sources.items()
        return {ring: floors[it] for it, ring in sources if floors[it] != NOTHING_WAITS}, following


class BridgeHolds:
    """What the bridges of a configuration want; a checkpoint is read again when it has changed."""

    def __init__(self, config: Config) -> None:
        self._bridges = config.bridge
        self._directory = config.state_dir / "bridge"
        self._configured = {
            *(it.name for it in config.stream),
            *(f"{it.stream}@{it.name}" for it in config.producer),
        }
        self._streams: dict[str, frozenset[str]] = {}  # of each bridge, when this process began
        self._read: dict[Path, tuple[tuple[int, int], Offsets | None]] = {}

    def __call__(self, ring_name: str) -> Iterator[Floor]:
        """Of one ring."""
        for bridge in self._bridges:
            name = RingName.parse(ring_name)
            if name is None or not (name.belongs_to(bridge.streams) or self._is_left(bridge, name)):
                continue
            floor = self._floor(bridge, ring_name)
            if floor is not None:
                yield Floor(f"bridge {bridge.name}", *floor)

    def _is_left(self, bridge: Bridge, name: RingName) -> bool:
        """True if the stream is of the past: this bridge still drains the rest of it."""
        known = self._streams.get(bridge.name)
        if known is None:  # they change only when a bridge begins
            known = self._streams[bridge.name] = streams_in(self._path(bridge))
        return name.stream in known and name.stream not in self._configured

    def _path(self, bridge: Bridge) -> Path:
        return self._directory / f"{bridge.name}.checkpoint"

    def _floor(self, bridge: Bridge, ring_name: str) -> tuple[int, int] | None:
        path = self._path(bridge)
        offsets = self._offsets(path)
        if offsets is not None and ring_name in offsets:
            return offsets[ring_name]
        files = path, path.with_name(f"{path.name}.damaged")  # put aside: the sink says how far it was
        unreadable = offsets is None and any(it.exists() for it in files)
        return (0, 0) if unreadable or bridge.start == "oldest" else None

    def _offsets(self, path: Path) -> Offsets | None:
        try:
            facts = os.stat(path)
        except OSError:
            return None
        stamp = facts.st_mtime_ns, facts.st_size
        known = self._read.get(path)
        if known is not None and known[0] == stamp:
            return known[1]
        cursors = cursors_in(path)
        found = (
            None
            if cursors is None
            else {
                RingName(it.stream, it.partition).ring: (ring_epoch(it.epoch), it.next_offset)
                for it in cursors
            }
        )
        self._read[path] = stamp, found
        return found
