"""Health of a broker: the parts that are not ready and the reasons, from the status report.

/healthz is 200 while clients are served. /readyz is 200 while clients can publish and receive too. A bridge
that cannot reach its sink is reported, but the broker stays ready: the log holds the records.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

__all__ = ["Trouble", "health_page", "is_ready", "ready_page", "troubles"]

Status = Mapping[str, Any]

_TROUBLED = {"retrying", "blocked", "stopped", "failed"}  # conditions of a bridge


class Trouble(NamedTuple):
    """A part that needs attention. `blocks`: clients cannot be served as they should."""

    part: str
    why: str
    blocks: bool = True


def troubles(status: Status) -> list[Trouble]:
    """All parts that are not ready."""
    return [*_of_clients(status), *_of_log(status), *_of_bridges(status)]


def is_ready(status: Status) -> bool:
    """True if no part blocks clients."""
    return not any(trouble.blocks for trouble in troubles(status))


def health_page(status: Status) -> tuple[int, str]:
    """HTTP status and JSON text of /healthz."""
    stalled_s = (status.get("watchdog") or {}).get("stalled_s") or 0
    if stalled_s:
        return 503, json.dumps({"status": "stalled", "stalled_s": stalled_s}) + "\n"
    return 200, json.dumps({"status": "ok"}) + "\n"


def ready_page(status: Status, *, detailed: bool) -> tuple[int, str]:
    """HTTP status and JSON text of /readyz. `detailed`: with parts and reasons."""
    found = troubles(status)
    ready = not any(trouble.blocks for trouble in found)
    page: dict[str, object] = {"ready": ready}
    if detailed:
        page["parts"] = [{"part": it.part, "why": it.why, "blocks_clients": it.blocks} for it in found]
    return 200 if ready else 503, json.dumps(page) + "\n"


def _of_clients(status: Status) -> Iterator[Trouble]:
    if stalled_s := (status.get("watchdog") or {}).get("stalled_s"):
        yield Trouble("mqtt", f"clients are not served for {stalled_s:.1f} s; see the broker's log")
    for missing in status.get("missing", ()):
        why = f"{missing['path']} was removed or replaced; {missing['remedy']}"
        yield Trouble(missing["key"], why, blocks=missing["key"] in {"log", "state_dir"})
    if error := status["mqtt"].get("spill_errno"):
        yield Trouble("spill file", f"it cannot grow: {os.strerror(error)}; free memory in runtime_dir")


def _of_log(status: Status) -> Iterator[Trouble]:
    log = status.get("log") or {}
    if log.get("failures"):
        yield Trouble("log", f"it cannot be written: {log.get('reason') or 'see the log of the broker'}")
    elif log.get("read_only"):
        yield Trouble("log", "the disk is nearly full, and the log takes no records; free space")
    for ring, why in (log.get("broken_rings") or {}).items():
        yield Trouble(f"log of ring {ring}", f"no longer written: {why}")
    for stream in (log.get("maintenance") or {}).get("full_streams", ()):
        yield Trouble(f"stream {stream}", "full: publishers are refused; raise retain_bytes or drain it")


def _of_bridges(status: Status) -> Iterator[Trouble]:
    for bridge in status.get("bridges", ()):
        if bridge["condition"] in _TROUBLED or bridge.get("stalled_s"):
            details = "; ".join(filter(None, (bridge.get("last_error"), bridge.get("remedy"))))
            yield Trouble(f"bridge {bridge['name']}", f"{bridge['condition']}: {details}", blocks=False)
