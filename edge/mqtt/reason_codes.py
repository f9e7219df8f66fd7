"""Reason codes: success or failure of a request, as numbers and as words.

The codes are those of MQTT 5 (section 2.4). MQTT 3.1.1 has five CONNACK return codes and one SUBACK failure.
They are decoded to, and encoded from, their MQTT 5 equivalents, so that only the codec depends on the
version.
"""

from __future__ import annotations

from enum import IntEnum, unique


class NamedCode(IntEnum):
    """A number of a protocol or of the engine, with a name for people."""

    @property
    def words(self) -> str:
        """Text for people, logs and counters: `not authorized`."""
        return self.name.replace("_", " ").lower()


@unique
class ReasonCode(NamedCode):
    """Section 2.4 of MQTT 5. 0x80 and above are failures.

    0x00 is also Normal disconnection and Granted QoS 0; 0x04 is a DISCONNECT that requests publication of the
    will.
    """

    SUCCESS = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    RE_AUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2

    @property
    def failed(self) -> bool:
        """True if the code is a failure."""
        return self >= 0x80


# Table 3.1 of MQTT 3.1.1: the index is the return code.
CONNACK_RETURN_CODES = (
    ReasonCode.SUCCESS,
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
    ReasonCode.SERVER_UNAVAILABLE,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    ReasonCode.NOT_AUTHORIZED,
)

_NEAREST_RETURN_CODE = {
    **{reason: code for code, reason in enumerate(CONNACK_RETURN_CODES)},
    ReasonCode.BANNED: 5,
    ReasonCode.BAD_AUTHENTICATION_METHOD: 5,
}


def connack_return_code(reason: ReasonCode) -> int:
    """The nearest return code of MQTT 3.1.1: 0..5; 3 for a failure without an equivalent."""
    return _NEAREST_RETURN_CODE.get(reason, 3)
