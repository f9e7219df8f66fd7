"""Durability of each ring: refusals of its publishers, and the progress of the sinks that they wait for.

The configuration has the acknowledgement gate of each durability (edge/config/schema.py, AckGate).

While the log of a ring accepts no records, its publishers are refused, also at `interval` and `upstream`:
otherwise a power cut could lose more than sync_interval_ms of records. refusal() gives the code for every
kind of publisher. The engine refuses MQTT clients and peers of consumers; a word in the ring refuses local
producers (Ring.refuse()). Both begin after queue_timeout_ms.

Owns no ring and no thread. The engine gets a ring, with a number, when its first topic is known; the ring's
state from before is remembered. Everything runs on the broker's thread, except Upstream.report_progress().
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import NamedTuple

from edge.config.schema import Config, Durability
from edge.engine.engine import Engine
from edge.logging_setup import pairs
from edge.mqtt.reason_codes import ReasonCode
from edge.streams.ring_files import stream_of
from ringbuf import REFUSAL_NO_LOG, REFUSAL_NO_ROOM

log = logging.getLogger(__name__)

_REASONS = {
    0: ReasonCode.SUCCESS,
    REFUSAL_NO_ROOM: ReasonCode.QUOTA_EXCEEDED,
    REFUSAL_NO_LOG: ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
}
_NO_SPACE_ERRORS = ("(ENOSPC)", "(EDQUOT)", "(EFBIG)")

Lost = Collection[tuple[int, int]]  # ranges of offsets, both ends included


def refusal(failure: str) -> int:
    """REFUSAL_* for publishers, from the reason why the log accepts no records; 0 if the reason is ""."""
    if not failure:
        return 0
    return REFUSAL_NO_ROOM if failure.endswith(_NO_SPACE_ERRORS) else REFUSAL_NO_LOG


def reason_code(failure: str) -> ReasonCode:
    """MQTT 5 reason code for the reason why the log accepts no records."""
    return _REASONS[refusal(failure)]


class RingDurability:
    """Refusals and upstream progress of each ring, by ring name."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._numbers: dict[str, int] = {}  # of the engine's rings
        self._refusals: dict[str, int] = {}
        self._upstream: dict[str, int] = {}
        self._report_upstream: Callable[[str, int, Lost], object] = lambda *_: None

    def begin(self, ring_name: str, number: int) -> None:
        """Apply the remembered state to a ring that the engine has got, as `number`."""
        self._numbers[ring_name] = number
        if reason := self._refusals.get(ring_name):
            self._engine.refuse(number, reason)
        if (offset := self._upstream.get(ring_name)) is not None:
            self._engine.upstream(number, offset)

    def end(self, ring_name: str) -> None:
        """Forget a ring that the engine no longer has, and that had no records."""
        for known in (self._numbers, self._refusals, self._upstream):
            known.pop(ring_name, None)

    def refuse(self, ring_name: str, reason: int) -> None:
        """Refuse publishers to the ring with this MQTT 5 reason code; 0: accept them again."""
        if self._refusals.get(ring_name, 0) == reason:
            return
        self._refusals[ring_name] = reason
        if ring_name in self._numbers:
            self._engine.refuse(self._numbers[ring_name], reason)

    def is_refused(self, ring_name: str) -> bool:
        """True if publishers to the ring are refused."""
        return bool(self._refusals.get(ring_name))

    def follow_upstream(self, report: Callable[[str, int, Lost], object]) -> None:
        """Call `report` with the progress of the sinks in each ring: the present one, and each later one."""
        self._report_upstream = report
        for ring_name, offset in self._upstream.items():
            report(ring_name, offset, ())

    def upstream(self, ring_name: str, offset: int | None, lost: Lost) -> None:
        """Record that all sinks have the ring's records below `offset`, except those that are lost.

        None: not all bridges have reported their progress yet.
        """
        if offset is not None:
            self._upstream[ring_name] = max(offset, self._upstream.get(ring_name, 0))
        self._report_upstream(ring_name, self._upstream.get(ring_name, 0), lost)
        number = self._numbers.get(ring_name)
        if number is None:
            return  # no client waits for records of the ring
        for first, last in lost:
            self._engine.upstream_lost(number, first, last + 1)
        if offset is not None:
            self._engine.upstream(number, offset)


