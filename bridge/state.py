"""What there is to know about a bridge, for people and their tools.  Values; nothing here runs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from bridge.drain import Totals
from bridge.lag import PartitionLag

__all__ = ["BridgeState", "Condition"]

Condition = Literal["starting", "draining", "idle", "paused", "retrying", "blocked", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class BridgeState:
    """A bridge as it stood a moment ago.

    condition   starting, draining, idle (all is drained), paused, retrying, blocked (somebody has to act, and
                then say resume()), stopped, failed (a bug: see the log)
    lag_s       age of the oldest record that waits; 0: none does
    backlog_records  of those that wait: what comes in is drained beside them
    stalled_s   records wait, and for so long none has been drained; 0: less than stall_s, or paused
    last_ack_age_s  since the sink has last taken something; None: not yet
    buffer_left_s  at the present rate, until the first records are lost; None: nothing comes in
    in_flight   units that the sink was given and has not answered
    bytes_s     how fast it takes a unit; 0: not known yet
    """

    name: str
    to: str
    condition: Condition
    drain_seq: int = 0
    lag_records: int = 0
    lag_bytes: int = 0
    lag_s: float = 0.0
    backlog_records: int = 0
    stalled_s: float = 0.0
    last_ack_age_s: float | None = None
    buffer_left_s: float | None = None
    in_flight: int = 0
    bytes_s: float = 0.0
    failures: int = 0  # in a row
    last_error: str = ""
    remedy: str = ""
    totals: Totals = dataclasses.field(default_factory=Totals)
    partitions: tuple[PartitionLag, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)
