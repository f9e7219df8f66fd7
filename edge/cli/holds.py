"""Who still wants what of the log: bridges, by their checkpoints, whoever runs them; and named consumers.

Owns nothing but what it has read.  A bridge that has never drained a partition, and begins at the oldest
record, wants everything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bridge.checkpoint import cursors_in
from bridge.source import RingName
from edge.config import Bridge, Config
from persistence.retention import Floor

__all__ = ["BridgeHolds", "consumer_holds"]

Offsets = dict[str, tuple[int, int]]


def consumer_holds(groups: Callable[[], Sequence[dict[str, Any]]], ring_name: str) -> Iterator[Floor]:
    """What groups of named consumers want of one ring; `groups` as ConsumersEndpoint.groups()."""
    for group in groups():
        for place in group["places"]:
            if place["ring"] == ring_name:
                yield Floor(f"consumers {group['name']}", place["epoch"], place["floor"])


class BridgeHolds:
    """What the bridges of a configuration want; a checkpoint is read again when it has changed."""

    def __init__(self, config: Config) -> None:
        self._bridges = config.bridge
        self._directory = config.state_dir / "bridge"
        self._read: dict[Path, tuple[tuple[int, int], Offsets | None]] = {}

    def __call__(self, ring_name: str) -> Iterator[Floor]:
        """Of one ring."""
        for bridge in self._bridges:
            name = RingName.parse(ring_name)
            if name is None or not name.belongs_to(bridge.streams):
                continue
            floor = self._floor(bridge, ring_name)
            if floor is not None:
                yield Floor(f"bridge {bridge.name}", *floor)

    def _floor(self, bridge: Bridge, ring_name: str) -> tuple[int, int] | None:
        offsets = self._offsets(self._directory / f"{bridge.name}.checkpoint")
        if offsets is not None and ring_name in offsets:
            return offsets[ring_name]
        return (0, 0) if bridge.start == "oldest" else None

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
            else {RingName(it.stream, it.partition).ring: (it.epoch, it.next_offset) for it in cursors}
        )
        self._read[path] = stamp, found
        return found
