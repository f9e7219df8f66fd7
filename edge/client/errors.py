"""Errors of the MQTT client.

    EdgeError                   .hint: a remedy, or ""
        ClientError
            InvalidOption       an InvalidArgument: an option or URL of connect()
            InvalidRequest      an InvalidArgument and ProtocolError: a topic, filter or value
            CannotConnect       a BrokerUnreachable: no MQTT broker answers
                ConnectTimeout  a TimeoutError: not within connect_timeout_s
            ConnectRefused      a ConnectionRefusedError: the broker refused CONNECT; .reason_code, .temporary
            ConnectionLost      a ConnectionError: the connection has ended, and is not made again
                TakenOver       another client has connected with this client identifier (MQTT 5 only)
            PublishRefused      the broker refused a message; .reason_code (MQTT 5 only)
            SubscribeRefused    the broker refused a subscription; .topic_filter, .reason_code
            DeliveryUnknown     a QoS 2 message whose session was lost half-way

Nothing is sent when an argument is invalid.
"""

from __future__ import annotations

from edge.errors import BrokerUnreachable, EdgeError, InvalidArgument
from edge.mqtt import ProtocolError, ReasonCode


class ClientError(EdgeError):
    """An error between this client and its broker."""


class InvalidOption(ClientError, InvalidArgument):
    """An option or URL of connect() that cannot be used."""


class InvalidRequest(ClientError, InvalidArgument, ProtocolError):
    """A topic, filter, QoS or size that MQTT or the broker does not allow.  Nothing was sent."""

    def __init__(self, error: ProtocolError) -> None:
        ProtocolError.__init__(self, error.rule, error.detail, error.version)
        self.hint = ""


class CannotConnect(ClientError, BrokerUnreachable):
    """No connection is possible: no program listens, or it is not an MQTT broker."""


class ConnectTimeout(CannotConnect, TimeoutError):
    """No answer within connect_timeout_s."""


_HINTS = {
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: "use another version of MQTT: the broker does not have this one",
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


class ConnectRefused(ClientError, ConnectionRefusedError):
    """The broker refused this client. `temporary`: a later attempt may succeed.

    `other_server`: the server reference of the answer, or empty.
    """

    def __init__(
        self, address: str, reason_code: ReasonCode, reason_string: str = "", other_server: str = ""
    ) -> None:
        why = f"{reason_code.words}, {reason_string!a}" if reason_string else reason_code.words
        hint = f"connect to {other_server!a}" if other_server else _HINTS.get(reason_code, "")
        super().__init__(f"{address} refused the connection: {why}", hint=hint)
        self.reason_code = reason_code
        self.temporary = reason_code in _TEMPORARY
        self.other_server = other_server


class ConnectionLost(ClientError, ConnectionError):
    """The connection has ended: by the network, by the broker, or because this client was closed."""


class TakenOver(ConnectionLost):
    """Another client has this client identifier now. A reconnect would only disconnect that one."""


def _write_hint(topic: str) -> str:
    if topic.startswith("$"):
        return "choose a topic without $ at its beginning; $delayed/ needs enabled = true in [delayed]"
    return "let this user write to it in the broker's access rules"


class PublishRefused(ClientError):
    """The broker has received a message and refused it."""

    def __init__(self, topic: str, reason_code: ReasonCode) -> None:
        hint = _write_hint(topic) if reason_code is ReasonCode.NOT_AUTHORIZED else ""
        if reason_code is ReasonCode.QUOTA_EXCEEDED:
            hint = "a limit, a quota, or a full ring or disk: `brim status` of the broker has the cause"
        super().__init__(f"the message to {topic!a} was refused: {reason_code.words}", hint=hint)
        self.topic = topic
        self.reason_code = reason_code


class SubscribeRefused(ClientError):
    """The broker refused a subscription."""

    def __init__(self, topic_filter: str, reason_code: ReasonCode) -> None:
        reason = "" if reason_code is ReasonCode.UNSPECIFIED_ERROR else f": {reason_code.words}"
        super().__init__(  # a SUBACK before MQTT 5 has no reason
            f"the subscription to {topic_filter!a} was refused{reason}",
            hint="let this user read it in the broker's access rules",
        )
        self.topic_filter = topic_filter
        self.reason_code = reason_code


class DeliveryUnknown(ClientError):
    """The broker lost the session after it had received a QoS 2 message: its delivery is unknown."""
