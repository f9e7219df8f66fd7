"""Session snapshot: content of the snapshot file, taken in one turn of the broker's thread, encoded on
another.

Owns references to immutable state: client information, wills, entries of the engine, and subscriptions that
the sessions have lent. Encoding takes much longer than a turn, and 64 KiB for a large will, so it happens
while the file is written, one record at a time.

Invariant: a snapshot may be read again, with the same result, on any thread. Only a snapshot that is written
in the turn in which it is taken reads the entries of the engine piece by piece, and needs no memory for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from msgspec.structs import replace

from edge.auth.interfaces import ClientInfo
from edge.engine.subscription_options import SENDS_RETAINED
from edge.mqtt import Connect, Version, Will, encode
from edge.session_store.journal_records import (
    Disconnected,
    GroupOpened,
    JournalRecord,
    Rings,
    SessionOpened,
    Subscribed,
    WillWaits,
    encode_record,
)
from edge.session_store.snapshot_file import ENTRIES, RECORD, Frame


class KeptSession(NamedTuple):
    """A session that outlasts its connection."""

    number: int
    client_info: ClientInfo
    expiry_s: int
    subscriptions: Sequence[Mapping[str, int]]  # filter -> options; they do not change
    left_ns: int | None  # of the wall clock; None: its client is connected
    sends_retained: frozenset[str] = frozenset()  # filters


class KeptWill(NamedTuple):
    """A will that is not published yet."""

    client_info: ClientInfo
    will: Will
    due_ns: int  # of the wall clock; 0: its client is connected
    delayed: bool = True  # the session outlasts the connection, and the delay of the will holds


class Snapshot(NamedTuple):
    """All kept state, in the order in which it can be restored."""

    rings: Rings
    sessions: list[KeptSession]
    groups: list[GroupOpened]
    wills: list[KeptWill]
    sections: Callable[[], Iterable[bytes]]  # entries of the hot path; a new iterator at each call
    await_records: Callable[..., object]  # must be called before the snapshot is on the disk

    def frames(self) -> Iterator[Frame]:
        """Frames of the snapshot file."""
        for record in self._records():
            yield RECORD, encode_record(record)
        for section in self.sections():
            yield ENTRIES, section

    def _records(self) -> Iterator[JournalRecord]:
        yield self.rings
        for session in self.sessions:
            yield from _records_of(session)
        yield from self.groups
        for will in self.wills:
            yield will_record(will)


def _records_of(session: KeptSession) -> Iterable[JournalRecord]:
    yield SessionOpened(session.number, session.client_info, session.expiry_s)
    for topic_filter, options in chain.from_iterable(part.items() for part in session.subscriptions):
        due = SENDS_RETAINED if topic_filter in session.sends_retained else 0
        yield Subscribed(session.number, topic_filter, options | due)
    if session.left_ns is not None:
        yield Disconnected(session.number, session.expiry_s, session.left_ns)


def will_record(kept_will: KeptWill) -> WillWaits:
    """The record of a will, which is encoded as a CONNECT packet of MQTT 5."""
    will = kept_will.will
    if not kept_will.delayed:
        will = replace(will, properties=replace(will.properties, will_delay_interval_s=None))
    packet = encode(Connect(kept_will.client_info.client_id, version=Version.V5, will=will), Version.V5)
    return WillWaits(kept_will.client_info, packet, kept_will.due_ns)
