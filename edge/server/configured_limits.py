"""Limits of engine and broker, from the configuration. Owns the mapping, and no default."""

from __future__ import annotations

from edge.broker.broker_limits import BrokerLimits
from edge.broker.quotas import owner_max
from edge.broker.router import TopicLimits
from edge.broker.sessions import SessionLimits
from edge.broker.wills import WillLimits
from edge.config.schema import Config
from edge.engine.engine_limits import EngineLimits
from edge.mqtt.primitives import PacketLimits
from edge.recovery.state_files import SESSIONS_RING


def logged_rings(config: Config) -> dict[str, bool]:
    """The ring of each partition with a log, and True if it has a separate log."""
    sessions = {SESSIONS_RING: True} if config.sessions.keep and config.sessions_durability.is_logged else {}
    return sessions | {
        f"{stream.name}-{index}": stream.isolated
        for stream in config.stream
        if stream.durability.is_logged
        for index in range(stream.partitions)
    }


def engine_limits(config: Config) -> EngineLimits:
    """Limits of the engine."""
    limits, packet_max_bytes = config.limits, config.packet_max_bytes
    longest = max(packet_max_bytes, *(listener.packet_max_bytes or 0 for listener in config.listener), 0)
    return EngineLimits(
        connections_max=limits.connections_max,
        connect_timeout_ms=limits.connect_timeout_s * 1000,
        connect_max_bytes=limits.connect_max_bytes,
        packet_max_bytes=config.packet_max_bytes,
        control_max_bytes=limits.control_packet_max_bytes,
        topics_max=limits.topics_max,
        topics_max_bytes=limits.topics_max_bytes,
        retained_max=limits.retained_max,
        receive_max=limits.receive_max,
        alias_max=limits.topic_alias_max,
        retained_max_bytes=limits.retained_max_bytes,
        queues_max_bytes=limits.queues_max_bytes,
        unfinished_max_bytes=max(limits.unfinished_max_bytes, 2 * longest),
        spill_max_bytes=limits.spill_max_bytes,
        qos_max=limits.qos_max,
        payload_max_bytes=limits.payload_max_bytes or 0,
        in_flight_max_bytes=limits.in_flight_max_bytes,
        sessions_max=limits.sessions_max,
        filters_max_bytes=limits.filters_max_bytes,
        share_percent=config.quota.share_percent,
        owner_max=owner_max(config.quota),
    )


def broker_limits(config: Config) -> BrokerLimits:
    """Limits of the parts of the broker that decide."""
    limits = config.limits
    sessions = SessionLimits(
        queued_records_max=limits.queued_records_max,
        in_flight_max=limits.in_flight_max,
        drop_newest=limits.queued_records_drop == "newest",
        session_expiry_s=limits.session_expiry_s,
    )
    return BrokerLimits(
        client_id_max_bytes=limits.client_id_max_bytes,
        empty_client_ids=limits.allow_empty_client_id,
        subscriptions_max=limits.subscriptions_max,
        subscriptions_max_bytes=limits.subscriptions_max_bytes,
        packets=PacketLimits(limits.user_properties_max, limits.packet_filters_max),
        topic_alias_max=limits.topic_alias_max,
        sys_interval_s=config.sys.interval_s,
        check_retain_source=config.auth.check_retain_source,
        keep_alive_max_s=limits.keep_alive_max_s,
        sessions=sessions,
        wills=WillLimits(limits.will_max_bytes, limits.wills_max_bytes, config.quota.share_percent),
        topics=TopicLimits(limits.topic_max_bytes, limits.topic_levels_max, limits.topics_idle_s),
    )
