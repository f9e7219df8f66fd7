"""Limits of one client that the control plane checks; edge.engine.engine_limits has those of the hot path."""

from __future__ import annotations

from msgspec import Struct, field

from edge.broker.router import TopicLimits
from edge.broker.sessions import SessionLimits
from edge.broker.wills import WillLimits
from edge.mqtt import Version
from edge.mqtt.primitives import PacketLimits

DEFAULT_PACKETS = PacketLimits(user_properties_max=256, filters_max=1_024)
_V5 = Version.V5  # reading a member of an enumeration takes a function call


class BrokerLimits(Struct, frozen=True):
    """Bounds of a client and of the broker. Names as in the configuration file."""

    client_id_max_bytes: int = 65_535
    check_retain_source: bool = True  # withhold retained messages of clients that may no longer publish them
    empty_client_ids: bool = True  # a client without an identifier gets one
    subscriptions_max: int = 10_000
    subscriptions_max_bytes: int = 8 << 20  # of the filters of one client, as filter_bytes() counts them
    packets: PacketLimits = DEFAULT_PACKETS
    topic_alias_max: int = 32  # topic aliases towards a client that accepts aliases
    sys_interval_s: int = 0  # between two updates of the $SYS topics; 0: no $SYS topics
    keep_alive_max_s: int = 65_535  # applies also to a client with keep alive 0; 0: no bound
    sessions: SessionLimits = field(default_factory=SessionLimits)
    wills: WillLimits = field(default_factory=WillLimits)
    topics: TopicLimits = field(default_factory=TopicLimits)

    def keep_alive_s(self, version: Version, wanted_s: int) -> int:
        """Keep Alive in effect: MQTT 5 clients can get a shorter one [MQTT-3.1.2-21], others keep theirs."""
        max_s = self.keep_alive_max_s
        return max_s if version == _V5 and max_s and not 0 < wanted_s <= max_s else wanted_s

    def idle_max_ms(self, keep_alive_s: int) -> int:
        """Longest silence of a client with this Keep Alive in effect [MQTT-3.1.2-22]; 0: no limit."""
        return keep_alive_s * 1500 or self.keep_alive_max_s * 1000
