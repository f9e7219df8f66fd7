"""What can go wrong for a client, as classes.

    EdgeError                   .hint: what to do about it, or ""
        ClientError
            CannotConnect       nobody is there who speaks MQTT
            ConnectRefused      the broker answered CONNECT: no; .reason_code, .temporary
            ConnectionLost      the connection has ended, and is not to be made again
                TakenOver       because another client came with this client identifier (MQTT 5 only)
            PublishRefused      the broker does not want a message; .reason_code (MQTT 5 only)
            SubscribeRefused    nor give a subscription; .topic_filter, .reason_code
            DeliveryUnknown     a QoS 2 message whose session was lost half-way

A topic or filter that the specification does not allow is an edge.mqtt.ProtocolError; nothing is sent then.
"""

from __future__ import annotations

from edge.errors import EdgeError
from edge.mqtt import ReasonCode

__all__ = [
    "CannotConnect",
    "ClientError",
    "ConnectRefused",
    "ConnectionLost",
    "DeliveryUnknown",
    "PublishRefused",
    "SubscribeRefused",
    "TakenOver",
]


class ClientError(EdgeError):
    """Something between this client and its broker."""


class CannotConnect(ClientError):
    """There is no connection to be had: nobody listens, or not for MQTT."""


_HINTS = {
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: "it does not speak this version of MQTT; try another",
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: "it does not accept the client identifier; choose another, "
    "of letters and digits, at most 23",
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: "check user name and password",
    ReasonCode.NOT_AUTHORIZED: "give a user name and password that may connect, or allow this client in the "
    "broker's configuration",
    ReasonCode.SERVER_UNAVAILABLE: "the broker runs, but does not serve now; try again later",
    ReasonCode.SERVER_BUSY: "try again later",
    ReasonCode.BANNED: "the broker's administrator has shut this client out",
    ReasonCode.QUOTA_EXCEEDED: "one of the broker's limits is reached; raise it there, or try again later",
    ReasonCode.PACKET_TOO_LARGE: "make will and user properties smaller, or raise the broker's limit",
}
_TEMPORARY = {
    ReasonCode.SERVER_UNAVAILABLE,
    ReasonCode.SERVER_BUSY,
    ReasonCode.CONNECTION_RATE_EXCEEDED,
    ReasonCode.QUOTA_EXCEEDED,
    ReasonCode.UNSPECIFIED_ERROR,
}


class ConnectRefused(ClientError):
    """The broker is there, and does not want this client.  `temporary`: a later attempt may succeed."""

    def __init__(self, address: str, reason_code: ReasonCode, reason_string: str = "") -> None:
        why = f"{reason_code.words}, {reason_string!a}" if reason_string else reason_code.words
        super().__init__(f"{address} refused the connection: {why}", hint=_HINTS.get(reason_code, ""))
        self.reason_code = reason_code
        self.temporary = reason_code in _TEMPORARY


class ConnectionLost(ClientError):
    """The connection has ended: by the network, by the broker, or because this client was closed."""


class TakenOver(ConnectionLost):
    """Another client has come with this client identifier.  Coming back would only throw out that one."""


class PublishRefused(ClientError):
    """The broker has received a message and does not take it."""

    def __init__(self, topic: str, reason_code: ReasonCode) -> None:
        super().__init__(f"the message to {topic!a} was refused: {reason_code.words}")
        self.topic = topic
        self.reason_code = reason_code


class SubscribeRefused(ClientError):
    """The broker does not give a subscription."""

    def __init__(self, topic_filter: str, reason_code: ReasonCode) -> None:
        super().__init__(
            f"the subscription to {topic_filter!a} was refused: {reason_code.words}",
            hint="may this user read it?  The broker's access rules say",
        )
        self.topic_filter = topic_filter
        self.reason_code = reason_code


class DeliveryUnknown(ClientError):
    """A QoS 2 message had arrived when the broker lost the session: it may or may not have been handed on."""
