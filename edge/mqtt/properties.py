"""Properties of MQTT 5: one table for decoding, encoding and validation.

    property set   variable byte integer: length of the rest | (identifier | value) ...
    identifier     variable byte integer; all assigned ones take one byte
    value          of the type in the table

Every property may occur once, except User Property, and Subscription Identifier in a PUBLISH. The last column
of the table has the packets of each property (section 2.2.2.2 of MQTT 5).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntFlag, auto
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from edge.mqtt.errors import ProtocolError, Rule, Version
from edge.mqtt.primitives import (
    VARIABLE_INTEGER_MAX,
    Body,
    encode_binary,
    encode_string,
    encode_uint16,
    encode_uint32,
    encode_variable_integer,
)


class Properties(Struct, frozen=True, kw_only=True):
    """Properties of an MQTT 5 packet or will; None (or empty) is absent.

    `user` and `subscription_identifiers` keep their order. Ranges are those of the specification.
    """

    payload_format_indicator: int | None = None  # 0 bytes, 1 UTF-8
    message_expiry_interval_s: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifiers: tuple[int, ...] = ()  # 1..268435455
    session_expiry_interval_s: int | None = None  # 0xFFFFFFFF never expires
    assigned_client_identifier: str | None = None
    server_keep_alive_s: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: int | None = None  # 0 or 1
    will_delay_interval_s: int | None = None
    request_response_information: int | None = None  # 0 or 1
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None  # 1..65535
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None  # 1..65535
    maximum_qos: int | None = None  # 0 or 1; absent is 2
    retain_available: int | None = None  # 0 or 1; absent is 1
    user: tuple[tuple[str, str], ...] = ()
    maximum_packet_size_bytes: int | None = None  # 1..4294967295
    wildcard_subscription_available: int | None = None  # 0 or 1; absent is 1
    subscription_identifier_available: int | None = None  # 0 or 1; absent is 1
    shared_subscription_available: int | None = None  # 0 or 1; absent is 1

    def __repr__(self) -> str:
        """Text with the given properties only."""
        defaults = zip(self.__struct_fields__, self.__struct_defaults__, strict=True)
        given = (
            f"{name}={getattr(self, name)!r}" for name, default in defaults if getattr(self, name) != default
        )
        return f"Properties({', '.join(given)})"


NO_PROPERTIES = Properties()


class In(IntFlag):
    """Packets that a property may occur in."""

    CONNECT = auto()
    CONNACK = auto()
    PUBLISH = auto()
    WILL = auto()
    PUBACK = auto()  # and PUBREC, PUBREL, PUBCOMP
    SUBSCRIBE = auto()
    SUBACK = auto()
    UNSUBSCRIBE = auto()
    UNSUBACK = auto()
    DISCONNECT = auto()
    AUTH = auto()


class _Kind(NamedTuple):
    read: Callable[[Body], Any]
    write: Callable[[Any, str, Version], bytes]
    high: int = 0  # the largest number


_V5 = Version.V5
_FLAG = _Kind(Body.byte, lambda value, _name, _version: bytes((value,)), 1)
_UINT16 = _Kind(Body.uint16, encode_uint16, 0xFFFF)
_UINT32 = _Kind(Body.uint32, encode_uint32, 0xFFFF_FFFF)
_VARIABLE = _Kind(
    Body.variable_integer,
    lambda value, _name, version: encode_variable_integer(value, version),
    VARIABLE_INTEGER_MAX,
)
_STRING = _Kind(Body.string, lambda value, _name, version: encode_string(value, version))
_BINARY = _Kind(Body.binary, lambda value, _name, version: encode_binary(value, version))
_PAIR = _Kind(
    lambda body: (body.string(), body.string()),
    lambda value, _name, version: encode_string(value[0], version) + encode_string(value[1], version),
)


class _Entry(NamedTuple):
    identifier: int
    name: str  # field of Properties
    kind: _Kind
    allowed: In
    low: int = 0  # the smallest number
    many: In = In(0)  # packets where it may occur more than once


_MESSAGE = In.PUBLISH | In.WILL
_ACKS = In.PUBACK | In.SUBACK | In.UNSUBACK
_ALL = In(2 * In.AUTH - 1)

_TABLE = (
    _Entry(0x01, "payload_format_indicator", _FLAG, _MESSAGE),
    _Entry(0x02, "message_expiry_interval_s", _UINT32, _MESSAGE),
    _Entry(0x03, "content_type", _STRING, _MESSAGE),
    _Entry(0x08, "response_topic", _STRING, _MESSAGE),
    _Entry(0x09, "correlation_data", _BINARY, _MESSAGE),
    _Entry(0x0B, "subscription_identifiers", _VARIABLE, In.PUBLISH | In.SUBSCRIBE, 1, many=In.PUBLISH),
    _Entry(0x11, "session_expiry_interval_s", _UINT32, In.CONNECT | In.CONNACK | In.DISCONNECT),
    _Entry(0x12, "assigned_client_identifier", _STRING, In.CONNACK),
    _Entry(0x13, "server_keep_alive_s", _UINT16, In.CONNACK),
    _Entry(0x15, "authentication_method", _STRING, In.CONNECT | In.CONNACK | In.AUTH),
    _Entry(0x16, "authentication_data", _BINARY, In.CONNECT | In.CONNACK | In.AUTH),
    _Entry(0x17, "request_problem_information", _FLAG, In.CONNECT),
    _Entry(0x18, "will_delay_interval_s", _UINT32, In.WILL),
    _Entry(0x19, "request_response_information", _FLAG, In.CONNECT),
    _Entry(0x1A, "response_information", _STRING, In.CONNACK),
    _Entry(0x1C, "server_reference", _STRING, In.CONNACK | In.DISCONNECT),
    _Entry(0x1F, "reason_string", _STRING, In.CONNACK | _ACKS | In.DISCONNECT | In.AUTH),
    _Entry(0x21, "receive_maximum", _UINT16, In.CONNECT | In.CONNACK, 1),
    _Entry(0x22, "topic_alias_maximum", _UINT16, In.CONNECT | In.CONNACK),
    _Entry(0x23, "topic_alias", _UINT16, In.PUBLISH, 1),
    _Entry(0x24, "maximum_qos", _FLAG, In.CONNACK),
    _Entry(0x25, "retain_available", _FLAG, In.CONNACK),
    _Entry(0x26, "user", _PAIR, _ALL, many=_ALL),
    _Entry(0x27, "maximum_packet_size_bytes", _UINT32, In.CONNECT | In.CONNACK, 1),
    _Entry(0x28, "wildcard_subscription_available", _FLAG, In.CONNACK),
    _Entry(0x29, "subscription_identifier_available", _FLAG, In.CONNACK),
    _Entry(0x2A, "shared_subscription_available", _FLAG, In.CONNACK),
)
_BY_IDENTIFIER = {entry.identifier: entry for entry in _TABLE}
_USER_PROPERTY = 0x26
_IN_TUPLES = {"subscription_identifiers", "user"}  # fields that hold all values of a property

assert {entry.name for entry in _TABLE} == set(Properties.__struct_fields__), "one line for each field"


def decode_properties(body: Body, place: In) -> Properties:
    """Decode the property set at the cursor of `body`, whose packet (or will) is `place`.

    Takes time in proportion to its length. Raises ProtocolError, with reason code 0x97 for more user
    properties than `body.limits` allows.
    """
    length = body.variable_integer()
    if length == 0:
        return NO_PROPERTIES
    part = body.part(length)
    values: dict[str, Any] = {}
    user: list[tuple[str, str]] = []
    while part:
        identifier = part.variable_integer()
        if identifier == _USER_PROPERTY:  # allowed everywhere, any number of times
            _check_count(len(user), body)
            user.append((part.string(), part.string()))
        else:
            _decode_one(part, identifier, place, values)
    if user:
        values["user"] = tuple(user)
    if identifiers := values.get("subscription_identifiers"):
        values["subscription_identifiers"] = tuple(identifiers)
    _check_together(values)
    return Properties(**values)


def _decode_one(part: Body, identifier: int, place: In, values: dict[str, Any]) -> None:
    """Add the property at the cursor of `part` to `values`; a Subscription Identifier to a list there."""
    entry = _BY_IDENTIFIER.get(identifier)
    if entry is None:
        raise ProtocolError(Rule.PROPERTY_IS_KNOWN, f"no property has identifier 0x{identifier:02x}", _V5)
    value = entry.kind.read(part)
    if entry.name in values and not entry.many & place:
        raise ProtocolError(Rule.PROPERTY_IS_GIVEN_ONCE, f"{entry.name} stands twice in {place.name}", _V5)
    _check(entry, value, place)
    if entry.name in _IN_TUPLES:
        values.setdefault(entry.name, []).append(value)
    else:
        values[entry.name] = value


def _check_count(count: int, body: Body) -> None:
    """Check that one more user property is allowed."""
    if count >= (max_properties := body.limits.user_properties_max):
        text = f"more than {max_properties} user properties in one packet; raise limits.user_properties_max"
        raise ProtocolError(Rule.COUNTS_ARE_ALLOWED, text, body.version)


def encode_properties(properties: Properties, place: In) -> bytes:
    """Encode the property set with its length, in the order of the identifiers."""
    if properties is NO_PROPERTIES:
        return b"\0"
    out = []
    encoded = {}
    for entry in _TABLE:
        value = getattr(properties, entry.name)
        if value is None or value == ():
            continue
        encoded[entry.name] = value
        values = value if entry.name in _IN_TUPLES else (value,)
        if len(values) > 1 and not entry.many & place:
            raise ProtocolError(
                Rule.PROPERTY_IS_GIVEN_ONCE, f"{entry.name} stands twice in {place.name}", _V5
            )
        for one in values:
            _check(entry, one, place)
            out.append(bytes((entry.identifier,)) + entry.kind.write(one, entry.name, _V5))
    _check_together(encoded)
    data = b"".join(out)
    return encode_variable_integer(len(data), _V5) + data


def record_properties(properties: Properties) -> bytes:
    """Encode the properties of a message for a record: as in PUBLISH, but Message Expiry Interval first.

    b"" for none. At that fixed place the interval can be rewritten. The properties of one delivery, Topic
    Alias and Subscription Identifiers, must not be given.
    """
    if properties == NO_PROPERTIES:
        return b""
    assert properties.topic_alias is None
    assert not properties.subscription_identifiers
    expiry_s, first = properties.message_expiry_interval_s, b""
    if expiry_s is not None:
        first = b"\x02" + encode_uint32(expiry_s, "message_expiry_interval_s", _V5)
    rest = encode_properties(replace(properties, message_expiry_interval_s=None), In.PUBLISH)
    data = first + rest[_length_bytes(rest) :]
    return encode_variable_integer(len(data), _V5) + data


def _length_bytes(data: bytes) -> int:
    """Size of the Variable Byte Integer at the beginning of `data`."""
    return next(i for i, byte in enumerate(data, 1) if byte < 0x80)


def _check(entry: _Entry, value: Any, place: In) -> None:
    if not entry.allowed & place:
        raise ProtocolError(Rule.PROPERTY_BELONGS_HERE, f"{entry.name} does not belong in {place.name}", _V5)
    if isinstance(value, int) and not entry.low <= value <= entry.kind.high:
        rule = Rule.TOPIC_ALIAS_IS_NOT_0 if entry.name == "topic_alias" else Rule.VALUE_IS_IN_RANGE
        raise ProtocolError(rule, f"{entry.name} {value} is not in {entry.low}..{entry.kind.high}", _V5)
    if entry.name == "response_topic":
        _check_response_topic(value)


def _check_response_topic(topic: str) -> None:
    if not topic:
        raise ProtocolError(Rule.RESPONSE_TOPIC_IS_NOT_EMPTY, "an empty response_topic", _V5)
    if "+" in topic or "#" in topic:
        raise ProtocolError(Rule.RESPONSE_TOPIC_HAS_NO_WILDCARD, "wildcard in response_topic", _V5)


def _check_together(values: dict[str, Any]) -> None:
    if "authentication_data" in values and "authentication_method" not in values:
        raise ProtocolError(
            Rule.VALUE_IS_IN_RANGE, "authentication_data needs authentication_method beside it", _V5
        )
