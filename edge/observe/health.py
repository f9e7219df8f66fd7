"""Health of a broker: the parts that need attention and the reasons, from the status report.

For `brim status`, `brim doctor` and the pages of the metrics endpoint.

/healthz is 200 while clients are served. /readyz is 200 while clients can publish and receive too. A bridge
that cannot reach its sink is reported, but the broker stays ready: the log holds the records.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Status = Mapping[str, Any]

QUIET_S = 10.0  # publishers wait, and no bridge reports progress of its sink
TROUBLED = {"retrying", "blocked", "stopped", "failed"}  # conditions of a bridge
_LOST_BY = {
    "state_dir": ": its files are lost, and publishers of streams with a log are refused",
    "log": ": publishers of streams with a log are refused",
    "runtime_dir": ": programs of this machine cannot attach, and a killed broker loses its rings",
    "zmq": ": no further subscriber can connect over ZeroMQ",
    "consumers": ": no further consumer can connect",
    "ring": ": programs of this machine cannot attach, and a killed broker loses it",
}


class Trouble(NamedTuple):
    """A part that needs attention, with a sentence. `blocks`: clients cannot be served as they should."""

    part: str
    why: str
    blocks: bool = True


class UpstreamWait(NamedTuple):
    """Records of a ring that a bridge has not drained yet, and the seconds since its last report."""

    ring: str
    bridge: str
    missing: int
    report_age_s: float | None


def troubles(status: Status) -> list[Trouble]:
    """All parts that need attention."""
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
    all_troubles = troubles(status)
    ready = not any(trouble.blocks for trouble in all_troubles)
    page: dict[str, object] = {"ready": ready}
    if detailed:
        page["parts"] = [
            {"part": trouble.part, "why": trouble.why, "blocks_clients": trouble.blocks}
            for trouble in all_troubles
        ]
    return 200 if ready else 503, json.dumps(page) + "\n"


def _of_clients(status: Status) -> Iterator[Trouble]:
    if stalled_s := (status.get("watchdog") or {}).get("stalled_s"):
        yield Trouble("mqtt", f"clients are not served for {stalled_s:.1f} s; see the broker's log")
    for missing in status.get("missing", ()):
        why = f"{missing['key']} {missing['path']} was removed or replaced; {missing['remedy']}"
        yield Trouble(
            missing["key"],
            why + _LOST_BY.get(missing["key"], ""),
            blocks=missing["key"] in {"log", "state_dir"},
        )
    if error := status["mqtt"].get("spill_errno"):
        yield Trouble(
            "spill file",
            "publishers are refused where a ring would overwrite what absent sessions wait for: "
            f"the spill file cannot grow: {os.strerror(error)}; free memory in runtime_dir",
        )
    if reason := status["mqtt"].get("snapshot_failure"):
        why = (
            "the session snapshot is not on the disk; a power cut costs the changes of sessions since then, "
            f"and after a start that could not write it, a kill too: {reason}"
        )
        yield Trouble("session snapshot", why, blocks=False)


def _of_log(status: Status) -> Iterator[Trouble]:
    log = status.get("log") or {}
    if silent_s := log.get("silent_s"):
        why = f"its disk has not answered for {silent_s:.0f} s; the figures of the log are from before"
        yield Trouble("log", why)
    if log.get("failures"):
        reason = log.get("reason") or "see the log of the broker"
        yield Trouble(
            "log", f"the log cannot be written, and nothing is acknowledged that waits for it: {reason}"
        )
    elif log.get("read_only"):
        yield Trouble("log", "the disk is nearly full, and the log takes no records; free space")
    for ring, why in (log.get("broken_rings") or {}).items():
        yield Trouble(f"log of ring {ring}", f"ring {ring} is no longer logged: {why}")
    maintenance = log.get("maintenance") or {}
    for stream in maintenance.get("full_streams", ()):
        why = f"stream {stream} is full, and publishers are refused; raise retain_bytes or drain it"
        yield Trouble(f"stream {stream}", why)
    if maintenance.get("trouble"):
        why = f"segments are not archived or read again: {maintenance['trouble']}"
        yield Trouble("log maintenance", why, blocks=False)


def _of_bridges(status: Status) -> Iterator[Trouble]:
    for bridge in status.get("bridges", ()):
        if bridge["condition"] in TROUBLED or bridge.get("stalled_s"):
            details = "; ".join(filter(None, (bridge.get("last_error"), bridge.get("remedy"))))
            why = f"bridge {bridge['name']} is {bridge['condition']}: {details}"
            yield Trouble(f"bridge {bridge['name']}", why, blocks=False)
    if not status["mqtt"].get("acks_waiting"):
        return
    for waits in upstream_waits(status):
        if waits.missing and (waits.report_age_s is None or waits.report_age_s > QUIET_S):
            age = "no report" if waits.report_age_s is None else f"last report {waits.report_age_s:.0f} s ago"
            why = f"publishers to {waits.ring} wait for bridge {waits.bridge}: {age}"
            yield Trouble(f"ring {waits.ring}", why, blocks=False)


def upstream_waits(status: Status) -> Iterator[UpstreamWait]:
    """Bridges that publishers wait for, by ring."""
    for ring in status.get("rings", ()):
        for bridge, progress in status["upstream"].get(ring["name"], {}).items():
            missing = max(0, ring["end_offset"] - progress["offset"])
            yield UpstreamWait(ring["name"], bridge, missing, progress["report_age_s"])
