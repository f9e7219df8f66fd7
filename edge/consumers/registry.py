"""Group registry: the groups in use, the rings, and the stored state of both; opens groups and partitions.

Owns the conversion between stored progress and ack trackers: collect() records changes since the last call,
for the store to write. Decides the first record of a group in a new ring:

    a new group         as its first member requests
    a known group       the oldest record: the ring was added while the group was not in use
    an ended epoch      first the records that the log has of it, then the next epoch from its beginning

No sockets; files only through the store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from pyroaring import BitMap64

from edge.config.schema import Consumers, Durability
from edge.consumers.ack_tracker import AckTracker, Rules, Tried
from edge.consumers.delivery_settings import (
    NO_SETTINGS,
    DeliverySettings,
    SettingInfo,
    SettingName,
    conflict,
    first_of,
    invalid_value,
    origins,
)
from edge.consumers.group_partition import GroupPartition
from edge.consumers.groups import ConsumerGroup
from edge.consumers.offset_store import GroupState, OffsetPlace, OffsetStore
from edge.consumers.protocol import FILTERS_MAX_BYTES, Join, NotDone, SetGroup
from edge.consumers.quota import check_share
from edge.consumers.ring_source import RingSource
from edge.consumers.selection import Selection
from edge.consumers.start_place import oldest_in
from edge.local.filters import filters_meet
from edge.logging_setup import pairs
from edge.mqtt.errors import ProtocolError
from edge.mqtt.topic_filters import check_filter

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RingEntry:
    """A ring for consumers. `topics` None: its topics are unknown, because a local producer writes it."""

    source: RingSource
    stream: str
    topics: tuple[str, ...] | None
    durability: Durability = Durability.PROCESS
    sync_interval_ms: int = 1_000

    @property
    def is_of_producer(self) -> bool:
        """True if a local producer writes the ring, which may use any name."""
        return self.topics is None

    def may_hold(self, filters: Iterable[str]) -> bool:
        """True if the ring may have records of a topic that one of the filters matches."""
        topics = self.topics
        return topics is None or any(filters_meet(mine, theirs) for mine in topics for theirs in filters)


class GroupRegistry:
    """Groups and rings. One thread."""

    def __init__(self, store: OffsetStore, settings: Consumers, wall_ns: Callable[[], int]) -> None:
        self.store = store
        self.settings = settings
        self._delivery = DeliverySettings(  # of groups without their own
            settings.lease_ms, settings.tries_max, settings.backoff_ms, settings.backoff_max_ms, 0
        )
        self.rings: dict[str, RingEntry] = {}
        self.groups: dict[str, ConsumerGroup] = {}  # groups in use
        self._wall_ns = wall_ns
        self._by_ring: dict[str, list[tuple[ConsumerGroup, GroupPartition]]] = {}

    # ---- rings ----

    def add_ring(self, entry: RingEntry) -> None:
        """Add a ring; groups in use get it from its beginning on."""
        self.rings[entry.source.name] = entry
        for group in self.groups.values():
            if entry.may_hold(group.filters):
                self._add_partition(group, entry)

    def rang(self, ring: str) -> None:
        """Report that a ring has new records."""
        for group, partition in self._by_ring.get(ring, ()):
            partition.idle = False
            group.changes += 1

    def entries_for(self, filters: Iterable[str]) -> list[RingEntry]:
        """Rings that may hold records for some filters."""
        return [entry for entry in self.rings.values() if entry.may_hold(filters)]

    # ---- groups ----

    def without_progress(self, join: Join) -> list[RingSource]:
        """Rings in which the group of a join has no progress. Raises NotDone: a filter is invalid."""
        check_filters(join.filters)
        if _is_same(self.store.groups.get(join.group), join):
            return []
        return [
            entry.source
            for entry in self.entries_for(join.filters)
            if self.place_of(join.group, entry.source.name) is None
        ]

    def open(self, join: Join, starts: Mapping[str, tuple[int, int]], owner: str) -> ConsumerGroup:
        """Put a group in use, and create it for `owner` if necessary. Raises NotDone: it exists with other
        settings, or there are too many.

        It begins at `starts` in the rings without progress.
        """
        _check_values(join.settings)
        name, known = join.group, self.store.groups.get(join.group)
        if known is None:
            self._require_room(owner)
        group = self.groups.get(name)
        same = _is_same(known, join)
        if group is not None and group.members:
            _check_agreement(group, join, self.store.groups[name].members, same=same)
        members = first_of(join.settings, known.members) if known is not None else join.settings
        operator = known.operator if known is not None else NO_SETTINGS
        if known is None or not same or members != known.members:
            owner = known.owner if known is not None else owner
            self.store.note_group(name, join.mode, join.filters, self._wall_ns(), members, operator, owner)
        if group is None or not same:
            return self._load(name, starts)
        group.change_rules(*self._rules_of(self.store.groups[name]))
        return group

    def set_operator(self, request: SetGroup) -> None:
        """Change the operator's delivery settings of a group. Raises NotDone: a value is not allowed."""
        _check_values(request.settings)
        state = self.store.groups[request.group]
        kept = {name: value for name, value in state.operator.named() if name not in request.clear}
        operator = first_of(request.settings, DeliverySettings(**kept))
        self.store.note_group(
            request.group, state.mode, state.filters, self._wall_ns(), state.members, operator, state.owner
        )
        if (group := self.groups.get(request.group)) is not None:
            group.change_rules(*self._rules_of(self.store.groups[request.group]))

    def settings_of(self, group: GroupState) -> dict[SettingName, SettingInfo]:
        """Delivery settings of a group, with their sources."""
        return origins(group.operator, group.members, self._delivery)

    def unload(self, name: str) -> None:
        """Take a group out of use; its stored state stays."""
        if (group := self.groups.pop(name, None)) is None:
            return
        for partition in group.partitions.values():
            self._by_ring[partition.ring].remove((group, partition))

    def partitions(self) -> Iterator[tuple[ConsumerGroup, GroupPartition]]:
        """Partitions of all groups in use."""
        for group in self.groups.values():
            for partition in group.partitions.values():
                yield group, partition

    def collect(self) -> None:
        """Record the changes of all ack trackers in the store."""
        for group, partition in self.partitions():
            done = partition.tracker.take_changes()
            if done is not None:
                self.store.note_place(
                    group.name,
                    partition.ring,
                    partition.epoch,
                    partition.tracker.floor,
                    done,
                    self._wall_ns(),
                )
            if (tried := partition.tracker.take_tried()) is not None:
                self.store.note_tried(group.name, partition.ring, partition.epoch, tried)

    def place_of(self, group: str, ring: str) -> OffsetPlace | None:
        """Stored progress of the group in the ring; None if there is none."""
        state = self.store.groups.get(group)
        return state.places.get(ring) if state is not None else None

    def put(self, group: str, ring: str, epoch: int, offset: int) -> None:
        """Set the group to an offset, whatever its progress is."""
        self.store.note_place(group, ring, epoch, offset, None, self._wall_ns(), whole=True)

    def next_epoch(self, group: ConsumerGroup, partition: GroupPartition) -> bool:
        """Continue with the next epoch, because the current one is done or gone. False: there is none."""
        following = self.rings[partition.ring].source.next_epoch(partition.epoch)
        if following is None:
            return False
        partition.epoch = following.epoch
        partition.tracker = AckTracker(following.first_offset, group.rules)
        partition.idle, partition.log_answer = False, None
        self.put(group.name, partition.ring, following.epoch, following.first_offset)
        return True

    # ---- inside ----

    def _require_room(self, owner: str) -> None:
        """Raise NotDone if there is no room for a further group of the owner."""
        groups, limit = self.store.groups, self.settings.groups_max
        hint = "remove some with `brim consumers forget`, or raise consumers.groups_max"
        if len(groups) >= limit:
            text = f"too many groups: {len(groups)} (allowed: {limit}, consumers.groups_max)"
            raise NotDone(text, "full", hint)
        has = sum(group.owner == owner for group in groups.values())
        check_share("groups", owner, has, len(groups), limit, hint)

    def _rules_of(self, group: GroupState) -> tuple[Rules, float]:
        """Rules of the ack trackers of a group, and its speed."""
        values = dict(first_of(group.operator, group.members, self._delivery).named())
        rules = Rules(
            group.mode == "ordered",
            values["lease_ms"] / 1000,
            values["tries_max"],
            values["backoff_ms"] / 1000,
            values["backoff_max_ms"] / 1000,
            self.settings.records_max,
        )
        return rules, values["speed_permille"] / 1000

    def _load(self, name: str, starts: Mapping[str, tuple[int, int]]) -> ConsumerGroup:
        """Load a group. It begins at `starts` in rings without progress, or at their oldest record."""
        self.unload(name)
        state = self.store.groups[name]
        rules, speed = self._rules_of(state)
        group = ConsumerGroup(name, state.mode, state.filters, Selection(state.filters), rules)
        group.replay.speed = speed
        self.groups[name] = group
        for entry in self.entries_for(state.filters):
            self._add_partition(group, entry, starts.get(entry.source.name))
        return group

    def _add_partition(
        self, group: ConsumerGroup, entry: RingEntry, start: tuple[int, int] | None = None
    ) -> None:
        ring = entry.source.name
        place = _believable(self.place_of(group.name, ring), entry.source)
        if place is None:
            epoch, offset = start or oldest_in(entry.source)
            self.put(group.name, ring, epoch, offset)
            place = OffsetPlace(epoch, offset, BitMap64(), 0)
        tried = _there(place, entry.source)
        tracker = AckTracker(place.floor, group.rules, place.done, tried)
        partition = GroupPartition(ring, place.epoch, tracker)
        self._by_ring.setdefault(ring, []).append((group, partition))
        group.add(partition)


