"""Encoder: packets to bytes, one function for each packet type.

Refuses everything that decode.py would refuse, with the same rule: nothing invalid is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edge.mqtt import packets as p
from edge.mqtt.errors import ProtocolError, Rule, Version
from edge.mqtt.packet_types import FLAGS, REASONS, PacketType, checked_reason
from edge.mqtt.primitives import (
    encode_binary,
    encode_string,
    encode_uint16,
    encode_variable_integer,
)
from edge.mqtt.properties import NO_PROPERTIES, In, Properties, encode_properties
from edge.mqtt.reason_codes import ReasonCode, connack_return_code
from edge.mqtt.topic_filters import check_filter, check_name, split_share

_V5 = Version.V5
_RETURN_CODES = {ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID}  # of errors


def refusal(error: ProtocolError) -> p.ConnAck | None:
    """CONNACK for an invalid CONNECT: in MQTT 5 always, in older versions if a return code exists."""
    known = REASONS[PacketType.CONNACK].codes if error.version == _V5 else _RETURN_CODES
    return p.ConnAck(False, error.reason_code) if error.reason_code in known else None


def encode(packet: p.Packet, version: Version = Version.V311) -> bytes:
    """Encode `packet` in `version` (for a CONNECT, in its own version).

    Fields that `version` does not have are left out: properties, reason codes of acknowledgements. A CONNACK
    or SUBACK failure becomes the nearest existing one. Raises ProtocolError for an invalid packet.
    """
    if isinstance(packet, p.Publish):
        return encode_publish_head(packet, version) + packet.payload
    packet_type, write = _ENCODERS[type(packet)]
    body = write(packet, version)
    first_byte = packet_type << 4 | FLAGS[packet_type].value
    return bytes((first_byte,)) + encode_variable_integer(len(body), version) + body


def encode_publish_head(packet: p.Publish, version: Version = Version.V311) -> bytes:
    """Encode a PUBLISH without its payload, so that a large one need not be copied."""
    _check_publish(packet, version)
    body = encode_string(packet.topic, version)
    if packet.qos:
        body += encode_uint16(packet.packet_id, "packet identifier", version)
    if version == _V5:
        body += encode_properties(packet.properties, In.PUBLISH)
    flags = packet.dup << 3 | packet.qos << 1 | packet.retain
    length = len(body) + memoryview(packet.payload).nbytes
    return bytes((PacketType.PUBLISH << 4 | flags,)) + encode_variable_integer(length, version) + body


def _check_publish(packet: p.Publish, version: Version) -> None:
    _check_qos(packet.qos, Rule.QOS_IS_NOT_3, version)
    if packet.dup and not packet.qos:
        raise ProtocolError(Rule.NO_DUP_AT_QOS_0, "DUP at QoS 0", version)
    if packet.qos:
        _identifier(packet.packet_id, version)
    elif packet.packet_id:
        raise ProtocolError(
            Rule.NO_IDENTIFIER_AT_QOS_0, f"packet identifier {packet.packet_id} at QoS 0", version
        )
    if packet.topic or version != _V5 or packet.properties.topic_alias is None:
        check_name(packet.topic, version)


def _connect(packet: p.Connect, _version: Version) -> bytes:
    version, will = packet.version, packet.will
    name = "MQIsdp" if version == Version.V31 else "MQTT"
    if not packet.client_id and version != _V5 and (not packet.clean_start or version == Version.V31):
        raise ProtocolError(
            Rule.CLIENT_IDENTIFIER_OR_CLEAN,
            "an empty client identifier needs MQTT 3.1.1 and a clean session",
            version,
        )
    if packet.password is not None and packet.username is None and version != _V5:
        raise ProtocolError(Rule.NO_PASSWORD_WITHOUT_USER_NAME, "a password without a user name", version)
    flags = packet.clean_start << 1 | (packet.username is not None) << 7 | (packet.password is not None) << 6
    if will is not None:
        _check_qos(will.qos, Rule.WILL_QOS, version)
        flags |= 4 | will.qos << 3 | will.retain << 5
    parts = [
        encode_string(name, version),
        bytes((version, flags)),
        encode_uint16(packet.keep_alive_s, "keep_alive_s", version),
        encode_properties(packet.properties, In.CONNECT) if version == _V5 else b"",
        encode_string(packet.client_id, version),
        b"" if will is None else _will(will, version),
        b"" if packet.username is None else encode_string(packet.username, version),
        b"" if packet.password is None else encode_binary(packet.password, version),
    ]
    return b"".join(parts)


def _will(will: p.Will, version: Version) -> bytes:
    check_name(will.topic, version)
    properties = encode_properties(will.properties, In.WILL) if version == _V5 else b""
    return properties + encode_string(will.topic, version) + encode_binary(will.payload, version)


def _connack(packet: p.ConnAck, version: Version) -> bytes:
    if packet.session_present and packet.reason_code.failed:
        raise ProtocolError(Rule.NO_SESSION_IN_REFUSAL, "Session Present in a CONNACK that refuses", version)
    if version != _V5:
        present = packet.session_present and version != Version.V31  # MQTT 3.1 has a reserved byte there
        return bytes((present, connack_return_code(packet.reason_code)))
    code = checked_reason(packet.reason_code, PacketType.CONNACK)
    return bytes((packet.session_present, code)) + encode_properties(packet.properties, In.CONNACK)


def _ack(packet_type: PacketType) -> Callable[[Any, Version], bytes]:
    def write(packet: p.PubAck | p.PubRec | p.PubRel | p.PubComp, version: Version) -> bytes:
        packet_id = _identifier(packet.packet_id, version)
        if version != _V5:
            return packet_id
        return packet_id + _reason_and_properties(
            packet.reason_code, packet.properties, packet_type, In.PUBACK
        )

    return write


def _subscribe(packet: p.Subscribe, version: Version) -> bytes:
    if not packet.subscriptions:
        raise ProtocolError(Rule.SUBSCRIBE_IS_NOT_EMPTY, "SUBSCRIBE without a topic filter", version)
    parts = [_identifier(packet.packet_id, version)]
    if version == _V5:
        parts.append(encode_properties(packet.properties, In.SUBSCRIBE))
    for subscription in packet.subscriptions:
        parts += encode_string(subscription.topic_filter, version), _options(subscription, version)
    return b"".join(parts)


def _options(subscription: p.Subscription, version: Version) -> bytes:
    check_filter(subscription.topic_filter, version)
    _check_qos(subscription.qos, Rule.SUBSCRIBE_RESERVED_BITS, version)
    if version != _V5:
        return bytes((subscription.qos,))
    if not 0 <= subscription.retain_handling <= 2:
        raise ProtocolError(
            Rule.SUBSCRIBE_RESERVED_BITS,
            f"retain_handling {subscription.retain_handling} is not in 0..2",
            version,
        )
    if subscription.no_local and split_share(subscription.topic_filter)[0] is not None:
        raise ProtocolError(Rule.NO_LOCAL_IS_NOT_SHARED, "No Local on a shared subscription", version)
    options = subscription.qos | subscription.no_local << 2 | subscription.retain_as_published << 3
    return bytes((options | subscription.retain_handling << 4,))


def _suback(packet: p.SubAck, version: Version) -> bytes:
    if not packet.reason_codes:
        raise ProtocolError(Rule.SUBACK_IS_NOT_EMPTY, "SUBACK without a code", version)
    packet_id = _identifier(packet.packet_id, version)
    codes = [checked_reason(code, PacketType.SUBACK) for code in packet.reason_codes]
    if version != _V5:
        return packet_id + bytes(0x80 if code.failed else code for code in codes)
    return packet_id + encode_properties(packet.properties, In.SUBACK) + bytes(codes)


def _unsubscribe(packet: p.Unsubscribe, version: Version) -> bytes:
    if not packet.topic_filters:
        raise ProtocolError(Rule.UNSUBSCRIBE_IS_NOT_EMPTY, "UNSUBSCRIBE without a topic filter", version)
    parts = [_identifier(packet.packet_id, version)]
    if version == _V5:
        parts.append(encode_properties(packet.properties, In.UNSUBSCRIBE))
    for topic_filter in packet.topic_filters:
        check_filter(topic_filter, version)
        parts.append(encode_string(topic_filter, version))
    return b"".join(parts)


def _unsuback(packet: p.UnsubAck, version: Version) -> bytes:
    packet_id = _identifier(packet.packet_id, version)
    if version != _V5:
        return packet_id
    if not packet.reason_codes:
        raise ProtocolError(Rule.UNSUBACK_CODE, "UNSUBACK without a code", version)
    codes = bytes(checked_reason(code, PacketType.UNSUBACK) for code in packet.reason_codes)
    return packet_id + encode_properties(packet.properties, In.UNSUBACK) + codes


def _empty(_packet: p.PingReq | p.PingResp, _version: Version) -> bytes:
    return b""


def _disconnect(packet: p.Disconnect, version: Version) -> bytes:
    if version != _V5:
        return b""
    return _reason_and_properties(packet.reason_code, packet.properties, PacketType.DISCONNECT, In.DISCONNECT)


def _auth(packet: p.Auth, version: Version) -> bytes:
    if version != _V5:
        raise ProtocolError(Rule.VERSION_HAS_IT, "AUTH is a packet of MQTT 5", version)
    return _reason_and_properties(packet.reason_code, packet.properties, PacketType.AUTH, In.AUTH)


def _reason_and_properties(
    reason: ReasonCode, packet_properties: Properties, packet_type: PacketType, place: In
) -> bytes:
    """The shortest form: nothing for success without properties, one byte for a code without properties.

    An AUTH with a code always has its property length: only the shortest form may omit it.
    """
    code = checked_reason(reason, packet_type)
    if packet_properties == NO_PROPERTIES and packet_type is not PacketType.AUTH:
        return b"" if code == ReasonCode.SUCCESS else bytes((code,))
    properties = encode_properties(packet_properties, place)
    return b"" if not code and properties == b"\0" else bytes((code,)) + properties


def _identifier(packet_id: int, version: Version) -> bytes:
    if packet_id == 0:
        raise ProtocolError(Rule.IDENTIFIER_IS_NOT_ZERO, "packet identifier 0", version)
    return encode_uint16(packet_id, "packet identifier", version)


def _check_qos(qos: int, rule: Rule, version: Version) -> None:
    if qos not in {0, 1, 2}:
        raise ProtocolError(rule, f"QoS {qos} is not 0, 1 or 2", version)


_ENCODERS: dict[type, tuple[PacketType, Callable[[Any, Version], bytes]]] = {
    p.Connect: (PacketType.CONNECT, _connect),
    p.ConnAck: (PacketType.CONNACK, _connack),
    p.PubAck: (PacketType.PUBACK, _ack(PacketType.PUBACK)),
    p.PubRec: (PacketType.PUBREC, _ack(PacketType.PUBREC)),
    p.PubRel: (PacketType.PUBREL, _ack(PacketType.PUBREL)),
    p.PubComp: (PacketType.PUBCOMP, _ack(PacketType.PUBCOMP)),
    p.Subscribe: (PacketType.SUBSCRIBE, _subscribe),
    p.SubAck: (PacketType.SUBACK, _suback),
    p.Unsubscribe: (PacketType.UNSUBSCRIBE, _unsubscribe),
    p.UnsubAck: (PacketType.UNSUBACK, _unsuback),
    p.PingReq: (PacketType.PINGREQ, _empty),
    p.PingResp: (PacketType.PINGRESP, _empty),
    p.Disconnect: (PacketType.DISCONNECT, _disconnect),
    p.Auth: (PacketType.AUTH, _auth),
}
