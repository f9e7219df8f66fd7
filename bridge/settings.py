"""Settings of a bridge: each with its default, unit and reason. Plain values, read once."""

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
    """Settings of one bridge: the rings of one broker into one sink."""

    name: str  # of the bridge, and of its checkpoint file
    edge_id: str
    to: str  # URL of the sink: see bridge.sink.open_sink()
    runtime_dir: Path  # directory of the broker's rings; new rings are found as they appear
    state_dir: Path  # checkpoints are in state_dir/bridge
    # Directory of the broker's log, read for records that are no longer in the ring; None: no log. In the
    # broker's own process give the Bridge its log reader instead.
    log_dir: Path | None = None
    streams: tuple[str, ...] = ()  # names; none: all. A stream's local producers are included
    # Streams that the broker has now, and producers as "stream@producer". If this bridge drained a stream
    # that is not among them, for example after a rename, its records are drained to their end under the old
    # name. None: the streams are not known.
    known_streams: tuple[str, ...] | None = None
    options: Mapping[str, str] = field(default_factory=dict)  # of the sink, such as region or endpoint
    # First offset of a partition that was never drained: the oldest record, or the next that arrives. With
    # "latest" the records before are declared skipped.
    start: Literal["oldest", "latest"] = "oldest"
    # A unit is cut at this number of bytes or records, or when the oldest record has waited for the linger
    # time. 8 MiB is large enough that a PUT costs little next to its bytes, and small enough to be sent
    # again. Spark packs files of that size into tasks. One second of linger suits small setups; 60 s makes
    # fewer, larger files.
    unit_bytes: int = 8 * MIB
    unit_records: int = 1_000_000
    linger_ms: int = 1_000
    # Compression of files: zstd, level 1; a third of a gigabyte per second and core.
    compress: Literal["none", "zstd"] = "none"
    # Units in flight at once, each with unit_bytes of memory. With 1 there is no thread in addition to the
    # bridge's. A distant store takes several in the time of one.
    window: int = 4
    # Resend limit for Kafka and MQTT: at most this number of records and bytes is sent again after a kill -9
    # of the bridge. The checkpoint is saved at least once per limit. A smaller limit costs throughput: a save
    # is two syncs of the disk (bridge/resend.py).
    resend_max_records: int = 50_000
    resend_max_bytes: int = 8 * MIB
    rate_bytes_s: int = 0  # maximum, averaged over a second; 0: no limit
    # When the oldest record that waits has this age, newer records are drained in parallel, with this share
    # of the bytes while both have records to send. The backlog gets the other share. 0: strictly in order.
    live_share: float = 0.7
    live_after_ms: int = 10_000
    priorities: Mapping[str, int] = field(default_factory=dict)  # by stream; higher goes first; default 0
    # For sinks that take records: topics to send (default: all), topics not to send, and new names by the
    # longest matching prefix; and a plug-in (bridge/transform.py).
    topics: tuple[str, ...] = ()
    topics_not: tuple[str, ...] = ()
    remap: Mapping[str, str] = field(default_factory=dict)
    transform: str = ""
    dead_letters_bytes: int = 64 * MIB  # of the dead-letter file; when it is full, the bridge stops
    # Bytes that the log keeps for this bridge, by stream, in addition to the ring. The reported time until
    # the buffer is full follows from it.
    spool_bytes: Mapping[str, int] = field(default_factory=dict)
    stall_s: int = 300  # records wait, and the cursor has not moved for this time: reported as stalled
    backoff_min_ms: int = 500
    backoff_max_ms: int = 60_000
    scan_interval_ms: int = 1_000  # interval of the search for new rings in the runtime directory

    def __post_init__(self) -> None:
        check_edge(self.edge_id)
        for name in ("runtime_dir", "state_dir"):  # str is accepted
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
        """True if a setting is used that only a sink for records supports."""
        return bool(self.topics or self.topics_not or self.remap or self.transform)

    @property
    def dead_letters_path(self) -> Path:
        """File of the records that could never be sent."""
        return self.state_dir / "bridge" / f"{self.name}.dead.jsonl"

    @property
    def checkpoint_path(self) -> Path:
        """File of the progress of this bridge."""
        return self.state_dir / "bridge" / f"{self.name}.checkpoint"