def _is_same(known: GroupState | None, join: Join) -> bool:
    """True if the group exists with the mode and the filters of the join."""
    return known is not None and known.mode == join.mode and set(known.filters) == set(join.filters)


def _believable(place: OffsetPlace | None, source: RingSource) -> OffsetPlace | None:
    """The place; its end if the ring cannot have reached the place in its current life."""
    if place is None:
        return None
    end = source.ends()[1]
    if place.epoch > source.epoch or (place.epoch == source.epoch and place.floor > end):
        log.warning(
            "committed offset invalid: above the end of the ring; the group begins at its end %s",
            pairs(ring=source.name, epoch=place.epoch, offset=place.floor, end=end),
        )
        return OffsetPlace(source.epoch, end, BitMap64(), place.time_ns)
    return place


def _there(place: OffsetPlace, source: RingSource) -> list[Tried]:
    """Tries of the records that exist in the current life of the ring."""
    if place.epoch != source.epoch:
        return place.tried
    end = source.ends()[1]
    return [span._replace(end=min(span.end, end)) for span in place.tried if span.first < end]


def _check_values(settings: DeliverySettings) -> None:
    if text := invalid_value(settings):
        raise NotDone(text, "refused", "choose a value within the limits")


def _check_agreement(group: ConsumerGroup, join: Join, members: DeliverySettings, *, same: bool) -> None:
    """Check a join of a group that has members. Raises NotDone."""
    if not same:
        raise NotDone(
            f"group {group.name} is in use as {group.mode} on {', '.join(group.filters)}",
            "refused",
            "join it with the same mode and filters, or choose another name",
        )
    if (other := conflict(members, join.settings)) is not None:
        name, theirs, wanted = other
        raise NotDone(
            f"members of group {group.name} have {name} {theirs}, not {wanted}",
            "refused",
            f"join it with the same {name} or without one; `brim consumers set` changes it for all members",
        )


def check_filters(filters: Iterable[str]) -> None:
    """Check topic filters. Raises NotDone: one is invalid, or they are too long together."""
    size = sum(len(topic_filter.encode(errors="replace")) for topic_filter in filters)
    if size > FILTERS_MAX_BYTES:
        text = f"topic filters of {size} bytes (allowed: {FILTERS_MAX_BYTES} together)"
        raise NotDone(text, "refused", "use fewer or shorter filters")
    for topic_filter in filters:
        try:
            check_filter(topic_filter)
        except ProtocolError as error:
            raise NotDone(error.detail, "refused", "correct the filter") from error
