"""Protocol errors: one exception, and the table of rules that it names.

    ProtocolError         .statement     "[MQTT-3.1.0-2]", of the version in use
                          .reason_code   reason code for CONNACK or DISCONNECT
                          .rule          the line of the table below

A rule stands once, with its number in both specifications. A number of the conformance appendix is written as
there. Where a requirement has none (a reserved packet type, bytes left over), the general statement is used:
[MQTT-4.8.0-1] in 3.1.1, [MQTT-4.13.1-1] in 5, both of which require that the connection is closed. MQTT 3.1
has no numbers: its errors carry the numbers of 3.1.1.
"""
# ruff: noqa: PIE796  Rule.__new__ makes members of equal lines distinct.

from __future__ import annotations

from enum import Enum, IntEnum, unique
from typing import Self

from edge.mqtt.reason_codes import ReasonCode

_MALFORMED = ReasonCode.MALFORMED_PACKET
_PROTOCOL = ReasonCode.PROTOCOL_ERROR


@unique
class Version(IntEnum):
    """The protocol level byte of CONNECT."""

    V31 = 3
    V311 = 4
    V5 = 5


class Rule(Enum):
    """(number in MQTT 3.1.1, number in MQTT 5, reason code). The name is the requirement."""

    def __new__(cls, in_311: str, in_5: str, reason_code: ReasonCode) -> Self:
        """Create a member with its line in the table as value: several requirements share a number."""
        rule = object.__new__(cls)
        rule._value_ = len(cls.__members__)
        rule.in_311 = in_311
        rule.in_5 = in_5
        rule.reason_code = reason_code
        return rule

    in_311: str
    in_5: str
    reason_code: ReasonCode  # for the other side

    # Section 1.5, 2: bytes
    STRING_IS_UTF8 = ("1.5.3-1", "1.5.4-1", _MALFORMED)
    STRING_HAS_NO_NUL = ("1.5.3-2", "1.5.4-2", _MALFORMED)
    VARIABLE_INTEGER_IS_SHORTEST = ("4.8.0-1", "1.5.5-1", _MALFORMED)
    VARIABLE_INTEGER_ENDS = ("4.8.0-1", "4.13.1-1", _MALFORMED)
    TYPE_IS_KNOWN = ("4.8.0-1", "4.13.1-1", _MALFORMED)
    FLAGS_ARE_AS_LISTED = ("2.2.2-2", "2.1.3-1", _MALFORMED)
    LENGTH_FITS = ("4.8.0-1", "4.13.1-1", _MALFORMED)
    PACKET_IS_NOT_TOO_LARGE = ("4.8.0-1", "4.13.1-1", ReasonCode.PACKET_TOO_LARGE)
    COUNTS_ARE_ALLOWED = ("4.8.0-1", "4.13.1-1", ReasonCode.QUOTA_EXCEEDED)
    PEER_TAKES_THE_SIZE = ("4.8.0-1", "3.2.2-15", ReasonCode.PACKET_TOO_LARGE)
    IDENTIFIER_IS_NOT_ZERO = ("2.3.1-1", "2.2.1-3", _MALFORMED)
    PUBLISH_IDENTIFIER_IS_NOT_ZERO = ("2.3.1-1", "2.2.1-3", _PROTOCOL)
    NO_IDENTIFIER_AT_QOS_0 = ("2.3.1-5", "2.2.1-2", _PROTOCOL)

    # Section 3.1, 3.2: CONNECT and CONNACK
    CONNECT_IS_FIRST = ("3.1.0-1", "3.1.0-1", _PROTOCOL)
    CONNECT_IS_SENT_ONCE = ("3.1.0-2", "3.1.0-2", _PROTOCOL)
    PROTOCOL_NAME = ("3.1.2-1", "3.1.2-1", ReasonCode.UNSUPPORTED_PROTOCOL_VERSION)
    PROTOCOL_LEVEL = ("3.1.2-2", "3.1.2-2", ReasonCode.UNSUPPORTED_PROTOCOL_VERSION)
    CONNECT_RESERVED_FLAG = ("3.1.2-3", "3.1.2-3", _MALFORMED)
    NO_WILL_QOS_WITHOUT_WILL = ("3.1.2-13", "3.1.2-11", _MALFORMED)
    WILL_QOS = ("3.1.2-14", "3.1.2-12", _MALFORMED)
    NO_WILL_RETAIN_WITHOUT_WILL = ("3.1.2-15", "3.1.2-13", _MALFORMED)
    NO_PASSWORD_WITHOUT_USER_NAME = ("3.1.2-22", "4.13.1-1", _PROTOCOL)
    CLIENT_IDENTIFIER_OR_CLEAN = ("3.1.3-8", "3.1.3-8", ReasonCode.CLIENT_IDENTIFIER_NOT_VALID)
    CONNECT_CONFORMS = ("3.1.4-1", "3.1.4-1", _MALFORMED)
    NOTHING_AFTER_REFUSAL = ("3.1.4-5", "3.1.4-6", _PROTOCOL)
    CONNACK_IS_FIRST = ("3.2.0-1", "3.2.0-1", _PROTOCOL)
    CONNACK_IS_SENT_ONCE = ("4.8.0-1", "3.2.0-2", _PROTOCOL)
    CONNACK_RESERVED_FLAGS = ("4.8.0-1", "3.2.2-1", _MALFORMED)
    NO_SESSION_IN_REFUSAL = ("3.2.2-4", "3.2.2-6", _PROTOCOL)
    CONNACK_CODE = ("3.2.2-6", "3.2.2-8", _PROTOCOL)
    AUTHENTICATION_COMES_FIRST = ("4.8.0-1", "3.1.2-30", _PROTOCOL)
    KEEP_ALIVE = ("3.1.2-24", "3.1.2-22", ReasonCode.KEEP_ALIVE_TIMEOUT)
    PING_IS_ANSWERED = ("3.12.4-1", "3.12.4-1", ReasonCode.KEEP_ALIVE_TIMEOUT)
    CONNECT_COMES_SOON = ("4.8.0-1", "4.13.1-1", ReasonCode.MAXIMUM_CONNECT_TIME)

    # Section 3.3 .. 3.7: PUBLISH and its acknowledgements
    NO_DUP_AT_QOS_0 = ("3.3.1-2", "3.3.1-2", _MALFORMED)
    QOS_IS_NOT_3 = ("3.3.1-4", "3.3.1-4", _MALFORMED)
    TOPIC_NAME_HAS_NO_WILDCARD = ("3.3.2-2", "3.3.2-2", _MALFORMED)
    TOPIC_ALIAS_IS_NOT_0 = ("4.8.0-1", "3.3.2-8", ReasonCode.TOPIC_ALIAS_INVALID)
    TOPIC_ALIAS_IS_ALLOWED = ("4.8.0-1", "3.3.2-9", ReasonCode.TOPIC_ALIAS_INVALID)
    TOPIC_OR_ALIAS_IS_GIVEN = ("4.7.3-1", "4.7.3-1", _PROTOCOL)
    TOPIC_ALIAS_IS_KNOWN = ("4.8.0-1", "4.13.1-1", _PROTOCOL)
    RESPONSE_TOPIC_HAS_NO_WILDCARD = ("4.8.0-1", "3.3.2-14", _PROTOCOL)
    RESPONSE_TOPIC_IS_NOT_EMPTY = ("4.8.0-1", "4.7.3-1", _PROTOCOL)
    NO_SUBSCRIPTION_IDENTIFIER_TO_SERVER = ("4.8.0-1", "3.3.4-6", _PROTOCOL)
    RECEIVE_MAXIMUM = ("4.8.0-1", "3.3.4-9", ReasonCode.RECEIVE_MAXIMUM_EXCEEDED)
    ACKNOWLEDGEMENT_FITS = ("4.8.0-1", "4.13.1-1", _PROTOCOL)
    PUBACK_CODE = ("4.8.0-1", "3.4.2-1", _PROTOCOL)
    PUBREC_CODE = ("4.8.0-1", "3.5.2-1", _PROTOCOL)
    PUBREL_FLAGS = ("3.6.1-1", "3.6.1-1", _MALFORMED)
    PUBREL_CODE = ("4.8.0-1", "3.6.2-1", _PROTOCOL)
    PUBCOMP_CODE = ("4.8.0-1", "3.7.2-1", _PROTOCOL)

    # Section 3.8 .. 3.15
    SUBSCRIBE_FLAGS = ("3.8.1-1", "3.8.1-1", _MALFORMED)
    SUBSCRIBE_IS_NOT_EMPTY = ("3.8.3-3", "3.8.3-2", _PROTOCOL)
    SUBSCRIBE_RESERVED_BITS = ("3.8.3-4", "3.8.3-5", _MALFORMED)
    NO_LOCAL_IS_NOT_SHARED = ("4.8.0-1", "3.8.3-4", _PROTOCOL)
    SUBACK_CODE = ("3.9.3-2", "3.9.3-2", _PROTOCOL)
    SUBACK_IS_NOT_EMPTY = ("3.8.4-5", "3.8.4-6", _PROTOCOL)
    UNSUBSCRIBE_FLAGS = ("3.10.1-1", "3.10.1-1", _MALFORMED)
    UNSUBSCRIBE_IS_NOT_EMPTY = ("3.10.3-2", "3.10.3-2", _PROTOCOL)
    UNSUBACK_CODE = ("4.8.0-1", "3.11.3-2", _PROTOCOL)
    DISCONNECT_FLAGS = ("3.14.1-1", "3.14.1-1", _MALFORMED)
    DISCONNECT_CODE = ("4.8.0-1", "3.14.2-1", _PROTOCOL)
    SESSION_EXPIRY_STAYS_ZERO = ("4.8.0-1", "4.13.1-1", _PROTOCOL)
    NO_SESSION_EXPIRY_FROM_SERVER = ("4.8.0-1", "3.14.2-2", _PROTOCOL)
    NOTHING_AFTER_DISCONNECT = ("3.14.4-2", "3.14.4-1", _PROTOCOL)
    AUTH_FLAGS = ("4.8.0-1", "3.15.1-1", _MALFORMED)
    AUTH_CODE = ("4.8.0-1", "3.15.2-1", _PROTOCOL)
    AUTH_METHOD_STAYS = ("4.8.0-1", "4.12.0-5", _PROTOCOL)

    # Section 4: topics, and requirements without their own number. Reason codes 0x8F and 0x90 are for
    # correctly formed filters and names that are not accepted.
    MULTI_LEVEL_WILDCARD_IS_LAST = ("4.7.1-2", "4.7.1-1", _MALFORMED)
    SINGLE_LEVEL_WILDCARD_IS_ALONE = ("4.7.1-3", "4.7.1-2", _MALFORMED)
    TOPIC_IS_NOT_EMPTY = ("4.7.3-1", "4.7.3-1", _MALFORMED)
    FILTER_IS_NOT_EMPTY = ("4.7.3-1", "4.7.3-1", _MALFORMED)
    STRING_FITS = ("4.7.3-3", "4.7.3-3", _MALFORMED)
    SHARE_HAS_A_NAME = ("4.8.0-1", "4.8.2-1", _MALFORMED)
    SHARE_NAME_HAS_NO_WILDCARD = ("4.8.0-1", "4.8.2-2", _MALFORMED)
    DIRECTION = ("4.8.0-1", "4.13.1-1", _PROTOCOL)
    VERSION_HAS_IT = ("4.8.0-1", "4.13.1-1", _PROTOCOL)
    VALUE_IS_IN_RANGE = ("4.8.0-1", "4.13.1-1", _PROTOCOL)
    PROPERTY_IS_KNOWN = ("4.8.0-1", "4.13.1-1", _MALFORMED)
    PROPERTY_BELONGS_HERE = ("4.8.0-1", "4.13.1-1", _MALFORMED)
    PROPERTY_IS_GIVEN_ONCE = ("4.8.0-1", "4.13.1-1", _PROTOCOL)

    def statement(self, version: Version) -> str:
        """`[MQTT-x.y.z-n]` of the specification of `version`."""
        return f"[MQTT-{self.in_5 if version == Version.V5 else self.in_311}]"


class ProtocolError(Exception):
    """Bytes or packets that the specification does not allow; the connection must be closed.

    Raised while receiving for the peer's mistakes; while sending or encoding for the caller's: nothing was
    sent then.
    """

    def __init__(self, rule: Rule, detail: str, version: Version = Version.V311) -> None:
        super().__init__(f"{rule.statement(version)} {detail}")
        self.rule = rule
        self.detail = detail
        self.version = version

    @property
    def statement(self) -> str:
        """Number of the broken requirement, as in the conformance appendix."""
        return self.rule.statement(self.version)

    @property
    def reason_code(self) -> ReasonCode:
        """Reason code for CONNACK or DISCONNECT."""
        return self.rule.reason_code
