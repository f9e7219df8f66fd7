"""What one client may ask for, beyond what the hot path bounds (edge.engine.EngineLimits)."""

from __future__ import annotations

from dataclasses import dataclass, field

from edge.mqtt.codec import PacketLimits
from edge.router import TopicLimits
from edge.sessions import SessionLimits
from edge.wills import WillLimits

__all__ = ["BrokerLimits", "PacketLimits"]

DEFAULT_PACKETS = PacketLimits(user_properties_max=256, filters_max=1_024)


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """Names as in the configuration file."""

    client_id_max_bytes: int = 65_535
    check_retain_source: bool = True  # what is retained of clients that may not publish it is withheld
    empty_client_ids: bool = True  # a client without an identifier gets one
    subscriptions_max: int = 10_000
    subscriptions_max_bytes: int = 8 << 20  # of the filters of one client, as filter_bytes() counts them
    packets: PacketLimits = DEFAULT_PACKETS
    topic_alias_max: int = 32  # topic aliases towards one client that takes some
    sys_interval_s: int = 0  # between two updates of the $SYS topics; 0: there are none
    keep_alive_max_s: int = 65_535  # also for who asks for none; 0: there is no bound
    sessions: SessionLimits = field(default_factory=SessionLimits)
    wills: WillLimits = field(default_factory=WillLimits)
    topics: TopicLimits = field(default_factory=TopicLimits)
