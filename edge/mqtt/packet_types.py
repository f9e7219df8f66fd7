"""Packet types: type, flags and reason codes of each packet, for decoder and encoder.

    fixed header   byte 1: type << 4 | flags   then the remaining length, a variable byte integer

Only the flags of PUBLISH have a meaning: DUP 8 | QoS 6 | RETAIN 1.
"""

from __future__ import annotations

from enum import IntEnum, unique
from typing import NamedTuple

from edge.mqtt.errors import ProtocolError, Rule, Version
from edge.mqtt.reason_codes import ReasonCode


@unique
class PacketType(IntEnum):
    """Bits 7-4 of the first byte. 0 is reserved, and 15 is reserved before MQTT 5."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


class Flags(NamedTuple):
    """Bits 3-0 of the first byte, and the rule that another value breaks."""

    value: int
    rule: Rule


_NONE = Flags(0, Rule.FLAGS_ARE_AS_LISTED)

FLAGS = {
    PacketType.CONNECT: _NONE,
    PacketType.CONNACK: _NONE,
    PacketType.PUBACK: _NONE,
    PacketType.PUBREC: _NONE,
    PacketType.PUBREL: Flags(2, Rule.PUBREL_FLAGS),
    PacketType.PUBCOMP: _NONE,
    PacketType.SUBSCRIBE: Flags(2, Rule.SUBSCRIBE_FLAGS),
    PacketType.SUBACK: _NONE,
    PacketType.UNSUBSCRIBE: Flags(2, Rule.UNSUBSCRIBE_FLAGS),
    PacketType.UNSUBACK: _NONE,
    PacketType.PINGREQ: _NONE,
    PacketType.PINGRESP: _NONE,
    PacketType.DISCONNECT: Flags(0, Rule.DISCONNECT_FLAGS),
    PacketType.AUTH: Flags(0, Rule.AUTH_FLAGS),
}


# First bytes that are valid in every version: by far the most frequent ones.
_USUAL = {kind << 4 | flags.value: kind for kind, flags in FLAGS.items() if kind is not PacketType.AUTH}


class Reasons(NamedTuple):
    """The codes that a packet may carry in MQTT 5, and the rule that another code breaks."""

    codes: frozenset[int]
    rule: Rule


def _reasons(codes: str, rule: Rule) -> Reasons:
    return Reasons(frozenset(bytes.fromhex(codes)), rule)


REASONS = {
    PacketType.CONNACK: _reasons(
        "00 80 81 82 83 84 85 86 87 88 89 8a 8c 90 95 97 99 9a 9b 9c 9d 9f", Rule.CONNACK_CODE
    ),
    PacketType.PUBACK: _reasons("00 10 80 83 87 90 91 97 99", Rule.PUBACK_CODE),
    PacketType.PUBREC: _reasons("00 10 80 83 87 90 91 97 99", Rule.PUBREC_CODE),
    PacketType.PUBREL: _reasons("00 92", Rule.PUBREL_CODE),
    PacketType.PUBCOMP: _reasons("00 92", Rule.PUBCOMP_CODE),
    PacketType.SUBACK: _reasons("00 01 02 80 83 87 8f 91 97 9e a1 a2", Rule.SUBACK_CODE),
    PacketType.UNSUBACK: _reasons("00 11 80 83 87 8f 91", Rule.UNSUBACK_CODE),
    PacketType.DISCONNECT: _reasons(
        "00 04 80 81 82 83 87 89 8b 8d 8e 8f 90 93 94 95 96 97 98 99 9a 9b 9c 9d 9e 9f a0 a1 a2",
        Rule.DISCONNECT_CODE,
    ),
    PacketType.AUTH: _reasons("00 18 19", Rule.AUTH_CODE),
}


_QOS, _QOS_1 = 6, 2  # bits of QoS in the first byte


def check_flags(first_byte: int, version: Version) -> PacketType:
    """Type of a packet with this first byte, after a check of its flags.

    MQTT 3.1 (sections 3.6, 3.8, 3.10) has DUP on PUBREL, SUBSCRIBE and UNSUBSCRIBE, and does not use RETAIN
    there. The decoder of CONNECT checks its flags, because the body contains the version.
    """
    if (usual := _USUAL.get(first_byte)) is not None:
        return usual
    number, flags = first_byte >> 4, first_byte & 0x0F
    if number == 0 or (number == PacketType.AUTH and version != Version.V5):
        raise ProtocolError(Rule.TYPE_IS_KNOWN, f"packet type {number} is reserved", version)
    packet_type = PacketType(number)
    if packet_type is PacketType.PUBLISH:
        _check_publish_flags(flags, version)
    elif packet_type is not PacketType.CONNECT and not _flags_fit(flags, FLAGS[packet_type].value, version):
        raise ProtocolError(
            FLAGS[packet_type].rule,
            f"the flags of {packet_type.name} are {flags:04b}, and must be {FLAGS[packet_type].value:04b}",
            version,
        )
    return packet_type


_KNOWN = {kind: {code: ReasonCode(code) for code in allowed.codes} for kind, allowed in REASONS.items()}


def checked_reasons(codes: bytes, packet_type: PacketType) -> tuple[ReasonCode, ...]:
    """As checked_reason() of each, without a call for each: a packet may have a million."""
    try:
        return tuple(map(_KNOWN[packet_type].__getitem__, codes))
    except KeyError as unknown:
        return (checked_reason(unknown.args[0], packet_type),)  # raises


def checked_reason(code: int, packet_type: PacketType) -> ReasonCode:
    """`code` as a ReasonCode, if `packet_type` may carry it in MQTT 5."""
    allowed = REASONS[packet_type]
    if code not in allowed.codes:
        raise ProtocolError(allowed.rule, f"{packet_type.name} cannot carry code 0x{code:02x}", Version.V5)
    return ReasonCode(code)


def _flags_fit(flags: int, expected: int, version: Version) -> bool:
    if version == Version.V31 and expected == _QOS_1:
        return flags & _QOS == _QOS_1
    return flags == expected


def _check_publish_flags(flags: int, version: Version) -> None:
    if flags & 6 == 6:
        raise ProtocolError(Rule.QOS_IS_NOT_3, "PUBLISH with both QoS bits set", version)
    if flags & 0xE == 8:
        raise ProtocolError(Rule.NO_DUP_AT_QOS_0, "PUBLISH with DUP at QoS 0", version)
