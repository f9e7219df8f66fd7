"""State of a bridge for people and their tools. Plain values; nothing here runs."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

from bridge.drain.drain import Totals
from bridge.drain.lag import PartitionLag
from bridge.drain.losses import PartitionLosses
from bridge.drain.merger import MergeTotals
from persistence.stats import MILLISECOND_NS, LatencyHistogram

LOSSES_SHOWN = 16  # partitions; RANGES_MAX ranges of each kind
Verdict = Literal["lost", "skipped", "unknown", "waiting", "complete"]

Condition = Literal["starting", "draining", "idle", "paused", "retrying", "blocked", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class BridgeState:
    """State of a bridge at one moment.

    condition        starting, draining, idle (all is drained), paused,
                     retrying (after a failure of the sink, or an unexpected error),
                     blocked (an operator must act and then resume; or a partition cannot be read while
                     others are drained), stopped, failed (run() was interrupted)
    lag_s            age of the oldest record that waits; 0: no record waits
    backlog_records  records that wait while newer ones are drained in parallel
    stalled_s        seconds for which records wait and none was drained; 0: less than stall_s, or paused
    last_ack_age_s   seconds since the last acknowledgement of the sink; None: no acknowledgement yet
    buffer_left_s    seconds until the first records are lost, at the present rate; None: no records arrive
    losses           by partition: records that no file will ever hold (bridge/drain/losses.py)
    in_flight        files that the sink has and has not acknowledged
    drain            times from the oldest record of a file to the acknowledgement of the sink
    bytes_s          speed at which the sink takes a file; 0: not known yet
    payload_schema   id of the payload schema of new files; "": none
    omitted          records and commands that the sink did not pass on, since the start, by cause
    merging          small files of closed days that were merged since the start (bridge/drain/merger.py)
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
    blocked_partitions: int = 0  # cannot be read: see their error
    failures: int = 0  # in a row
    last_error: str = ""
    remedy: str = ""
    payload_schema: str = ""
    omitted: dict[str, int] = dataclasses.field(default_factory=dict)
    merging: MergeTotals = dataclasses.field(default_factory=MergeTotals)
    totals: Totals = dataclasses.field(default_factory=Totals)
    drain: dict[str, object] = dataclasses.field(default_factory=LatencyHistogram(MILLISECOND_NS).as_dict)
    partitions: tuple[PartitionLag, ...] = ()
    losses: tuple[PartitionLosses, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Dictionary for JSON: counts are of all partitions, ranges of the first LOSSES_SHOWN."""
        lost_by: Counter[str] = Counter()
        for loss in self.losses:
            lost_by.update(loss.losses.lost_by)
        plain = dataclasses.asdict(dataclasses.replace(self, losses=()))
        shown = [loss.as_dict() for loss in self.losses[:LOSSES_SHOWN]]
        return plain | {
            "verdict": self.verdict,
            "lost_records": sum(lost_by.values()),
            "lost_by": dict(lost_by),
            "skipped_records": sum(loss.losses.skipped_records for loss in self.losses),
            "losses": shown,
            "losses_not_shown": len(self.losses) - len(shown),
        }

    @property
    def verdict(self) -> Verdict:
        """The worst known verdict: lost, skipped, unknown (the bridge does not run), waiting or complete."""
        if any(loss.losses.lost_records for loss in self.losses):
            return "lost"
        if self.losses:
            return "skipped"
        if self.condition in {"starting", "stopped", "failed"}:
            return "unknown"
        return "waiting" if self.lag_records or self.in_flight else "complete"
