"""OffsetStore: progress of groups, in memory and in a journal; and the bodies of the journal's records.

A body is a msgpack array whose first field is its kind. Fields are only ever appended.

    ["group", name, mode, [filter, ...], time_ns, members, operator, owner]
                   the group exists with these settings. `members`, `operator`: maps of the delivery settings
                   that members or an operator have set (delivery_settings.py); {} in journals without them.
                   `owner`: of the member that created it (quota.py); "" in journals without it
    ["place", group, ring, epoch, floor, done, whole, time_ns]
                   of this ring, everything below `floor` is done in `epoch`; `done`, in the portable form of
                   64-bit Roaring bitmaps, is done above it: in addition to earlier ones, or, `whole`, instead
    ["tried", group, ring, epoch, [[first, end, tries, cause], ...]]
                   failed tries of the records first .. end - 1 that are not done, and the cause of the last
                   one; replaces the earlier list
    ["gone", group, ring]                               remove it; ring "": the whole group

Only changes are written, in one write for all. The state that is read back equals the written one, so floors
of one epoch never go back except by a reset.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec
from pyroaring import BitMap64

from edge.consumers.ack_tracker import Tried
from edge.consumers.delivery_settings import NO_SETTINGS, DeliverySettings
from edge.consumers.groups import Mode
from edge.consumers.offset_journal import Journal
from edge.logging_setup import pairs

log = logging.getLogger(__name__)


NO_RING = ""


class GroupBody(msgspec.Struct, tag="group", array_like=True, frozen=True):
    """Body "group"; see the table above."""

    name: str
    mode: Mode
    filters: tuple[str, ...]
    time_ns: int
    members: DeliverySettings = NO_SETTINGS
    operator: DeliverySettings = NO_SETTINGS
    owner: str = ""


class PlaceBody(msgspec.Struct, tag="place", array_like=True, frozen=True):
    """Body "place"; see the table above."""

    group: str
    ring: str
    epoch: int
    floor: int
    done: bytes
    whole: bool
    time_ns: int


class TriedBody(msgspec.Struct, tag="tried", array_like=True, frozen=True):
    """Body "tried"; see the table above."""

    group: str
    ring: str
    epoch: int
    spans: list[Tried]


class GoneBody(msgspec.Struct, tag="gone", array_like=True, frozen=True):
    """Body "gone"; see the table above."""

    group: str
    ring: str = ""


Body = GroupBody | PlaceBody | TriedBody | GoneBody

encode_body = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Body).decode


def decode_body(data: bytes) -> Body:
    """Decode a body. Raises ValueError."""
    try:
        body: Body = _decode(data)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    return body


@dataclass(slots=True)
class OffsetPlace:
    """Progress of a group in a ring."""

    epoch: int
    floor: int
    done: BitMap64
    time_ns: int  # of the last change, wall clock
    tried: list[Tried] = field(default_factory=list)


@dataclass(slots=True)
class GroupState:
    """Stored state of a group."""

    mode: Mode
    filters: tuple[str, ...]
    time_ns: int
    places: dict[str, OffsetPlace] = field(default_factory=dict)
    members: DeliverySettings = NO_SETTINGS  # named by members
    operator: DeliverySettings = NO_SETTINGS
    owner: str = ""  # of the member that created the group; "": no share holds for it


class OffsetStore:
    """All groups. Changes are recorded, and written by flush(); one thread."""

    def __init__(self, journal: Journal) -> None:
        self.groups: dict[str, GroupState] = {}
        self.unreadable = 0  # bodies in an unknown format
        # rings of groups with a change that flush() must write; NO_RING: of a group without a place
        self.moved: set[str] = set()
        self._journal = journal
        self._waiting: list[Body] = []
        for data in journal.recover():
            try:
                self._apply(decode_body(data))
            except ValueError:
                self.unreadable += 1

    def note_group(
        self,
        name: str,
        mode: Mode,
        filters: tuple[str, ...],
        time_ns: int,
        members: DeliverySettings = NO_SETTINGS,
        operator: DeliverySettings = NO_SETTINGS,
        owner: str = "",
    ) -> None:
        """Record the settings of a group."""
        self._note(GroupBody(name, mode, filters, time_ns, members, operator, owner))

    def note_place(
        self,
        group: str,
        ring: str,
        epoch: int,
        floor: int,
        done: BitMap64 | None,
        time_ns: int,
        *,
        whole: bool = False,
    ) -> None:
        """Record that everything below `floor`, and `done`, is done."""
        packed = done.serialize() if done else b""
        self._note(PlaceBody(group, ring, epoch, floor, packed, whole, time_ns))

    def note_tried(self, group: str, ring: str, epoch: int, tried: list[Tried]) -> None:
        """Record the failed tries of records that are not done."""
        self._note(TriedBody(group, ring, epoch, tried))

    def forget(self, group: str) -> None:
        """Record that a group was removed."""
        self._note(GoneBody(group))

    @property
    def damaged(self) -> int:
        """Places of the journal that were unreadable."""
        return self._journal.damaged + self.unreadable

    @property
    def unsynced(self) -> bool:
        """True if a power cut would lose something that flush() has written."""
        return self._journal.unsynced

    @property
    def broken(self) -> bool:
        """True if the last flush() has failed, so that recorded changes wait."""
        return self._journal.broken

    def flush(self, *, sync: bool) -> None:
        """Write the recorded changes, and sync if `sync`.

        Raises OSError: the changes stay recorded, and the next flush() tries with a new file.
        """
        journal = self._journal
        if not (journal.needs_rewrite and self._rewritten()) and self._waiting:
            journal.append(list(map(encode_body, self._waiting)))
        self._waiting.clear()
        if sync:
            journal.sync()
        self.moved.clear()

    def close(self) -> None:
        """Close the file."""
        self._journal.close()

    def _rewritten(self) -> bool:
        """Write a new file with the whole state. True if it replaced the old one.

        Raises OSError if the old file is unusable too.
        """
        journal = self._journal
        try:
            journal.rewrite(map(encode_body, self._snapshot()))
        except OSError as error:
            if journal.broken:
                raise
            log.warning("offset journal compaction failed, the journal grows %s", pairs(reason=error))
            return False
        return True

    def _note(self, body: Body) -> None:
        if isinstance(body, PlaceBody):
            self.moved.add(body.ring)
        elif isinstance(body, GroupBody | GoneBody):
            group = self.groups.get(body.name if isinstance(body, GroupBody) else body.group)
            if group is not None:
                self.moved.update(group.places or (NO_RING,))
        self._apply(body)
        if not self._journal.broken:  # otherwise the next file holds the whole state
            self._waiting.append(body)

    def _snapshot(self) -> Iterable[Body]:
        for name, group in self.groups.items():
            settings = (group.members, group.operator, group.owner)
            yield GroupBody(name, group.mode, group.filters, group.time_ns, *settings)
            yield from _places_of(name, group)

    def _apply(self, body: Body) -> None:
        match body:
            case GroupBody():
                known = self.groups.setdefault(body.name, GroupState(body.mode, body.filters, body.time_ns))
                known.mode, known.filters, known.time_ns = body.mode, body.filters, body.time_ns
                known.members, known.operator, known.owner = body.members, body.operator, body.owner
            case PlaceBody():
                self._apply_place(body)
            case TriedBody():
                self._apply_tried(body)
            case GoneBody(group=group, ring=""):
                self.groups.pop(group, None)
            case GoneBody(group=group, ring=ring) if group in self.groups:
                self.groups[group].places.pop(ring, None)

    def _apply_place(self, body: PlaceBody) -> None:
        # a place counts even if damage has destroyed the record of its group
        group = self.groups.setdefault(body.group, GroupState("ordered", (), body.time_ns))
        done = BitMap64.deserialize(body.done) if body.done else BitMap64()
        place = group.places.get(body.ring)
        if place is None or body.whole or place.epoch != body.epoch:
            place = group.places[body.ring] = OffsetPlace(body.epoch, body.floor, BitMap64(), body.time_ns)
        place.floor, place.time_ns = body.floor, body.time_ns
        place.done |= done
        place.done.remove_range(0, place.floor)
        place.tried = [span for span in place.tried if span.end > place.floor]

    def _apply_tried(self, body: TriedBody) -> None:
        group = self.groups.get(body.group)
        place = group.places.get(body.ring) if group is not None else None
        if place is not None and place.epoch == body.epoch:
            place.tried = body.spans


def _places_of(name: str, group: GroupState) -> Iterator[Body]:
    for ring, place in group.places.items():
        packed = place.done.serialize() if place.done else b""
        yield PlaceBody(name, ring, place.epoch, place.floor, packed, True, place.time_ns)
        if place.tried:
            yield TriedBody(name, ring, place.epoch, place.tried)
