"""Administration of groups: lists, delivery settings, resets, and removal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from edge.consumers.groups import ConsumerGroup
from edge.consumers.offset_store import GroupState, OffsetPlace
from edge.consumers.protocol import (
    GroupInfo,
    MemberInfo,
    NotDone,
    PlaceInfo,
    Reset,
    RingInfo,
    SetGroup,
)
from edge.consumers.registry import GroupRegistry, check_filters
from edge.consumers.ring_source import RingSource

ID_SHOWN = 8  # characters of a member's id: the whole id is the right to act as the member


class GroupAdmin:
    """Answers from the registry of groups."""

    def __init__(self, registry: GroupRegistry) -> None:
        self._registry = registry

    # ---- lists ----

    def rings(self, filters: Sequence[str]) -> tuple[RingInfo, ...]:
        """Rings that may hold records for the filters. Raises NotDone for invalid filters."""
        check_filters(filters)
        return tuple(
            RingInfo(ring.source.name, ring.stream, ring.source.epoch, *ring.source.ends())
            for ring in self._registry.entries_for(filters)
        )

    def groups(self, name: str) -> tuple[GroupInfo, ...]:
        """All groups, or the named one. Raises NotDone: there is no such group."""
        known = self._registry.store.groups
        if name:
            self._known(name)
        return tuple(self._group_info(name, known[name]) for name in ([name] if name else sorted(known)))

    def _group_info(self, name: str, state: GroupState) -> GroupInfo:
        group = self._registry.groups.get(name)
        places = tuple(self._place_info(place, state.places[place], group) for place in sorted(state.places))
        members: tuple[MemberInfo, ...] = ()
        if group is not None:
            in_flight: Counter[str] = Counter()
            for partition in group.partitions.values():
                in_flight.update(partition.tracker.in_flight_by_member())
            members = tuple(
                MemberInfo(
                    member.id[:ID_SHOWN],
                    member.name,
                    tuple(group.rings_of(member.id)),
                    in_flight[member.id],
                    member.priority,
                    member.in_flight_max,
                    member.peer.owner,
                )
                for member in group.members.values()
            )
        lag = sum(place.lag for place in places)
        settings = self._registry.settings_of(state)
        return GroupInfo(name, state.mode, state.filters, lag, members, places, settings, state.owner)

    def _place_info(self, ring: str, place: OffsetPlace, group: ConsumerGroup | None) -> PlaceInfo:
        entry = self._registry.rings.get(ring)
        end = entry.source.ends()[1] if entry is not None else place.floor
        partition = group.partitions.get(ring) if group is not None else None
        above = len(place.done)
        return PlaceInfo(
            ring,
            place.epoch,
            place.floor,
            above,
            end,
            max(end - place.floor - above, 0),
            partition.tracker.in_flight() if partition is not None else 0,
            (partition.owner or "")[:ID_SHOWN] if partition is not None else "",
            place.time_ns,
            asdict(partition.tracker.counts) if partition is not None else {},
        )

    # ---- changes ----

    def set(self, request: SetGroup) -> None:
        """Set delivery settings of a group. Raises NotDone."""
        self._known(request.group)
        self._registry.set_operator(request)

    def rings_to_reset(self, request: Reset) -> list[RingSource]:
        """Rings that a reset sets. Raises NotDone."""
        state = self._idle(request.group)
        entries = self._registry.entries_for(state.filters) if state.filters else []
        names = tuple(dict.fromkeys(request.rings)) or tuple(
            sorted({*state.places} | {entry.source.name for entry in entries})
        )
        unknown = [ring for ring in request.rings if ring not in self._registry.rings]
        if unknown:
            raise NotDone(f"there is no ring {unknown[0]}", "unknown", "`brim consumers lag` names them")
        return [self._registry.rings[name].source for name in names if name in self._registry.rings]

    def reset(self, name: str, places: Mapping[str, tuple[int, int]]) -> None:
        """Set the offsets of a group. Raises NotDone."""
        self._idle(name)
        self._registry.unload(name)
        for ring, place in places.items():
            self._registry.put(name, ring, *place)

    def forget(self, name: str) -> None:
        """Remove a group. Raises NotDone."""
        self._idle(name)
        self._registry.unload(name)
        self._registry.store.forget(name)

    def _known(self, name: str) -> GroupState:
        state = self._registry.store.groups.get(name)
        if state is None:
            known = ", ".join(sorted(self._registry.store.groups))
            hint = f"the groups are {known}" if known else "a group begins with its first consumer"
            raise NotDone(f"there is no group {name}", "unknown", hint)
        return state

    def _idle(self, name: str) -> GroupState:
        state = self._known(name)
        group = self._registry.groups.get(name)
        if group is not None and group.members:
            names = ", ".join(member.name or member.id[:ID_SHOWN] for member in group.members.values())
            raise NotDone(f"group {name} is in use: {names}", "refused", "stop its consumers first")
        return state