class Progress(NamedTuple):
    """Progress of one bridge in one ring, in its current epoch."""

    offset: int
    reported_at: float  # monotonic time of the report


class Upstream:
    """Progress of bridges in the rings of durability "upstream".

    report_progress() may be called on any thread.
    """

    def __init__(
        self,
        config: Config,
        epochs: Mapping[str, int],
        rings: RingDurability,
        call: Callable[[Callable[[], object]], object],
    ) -> None:
        """Create the table. `epochs`: epoch of each ring; `call` runs a function on the broker's thread."""
        self._rings = rings
        self._call = call
        self._epochs = dict(epochs)
        self._bridges = _bridges_by_stream(config)
        self._known: dict[str, dict[str, Progress]] = {}  # ring -> bridge -> progress

    def report_progress(self, bridge: str, ring_name: str, epoch: int, offset: int, lost: Lost = ()) -> None:
        """Record that the sink of `bridge` has the ring's records below `offset`, except `lost` ones."""
        bridges = self._bridges.get(stream_of(ring_name), ())
        if bridge in bridges and self._epochs.get(ring_name) == epoch:
            self._call(
                partial(
                    self._apply_progress,
                    bridge,
                    ring_name,
                    Progress(offset, time.monotonic()),
                    tuple(lost),
                )
            )

    def apply(self, config: Config) -> None:
        """Wait for the bridges of another configuration from now on. On the broker's thread.

        Publishers that waited only for removed bridges are acknowledged.
        """
        self._bridges = _bridges_by_stream(config)
        for ring_name in self._known:
            self._acknowledge(ring_name, ())

    def add(self, epochs: Mapping[str, int]) -> None:
        """Follow more rings; `epochs`: epoch of each. On the broker's thread."""
        self._epochs = {**self._epochs, **epochs}

    def status(self) -> dict[str, dict[str, dict[str, float | None]]]:
        """Progress for `brim status`, by ring and bridge: offset (0: none yet), age of the report in s."""
        return {
            ring_name: {bridge: self._row(ring_name, bridge) for bridge in self._bridges[stream]}
            for ring_name in self._epochs
            if (stream := stream_of(ring_name)) in self._bridges
        }

    def _row(self, ring_name: str, bridge: str) -> dict[str, float | None]:
        known = self._known.get(ring_name, {}).get(bridge)
        report_age_s = None if known is None else round(time.monotonic() - known.reported_at, 1)
        return {"offset": self._offset(ring_name, bridge) or 0, "report_age_s": report_age_s}

    def _apply_progress(self, bridge: str, ring_name: str, progress: Progress, lost: Lost) -> None:
        reports = self._known.setdefault(ring_name, {})
        if lost:
            level = logging.ERROR if bridge in reports else logging.INFO  # the first repeats earlier losses
            details = pairs(bridge=bridge, ring=ring_name, offsets=list(lost))
            log.log(level, "records lost by the sink, not acknowledged %s", details)
        reports[bridge] = progress
        self._acknowledge(ring_name, lost)

    def _acknowledge(self, ring_name: str, lost: Lost) -> None:
        offsets = [self._offset(ring_name, bridge) for bridge in self._bridges.get(stream_of(ring_name), ())]
        known = [offset for offset in offsets if offset is not None]
        complete = bool(known) and len(known) == len(offsets)
        self._rings.upstream(ring_name, min(known) if complete else None, lost)

    def _offset(self, ring_name: str, bridge: str) -> int | None:
        known = self._known.get(ring_name, {}).get(bridge)
        return known.offset if known is not None else None


def _bridges_by_stream(config: Config) -> dict[str, list[str]]:
    """Names of the bridges that drain each stream of durability "upstream"."""
    return {
        stream.name: [bridge.name for bridge in config.bridges_of(stream.name)]
        for stream in config.stream
        if stream.durability is Durability.UPSTREAM
    }
