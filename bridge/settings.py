"""What a bridge is told: every setting with its default, unit and reason.  Plain values, read once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bridge.drained import check_edge
from bridge.errors import BridgeError

__all__ = ["BridgeSettings"]

KIB, MIB = 1 << 10, 1 << 20

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class BridgeSettings:
    """One bridge: the rings of one broker into one sink."""

    name: str  # of the bridge: its checkpoint is called by it
    edge_id: str
    to: str  # URL of the sink: see bridge.sink.open_sink()
    runtime_dir: Path  # where the broker's rings are; new ones are found as they come
    state_dir: Path  # checkpoints are in state_dir/bridge
    # The broker's log, read when a ring has moved on; None: it has none.  In the broker's own process give
    # the Bridge its reader instead.
    log_dir: Path | None = None
    streams: tuple[str, ...] = ()  # which, by name; none: all.  A stream's local producers go with it
    options: Mapping[str, str] = field(default_factory=dict)  # of the sink, such as region or endpoint
    # Where a partition is begun that was never drained: at the oldest record, or at what comes from now on
    # (what was there before is then declared skipped).
    start: Literal["oldest", "latest"] = "oldest"
    # A unit is cut when it has as many bytes, when as many records wait, or when the oldest has waited so
    # long. 8 MiB: large enough that a PUT costs little beside its bytes, small enough to be sent again;
    # Spark packs files of that size into tasks.  One second of linger suits small setups; 60 s makes fewer,
    # larger files.
    unit_bytes: int = 8 * MIB
    unit_records: int = 1_000_000
    linger_ms: int = 1_000
    backoff_min_ms: int = 500
    backoff_max_ms: int = 60_000
    scan_interval_ms: int = 1_000  # how often the runtime directory is looked at for new rings

    def __post_init__(self) -> None:
        check_edge(self.edge_id)
        if not _NAME.fullmatch(self.name):
            raise BridgeError(f"bridge name {self.name!r}", hint="write 1 to 64 of A-Z, a-z, 0-9, - and _")
        for key, value, least, most in (
            ("unit_bytes", self.unit_bytes, 4 * KIB, 1 << 30),
            ("unit_records", self.unit_records, 1, 1 << 30),
            ("linger_ms", self.linger_ms, 0, 3_600_000),
            ("backoff_min_ms", self.backoff_min_ms, 1, self.backoff_max_ms),
            ("backoff_max_ms", self.backoff_max_ms, 1, 3_600_000),
            ("scan_interval_ms", self.scan_interval_ms, 10, 60_000),
        ):
            if not least <= value <= most:
                raise BridgeError(f"{key} is {value}, and must be {least} to {most}")

    @property
    def checkpoint_path(self) -> Path:
        """How far the sink has got."""
        return self.state_dir / "bridge" / f"{self.name}.checkpoint"
