"""Decoder: bytes to packets, one function for each packet type.

Never reads beyond the given body, and raises nothing but ProtocolError, whatever the bytes are.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

from edge.mqtt import packets as p
from edge.mqtt.errors import ProtocolError, Rule, Version
from edge.mqtt.packet_types import FLAGS, PacketType, check_flags, checked_reason, checked_reasons
from edge.mqtt.primitives import UNLIMITED, Body, Buffer, PacketLimits, encode_string
from edge.mqtt.properties import NO_PROPERTIES, In, Properties, decode_properties
from edge.mqtt.reason_codes import CONNACK_RETURN_CODES, ReasonCode
from edge.mqtt.topic_filters import check_filter, check_name, split_share

T = TypeVar("T")
_V5 = Version.V5
_FILTERS = 64  # between two yields


def decode_packet(
    first_byte: int, body: Buffer, version: Version = Version.V311, limits: PacketLimits = UNLIMITED
) -> p.Packet:
    """Decode a packet from the first byte of its fixed header and its `body`, everything after that header.

    `version` is the one of CONNECT; CONNECT itself ignores the argument. The payload of a PUBLISH is a view
    of `body`; everything else is copied. Takes time in proportion to the length. Raises ProtocolError, with
    reason code 0x97 for a packet above one of `limits`.
    """
    packet_type = check_flags(first_byte, version)
    return _DECODERS[packet_type](first_byte, Body(body, version, limits=limits))


def subscribe_steps(
    first_byte: int, body: Buffer, version: Version, limits: PacketLimits = UNLIMITED
) -> Generator[None, None, p.Subscribe]:
    """As decode_packet() for a SUBSCRIBE, in steps of less than a millisecond each."""
    check_flags(first_byte, version)
    return _subscribe_steps(Body(body, version, limits=limits))


def unsubscribe_steps(
    first_byte: int, body: Buffer, version: Version, limits: PacketLimits = UNLIMITED
) -> Generator[None, None, p.Unsubscribe]:
    """As decode_packet() for an UNSUBSCRIBE, in steps of less than a millisecond each."""
    check_flags(first_byte, version)
    return _unsubscribe_steps(Body(body, version, limits=limits))


# The connect flags; bits 4-3 are Will QoS.
_RESERVED, _CLEAN_START, _WILL, _WILL_RETAIN, _PASSWORD, _USERNAME = 1, 2, 4, 0x20, 0x40, 0x80

_PROTOCOLS = {  # name and level at the beginning of CONNECT
    b"\0\6MQIsdp\3": Version.V31,
    b"\0\4MQTT\4": Version.V311,
    b"\0\4MQTT\5": Version.V5,
}
_NAMES = {"MQTT", "MQIsdp"}
_LEVEL_AT = 6  # position of the level byte of MQTT


# The type of a TLS record and the first byte of its version, read as CONNECT with flags and a length.
_TLS_HANDSHAKE, _TLS_MAJOR = 0x16, 3


def _connect(first_byte: int, body: Body) -> p.Connect:
    if first_byte == _TLS_HANDSHAKE and len(body) == _TLS_MAJOR:
        text = "a TLS handshake instead of CONNECT; connect to a port with TLS, or without TLS"
        raise ProtocolError(FLAGS[PacketType.CONNECT].rule, text)
    body.rule, body.version = Rule.CONNECT_CONFORMS, Version.V311
    body.version = version = _protocol(body)
    if first_byte & 0xF and version != Version.V31:  # MQTT 3.1 does not use them
        text = f"the flags of CONNECT are {first_byte & 0xF:04b}, and must be 0000"
        # no version is known, so no CONNACK is sent
        raise ProtocolError(FLAGS[PacketType.CONNECT].rule, text)
    flags = body.byte()
    if flags & ~_CLEAN_START:
        _check_connect_flags(flags, version)
    keep_alive_s = body.uint16()
    properties = decode_properties(body, In.CONNECT) if version == _V5 else NO_PROPERTIES
    client_id = body.string()
    clean_start = bool(flags & _CLEAN_START)
    if not client_id and version != _V5 and (not clean_start or version == Version.V31):
        raise ProtocolError(
            Rule.CLIENT_IDENTIFIER_OR_CLEAN,
            "an empty client identifier needs MQTT 3.1.1 and a clean session",
            version,
        )
    will = _will(body, flags) if flags & _WILL else None
    # MQTT 3.1, section 3.1: if CONNECT ends before them, their flags have no meaning.
    may_end = version == Version.V31
    username = body.string() if flags & _USERNAME and (body or not may_end) else None
    password = body.binary() if flags & _PASSWORD and (body or not may_end) else None
    body.finish()
    return p.Connect(client_id, clean_start, keep_alive_s, username, password, will, version, properties)


def _protocol(body: Body) -> Version:
    begin = body.peek(_LEVEL_AT + 1)
    version = _PROTOCOLS.get(begin)
    if version is not None:
        body.skip(len(begin))
        return version
    name, level = body.string(), body.byte()
    version = _PROTOCOLS.get(encode_string(name, Version.V311) + bytes((level,)))
    if version is None:
        rule = Rule.PROTOCOL_LEVEL if name in _NAMES else Rule.PROTOCOL_NAME
        raise ProtocolError(rule, f"protocol {name[:20]!a} level {level}; known: MQTT 4 and 5, MQIsdp 3")
    return version


def _check_connect_flags(flags: int, version: Version) -> None:
    will_qos = flags >> 3 & 3
    if flags & _RESERVED and version != Version.V31:  # MQTT 3.1 does not use it
        raise ProtocolError(Rule.CONNECT_RESERVED_FLAG, "bit 0 of the connect flags is set", version)
    if flags & _WILL and will_qos == 3:
        raise ProtocolError(Rule.WILL_QOS, "Will QoS is 3", version)
    # MQTT 3.1 ignores the bits of an absent will.
    there_is_none = not flags & _WILL and version != Version.V31
    if there_is_none and will_qos:
        raise ProtocolError(Rule.NO_WILL_QOS_WITHOUT_WILL, f"Will QoS is {will_qos} without a will", version)
    if there_is_none and flags & _WILL_RETAIN:
        raise ProtocolError(Rule.NO_WILL_RETAIN_WITHOUT_WILL, "Will Retain is set without a will", version)
    if version != _V5 and flags & _PASSWORD and not flags & _USERNAME:
        raise ProtocolError(Rule.NO_PASSWORD_WITHOUT_USER_NAME, "a password without a user name", version)


def _will(body: Body, flags: int) -> p.Will:
    properties = decode_properties(body, In.WILL) if body.version == _V5 else NO_PROPERTIES
    topic = body.string()
    check_name(topic, body.version)
    return p.Will(topic, body.binary(), flags >> 3 & 3, bool(flags & _WILL_RETAIN), properties)


def _connack(_first_byte: int, body: Body) -> p.ConnAck:
    version = body.version
    flags, code = body.byte(), body.byte()
    if flags & 0xFE:
        raise ProtocolError(
            Rule.CONNACK_RESERVED_FLAGS, f"bits 7-1 of the CONNACK flags are {flags >> 1:07b}", version
        )
    if version == _V5:
        reason = checked_reason(code, PacketType.CONNACK)
        properties = decode_properties(body, In.CONNACK)
    else:
        if code >= len(CONNACK_RETURN_CODES):
            raise ProtocolError(Rule.CONNACK_CODE, f"CONNACK return code {code} is reserved", version)
        reason, properties = CONNACK_RETURN_CODES[code], NO_PROPERTIES
    if flags and reason.failed:
        raise ProtocolError(Rule.NO_SESSION_IN_REFUSAL, "Session Present in a CONNACK that refuses", version)
    body.finish()
    return p.ConnAck(bool(flags), reason, properties)


def _publish(first_byte: int, body: Body) -> p.Publish:
    version = body.version
    topic = body.string()
    qos = first_byte >> 1 & 3
    packet_id = _identifier(body, Rule.PUBLISH_IDENTIFIER_IS_NOT_ZERO) if qos else 0
    properties = decode_properties(body, In.PUBLISH) if version == _V5 else NO_PROPERTIES
    if topic or version != _V5:
        check_name(topic, version)
    elif properties.topic_alias is None:
        raise ProtocolError(
            Rule.TOPIC_OR_ALIAS_IS_GIVEN, "PUBLISH without a topic name or a topic alias", version
        )
    return p.Publish(
        topic, body.rest(), qos, bool(first_byte & 1), bool(first_byte & 8), packet_id, properties
    )


_Ack = TypeVar("_Ack", p.PubAck, p.PubRec, p.PubRel, p.PubComp)


def _ack(packet: type[_Ack], packet_type: PacketType) -> Callable[[int, Body], _Ack]:
    def decode(_first_byte: int, body: Body) -> _Ack:
        packet_id = _identifier(body)
        if body.version != _V5:
            body.finish()
            return packet(packet_id)
        return packet(packet_id, *_reason_and_properties(body, packet_type, In.PUBACK))

    return decode


def _subscribe(_first_byte: int, body: Body) -> p.Subscribe:
    return _whole(_subscribe_steps(body))


def _whole(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            packet: T = end.value
            return packet


def _subscribe_steps(body: Body) -> Generator[None, None, p.Subscribe]:
    version = body.version
    packet_id = _identifier(body)
    properties = decode_properties(body, In.SUBSCRIBE) if version == _V5 else NO_PROPERTIES
    subscriptions: list[p.Subscription] = []
    while body:
        _check_count(len(subscriptions), body)
        topic_filter = body.string()
        check_filter(topic_filter, version)
        subscriptions.append(_subscription(topic_filter, body.byte(), version))
        if len(subscriptions) % _FILTERS == 0:
            yield
    if not subscriptions:
        raise ProtocolError(Rule.SUBSCRIBE_IS_NOT_EMPTY, "SUBSCRIBE without a topic filter", version)
    return p.Subscribe(packet_id, tuple(subscriptions), properties)


def _subscription(topic_filter: str, options: int, version: Version) -> p.Subscription:
    qos = options & 3
    reserved = 0xC0 if version == _V5 else 0xFC
    retain_handling = options >> 4 & 3
    if options & reserved or qos == 3 or (version == _V5 and retain_handling == 3):
        raise ProtocolError(
            Rule.SUBSCRIBE_RESERVED_BITS, f"subscription options {options:08b} are reserved", version
        )
    if options == qos:
        return p.Subscription(topic_filter, qos)
    no_local = bool(options & 4)
    if no_local and split_share(topic_filter)[0] is not None:
        raise ProtocolError(Rule.NO_LOCAL_IS_NOT_SHARED, "No Local on a shared subscription", version)
    return p.Subscription(topic_filter, qos, no_local, bool(options & 8), retain_handling)


def _suback(_first_byte: int, body: Body) -> p.SubAck:
    version = body.version
    packet_id = _identifier(body)
    properties = decode_properties(body, In.SUBACK) if version == _V5 else NO_PROPERTIES
    codes = _codes(body)
    if not codes:
        raise ProtocolError(Rule.SUBACK_IS_NOT_EMPTY, "SUBACK without a code", version)
    if version == _V5:
        return p.SubAck(packet_id, checked_reasons(codes, PacketType.SUBACK), properties)
    if wrong := set(codes) - {0, 1, 2, 0x80}:
        raise ProtocolError(Rule.SUBACK_CODE, f"SUBACK return code 0x{min(wrong):02x} is reserved", version)
    return p.SubAck(packet_id, checked_reasons(codes, PacketType.SUBACK), properties)


def _unsubscribe(_first_byte: int, body: Body) -> p.Unsubscribe:
    return _whole(_unsubscribe_steps(body))


def _unsubscribe_steps(body: Body) -> Generator[None, None, p.Unsubscribe]:
    version = body.version
    packet_id = _identifier(body)
    properties = decode_properties(body, In.UNSUBSCRIBE) if version == _V5 else NO_PROPERTIES
    filters: list[str] = []
    while body:
        _check_count(len(filters), body)
        filters.append(body.string())
        check_filter(filters[-1], version)
        if len(filters) % _FILTERS == 0:
            yield
    if not filters:
        raise ProtocolError(Rule.UNSUBSCRIBE_IS_NOT_EMPTY, "UNSUBSCRIBE without a topic filter", version)
    return p.Unsubscribe(packet_id, tuple(filters), properties)


def _unsuback(_first_byte: int, body: Body) -> p.UnsubAck:
    version = body.version
    packet_id = _identifier(body)
    if version != _V5:
        body.finish()
        return p.UnsubAck(packet_id)
    properties = decode_properties(body, In.UNSUBACK)
    codes = checked_reasons(_codes(body), PacketType.UNSUBACK)
    if not codes:
        raise ProtocolError(Rule.UNSUBACK_CODE, "UNSUBACK without a code", version)
    return p.UnsubAck(packet_id, codes, properties)


def _codes(body: Body) -> bytes:
    """The reason codes at the end of a packet: one for each topic filter."""
    codes = bytes(body.rest())
    if codes:
        _check_count(len(codes) - 1, body)
    return codes


def _pingreq(_first_byte: int, body: Body) -> p.PingReq:
    body.finish()
    return p.PingReq()


def _pingresp(_first_byte: int, body: Body) -> p.PingResp:
    body.finish()
    return p.PingResp()


_PLAIN_DISCONNECT = p.Disconnect()


def _disconnect(_first_byte: int, body: Body) -> p.Disconnect:
    if body.version != _V5:
        body.finish()
        return _PLAIN_DISCONNECT
    return p.Disconnect(*_reason_and_properties(body, PacketType.DISCONNECT, In.DISCONNECT))


def _auth(_first_byte: int, body: Body) -> p.Auth:
    return p.Auth(*_reason_and_properties(body, PacketType.AUTH, In.AUTH))


def _check_count(count: int, body: Body) -> None:
    """Check that one more topic filter is allowed."""
    if count >= (max_filters := body.limits.filters_max):
        text = f"more than {max_filters} topic filters in one packet; raise limits.packet_filters_max"
        raise ProtocolError(Rule.COUNTS_ARE_ALLOWED, text, body.version)


def _identifier(body: Body, rule: Rule = Rule.IDENTIFIER_IS_NOT_ZERO) -> int:
    packet_id = body.uint16()
    if packet_id == 0:
        raise ProtocolError(rule, "packet identifier 0", body.version)
    return packet_id


def _reason_and_properties(body: Body, packet_type: PacketType, place: In) -> tuple[ReasonCode, Properties]:
    """The last two fields of MQTT 5 acknowledgements, DISCONNECT and AUTH; either may be absent."""
    reason = checked_reason(body.byte(), packet_type) if body else ReasonCode.SUCCESS
    properties = decode_properties(body, place) if body else NO_PROPERTIES
    body.finish()
    return reason, properties


_DECODERS: dict[PacketType, Callable[[int, Body], p.Packet]] = {
    PacketType.CONNECT: _connect,
    PacketType.CONNACK: _connack,
    PacketType.PUBLISH: _publish,
    PacketType.PUBACK: _ack(p.PubAck, PacketType.PUBACK),
    PacketType.PUBREC: _ack(p.PubRec, PacketType.PUBREC),
    PacketType.PUBREL: _ack(p.PubRel, PacketType.PUBREL),
    PacketType.PUBCOMP: _ack(p.PubComp, PacketType.PUBCOMP),
    PacketType.SUBSCRIBE: _subscribe,
    PacketType.SUBACK: _suback,
    PacketType.UNSUBSCRIBE: _unsubscribe,
    PacketType.UNSUBACK: _unsuback,
    PacketType.PINGREQ: _pingreq,
    PacketType.PINGRESP: _pingresp,
    PacketType.DISCONNECT: _disconnect,
    PacketType.AUTH: _auth,
}
