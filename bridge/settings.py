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
    # Streams that the broker has now, and producers as "stream@producer".  Records of a stream that this
    # bridge drained and that is not among them any more, as after a new name, are drained to their end under
    # their old name.  None: it is not known.
    known_streams: tuple[str, ...] | None = None
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
    # Of files: zstd, level 1; a third of a gigabyte a second and core.
    compress: Literal["none", "zstd"] = "none"
    # Units under way at once, of unit_bytes of memory each.  With one there is no thread beside the bridge's;
    # a store far away takes several in the time of one.
    window: int = 4
    # Resend window, of Kafka and MQTT: at most so many records, with at most so many bytes, are sent again
    # after a kill -9 of the bridge.  The checkpoint is saved at least once for each window.  A smaller one
    # costs throughput: a save is two syncs of the disk (bridge/resend.py).
    resend_max_records: int = 50_000
    resend_max_bytes: int = 8 * MIB
    rate_bytes_s: int = 0  # at most, on average over a second; 0: as fast as the sink takes it
    # When the oldest record that waits is so old, what comes in from then on is drained beside what waits,
    # with this share of bytes as long as both want it; the other share is the backlog's.  0: strictly in
    # order.
    live_share: float = 0.7
    live_after_ms: int = 10_000
    priorities: Mapping[str, int] = field(default_factory=dict)  # by stream; higher goes first; others: 0
    # For sinks that take records: which topics go there (all), which do not, and what they are called there,
    # by the longest beginning that matches; and a plug-in (bridge/transform.py).
    topics: tuple[str, ...] = ()
    topics_not: tuple[str, ...] = ()
    remap: Mapping[str, str] = field(default_factory=dict)
    transform: str = ""
    dead_letters_bytes: int = (
        64 * MIB
    )  # of the file for what can never be sent; when it is full, the bridge stops
    # What the log keeps for this bridge, by stream, beyond the ring: from it follow hours of buffer left.
    spool_bytes: Mapping[str, int] = field(default_factory=dict)
    stall_s: int = 300  # records wait, and the cursor has not moved for so long: that is said
    backoff_min_ms: int = 500
    backoff_max_ms: int = 60_000
    scan_interval_ms: int = 1_000  # how often the runtime directory is looked at for new rings

    def __post_init__(self) -> None:
        check_edge(self.edge_id)
        for name in ("runtime_dir", "state_dir"):  # a str will do
            object.__setattr__(self, name, Path(getattr(self, name)))
        if not _NAME.fullmatch(self.name):
            raise BridgeError(f"bridge name {self.name!r}", hint="write 1 to 64 of A-Z, a-z, 0-9, - and _")
        for key, value, least, most in (
            ("unit_bytes", self.unit_bytes, 4 * KIB, 1 << 30),
            ("unit_records", self.unit_records, 1, 1 << 30),
            ("linger_ms", self.linger_ms, 0, 3_600_000),
            ("backoff_min_ms", self.backoff_min_ms, 1, self.backoff_max_ms),
            ("backoff_max_ms", self.backoff_max_ms, 1, 3_600_000),
            ("scan_interval_ms", self.scan_interval_ms, 10, 60_000),
            ("window", self.window, 1, 64),
            ("resend_max_records", self.resend_max_records, 1, 1 << 30),
            ("resend_max_bytes", self.resend_max_bytes, 4 * KIB, 1 << 30),
            ("rate_bytes_s", self.rate_bytes_s, 0, 1 << 40),
            ("live_share", self.live_share, 0, 0.95),
            ("live_after_ms", self.live_after_ms, 0, 86_400_000),
            ("dead_letters_bytes", self.dead_letters_bytes, 0, 1 << 40),
            ("stall_s", self.stall_s, 1, 1 << 31),
        ):
            if not least <= value <= most:
                raise BridgeError(f"{key} is {value}, and must be {least} to {most}")

    @property
    def chooses_topics(self) -> bool:
        """Whether anything is asked for that only a sink for records can do."""
        return bool(self.topics or self.topics_not or self.remap or self.transform)

    @property
    def dead_letters_path(self) -> Path:
        """What could never be sent."""
        return self.state_dir / "bridge" / f"{self.name}.dead.jsonl"

    @property
    def checkpoint_path(self) -> Path:
        """How far the sink has got."""
        return self.state_dir / "bridge" / f"{self.name}.checkpoint"
