"""The broker's report as a page of Prometheus's text format, version 0.0.4.

Owns the names and units of all metrics, which are an interface: a name is added, never given another meaning.
Seconds, bytes and plain counts, as Prometheus advises; counters end with _total.  Counts nothing itself: what
report.py gathers is said here in another form, so `brim status --json` and this page never disagree.

Label values are other people's text (client names, file names) and are escaped.  Bounded as the report is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

__all__ = ["CONTENT_TYPE", "page"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Status = Mapping[str, Any]
Labels = Mapping[str, object]
Kind = Literal["counter", "gauge", "histogram"]

# Of the MQTT front end: what `brim status --json` calls it, and what it means.
_MQTT_TOTALS = {
    "published": ("messages_received", "Messages published by MQTT clients."),
    "published_bytes": ("payload_received_bytes", "Bytes of their payloads."),
    "delivered": ("messages_sent", "Deliveries to MQTT clients."),
    "delivered_bytes": ("payload_sent_bytes", "Bytes of their payloads."),
    "redelivered": ("messages_sent_again", "Deliveries that were repeated."),
    "bytes_in": ("received_bytes", "Bytes received on MQTT connections."),
    "bytes_out": ("sent_bytes", "Bytes sent on MQTT connections."),
    "sourced": ("messages_of_producers", "Records of local producers that were routed."),
    "connections_opened": ("connections_opened", "MQTT connections accepted."),
    "full_waits": ("full_ring_waits", "Times that a publisher had to wait for a full ring."),
    "spilled": ("records_spilled", "Records copied for absent sessions before their ring overwrote them."),
    "spill_refused": ("messages_refused_for_spill", "Messages refused: the spill file could not grow."),
    "spill_over": ("records_not_spilled", "Records not copied because of limits.spill_max_bytes."),
}
_MQTT_NOW = {
    "connections": ("connections", "MQTT connections now."),
    "sessions": ("sessions", "MQTT sessions now, of clients that are away too."),
    "topics": ("topics", "Known topics, without those of $SYS."),
    "retained": ("retained_messages", "Retained messages."),
    "retained_bytes": ("retained_bytes", "Bytes of retained messages."),
    "queues_bytes": ("queues_bytes", "Bytes of the queues of all clients."),
    "spilled_bytes": ("spilled_bytes", "Bytes of records copied for absent sessions."),
    "spill_file_bytes": ("spill_file_bytes", "Memory of the spill file."),
}
_LOG_TOTALS = {
    "records": ("records", "Records made durable."),
    "record_bytes": ("record_bytes", "Bytes of them, as they stand in the ring."),
    "written_bytes": ("written_bytes", "Bytes written, with headers, catalogues and what was written again."),
    "synced_bytes": ("synced_bytes", "Bytes that syncs have made durable."),
    "syncs": ("syncs", "Syncs that succeeded."),
    "extents": ("extents", "Runs of records written."),
    "rewritten_bytes": ("rewritten_bytes", "Bytes written again after a failure."),
    "failed_writes": ("failed_writes", "Writes that the disk refused."),
    "lost_records": ("lost_records", "Records that could not be logged: damaged, or gone before."),
    "failed_syncs": ("failed_syncs", "Syncs that the disk refused."),
    "segments_removed": ("segments_removed", "Segments that retention let go."),
}
_LOG_NOW = {
    "unsynced_bytes": ("unsynced_bytes", "Durable lag: bytes taken from rings and not yet on the disk."),
    "segments": ("segments", "Segments there are."),
    "damaged_places": ("damaged_places", "Places known to be damaged."),
    "read_only": ("read_only", "1 while the log takes no records."),
    "written_per_record_byte": ("written_per_record_byte", "Bytes written for each byte of records."),
    "bytes_per_sync": ("bytes_per_sync", "Bytes that a sync made durable, on average."),
}
_LOG_TIMES = {
    "fsync": ("fsync_seconds", "How long syncs took."),
    "write": ("write_seconds", "How long it took to hand bytes to the kernel."),
    "commit": ("commit_seconds", "From when a record was taken from its ring to its durability."),
}


class _Page:
    """Lines of metrics, each family together, as the format wants it."""

    def __init__(self) -> None:
        self._families: dict[str, tuple[Kind, str, list[str]]] = {}

    def add(self, kind: Kind, name: str, about: str, value: float | None, **labels: object) -> None:
        """One sample; None: there is none."""
        if value is not None:
            name = f"brim_{name}_total" if kind == "counter" else f"brim_{name}"
            self._lines(kind, name, about).append(f"{name}{_labels(labels)} {_number(value)}")

    def times(self, name: str, about: str, found: Status, **labels: object) -> None:
        """A histogram of durations (persistence.stats.Histogram.as_dict()), in seconds."""
        name = f"brim_{name}"
        lines = self._lines("histogram", name, about)
        for below_us, count in found["below_us"].items():
            bound = _number(int(below_us) / 1e6)
            lines.append(f"{name}_bucket{_labels({**labels, 'le': bound})} {count}")
        lines.append(f"{name}_bucket{_labels({**labels, 'le': '+Inf'})} {found['count']}")
        lines.append(f"{name}_sum{_labels(labels)} {_number(found['total_us'] / 1e6)}")
        lines.append(f"{name}_count{_labels(labels)} {found['count']}")

    def table(
        self, kind: Kind, prefix: str, names: Mapping[str, tuple[str, str]], found: Status, **labels: object
    ) -> None:
        """One sample for each of `names` that `found` has."""
        for key, (name, about) in names.items():
            self.add(kind, f"{prefix}_{name}", about, found.get(key), **labels)

    def text(self) -> str:
        """All of it."""
        return "".join(
            f"# HELP {name} {about}\n# TYPE {name} {kind}\n" + "".join(f"{line}\n" for line in lines)
            for name, (kind, about, lines) in self._families.items()
        )

    def _lines(self, kind: Kind, name: str, about: str) -> list[str]:
        return self._families.setdefault(name, (kind, about, []))[2]


def _labels(labels: Labels) -> str:
    pairs = ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def page(status: Status) -> str:
    """What `report.Reporter.report()` has gathered."""
    out = _Page()
    out.add("gauge", "info", "1; what runs here.", 1, version=status["version"], edge_id=status["edge_id"])
    out.add("gauge", "uptime_seconds", "Since the broker started.", status["uptime_s"])
    about = "Files and directories of the broker that somebody has removed."
    out.add("gauge", "missing_files", about, len(status.get("missing", ())))
    _mqtt(out, status["mqtt"])
    _watchdog(out, status.get("watchdog") or {})
    for ring in status["rings"]:
        _ring(out, ring)
    if status["log"]:
        _log(out, status["log"])
        _reads(out, status)
    if status["zmq"]:
        _zmq(out, status["zmq"])
    for bridge in status["bridges"]:
        _bridge(out, bridge)
    _consumers(out, status.get("consumers") or ())
    return out.text()


def _mqtt(out: _Page, mqtt: Status) -> None:
    out.table("counter", "mqtt", _MQTT_TOTALS, mqtt)
    out.table("gauge", "mqtt", _MQTT_NOW, mqtt)
    for cause, count in mqtt["dropped"].items():
        out.add("counter", "mqtt_dropped", "Messages and deliveries lost.", count, cause=cause)
    for cause, count in mqtt["closed"].items():
        out.add("counter", "mqtt_closed", "Connections ended.", count, cause=cause)


def _watchdog(out: _Page, found: Status) -> None:
    out.add("counter", "stalls", "Times that clients were not served for seconds.", found.get("stalls"))
    out.add("gauge", "stalled_seconds", "0 while clients are served.", found.get("stalled_s"))


def _ring(out: _Page, ring: Status) -> None:
    names = {"ring": ring["name"], "stream": ring["stream"]}
    out.add("counter", "ring_records", "Records published to the ring, ever.", ring["end_offset"], **names)
    out.add("gauge", "ring_capacity_bytes", "Memory of the ring.", ring["capacity_bytes"], **names)
    out.add(
        "gauge", "ring_held_ratio", "Held by readers that are waited for; 1: full.", ring["held"], **names
    )
    if ring.get("durability", "process") != "process":
        behind = ring["not_durable_bytes"]
        out.add("gauge", "ring_not_durable_bytes", "Durable lag: bytes not yet on the disk.", behind, **names)
    about = "Records that the check at the start found damaged, and no log had."
    out.add("counter", "ring_damaged", about, ring.get("damaged"), **names)
    out.add("counter", "ring_rejected", "Records refused: the ring was full.", ring.get("rejected"), **names)
    for cause, count in ring.get("refused", {}).items():
        about = "Records of a local producer that were refused, by cause."
        out.add("counter", "ring_refused", about, count, **names, cause=cause)
    unique = {(it["name"] or "reader", it["pid"]): it for it in ring["readers"]}  # names are the readers' own
    for (reader_name, pid), reader in unique.items():
        who = {**names, "reader": reader_name, "pid": pid}
        out.add("gauge", "ring_reader_lag_records", "Records that a reader is behind.", reader["lag"], **who)
        out.add("counter", "ring_reader_lost", "Records that a reader lost.", reader["lost"], **who)


def _log(out: _Page, log: Status) -> None:
    for one in _each_log(log):
        where = {"log": one.get("directory") or "all"}
        out.table("counter", "log", _LOG_TOTALS, one, **where)
        out.table("gauge", "log", _LOG_NOW, one, **where)
        for key, (name, about) in _LOG_TIMES.items():
            if key in one:
                out.times(f"log_{name}", about, one[key], **where)
    if upkeep := log.get("upkeep"):
        _upkeep(out, upkeep)
    if disk := log.get("disk"):
        out.add("gauge", "log_disk_used_bytes", "What the files of all logs take.", disk["used_bytes"])
        out.add("gauge", "log_disk_free_bytes", "Of their file system, still free.", disk["free_bytes"])
        out.add("gauge", "log_disk_bytes", "Of their file system, altogether.", disk["disk_bytes"])


def _each_log(log: Status) -> Iterable[Status]:
    several: Iterable[Status] = log.get("logs") or (log,)
    return several


def _upkeep(out: _Page, upkeep: Status) -> None:
    for state, size in upkeep["bytes_by_state"].items():
        out.add("gauge", "log_segment_bytes", "What segments take, by their state.", size, state=state)
    for stream, size in upkeep["bytes_by_stream"].items():
        out.add("gauge", "log_stream_bytes", "What a stream takes of the log.", size, stream=stream)
    for stream, records in upkeep["early_records"].items():
        out.add("counter", "log_early_records", "Removed against a stream's rules.", records, stream=stream)
    for consumer, records in upkeep["unread_records"].items():
        about = "Removed before somebody had read them."
        out.add("counter", "log_unread_records", about, records, consumer=consumer)
    out.add("gauge", "log_archive_ratio", "How many times smaller archives are.", upkeep["archive"]["ratio"])
    out.add("counter", "log_scrubbed_bytes", "Read again, to find damage.", upkeep["scrub"]["read_bytes"])
    out.add("gauge", "log_scrub_damaged", "Places found damaged.", upkeep["scrub"]["damaged"])


def _reads(out: _Page, status: Status) -> None:
    """Where deliveries and reads were served from."""
    mqtt, reads = status["mqtt"], status["log"]["reads"]
    counts: Iterator[tuple[str, int, int | None]] = iter((
        ("ring", mqtt["delivered"] - mqtt["thawed"], None),
        ("log", reads["log_reads"], reads["log_bytes"]),
        ("archive", reads["archive_reads"], reads["archive_bytes"]),
    ))  # fmt: skip
    for source, count, size in counts:
        out.add(
            "counter",
            "reads",
            "Reads: from the ring deliveries, from log and archive runs.",
            count,
            source=source,
        )
        out.add("counter", "read_bytes", "Bytes of records read back.", size, source=source)


def _zmq(out: _Page, zmq: Status) -> None:
    out.add("counter", "zmq_messages_sent", "Messages given to ZeroMQ.", zmq["sent"])
    out.add("counter", "zmq_overrun", "Records overwritten before ZeroMQ had them.", zmq["overrun"])
    out.add("counter", "zmq_full_queues", "Times that a subscriber's queue was full.", zmq["full_queues"])


def _bridge(out: _Page, bridge: Status) -> None:
    name, totals = bridge["name"], bridge["totals"]
    out.add(
        "gauge",
        "bridge_up",
        "1 while the bridge drains or idles.",
        bridge["condition"] not in _TROUBLED,
        bridge=name,
    )
    out.add("gauge", "bridge_lag_records", "Records not yet drained.", bridge["lag_records"], bridge=name)
    out.add("gauge", "bridge_lag_seconds", "Age of the oldest of them.", bridge["lag_s"], bridge=name)
    for key, (metric, about) in _BRIDGE_GAUGES.items():
        out.add("gauge", f"bridge_{metric}", about, bridge.get(key), bridge=name)
    for key, about in _BRIDGE_TOTALS.items():
        out.add("counter", f"bridge_{key}", about, totals[key], bridge=name)
    _losses(out, bridge)


def _losses(out: _Page, bridge: Status) -> None:
    """Records that no file will ever hold, since the checkpoint was made: a restart does not reset them."""
    about = "Records never drained, by cause; skipped: on purpose, all others are lost."
    for cause, count in ({**dict.fromkeys(_CAUSES, 0), **bridge["lost_by"]}).items():
        out.add("counter", "bridge_never_drained", about, count, bridge=bridge["name"], cause=cause)
    skipped = bridge["skipped_records"]
    out.add("counter", "bridge_never_drained", about, skipped, bridge=bridge["name"], cause="skipped")
    about = "The same by partition, of partitions that have some."
    for it in bridge["losses"]:
        place = {"bridge": bridge["name"], "stream": it["stream"], "partition": it["partition"]}
        for cause, count in {**it["lost_by"], "skipped": it["skipped_records"]}.items():
            out.add("counter", "bridge_partition_never_drained", about, count, **place, cause=cause)


_CAUSES = ("overwritten", "retention", "damaged")

_TROUBLED = {"retrying", "blocked", "stopped", "failed"}
_BRIDGE_GAUGES = {
    "lag_bytes": ("lag_bytes", "Bytes of them."),
    "backlog_records": ("backlog_records", "Of them, those beside which what comes in is drained already."),
    "stalled_s": ("stalled_seconds", "Records wait, and none was drained for so long; 0: all is well."),
    "last_ack_age_s": ("last_ack_age_seconds", "Since the sink has last taken something."),
    "buffer_left_s": ("buffer_left_seconds", "At the present rate, until the first records are lost."),
    "blocked_partitions": ("blocked_partitions", "Partitions that cannot be read: see the log."),
    "in_flight": ("in_flight", "Units that the sink has not answered."),
    "drain_seq": ("drain_seq", "Number of the last unit that the sink has."),
}
_BRIDGE_TOTALS = {
    "units": "Units drained.",
    "records": "Records drained.",
    "bytes": "Bytes given to the sink.",
    "lost_records": "Records declared lost.",
    "damaged_records": "Records of rings that did not verify, and were passed over.",
    "dead_letters": "Records that the sink will never take.",
    "retries": "Times that the sink has failed.",
}


def _consumers(out: _Page, consumers: Iterable[Status]) -> None:
    for one in consumers:
        for place in one["places"]:
            names = {"consumer": one["name"], "ring": place["ring"]}
            lag, under_way = place["lag"], place["in_flight"]
            out.add("gauge", "consumer_lag_records", "Records that a consumer is behind.", lag, **names)
            out.add("gauge", "consumer_in_flight", "Handed out, not acknowledged.", under_way, **names)
