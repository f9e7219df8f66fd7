"""Status of the logs of a broker, combined: counters added, times merged.

Only combines. persistence/stats.py owns the counters of a log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from persistence.stats import ReadStats, disk_usage

Status = dict[str, Any]

TOTALS = ("records", "record_bytes", "written_bytes", "syncs")  # counters of LogStats with a rate
_TIMES = ("fsync", "write", "commit")


def read_status(directory: Path, reads: Iterable[ReadStats]) -> Status:
    """Disk usage of the whole log directory, and totals of the records that were read back."""
    status: Status = {"reads": dict.fromkeys(ReadStats().as_dict(), 0), "disk": None}
    for stats in reads:
        for name, value in stats.as_dict().items():
            status["reads"][name] += value
    with suppress(OSError):  # the directory is missing, which the logs themselves report in detail
        status["disk"] = disk_usage(directory)._asdict()
    return status


def together(each: Sequence[Status]) -> Status:
    """One status of several logs, with all of them under `logs`; the status of a single log unchanged."""
    if len(each) == 1:
        return dict(each[0])
    total: Status = {"directory": "", "read_only": False, "reason": "", "failures": 0, "segments": 0}
    total["one_by_one"] = ""
    total |= {"unsynced_bytes": 0, "records": 0, "broken_rings": {}}
    for status in each:
        _add(total, status)
    for name in _TIMES:
        total[name] = _merged([status[name] for status in each if name in status])
    records = total.get("record_bytes", 0)
    total["bytes_per_sync"] = total.get("synced_bytes", 0) // max(total.get("syncs", 0), 1)
    total["written_per_record_byte"] = round(total.get("written_bytes", 0) / records, 4) if records else 0.0
    return {**total, "logs": list(each)}


def _add(total: Status, status: Status) -> None:
    """Add the status of one log to `total`; of the reasons the last one stays."""
    for name, value in status.items():
        if isinstance(value, bool):
            total[name] = total.get(name, False) or value
        elif isinstance(value, int):
            total[name] = total.get(name, 0) + value
        elif name == "broken_rings":
            total[name] |= value
        elif name in {"reason", "one_by_one"} and value:
            total[name] = value


def sys_numbers(each: Sequence[Status]) -> dict[str, int]:
    """Figures of the logs for $SYS, by topic name below log/."""
    total = together(each)
    names = (*TOTALS, "unsynced_bytes", "segments", "damaged_places", "read_only")
    numbers = {name: int(total.get(name, 0)) for name in names}
    return numbers | {f"{name}_p99_us": total[name]["p99_below_us"] for name in ("fsync", "commit")}


def _merged(each: Sequence[Status]) -> Status:
    """Combine several histograms (persistence.stats.Histogram.as_dict())."""
    count, total_us = sum(row["count"] for row in each), sum(row["total_us"] for row in each)
    bounds = sorted({bound for row in each for bound in row["below_us"]}, key=int)
    below = {bound: sum(_below(row["below_us"], int(bound)) for row in each) for bound in bounds}
    return {
        "count": count,
        "mean_us": round(total_us / count, 1) if count else 0.0,
        "p50_below_us": _quantile(below, count, 0.5),
        "p99_below_us": _quantile(below, count, 0.99),
        "max_us": max((row["max_us"] for row in each), default=0),
        "total_us": total_us,
        "below_us": below,
    }


def _below(below: dict[str, int], bound: int) -> int:
    """Number below `bound`, which may exceed the highest listed bound."""
    return max((seen for known, seen in below.items() if int(known) <= bound), default=0)


def _quantile(below: dict[str, int], count: int, share: float) -> int:
    return next((int(bound) for bound, seen in below.items() if seen and seen >= share * count), 0)
