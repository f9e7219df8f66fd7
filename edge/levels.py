"""Durability: the acknowledgement gate of each ring, and the progress of logs and sinks, ring by ring.

    process, interval   acknowledged when the record is committed
    disk                when the log has synced the record
    upstream            when the sinks of all bridges that drain the ring have the record

While the log of a ring accepts no records, its publishers are refused, also at `interval`: otherwise a power
cut would cost more than sync_interval_ms. refusal() is the one rule for all. The engine refuses MQTT clients
and peers of consumers; a word in the ring refuses local producers (Ring.refuse()). Both begin after
queue_timeout_ms.

Owns no ring and no thread. A ring becomes a source of the engine when its first topic is known; its state
from before is remembered. Everything runs on the broker's thread, except Upstream.moved().
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import NamedTuple

from edge.config import Config, Durability
from edge.engine import GATE_DURABLE, GATE_NONE, GATE_UPSTREAM, Engine
from edge.logs import pairs
from edge.ring_files import stream_of
from ringbuf import REFUSAL_NO_LOG, REFUSAL_NO_ROOM

__all__ = ["Levels", "Lost", "Upstream", "gate_of", "reason_code", "refusal"]

log = logging.getLogger(__name__)

QUOTA_EXCEEDED, IMPLEMENTATION_SPECIFIC = 0x97, 0x83  # reason codes of MQTT 5
_GATES = {"disk": GATE_DURABLE, "upstream": GATE_UPSTREAM}
_REASONS = {0: 0, REFUSAL_NO_ROOM: QUOTA_EXCEEDED, REFUSAL_NO_LOG: IMPLEMENTATION_SPECIFIC}
_WANT_OF_ROOM = ("(ENOSPC)", "(EDQUOT)", "(EFBIG)")

Lost = Collection[tuple[int, int]]  # ranges of offsets, both ends included


def gate_of(durability: Durability) -> int:
    """The GATE_* of edge.engine that acknowledgements wait for."""
    return _GATES.get(durability, GATE_NONE)


def refusal(failure: str) -> int:
    """REFUSAL_* for publishers, from the reason why the log accepts no records; 0 if the reason is ""."""
    if not failure:
        return 0
    return REFUSAL_NO_ROOM if failure.endswith(_WANT_OF_ROOM) else REFUSAL_NO_LOG


def reason_code(failure: str) -> int:
    """MQTT 5 reason code for the reason why the log accepts no records."""
    return _REASONS[refusal(failure)]


class Levels:
    """Refusals and upstream progress of each ring, by ring name."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sources: dict[str, int] = {}
        self._refusals: dict[str, int] = {}
        self._upstream: dict[str, int] = {}

    def begin(self, ring_name: str, source: int) -> None:
        """Apply the remembered state to a ring that is a source of the engine from now on."""
        self._sources[ring_name] = source
        if reason := self._refusals.get(ring_name):
            self._engine.refuse(source, reason)
        if offset := self._upstream.get(ring_name):
            self._engine.upstream(source, offset, 0, 0)

    def refuse(self, ring_name: str, reason: int) -> None:
        """Refuse publishers to the ring with this MQTT 5 reason code; 0: accept them again."""
        if self._refusals.get(ring_name, 0) == reason:
            return
        self._refusals[ring_name] = reason
        if ring_name in self._sources:
            self._engine.refuse(self._sources[ring_name], reason)

    def upstream(self, ring_name: str, offset: int, lost: Lost) -> None:
        """Record that all sinks have the ring's records below `offset`, except those that are lost."""
        self._upstream[ring_name] = max(offset, self._upstream.get(ring_name, 0))
        source = self._sources.get(ring_name)
        if source is None:
            return  # no message was published to the ring since the start
        for first, last in lost:
            self._engine.upstream(source, 0, first, last + 1)
        self._engine.upstream(source, offset, 0, 0)


class Progress(NamedTuple):
    """Progress of one bridge in one ring."""

    epoch: int
    offset: int
    heard: float  # monotonic time of the report


class Upstream:
    """Progress of all bridges in the rings of streams with durability "upstream".

    moved() may be called on any thread.
    """

    def __init__(
        self,
        config: Config,
        epochs: Mapping[str, int],
        levels: Levels,
        call: Callable[[Callable[[], object]], object],
    ) -> None:
        """Create the table. `epochs` has the epoch of each ring; `call` runs a function on the broker's
        thread.
        """
        self._levels = levels
        self._call = call
        self._epochs = dict(epochs)
        self._bridges = {
            stream.name: [it.name for it in config.bridge if not it.streams or stream.name in it.streams]
            for stream in config.stream
            if stream.durability == "upstream"
        }
        self._known: dict[str, dict[str, Progress]] = {}  # ring -> bridge -> progress

    def moved(self, bridge: str, ring_name: str, epoch: int, offset: int, lost: Lost = ()) -> None:
        """Record that the sink of `bridge` has the ring's records below `offset` of `epoch`, except `lost`
        ones.
        """
        bridges = self._bridges.get(stream_of(ring_name), ())
        if bridge in bridges and self._epochs.get(ring_name) == epoch:
            self._call(
                partial(self._move, bridge, ring_name, Progress(epoch, offset, time.monotonic()), tuple(lost))
            )

    def status(self) -> dict[str, dict[str, dict[str, float | None]]]:
        """Progress for `brim status`: by ring and bridge, the offset (0: none yet) and the age of the report
        in s.
        """
        return {
            ring_name: {it: self._facts(ring_name, it) for it in self._bridges[stream]}
            for ring_name in self._epochs
            if (stream := stream_of(ring_name)) in self._bridges
        }

    def _facts(self, ring_name: str, bridge: str) -> dict[str, float | None]:
        known = self._known.get(ring_name, {}).get(bridge)
        heard_s = None if known is None else round(time.monotonic() - known.heard, 1)
        return {"offset": self._offset(ring_name, bridge), "heard_s": heard_s}

    def _move(self, bridge: str, ring_name: str, progress: Progress, lost: Lost) -> None:
        self._known.setdefault(ring_name, {})[bridge] = progress
        if lost:
            log.error(
                "records were lost on their way upstream, and are not acknowledged %s",
                pairs(bridge=bridge, ring=ring_name, offsets=list(lost)),
            )
        bridges = self._bridges[stream_of(ring_name)]
        self._levels.upstream(ring_name, min(self._offset(ring_name, it) for it in bridges), lost)

    def _offset(self, ring_name: str, bridge: str) -> int:
        known = self._known.get(ring_name, {}).get(bridge)
        return known.offset if known is not None and known.epoch == self._epochs[ring_name] else 0
