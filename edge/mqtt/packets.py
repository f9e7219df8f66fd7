"""Control packets as values: the packets that a Connection receives and sends.

Owns no bytes: decode.py and encode.py read and write them. A packet has the same class in every version; a
field that a version does not have keeps its default there (reason codes of acknowledgements, properties).

    class         3.1.1 section    sent by
    Connect       3.1              client
    ConnAck       3.2              server
    Publish       3.3              both
    PubAck        3.4              both   ends QoS 1
    PubRec        3.5              both   QoS 2, first answer
    PubRel        3.6              both   QoS 2, second half
    PubComp       3.7              both   ends QoS 2
    Subscribe     3.8              client
    SubAck        3.9              server
    Unsubscribe   3.10             client
    UnsubAck      3.11             server
    PingReq       3.12             client
    PingResp      3.13             server
    Disconnect    3.14             client, in MQTT 5 both
    Auth          5: 3.15          both   MQTT 5 only
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from edge.mqtt.errors import Version
from edge.mqtt.primitives import Buffer
from edge.mqtt.properties import NO_PROPERTIES, Properties
from edge.mqtt.reason_codes import ReasonCode


def payload_bytes(payload: Buffer | str) -> bytes:
    """A copy of `payload`; text as UTF-8. Raises TypeError, which names the argument, for other types."""
    if isinstance(payload, str):
        return payload.encode()
    try:
        view = memoryview(payload)
    except TypeError:  # bytes(5) would be five zeros
        raise TypeError(f"payload must be bytes or str, not {type(payload).__name__}") from None
    return view.tobytes()


class Will(Struct, frozen=True):
    """Message that the server publishes for a client without DISCONNECT; `payload`: 0..65535 bytes."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: Properties = NO_PROPERTIES


class Connect(Struct, frozen=True):
    """The first packet of a connection.

    A msgspec structure, because one is made for every connection: a frozen dataclass takes ten times as long.
    `clean_start` is Clean Session in 3.1.1. `keep_alive_s` 0 switches the keep-alive off; at most 65535.
    `version` is the protocol version of the connection.
    """

    client_id: str = ""
    clean_start: bool = True
    keep_alive_s: int = 60
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    version: Version = Version.V311
    properties: Properties = NO_PROPERTIES


class ConnAck(Struct, frozen=True):
    """The answer to CONNECT. Return codes 1..5 of 3.1.1 become their equivalents in ReasonCode."""

    session_present: bool = False
    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


class Publish(Struct, frozen=True):
    """An application message. `packet_id` is 1..65535, and 0 at QoS 0.

    `payload` of a received packet is a view of the received bytes, not a copy: it is valid as long as those
    bytes (a Connection never reuses them, so the view keeps a whole chunk in memory). Copy it to store it. In
    MQTT 5 `topic` is empty if a topic alias replaces it.
    """

    topic: str
    payload: Buffer = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties = NO_PROPERTIES


class PubAck(Struct, frozen=True):
    """The receiver owns a QoS 1 message, or (MQTT 5, a failure) refuses it."""

    packet_id: int
    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


class PubRec(Struct, frozen=True):
    """The receiver owns a QoS 2 message, or (MQTT 5, a failure) refuses it."""

    packet_id: int
    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


class PubRel(Struct, frozen=True):
    """The sender has forgotten the message of a QoS 2 exchange, and keeps only its identifier."""

    packet_id: int
    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


class PubComp(Struct, frozen=True):
    """The identifier of a QoS 2 exchange is free again."""

    packet_id: int
    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


class Subscription(Struct, frozen=True):
    """A topic filter with its options. All options except `qos` are MQTT 5.

    `retain_handling`: retained messages are sent 0 at every SUBSCRIBE, 1 at a new one, 2 never.
    """

    topic_filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


class Subscribe(Struct, frozen=True):
    """Request for one or more subscriptions."""

    packet_id: int
    subscriptions: tuple[Subscription, ...]
    properties: Properties = NO_PROPERTIES


class SubAck(Struct, frozen=True):
    """One code for each subscription, in order: the granted QoS, or a failure (0x80 before MQTT 5)."""

    packet_id: int
    reason_codes: tuple[ReasonCode, ...]
    properties: Properties = NO_PROPERTIES


class Unsubscribe(Struct, frozen=True):
    """Request to end one or more subscriptions, by their filters."""

    packet_id: int
    topic_filters: tuple[str, ...]
    properties: Properties = NO_PROPERTIES


class UnsubAck(Struct, frozen=True):
    """One code for each filter, in order; none before MQTT 5."""

    packet_id: int
    reason_codes: tuple[ReasonCode, ...] = ()
    properties: Properties = NO_PROPERTIES


class PingReq(Struct, frozen=True):
    """The client is alive."""


class PingResp(Struct, frozen=True):
    """Answer to PINGREQ."""


class Disconnect(Struct, frozen=True):
    """The last packet of a connection.  From a client, with SUCCESS, it also discards the will."""

    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


class Auth(Struct, frozen=True):
    """A step of an enhanced authentication. MQTT 5 only."""

    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


Packet: TypeAlias = (
    Connect
    | ConnAck
    | Publish
    | PubAck
    | PubRec
    | PubRel
    | PubComp
    | Subscribe
    | SubAck
    | Unsubscribe
    | UnsubAck
    | PingReq
    | PingResp
    | Disconnect
    | Auth
)
