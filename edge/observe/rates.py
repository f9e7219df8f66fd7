"""Rates of a broker: differences of two of its overviews, for `brim top`, `brim streams` and the web console.

Only computes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

OBSERVERS: Final = frozenset({"brim tap", "brim topics", "brim web"})
"""Names of readers that show a sample of the messages. Messages that they skip are no loss."""

Row = dict[str, Any]
Overview = dict[str, Any]
_RATED = ("published", "from_producers", "delivered", "bytes_in", "bytes_out")


def sample(before: Overview, now: Overview, elapsed_s: float) -> Overview:
    """One sample: rates per second between two overviews of one broker, and the present state."""

    def rate(earlier: float, later: float) -> float:
        return round(max(later - earlier, 0) / max(elapsed_s, 1e-3), 1)

    totals = {name: rate(before["mqtt"][name], now["mqtt"][name]) for name in _RATED}
    return {
        "version": now["version"],
        "edge_id": now["edge_id"],
        "pid": now["pid"],
        "uptime_s": now["uptime_s"],
        "rates": totals,
        "connections": now["mqtt"]["connections"],
        "sessions": now["mqtt"]["sessions"],
        "topics": now["mqtt"]["topics"],
        "retained": now["mqtt"]["retained"],
        "queued_bytes": now["mqtt"]["queues_bytes"],
        "stalls": now["watchdog"].get("stalls", 0),
        "log": _log(before["log"], now["log"], rate),
        "lost": {
            cause: {"count": count, "rate": rate(before["lost"].get(cause, 0), count)}
            for cause, count in now["lost"].items()
        },
        "rings": _rings(before["rings"], now["rings"], rate),
        "bridges": _bridges(before["bridges"], now["bridges"], rate),
        "consumers": [
            {"consumer": consumer["name"], "lag": consumer["lag"]} for consumer in now["consumers"]
        ],
    }


def _log(before: Overview | None, now: Overview | None, rate: Any) -> Row | None:
    if before is None or now is None:
        return None
    return {
        "records_per_s": rate(before["records"], now["records"]),
        "unsynced_bytes": now["unsynced_bytes"],
        "segments": now["segments"],
        "failures": now["failures"],
    }


def _rings(before: Iterable[Row], now: Iterable[Row], rate: Any) -> list[Row]:
    ends = {(ring["name"], ring["epoch"]): ring["end_offset"] for ring in before}
    rows = []
    for ring in now:
        readers, end = ring["readers"], ring["end_offset"]
        rows.append(
            {
                "ring": ring["name"],
                "stream": ring["stream"],
                "durability": ring.get("durability", "producer"),
                "rate": rate(ends.get((ring["name"], ring["epoch"]), end), end),
                "capacity_bytes": ring["capacity_bytes"],
                "used_ratio": round(ring["bytes"] / ring["capacity_bytes"], 4),
                "unread_ratio": ring["unread_ratio"],
                "oldest_offset": ring["oldest_offset"],
                "end_offset": ring["end_offset"],
                "readers": len(readers) + ring["readers_not_shown"],
                "lag": max((reader["lag"] for reader in readers), default=0),
                "lost": sum(reader["lost"] for reader in readers if reader["name"] not in OBSERVERS),
            }
        )
    return rows


def _bridges(before: Iterable[Row], now: Iterable[Row], rate: Any) -> list[Row]:
    drained = {bridge["name"]: bridge["totals"]["records"] for bridge in before}
    rows = []
    for bridge in now:
        records = bridge["totals"]["records"]
        rows.append(
            {
                "bridge": bridge["name"],
                "condition": bridge["condition"],
                "rate": rate(drained.get(bridge["name"], records), records),
                "lag": bridge["lag_records"],
                "lag_s": bridge["lag_s"],
                "lost": sum(bridge["lost_by"].values()),
                "to": bridge["to"],
                "error": bridge["last_error"] or "",
            }
        )
    return rows
