"""Page of metrics in Prometheus's text format, version 0.0.4, made of the broker's report.

Owns the form of the page; edge/observe/metric_families.py has names, types and meanings.  Counts nothing: the
numbers are those of edge/observe/status_report.py, so that `brim status --json` and this page never disagree.

Label values (client names, file names) come from other programs and are escaped; blanks become `_`.
Bounded as the report is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from edge.observe.health import is_ready
from edge.observe.metric_families import METRICS, SECTIONS, keys_of
from edge.observe.process_numbers import process_numbers
from persistence.stats import LatencyHistogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Status = Mapping[str, Any]
Labels = Mapping[str, object]

_CAUSES = ("overwritten", "retention", "damaged")
_TROUBLED = {"retrying", "blocked", "stopped", "failed"}
_KEYS = {section: keys_of(section) for section in SECTIONS}


class _Page:
    """Lines of metrics, grouped by family as the format requires."""

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}

    def add(self, name: str, value: float | None, **labels: object) -> None:
        """One sample; None: no sample."""
        if value is not None:
            self._lines(name).append(f"{name}{_labels(labels)} {_number(value)}")

    def times(self, name: str, times: Status, **labels: object) -> None:
        """Add a histogram of durations (persistence.stats.Histogram.as_dict()), in seconds."""
        lines, seen, below_us = self._lines(name), 0, times["below_us"]
        first_us, filled_us = int(next(iter(below_us))), max(map(int, below_us))
        for power in range(LatencyHistogram.BUCKETS - 1):  # always the same: no series begins late
            bound_us = first_us << power
            seen = below_us.get(str(bound_us), times["count"] if bound_us > filled_us else seen)
            lines.append(f"{name}_bucket{_labels({**labels, 'le': _number(bound_us / 1e6)})} {seen}")
        lines.append(f"{name}_bucket{_labels({**labels, 'le': '+Inf'})} {times['count']}")
        lines.append(f"{name}_sum{_labels(labels)} {_number(times['total_us'] / 1e6)}")
        lines.append(f"{name}_count{_labels(labels)} {times['count']}")

    def section(self, section: str, values: Status, **labels: object) -> None:
        """A sample or histogram for each metric of a section of the report that `values` has."""
        for key, name in _KEYS[section].items():
            if METRICS[name].kind != "histogram":
                self.add(name, values.get(key), **labels)
            elif key in values:
                self.times(name, values[key], **labels)

    def text(self) -> str:
        """The page."""
        return "".join(
            f"# HELP {name} {METRICS[name].about}\n# TYPE {name} {METRICS[name].kind}\n"
            + "".join(f"{line}\n" for line in lines)
            for name, lines in self._families.items()
        )

    def _lines(self, name: str) -> list[str]:
        return self._families.setdefault(name, [])


def _labels(labels: Labels) -> str:
    pairs = ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escaped(text: str) -> str:
    return "_".join(text.split()).replace("\\", "\\\\").replace('"', '\\"')


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def page(status: Status) -> str:
    """The page of a report (report.Reporter.report())."""
    out = _Page()
    out.add("brim_build_info", 1, version=status["version"], edge_id=status["edge_id"])
    out.add("brim_ready", is_ready(status))
    for name, value in process_numbers().items():
        out.add(name, value)
    out.section("", status)
    out.add("brim_missing_files", len(status.get("missing", ())))
    _mqtt(out, status["mqtt"])
    out.section("watchdog", status.get("watchdog") or {})
    for ring in status["rings"]:
        _ring(out, ring)
    if status["log"]:
        _log(out, status["log"])
        _reads(out, status)
    out.section("zmq", status["zmq"] or {})
    if delayed := status.get("delayed"):
        out.section("delayed", delayed)
        for cause in ("invalid", "damaged", "too_large", "lost"):
            out.add("brim_delayed_dropped_total", delayed[cause], cause=cause)
    for bridge in status["bridges"]:
        _bridge(out, bridge)
    for tenant in status.get("tenants", ()):
        out.section("tenants[]", tenant, tenant=tenant["name"])
        for cause, count in tenant["refused"].items():
            out.add("brim_tenant_refused_total", count, tenant=tenant["name"], cause=cause)
    _consumers(out, status.get("consumers") or ())
    return out.text()


def _mqtt(out: _Page, mqtt: Status) -> None:
    out.section("mqtt", mqtt)
    for cause, count in mqtt["dropped"].items():
        out.add("brim_mqtt_dropped_total", count, cause=cause)
    for cause, count in mqtt["closed"].items():
        out.add("brim_mqtt_closed_total", count, cause=cause)
    for cause, count in mqtt.get("refused", {}).items():
        out.add("brim_mqtt_refused_connects_total", count, cause=cause)


def _ring(out: _Page, ring: Status) -> None:
    names = {"ring": ring["name"], "stream": ring["stream"]}
    out.section("rings[]", ring, **names)
    if ring.get("durability", "process") != "process":
        out.add("brim_ring_not_durable_bytes", ring["not_durable_bytes"], **names)
    for cause, count in ring.get("refused", {}).items():
        out.add("brim_ring_refused_total", count, **names, cause=cause)
    by_name: dict[str, list[Status]] = {}  # readers choose their names, and may share one
    for reader in ring["readers"]:
        by_name.setdefault(reader["name"] or "reader", []).append(reader)
    for reader_name, readers in by_name.items():
        labels = {**names, "reader": reader_name}
        out.add("brim_ring_reader_lag_records", max(reader["lag"] for reader in readers), **labels)
        out.add("brim_ring_reader_lost_total", sum(reader["lost"] for reader in readers), **labels)


def _log(out: _Page, log: Status) -> None:
    each: Iterable[Status] = log.get("logs") or (log,)
    for one in each:
        out.section("log", one, log=one.get("directory") or "all")
    if maintenance := log.get("maintenance"):
        _maintenance(out, maintenance)
    out.section("log.disk", log.get("disk") or {})


def _maintenance(out: _Page, maintenance: Status) -> None:
    for state, size in maintenance["bytes_by_state"].items():
        out.add("brim_log_segment_bytes", size, state=state)
    for stream, size in maintenance["bytes_by_stream"].items():
        out.add("brim_log_stream_bytes", size, stream=stream)
    for stream, records in maintenance["forced_records"].items():
        out.add("brim_log_forced_records_total", records, stream=stream)
    for consumer, records in maintenance["unread_records"].items():
        out.add("brim_log_unread_records_total", records, consumer=consumer)
    out.section("log.maintenance.archive", maintenance["archive"])
    out.section("log.maintenance.scrub", maintenance["scrub"])


def _reads(out: _Page, status: Status) -> None:
    """Reads by source: rings, log, archives."""
    mqtt, reads = status["mqtt"], status["log"]["reads"]
    out.add("brim_reads_total", mqtt["delivered"] - mqtt["restored"], source="ring")
    for source in ("log", "archive"):
        out.add("brim_reads_total", reads[f"{source}_reads"], source=source)
        out.add("brim_read_bytes_total", reads[f"{source}_bytes"], source=source)


def _bridge(out: _Page, bridge: Status) -> None:
    out.add("brim_bridge_up", bridge["condition"] not in _TROUBLED, bridge=bridge["name"])
    out.section("bridges[]", bridge, bridge=bridge["name"])
    out.section("bridges[].totals", bridge["totals"], bridge=bridge["name"])
    # A bridge in another process may be of an earlier Brim.
    out.section("bridges[].merging", bridge.get("merging", {}), bridge=bridge["name"])
    for cause, count in bridge.get("omitted", {}).items():
        out.add("brim_bridge_omitted_total", count, bridge=bridge["name"], cause=cause)
    _losses(out, bridge)


def _losses(out: _Page, bridge: Status) -> None:
    """Records that no drained file will have; a restart does not reset the counts."""
    lost = {**dict.fromkeys(_CAUSES, 0), **bridge["lost_by"], "skipped": bridge["skipped_records"]}
    for cause, count in lost.items():
        out.add("brim_bridge_never_drained_total", count, bridge=bridge["name"], cause=cause)
    for loss in bridge["losses"]:
        place = {"bridge": bridge["name"], "stream": loss["stream"], "partition": loss["partition"]}
        for cause, count in {**loss["lost_by"], "skipped": loss["skipped_records"]}.items():
            out.add("brim_bridge_partition_never_drained_total", count, **place, cause=cause)


def _consumers(out: _Page, consumers: Iterable[Status]) -> None:
    for one in consumers:
        for place in one["places"]:
            names = {"consumer": one["name"], "ring": place["ring"]}
            out.add("brim_consumer_lag_records", place["lag"], **names)
            out.add("brim_consumer_in_flight", place["in_flight"], **names)
