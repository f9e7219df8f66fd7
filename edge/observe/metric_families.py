"""Prometheus metrics of the broker: name, type, labels, meaning, and the place in `brim status --json`.

Owns the names, which are an interface: a name is added, never given another meaning. Units are seconds,
bytes and plain counts, as Prometheus advises; counters end with _total. edge/observe/prometheus.py fills the
page, and docs/reference/metrics.md lists this table (`./dev docs`). The C core counts messages, and losses by
cause (MQ_DROP_* of ringbuf/c/mqtt/mqtt_api.h).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]


class Metric(NamedTuple):
    """One family. `json`: section and key of `brim status --json`; "" for a value that is computed."""

    kind: Kind
    about: str
    labels: tuple[str, ...] = ()
    json: str = ""


_RING = ("ring", "stream")
_READER = (*_RING, "reader")
_LOG = ("log",)
_BRIDGE = ("bridge",)
_CONSUMER = ("consumer", "ring")
_TENANT = ("tenant",)

METRICS: Mapping[str, Metric] = {
    "brim_build_info": Metric("gauge", "Always 1; the labels name version and edge.", ("version", "edge_id")),
    "brim_ready": Metric("gauge", "1 if /readyz is 200: clients can publish and receive."),
    "brim_uptime_seconds": Metric("gauge", "Time since the broker started.", (), "uptime_s"),
    "brim_missing_files": Metric(
        "gauge", "Files and directories of the broker that were removed or replaced."
    ),
    # The process
    "process_cpu_seconds_total": Metric("counter", "Processor time, of user and system."),
    "process_resident_memory_bytes": Metric("gauge", "Resident memory, with the rings."),
    "process_virtual_memory_bytes": Metric("gauge", "Virtual memory."),
    "process_open_fds": Metric("gauge", "Open descriptors."),
    "process_max_fds": Metric("gauge", "Limit of open descriptors."),
    "process_start_time_seconds": Metric("gauge", "Start of the process, in seconds since 1970."),
    # MQTT
    "brim_mqtt_messages_received_total": Metric(
        "counter", "Messages published by MQTT clients.", (), "mqtt.published"
    ),
    "brim_mqtt_payload_received_bytes_total": Metric(
        "counter", "Payload bytes of messages published by MQTT clients.", (), "mqtt.published_bytes"
    ),
    "brim_mqtt_messages_sent_total": Metric("counter", "Deliveries to MQTT clients.", (), "mqtt.delivered"),
    "brim_mqtt_payload_sent_bytes_total": Metric(
        "counter", "Payload bytes of deliveries to MQTT clients.", (), "mqtt.delivered_bytes"
    ),
    "brim_mqtt_delivery_seconds": Metric(
        "histogram",
        "Time from a record to its packet for a subscriber, of a sample of all deliveries.",
        (),
        "mqtt.delivery",
    ),
    "brim_mqtt_messages_sent_again_total": Metric(
        "counter", "Repeated deliveries to MQTT clients.", (), "mqtt.redelivered"
    ),
    "brim_mqtt_received_bytes_total": Metric(
        "counter", "Bytes received on MQTT connections.", (), "mqtt.bytes_in"
    ),
    "brim_mqtt_sent_bytes_total": Metric("counter", "Bytes sent on MQTT connections.", (), "mqtt.bytes_out"),
    "brim_mqtt_messages_of_producers_total": Metric(
        "counter", "Routed records of local producers.", (), "mqtt.from_producers"
    ),
    "brim_mqtt_connections_opened_total": Metric(
        "counter", "Accepted MQTT connections.", (), "mqtt.connections_opened"
    ),
    "brim_mqtt_full_ring_waits_total": Metric(
        "counter", "Waits of publishers for a full ring.", (), "mqtt.full_waits"
    ),
    "brim_mqtt_records_spilled_total": Metric(
        "counter", "Records copied for absent sessions before their ring overwrote them.", (), "mqtt.spilled"
    ),
    "brim_mqtt_messages_refused_for_spill_total": Metric(
        "counter", "Messages refused because the spill file could not grow.", (), "mqtt.spill_refused"
    ),
    "brim_mqtt_records_not_spilled_total": Metric(
        "counter", "Records not copied because of limits.spill_max_bytes.", (), "mqtt.spill_over"
    ),
    "brim_mqtt_connections": Metric("gauge", "Open MQTT connections.", (), "mqtt.connections"),
    "brim_mqtt_sessions": Metric(
        "gauge", "MQTT sessions of connected and absent clients.", (), "mqtt.sessions"
    ),
    "brim_mqtt_topics": Metric("gauge", "Known topics, without those of $SYS.", (), "mqtt.topics"),
    "brim_mqtt_retained_messages": Metric("gauge", "Retained messages.", (), "mqtt.retained"),
    "brim_mqtt_retained_bytes": Metric("gauge", "Memory of retained messages.", (), "mqtt.retained_bytes"),
    "brim_mqtt_queues_bytes": Metric(
        "gauge", "Memory of the queues of all clients.", (), "mqtt.queues_bytes"
    ),
    "brim_mqtt_spilled_bytes": Metric(
        "gauge", "Bytes of records copied for absent sessions.", (), "mqtt.spilled_bytes"
    ),
    "brim_mqtt_spill_file_bytes": Metric("gauge", "Memory of the spill file.", (), "mqtt.spill_file_bytes"),
    "brim_mqtt_dropped_total": Metric("counter", "Lost messages and deliveries, by cause.", ("cause",)),
    "brim_mqtt_closed_total": Metric("counter", "Ended connections, by cause.", ("cause",)),
    "brim_mqtt_refused_connects_total": Metric(
        "counter", "Refused log-ins (CONNECT), by cause: the name of the reason code.", ("cause",)
    ),
    "brim_stalls_total": Metric(
        "counter", "Periods of seconds in which no client was served.", (), "watchdog.stalls"
    ),
    "brim_stalled_seconds": Metric(
        "gauge", "Time since clients were last served, during a stall; otherwise 0.", (), "watchdog.stalled_s"
    ),
    # Rings
    "brim_ring_records_total": Metric(
        "counter", "Records published to the ring since it was created.", _RING, "rings[].end_offset"
    ),
    "brim_ring_capacity_bytes": Metric("gauge", "Memory of the ring.", _RING, "rings[].capacity_bytes"),
    "brim_ring_unread_ratio": Metric(
        "gauge",
        "Part of the ring that blocking readers have not read; 1: full.",
        _RING,
        "rings[].unread_ratio",
    ),
    "brim_ring_not_durable_bytes": Metric(
        "gauge", "Bytes of the ring that are not yet on disk; only streams with a log.", _RING
    ),
    "brim_ring_damaged_total": Metric(
        "counter",
        "Records that the check at the start found damaged and no log had.",
        _RING,
        "rings[].damaged",
    ),
    "brim_ring_rejected_total": Metric(
        "counter", "Records refused because the ring was full.", _RING, "rings[].rejected"
    ),
    "brim_ring_refused_total": Metric(
        "counter", "Refused records of a local producer, by cause.", (*_RING, "cause")
    ),
    "brim_ring_reader_lag_records": Metric(
        "gauge", "Records that a reader has not read yet; of several with one name, the most.", _READER
    ),
    "brim_ring_reader_lost_total": Metric("counter", "Records that readers of this name lost.", _READER),
    # Log
    "brim_log_records_total": Metric("counter", "Records made durable.", _LOG, "log.records"),
    "brim_log_record_bytes_total": Metric(
        "counter", "Bytes of records made durable, as they stand in the ring.", _LOG, "log.record_bytes"
    ),
    "brim_log_written_bytes_total": Metric(
        "counter",
        "Bytes written, with headers, footers and repeated writes.",
        _LOG,
        "log.written_bytes",
    ),
    "brim_log_synced_bytes_total": Metric(
        "counter", "Bytes made durable by syncs.", _LOG, "log.synced_bytes"
    ),
    "brim_log_syncs_total": Metric("counter", "Successful syncs.", _LOG, "log.syncs"),
    "brim_log_extents_total": Metric("counter", "Extents written.", _LOG, "log.extents"),
    "brim_log_rewritten_bytes_total": Metric(
        "counter", "Bytes written again after a failure.", _LOG, "log.rewritten_bytes"
    ),
    "brim_log_failed_writes_total": Metric("counter", "Failed writes.", _LOG, "log.failed_writes"),
    "brim_log_lost_records_total": Metric(
        "counter", "Records that could not be logged: damaged or overwritten.", _LOG, "log.lost_records"
    ),
    "brim_log_failed_syncs_total": Metric("counter", "Failed syncs.", _LOG, "log.failed_syncs"),
    "brim_log_segments_removed_total": Metric(
        "counter", "Segments deleted by retention.", _LOG, "log.segments_removed"
    ),
    "brim_log_unsynced_bytes": Metric(
        "gauge", "Durable lag: bytes taken from rings and not yet on disk.", _LOG, "log.unsynced_bytes"
    ),
    "brim_log_segments": Metric("gauge", "Segments.", _LOG, "log.segments"),
    "brim_log_damaged_places": Metric("gauge", "Known damaged places.", _LOG, "log.damaged_places"),
    "brim_log_read_only": Metric("gauge", "1 while the log takes no records.", _LOG, "log.read_only"),
    "brim_log_written_per_record_byte": Metric(
        "gauge", "Bytes written per byte of records.", _LOG, "log.written_per_record_byte"
    ),
    "brim_log_bytes_per_sync": Metric(
        "gauge", "Mean number of bytes made durable by a sync.", _LOG, "log.bytes_per_sync"
    ),
    "brim_log_fsync_seconds": Metric("histogram", "Duration of syncs.", _LOG, "log.fsync"),
    "brim_log_write_seconds": Metric(
        "histogram", "Duration of writes until the kernel has the bytes.", _LOG, "log.write"
    ),
    "brim_log_commit_seconds": Metric(
        "histogram", "Time of a record from the ring to durability.", _LOG, "log.commit"
    ),
    "brim_log_segment_bytes": Metric("gauge", "Bytes of segments, by state.", ("state",)),
    "brim_log_stream_bytes": Metric("gauge", "Bytes of a stream in the log.", ("stream",)),
    "brim_log_forced_records_total": Metric(
        "counter", "Records deleted before the retention rules of their stream allowed it.", ("stream",)
    ),
    "brim_log_unread_records_total": Metric(
        "counter",
        "Records deleted before a consumer had read them, and that were no longer in their ring.",
        ("consumer",),
    ),
    "brim_log_archive_ratio": Metric(
        "gauge",
        "Size of segments divided by the size of their archives.",
        (),
        "log.maintenance.archive.ratio",
    ),
    "brim_log_scrubbed_bytes_total": Metric(
        "counter", "Bytes read again to find damage.", (), "log.maintenance.scrub.read_bytes"
    ),
    "brim_log_scrub_damaged": Metric(
        "gauge", "Damaged places found by reading again.", (), "log.maintenance.scrub.damaged"
    ),
    "brim_log_disk_used_bytes": Metric("gauge", "Bytes of the files of all logs.", (), "log.disk.used_bytes"),
    "brim_log_disk_free_bytes": Metric(
        "gauge", "Free bytes of the file system of the log.", (), "log.disk.free_bytes"
    ),
    "brim_log_disk_bytes": Metric("gauge", "Size of the file system of the log.", (), "log.disk.disk_bytes"),
    "brim_reads_total": Metric(
        "counter", "Reads by source: deliveries from the ring, read runs from log and archive.", ("source",)
    ),
    "brim_read_bytes_total": Metric("counter", "Bytes of records read back, by source.", ("source",)),
    # ZeroMQ
    "brim_zmq_messages_sent_total": Metric("counter", "Messages given to ZeroMQ.", (), "zmq.sent"),
    "brim_zmq_overrun_total": Metric(
        "counter", "Records overwritten before ZeroMQ had them.", (), "zmq.overrun"
    ),
    "brim_zmq_full_queues_total": Metric(
        "counter", "Times that the queue of a subscriber was full.", (), "zmq.full_queues"
    ),
    # Bridges
    "brim_bridge_up": Metric(
        "gauge", "1 while the bridge drains or idles; 0: retrying, blocked, stopped or failed.", _BRIDGE
    ),
    "brim_bridge_lag_records": Metric("gauge", "Records not yet drained.", _BRIDGE, "bridges[].lag_records"),
    "brim_bridge_lag_seconds": Metric(
        "gauge", "Age of the oldest record not yet drained.", _BRIDGE, "bridges[].lag_s"
    ),
    "brim_bridge_drain_seconds": Metric(
        "histogram",
        "Time from the oldest record of a drained file or batch to the acknowledgement of the sink.",
        _BRIDGE,
        "bridges[].drain",
    ),
    "brim_bridge_lag_bytes": Metric(
        "gauge", "Bytes of records not yet drained.", _BRIDGE, "bridges[].lag_bytes"
    ),
    "brim_bridge_backlog_records": Metric(
        "gauge",
        "Records not yet drained, older than the new records that are drained at the same time.",
        _BRIDGE,
        "bridges[].backlog_records",
    ),
    "brim_bridge_stalled_seconds": Metric(
        "gauge", "Time without progress while records wait; otherwise 0.", _BRIDGE, "bridges[].stalled_s"
    ),
    "brim_bridge_last_ack_age_seconds": Metric(
        "gauge", "Time since the last acknowledgement of the sink.", _BRIDGE, "bridges[].last_ack_age_s"
    ),
    "brim_bridge_buffer_left_seconds": Metric(
        "gauge",
        "Time until the first loss of records at the present rate.",
        _BRIDGE,
        "bridges[].buffer_left_s",
    ),
    "brim_bridge_blocked_partitions": Metric(
        "gauge",
        "Partitions that cannot be read; the log of the bridge has the reason.",
        _BRIDGE,
        "bridges[].blocked_partitions",
    ),
    "brim_bridge_in_flight": Metric(
        "gauge", "Drained files or record batches in flight to the sink.", _BRIDGE, "bridges[].in_flight"
    ),
    "brim_bridge_drain_seq": Metric(
        "gauge", "Number of the last drained file or batch that the sink has.", _BRIDGE, "bridges[].drain_seq"
    ),
    "brim_bridge_files_total": Metric(
        "counter", "Drained files or batches.", _BRIDGE, "bridges[].totals.files"
    ),
    "brim_bridge_records_total": Metric("counter", "Drained records.", _BRIDGE, "bridges[].totals.records"),
    "brim_bridge_bytes_total": Metric(
        "counter", "Bytes given to the sink.", _BRIDGE, "bridges[].totals.bytes"
    ),
    "brim_bridge_lost_records_total": Metric(
        "counter", "Records declared lost.", _BRIDGE, "bridges[].totals.lost_records"
    ),
    "brim_bridge_damaged_records_total": Metric(
        "counter",
        "Records of rings that failed verification and were skipped.",
        _BRIDGE,
        "bridges[].totals.damaged_records",
    ),
    "brim_bridge_dead_letters_total": Metric(
        "counter", "Records that the sink rejected for good.", _BRIDGE, "bridges[].totals.dead_letters"
    ),
    "brim_bridge_rescued_records_total": Metric(
        "counter",
        "Records with a value that does not fit the payload schema.",
        _BRIDGE,
        "bridges[].totals.rescued_records",
    ),
    "brim_bridge_retries_total": Metric(
        "counter", "Failures of the sink.", _BRIDGE, "bridges[].totals.retries"
    ),
    "brim_bridge_restarts_total": Metric(
        "counter",
        "Restarts of the drain after an error of no known class; the log has its traceback.",
        _BRIDGE,
        "bridges[].totals.restarts",
    ),
    "brim_bridge_merged_files_total": Metric(
        "counter",
        "Small files of closed days that were merged into large ones.",
        _BRIDGE,
        "bridges[].merging.merged_files",
    ),
    "brim_bridge_removed_files_total": Metric(
        "counter",
        "Files that were removed from the sink after a merged file had replaced them.",
        _BRIDGE,
        "bridges[].merging.removed_files",
    ),
    "brim_bridge_merge_failed": Metric(
        "gauge",
        "1 while merging fails; `brim bridge status` has the reason.",
        _BRIDGE,
        "bridges[].merging.failed",
    ),
    "brim_bridge_omitted_total": Metric(
        "counter",
        "Records and commands that a sink for MQTT did not pass on: came from there (echo, command_echo), "
        "expired, refused by the local broker (command_refused), at QoS 0 behind many others (command_full).",
        (*_BRIDGE, "cause"),
    ),
    "brim_bridge_never_drained_total": Metric(
        "counter",
        "Records that no drained file will have, since the checkpoint was created; cause skipped: on "
        "purpose, all other causes: lost.",
        (*_BRIDGE, "cause"),
    ),
    "brim_bridge_partition_never_drained_total": Metric(
        "counter",
        "The same by partition, only partitions with such records.",
        (*_BRIDGE, "stream", "partition", "cause"),
    ),
    # Delayed messages
    "brim_delayed_pending_messages": Metric("gauge", "Delayed messages that wait.", (), "delayed.pending"),
    "brim_delayed_pending_bytes": Metric(
        "gauge", "Bytes of delayed messages that wait.", (), "delayed.bytes"
    ),
    "brim_delayed_refuses": Metric(
        "gauge",
        "1 while new delayed messages are refused: the store or its disk is full.",
        (),
        "delayed.refuses",
    ),
    "brim_delayed_messages_delivered_total": Metric(
        "counter", "Delayed messages published to their topics.", (), "delayed.delivered"
    ),
    "brim_delayed_messages_cancelled_total": Metric(
        "counter", "Delayed messages that operators have cancelled.", (), "delayed.cancelled"
    ),
    "brim_delayed_messages_postponed_total": Metric(
        "counter", "Times that a stream refused a due message, which is tried again.", (), "delayed.postponed"
    ),
    "brim_delayed_dropped_total": Metric(
        "counter", "Delayed messages dropped: invalid name, damaged, too large, lost.", ("cause",)
    ),
    # Tenants: all clients of one of them
    "brim_tenant_connections": Metric(
        "gauge", "Connections of the tenant.", _TENANT, "tenants[].connections"
    ),
    "brim_tenant_sessions": Metric(
        "gauge", "Sessions of the tenant that outlast their connection.", _TENANT, "tenants[].sessions"
    ),
    "brim_tenant_subscription_bytes": Metric(
        "gauge", "Memory for topic filters of the tenant.", _TENANT, "tenants[].subscription_bytes"
    ),
    "brim_tenant_topics": Metric(
        "gauge", "Topics that messages of the tenant have created.", _TENANT, "tenants[].topics"
    ),
    "brim_tenant_retained": Metric(
        "gauge", "Retained messages of the tenant.", _TENANT, "tenants[].retained"
    ),
    "brim_tenant_retained_bytes": Metric(
        "gauge", "Memory for retained messages of the tenant.", _TENANT, "tenants[].retained_bytes"
    ),
    "brim_tenant_queue_bytes": Metric(
        "gauge", "Memory for queued records of the tenant.", _TENANT, "tenants[].queue_bytes"
    ),
    "brim_tenant_delayed": Metric(
        "gauge", "Delayed messages of the tenant that wait.", _TENANT, "tenants[].delayed"
    ),
    "brim_tenant_delayed_bytes": Metric(
        "gauge", "Bytes of delayed messages of the tenant that wait.", _TENANT, "tenants[].delayed_bytes"
    ),
    "brim_tenant_stored_bytes": Metric(
        "gauge",
        "Bytes in the log of a tenant that has streams of its own; not shown for a tenant that shares one.",
        _TENANT,
        "tenants[].stored_bytes",
    ),
    "brim_tenant_wills": Metric("gauge", "Wills of the tenant.", _TENANT, "tenants[].wills"),
    "brim_tenant_wills_bytes": Metric(
        "gauge", "Memory for wills of the tenant.", _TENANT, "tenants[].wills_bytes"
    ),
    "brim_tenant_messages_received_total": Metric(
        "counter", "PUBLISH packets of the tenant.", _TENANT, "tenants[].published"
    ),
    "brim_tenant_rate_waits_total": Metric(
        "counter",
        "Times a client waited for publish_rate_max of its tenant.",
        _TENANT,
        "tenants[].rate_waits",
    ),
    "brim_tenant_refused_total": Metric(
        "counter",
        "Requests of the tenant's clients refused at a limit, by table, and clients of other tenants.",
        (*_TENANT, "cause"),
    ),
    # Consumers
    "brim_consumer_lag_records": Metric("gauge", "Records that a consumer has not acknowledged.", _CONSUMER),
    "brim_consumer_in_flight": Metric("gauge", "Delivered, not acknowledged records.", _CONSUMER),
}


SECTIONS = frozenset(metric.json.rpartition(".")[0] for metric in METRICS.values())


def keys_of(section: str) -> Mapping[str, str]:
    """Metric names by key, of one section of the report, such as "log"."""
    split = {name: metric.json.rpartition(".") for name, metric in METRICS.items()}
    return {key: name for name, (heading, _, key) in split.items() if key and heading == section}
