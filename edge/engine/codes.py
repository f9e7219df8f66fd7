"""Codes of the MQTT engine: kinds of events, causes of closed connections and of lost messages.

Owns their names in Python; ringbuf/c/mqtt/mqtt_api.h defines the numbers.
"""

from __future__ import annotations

from enum import IntEnum

from edge.mqtt.reason_codes import NamedCode
from ringbuf.native import lib

TABLES: int = lib.MQ_OWNED


class EventKind(IntEnum):
    """Kinds of events that the engine leaves to Python."""

    PACKET = lib.MQ_EVENT_PACKET  # data: a whole control packet
    # data: a topic that is unknown, or for which this client is not yet authorized
    TOPIC = lib.MQ_EVENT_TOPIC
    CLOSED = lib.MQ_EVENT_CLOSED  # detail: CloseCause; never for connections that Python closed itself
    # detail: a producer ring; data: an unknown topic of one of its records
    PRODUCER_TOPIC = lib.MQ_EVENT_PRODUCER_TOPIC
    # detail: a producer ring with invalid bytes, which is read no further
    PRODUCER_BAD = lib.MQ_EVENT_PRODUCER_BAD
    BACKFILL = lib.MQ_EVENT_BACKFILL  # only the log has the next record of the connection's session
    JOURNAL = lib.MQ_EVENT_JOURNAL  # the journal of sessions needs a snapshot
    UPGRADE = lib.MQ_EVENT_UPGRADE  # data: the HTTP request of a WebSocket client
    PROXY = lib.MQ_EVENT_PROXY  # data: the PROXY header of a connection


class CloseCause(NamedCode):
    """Cause of the end of a connection."""

    SERVER = lib.MQ_CLOSE_SERVER
    PEER = lib.MQ_CLOSE_PEER
    RESET = lib.MQ_CLOSE_RESET
    MALFORMED = lib.MQ_CLOSE_MALFORMED
    PROTOCOL = lib.MQ_CLOSE_PROTOCOL
    TOO_LARGE = lib.MQ_CLOSE_TOO_LARGE
    CONNECT_TIMEOUT = lib.MQ_CLOSE_CONNECT_TIMEOUT
    KEEP_ALIVE = lib.MQ_CLOSE_KEEP_ALIVE
    FULL = lib.MQ_CLOSE_FULL
    MEMORY = lib.MQ_CLOSE_MEMORY
    NOT_AUTHORIZED_YET = lib.MQ_CLOSE_NOT_AUTHORIZED_YET
    LIMIT = lib.MQ_CLOSE_LIMIT
    TOPIC_ALIAS = lib.MQ_CLOSE_ALIAS
    RECEIVE_MAXIMUM = lib.MQ_CLOSE_RECEIVE_MAXIMUM
    RETAIN = lib.MQ_CLOSE_RETAIN
    QOS = lib.MQ_CLOSE_QOS
    UNFINISHED = lib.MQ_CLOSE_UNFINISHED


class DropCause(NamedCode):
    """Cause of a message that did not reach a ring, or of a record that did not reach a subscriber."""

    QUEUE = lib.MQ_DROP_QUEUE
    OVERRUN = lib.MQ_DROP_OVERRUN
    MEMORY = lib.MQ_DROP_MEMORY
    FULL = lib.MQ_DROP_FULL
    DENIED = lib.MQ_DROP_DENIED
    TOPICS = lib.MQ_DROP_TOPICS
    FORGED = lib.MQ_DROP_FORGED
    TOO_LARGE = lib.MQ_DROP_TOO_LARGE
    EXPIRED = lib.MQ_DROP_EXPIRED
    TOPIC_NAME = lib.MQ_DROP_TOPIC_NAME
    PAYLOAD_FORMAT = lib.MQ_DROP_PAYLOAD_FORMAT
    RETAINED_FULL = lib.MQ_DROP_RETAINED_FULL
    DELAYED_FULL = lib.MQ_DROP_DELAYED_FULL


class Table(NamedCode):
    """A table that all clients share, and of which an owner (edge.broker.quotas) has a part."""

    OPENING = lib.MQ_OWNED_OPENING  # connections before CONNECT was accepted
    CONNECTIONS = lib.MQ_OWNED_CONNECTIONS
    SESSIONS = lib.MQ_OWNED_SESSIONS  # sessions that outlast their connection
    SUBSCRIPTION_BYTES = lib.MQ_OWNED_FILTER_BYTES
    TOPICS = lib.MQ_OWNED_TOPICS
    RETAINED = lib.MQ_OWNED_RETAINED
    RETAINED_BYTES = lib.MQ_OWNED_RETAINED_BYTES
    QUEUE_BYTES = lib.MQ_OWNED_QUEUE_BYTES
    DELAYED = lib.MQ_OWNED_DELAYED  # of tenants only
    DELAYED_BYTES = lib.MQ_OWNED_DELAYED_BYTES

    @property
    def limit(self) -> str:
        """Name of the table's size in EngineLimits; "" for one that only tenants have limits of."""
        return _LIMITS.get(self, "")

    @property
    def remedy(self) -> str:
        """Settings to raise if an owner needs more of the table."""
        if not self.limit:
            return "[tenant.quota]"
        return f"limits.{self.limit}, or set [quota.user], [quota.address] or [tenant.quota]"


_LIMITS = {
    Table.OPENING: "connections_max",
    Table.CONNECTIONS: "connections_max",
    Table.SESSIONS: "sessions_max",
    Table.SUBSCRIPTION_BYTES: "filters_max_bytes",
    Table.TOPICS: "topics_max",
    Table.RETAINED: "retained_max",
    Table.RETAINED_BYTES: "retained_max_bytes",
    Table.QUEUE_BYTES: "queues_max_bytes",
}
