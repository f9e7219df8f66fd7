"""Settings of limits, in [limits]: memory, connections and queues of one client and of all clients together.

Owns their defaults and ranges; edge/engine/engine_limits.py and the C core enforce them.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class DefaultSize(int):
    """A size that is not configured: the start lowers it if there is no room (edge/streams/ring_sizes.py and
    edge/server/memory_budget.py).
    """


class LoweredSize(DefaultSize):
    """A size that the start has lowered."""


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of one client and of all clients together, in [limits].

    Some defaults are lower where all full tables would not fit the memory that the broker may use:
    connections_max, sessions_max, topics_max, topics_max_bytes, filters_max_bytes, queues_max_bytes,
    retained_max, retained_max_bytes, wills_max_bytes, spill_max_bytes and unfinished_max_bytes.
    `brim check FILE` shows them.
    """

    connections_max: Annotated[int, Meta(ge=1, le=1_000_000)] = DefaultSize(16_384)
    """MQTT connections at once. Each takes about 6 KiB and a file descriptor, for which `brim run` raises
    its soft limit.  One address may have three quarters of them ([quota]): enough for a gateway with 10,000
    devices."""
    connect_timeout_s: Annotated[int, Meta(ge=1, le=300)] = 5
    """Time from the accepted connection to the last byte of CONNECT. Slower clients are disconnected."""
    connect_max_bytes: Annotated[int, Meta(ge=256, le=MIB)] = 384 * KIB
    """Longest CONNECT packet, and all that the broker buffers for a client that is not logged in. The
    default has room for the five fields of CONNECT at their longest, 65,535 bytes each, and for
    properties."""
    packet_max_bytes: Annotated[int, Meta(ge=256, le=256 * MIB)] | None = None
    """Longest MQTT packet. Not set: the longest packet that fits every ring, at most 16 MiB; with rings of
    64 MiB that is 15.9 MiB."""
    control_packet_max_bytes: Annotated[int, Meta(ge=256, le=16 * MIB)] = MIB
    """Longest packet of every type except PUBLISH. The broker handles such a packet in one step."""
    user_properties_max: Annotated[int, Meta(ge=0, le=100_000)] = 256
    """User properties in one CONNECT (and in its will), SUBSCRIBE, UNSUBSCRIBE, DISCONNECT or AUTH packet.
    Each takes about a microsecond.  A PUBLISH packet may have any number: its properties are not decoded in
    Python."""
    packet_filters_max: Annotated[int, Meta(ge=1, le=100_000)] = 1_024
    """Topic filters in one SUBSCRIBE or UNSUBSCRIBE packet. Each takes about 2 microseconds, in which no
    other client is served."""
    unfinished_max_bytes: Annotated[int, Meta(ge=MIB, le=64 * GIB)] = DefaultSize(256 * MIB)
    """Memory for partly received packets of all clients together; at least twice the longest packet. Beyond
    it clients wait in line, and the oldest packets end with their connections (reason 0x97)."""
    keep_alive_max_s: Annotated[int, Meta(ge=1, le=65535)] = 65535
    """Longest keep-alive interval, and the interval of clients that request none."""
    allow_empty_client_id: bool = True
    """Accept clients without a client identifier; the broker gives them one."""
    qos_max: Annotated[int, Meta(ge=0, le=2)] = 2
    """Highest QoS of published messages and of granted subscriptions."""
    payload_max_bytes: Annotated[int, Meta(ge=1, le=256 * MIB)] | None = None
    """Longest payload of a published message. Not set: whatever fits into packet_max_bytes."""
    client_id_max_bytes: Annotated[int, Meta(ge=23, le=65535)] = 65535
    """Longest client identifier. The default is the longest that MQTT allows."""
    topic_max_bytes: Annotated[int, Meta(ge=1, le=65535)] = 65535
    """Longest topic or topic filter. The default is the longest that MQTT allows."""
    topic_levels_max: Annotated[int, Meta(ge=1, le=1024)] = 201
    """Levels of a topic or topic filter. The default allows 200 slashes, as Mosquitto does."""
    topics_max: Annotated[int, Meta(ge=1, le=1 << 24)] = DefaultSize(1_000_000)
    """Topics that the broker knows at once. Each takes about 400 bytes."""
    topics_max_bytes: Annotated[int, Meta(ge=MIB, le=64 * GIB)] = DefaultSize(256 * MIB)
    """Memory for the names of all known topics. Each level beyond the eighth counts 128 bytes more, because
    matching visits every level."""
    topics_idle_s: Annotated[int, Meta(ge=1, le=365 * 86_400)] = 3_600
    """Time without use after which the broker may forget a topic that has no retained message, to make room
    for new topics. The next message to a forgotten topic takes longer; nothing is lost."""
    subscriptions_max: Annotated[int, Meta(ge=1, le=100_000)] = 10_000
    """Subscriptions of one client. Hubs of home automation have thousands."""
    subscriptions_max_bytes: Annotated[int, Meta(ge=KIB, le=GIB)] = 8 * MIB
    """Memory for the topic filters of one client: their bytes, and 128 bytes for each level."""
    filters_max_bytes: Annotated[int, Meta(ge=KIB, le=64 * GIB)] = DefaultSize(256 * MIB)
    """Memory for the topic filters of all clients together, counted as for subscriptions_max_bytes."""
    topic_alias_max: Annotated[int, Meta(ge=0, le=65535)] = 32
    """MQTT 5 topic aliases that a client may set, and that the broker sets on a connection to a client."""
    queued_records_max: Annotated[int, Meta(ge=1, le=10_000_000)] = 100_000
    """Records queued for one client, connected or not. Beyond it records are dropped and counted."""
    queued_records_drop: Literal["oldest", "newest"] = "oldest"
    """Records that a full queue drops: "oldest" keeps the latest readings, "newest" keeps what is queued."""
    queues_max_bytes: Annotated[int, Meta(ge=MIB, le=64 * GIB)] = DefaultSize(256 * MIB)
    """Memory for the queues of all clients together, 15 to 16 bytes for each record. Beyond it nothing is
    queued for any client; the drops are counted."""
    spill_max_bytes: Annotated[int, Meta(ge=0, le=64 * GIB)] = DefaultSize(64 * MIB)
    """Memory for copies of QoS 1 and 2 records that a ring without a log overwrites while clients still wait
    for them."""
    will_max_bytes: Annotated[int, Meta(ge=KIB, le=MIB)] = 128 * KIB
    """Longest will message of one client: topic, payload and properties."""
    wills_max_bytes: Annotated[int, Meta(ge=MIB, le=16 * GIB)] = DefaultSize(16 * MIB)
    """Memory for the will messages of all clients together. As it fills, large wills are refused first. One
    user or address may have three quarters of it ([quota])."""
    in_flight_max: Annotated[int, Meta(ge=1, le=65535)] = 100
    """QoS 1 and 2 messages in flight to one client. The default is what paho and mosquitto accept without a
    setting of their own."""
    in_flight_max_bytes: Annotated[int, Meta(ge=0, le=64 * GIB)] = 0
    """Bytes in flight to one client. Beyond it the next message waits for an acknowledgement. 0: no
    limit."""
    receive_max: Annotated[int, Meta(ge=1, le=65535)] = 1_024
    """QoS 1 and 2 messages in flight from one client, for example while they wait for a sync or a sink."""
    sessions_max: Annotated[int, Meta(ge=1, le=10_000_000)] = DefaultSize(16_384)
    """Sessions that outlast their connection, of connected and absent clients. Beyond it new sessions are
    refused."""
    session_expiry_s: Annotated[int, Meta(ge=0, le=(1 << 32) - 1)] = 7 * 86_400
    """Longest time that the session of an absent client is kept."""
    retained_max: Annotated[int, Meta(ge=0, le=10_000_000)] = DefaultSize(100_000)
    """Retained messages."""
    retained_max_bytes: Annotated[int, Meta(ge=0, le=64 * GIB)] = DefaultSize(64 * MIB)
    """Memory for all retained messages together."""
