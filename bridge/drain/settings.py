"""Settings of a bridge, read once.

Keys of [[bridge]] have their meaning, default and range in edge/config/schema.py:
edge/server/bridge_settings.py copies them. Only settings that no configuration can change have a default
here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bridge.format.file_name import check_edge

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeSettings:
    """Settings of one bridge: the rings of one broker into one sink."""

    name: str  # of the bridge, and of its checkpoint file
    edge_id: str
    to: str  # URL of the sink: see bridge.sinks.registry.open_sink()
    runtime_dir: Path  # directory of the broker's rings; new rings are found as they appear
    state_dir: Path  # checkpoints are in state_dir/bridge
    # Directory of the broker's log, read for records that are no longer in the ring; None: no log. In the
    # broker's own process give the Bridge its log reader instead.
    log_dir: Path | None = None
    streams: tuple[str, ...]  # names; none: all. A stream's local producers are included
    # Streams that the broker has now, and producers as "stream@producer". If this bridge drained a stream
    # that is not among them, for example after a rename, its records are drained to their end under the old
    # name. None: the streams are not known.
    known_streams: tuple[str, ...] | None = None
    options: Mapping[str, str]  # of the sink, such as region or endpoint
    start: Literal["oldest", "latest"]
    file_bytes: int
    file_records: int
    linger_ms: int
    compress: Literal["none", "zstd"]  # zstd: level 1; a third of a gigabyte per second and core
    window: int  # 1: there is no thread in addition to the bridge's
    resend_max_records: int  # see bridge/drain/resend_limit.py
    resend_max_bytes: int
    rate_bytes_s: int
    # Newer records are drained in parallel, with this share of the bytes, if the oldest waiting record has
    # the age `live_after_ms`. The backlog gets the other share.
    live_share: float
    live_after_ms: int = 10_000
    priorities: Mapping[str, int]
    topics: tuple[str, ...]
    topics_not: tuple[str, ...]
    remap: Mapping[str, str]
    transform: str
    dead_letters_bytes: int = 64 * MIB  # of the dead-letter file; when it is full, the bridge stops
    # Bytes that the log keeps for this bridge, by stream, in addition to the ring. The reported time until
    # the buffer is full follows from it.
    spool_bytes: Mapping[str, int]
    # Merging of small files of closed days: see bridge/drain/merger.py
    merge_after_s: int = 0
    merge_bytes: int = 64 * MIB
    merge_keep_s: int = 86_400
    merge_rate_bytes_s: int = 8 * MIB
    stall_s: int
    backoff_min_ms: int = 500
    backoff_max_ms: int
    scan_interval_ms: int = 1_000  # interval of the search for new rings in the runtime directory

    def __post_init__(self) -> None:
        check_edge(self.edge_id)

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
