"""What Python writes into the journal of sessions, and into checkpoints: a note for each thing that happened.

Owns the format: msgpack, [kind, field, ...] in the order below.  The hot path's entries are its own
(ringbuf/c/mqtt/journal.h); notes and entries name a session by the same number, the lower half of its handle
in the life that wrote them.

Rule for change: a field more goes to the end, with a default; any other change raises STATE_VERSION, which a
checkpoint says, and keeps reading the version before.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from edge.access import ClientFacts

__all__ = [
    "STATE_VERSION",
    "Came",
    "Closed",
    "GroupOpened",
    "Left",
    "Note",
    "Opened",
    "Sources",
    "Subscribed",
    "Unsubscribed",
    "WillDone",
    "WillWaits",
    "note_bytes",
    "note_of",
]

STATE_VERSION = 1


class Opened(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A session that is kept has begun."""

    number: int
    facts: ClientFacts
    expiry_s: int


class Came(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Its client has come back."""

    number: int
    facts: ClientFacts
    expiry_s: int


class Left(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Its client is away, since `at_ns` of the wall clock."""

    number: int
    expiry_s: int
    at_ns: int


class Closed(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """It is no more, or not kept any longer."""

    number: int


class Subscribed(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """A subscription, new or again; `terms` as edge.terms has them."""

    number: int
    topic_filter: str
    terms: int


class Unsubscribed(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """These are no more."""

    number: int
    topic_filters: list[str]


class GroupOpened(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The queue of a shared subscription, which a kept session has, is kept under this number."""

    number: int
    shared_filter: str


class Sources(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Rings by the number that entries have for them: name, epoch, position below which all was routed."""

    rings: dict[int, tuple[str, int, int]]


class WillWaits(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """A will: `connect`, a CONNECT packet of MQTT 5, has it.

    `due_ns`, of the wall clock, is when it is published; 0: its client is connected.
    """

    facts: ClientFacts
    connect: bytes
    due_ns: int


class WillDone(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """That client's will was published, or is void."""

    client_id: str


Note: TypeAlias = (
    Opened | Came | Left | Closed | Subscribed | Unsubscribed | GroupOpened | Sources | WillWaits | WillDone
)

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Note] = msgspec.msgpack.Decoder(Note)


def note_bytes(note: Note) -> bytes:
    """As it stands in the journal."""
    return _ENCODER.encode(note)


def note_of(data: bytes) -> Note:
    """The note in `data`.  Raises msgspec.DecodeError."""
    return _DECODER.decode(data)
