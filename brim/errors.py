"""Every exception that `brim` raises, as one tree.  Each is also the builtin exception that fits.

    BrimError
        EdgeError                   .hint: the remedy, or ""
            InvalidArgument         ValueError
            BrokerUnreachable       ConnectionError: no broker answers, or it is gone
                AccessDenied        PermissionError: this user may not connect
                NoAnswer            TimeoutError: the broker is there and did not answer in time
            Refused                 the broker refused the request
            NotOpen                 RuntimeError: used outside `with`
            ControlError            the broker has another version of Brim
            FrameError              a ZeroMQ message of another program
            ClientError             of connect()
                InvalidOption       InvalidArgument
                InvalidRequest      InvalidArgument: a topic, filter, QoS or size that MQTT forbids
                CannotConnect       BrokerUnreachable
                    ConnectTimeout  TimeoutError
                ConnectRefused      ConnectionRefusedError; .reason_code, .temporary
                ConnectionLost      ConnectionError
                    TakenOver       another client has this client identifier
                PublishRefused      .topic, .reason_code
                SubscribeRefused    .topic_filter, .reason_code
                DeliveryUnknown     a QoS 2 message whose session was lost
        RingError                   of Ring, Record and producer()
            RecordTooLarge          ValueError
            KeyTooLong              ValueError
            InvalidTopic            ValueError
            Evicted                 a reader with blocks_writer=True was too slow
            Overrun                 a record was overwritten while it was read; .lost
            OffsetGone              LookupError; .nearest

>>> import brim
>>> try:
...     brim.consumer("billing", "plant/#", ahead=0)
... except ValueError as error:
...     print(error)
invalid ahead 0 (allowed: 1 or more)
"""

from brim._lazy import lazy

TYPE_CHECKING = False  # as of typing, which takes longer to import than this package
if TYPE_CHECKING:
    from typing import Any

    from edge.client.errors import (
        CannotConnect,
        ClientError,
        ConnectionLost,
        ConnectRefused,
        ConnectTimeout,
        DeliveryUnknown,
        InvalidOption,
        InvalidRequest,
        PublishRefused,
        SubscribeRefused,
        TakenOver,
    )
    from edge.errors import (
        AccessDenied,
        BrokerUnreachable,
        ControlError,
        EdgeError,
        FrameError,
        InvalidArgument,
        NoAnswer,
        NotOpen,
        Refused,
    )
    from ringbuf.errors import (
        BrimError,
        Evicted,
        InvalidTopic,
        KeyTooLong,
        OffsetGone,
        Overrun,
        RecordTooLarge,
        RingError,
    )

_HOMES = {
    "edge.client.errors": (
        "CannotConnect",
        "ClientError",
        "ConnectRefused",
        "ConnectTimeout",
        "ConnectionLost",
        "DeliveryUnknown",
        "InvalidOption",
        "InvalidRequest",
        "PublishRefused",
        "SubscribeRefused",
        "TakenOver",
    ),
    "edge.errors": (
        "AccessDenied",
        "BrokerUnreachable",
        "ControlError",
        "EdgeError",
        "FrameError",
        "InvalidArgument",
        "NoAnswer",
        "NotOpen",
        "Refused",
    ),
    "ringbuf.errors": (
        "BrimError",
        "Evicted",
        "InvalidTopic",
        "KeyTooLong",
        "OffsetGone",
        "Overrun",
        "RecordTooLarge",
        "RingError",
    ),
}

__all__ = [
    "AccessDenied",
    "BrimError",
    "BrokerUnreachable",
    "CannotConnect",
    "ClientError",
    "ConnectRefused",
    "ConnectTimeout",
    "ConnectionLost",
    "ControlError",
    "DeliveryUnknown",
    "EdgeError",
    "Evicted",
    "FrameError",
    "InvalidArgument",
    "InvalidOption",
    "InvalidRequest",
    "InvalidTopic",
    "KeyTooLong",
    "NoAnswer",
    "NotOpen",
    "OffsetGone",
    "Overrun",
    "PublishRefused",
    "RecordTooLarge",
    "Refused",
    "RingError",
    "SubscribeRefused",
    "TakenOver",
]

if not TYPE_CHECKING:
    _attribute = lazy(__name__, _HOMES)

    def __getattr__(name: str) -> "Any":
        return globals().setdefault(name, _attribute(name))

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
