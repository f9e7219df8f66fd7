"""Assignment of the partitions of an ordered group to its members: a fair share each. No I/O, no clock.

A partition that moves first stops delivering new records to its owner. It changes hands when the owner has
acknowledged its records, or their leases have expired, or the owner has gone. So moving records are not
delivered twice, and two members never have records of one key at the same time.

Invariants: each partition has an owner while there are members. The numbers of partitions that chosen members
have, or will have, differ by one at most; other members have none, or lose theirs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from edge.consumers.group_partition import GroupPartition


def plan_moves(
    partitions: Mapping[str, GroupPartition], members: Collection[str], chosen: Collection[str]
) -> None:
    """Distribute the partitions among the `chosen` ones of the members: name a successor for each that has to
    move, and for no other.
    """
    assignment = _assign(partitions, chosen)
    for ring, partition in partitions.items():
        member = assignment.get(ring)
        if partition.owner not in members:
            partition.owner, partition.successor = None, member
        else:
            partition.successor = None if member == partition.owner else member


def complete_moves(partitions: Iterable[GroupPartition], generation: int) -> int:
    """Complete the moves of partitions without records in flight at their owner; return the generation."""
    moving = [
        partition
        for partition in partitions
        if partition.successor is not None
        and (partition.owner is None or not partition.tracker.has_in_flight(partition.owner))
    ]
    if moving:
        generation += 1
    for moved in moving:
        moved.owner, moved.successor, moved.since = moved.successor, None, generation
    return generation


def _assign(partitions: Mapping[str, GroupPartition], members: Collection[str]) -> dict[str, str]:
    """Owner of each partition; owners keep theirs up to a fair share."""
    if not members:
        return {}
    has: dict[str, list[str]] = {member: [] for member in members}
    loose = []
    for ring, partition in partitions.items():
        member = partition.successor or partition.owner
        has[member].append(ring) if member in has else loose.append(ring)
    each, more = divmod(len(partitions), len(has))
    for place, member in enumerate(sorted(has, key=lambda member: -len(has[member]))):
        keeps = each + (place < more)
        loose += has[member][keeps:]
        del has[member][keeps:]
    for ring in loose:
        member = min(has, key=lambda member: len(has[member]))
        has[member].append(ring)
    return {ring: member for member, rings in has.items() for ring in rings}
