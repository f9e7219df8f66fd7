"""MQTT without I/O: packets as values, decoding and encoding, the state of one connection, messages in
flight.

Imports msgspec only, opens no socket, reads no clock, writes no log. MQTT 3.1, 3.1.1 and 5. This module has
the names of all files except connection.py and inflight.py, which a broker does not load.

    packets.py                  the control packets
    decode.py, encode.py        bytes <-> packets; based on primitives.py, properties.py, packet_types.py
    connection.py               Connection: one network connection from either side, with its deadlines
    inflight.py                 state that outlives a connection: unacknowledged messages, packet identifiers
    topic_filters.py            validation and matching of topic names and filters
    errors.py, reason_codes.py  ProtocolError with the number of the broken statement; reason codes
"""

from edge.mqtt.decode import decode_packet, subscribe_steps, unsubscribe_steps
from edge.mqtt.encode import encode, encode_publish_head, refusal
from edge.mqtt.errors import ProtocolError, Rule, Version
from edge.mqtt.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
    payload_bytes,
)
from edge.mqtt.properties import Properties
from edge.mqtt.reason_codes import ReasonCode
from edge.mqtt.topic_filters import check_filter, check_name, matches, split_share

__all__ = [
    "Auth",
    "ConnAck",
    "Connect",
    "Disconnect",
    "Packet",
    "PingReq",
    "PingResp",
    "Properties",
    "ProtocolError",
    "PubAck",
    "PubComp",
    "PubRec",
    "PubRel",
    "Publish",
    "ReasonCode",
    "Rule",
    "SubAck",
    "Subscribe",
    "Subscription",
    "UnsubAck",
    "Unsubscribe",
    "Version",
    "Will",
    "check_filter",
    "check_name",
    "decode_packet",
    "encode",
    "encode_publish_head",
    "matches",
    "payload_bytes",
    "refusal",
    "split_share",
    "subscribe_steps",
    "unsubscribe_steps",
]
