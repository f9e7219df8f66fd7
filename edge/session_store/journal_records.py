"""Journal records of Python: one for each change of a session, in the journal and in snapshots.

Owns the format: msgpack, [kind, field, ...] in the order below. The engine's entries have their own format
(ringbuf/c/mqtt/durable/journal.h). Records and entries name a session by the same number: the lower half of
the session's handle in the process that wrote them.

Rule for change: a further field goes to the end, with a default. Any other change raises STATE_VERSION, which
a snapshot contains, and keeps reading the version before.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from edge.auth.interfaces import ClientInfo

STATE_VERSION = 2  # 1: without RECEIPT entries of the engine


class SessionOpened(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A lasting session has begun."""

    number: int
    client_info: ClientInfo
    expiry_s: int


class Connected(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The client of a session has returned."""

    number: int
    client_info: ClientInfo
    expiry_s: int


class Disconnected(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The client of a session is away, since `at_ns` of the wall clock."""

    number: int
    expiry_s: int
    at_ns: int


class SessionClosed(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A session has ended, or is no longer kept."""

    number: int


class Subscribed(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """A subscription was added or replaced, or its retained messages have arrived.

    `options`: as in edge.engine.subscription_options.
    """

    number: int
    topic_filter: str
    options: int


class Unsubscribed(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Subscriptions were removed."""

    number: int
    topic_filters: list[str]


class GroupOpened(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The queue of a shared subscription with a kept member has this number."""

    number: int
    shared_filter: str


class Rings(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Rings by their number in entries: name, epoch, and the position below which all records were routed."""

    rings: dict[int, tuple[str, int, int]]


class WillWaits(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """A will, inside a CONNECT packet of MQTT 5.

    `due_ns`, of the wall clock, is the time of its publication; 0: its client is connected.
    """

    client_info: ClientInfo
    connect: bytes
    due_ns: int


class WillDone(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """The will of a client was published, or is void."""

    client_id: str


JournalRecord: TypeAlias = (
    SessionOpened
    | Connected
    | Disconnected
    | SessionClosed
    | Subscribed
    | Unsubscribed
    | GroupOpened
    | Rings
    | WillWaits
    | WillDone
)

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[JournalRecord] = msgspec.msgpack.Decoder(JournalRecord)


def encode_record(record: JournalRecord) -> bytes:
    """Encode a record for the journal."""
    return _ENCODER.encode(record)


def decode_record(data: bytes) -> JournalRecord:
    """Decode a record. Raises msgspec.DecodeError."""
    return _DECODER.decode(data)
