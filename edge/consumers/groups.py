"""Group: its members and partitions. No I/O, no clock.

A member stays while it sends a request at least every session_s. An `ordered` group gives each partition to
one member at a time (assignment.py), of those with the highest priority; the others stand by. In a `queue`
every member takes from every partition.

Generations: each change of owners raises `generation`, and a partition stores the one in which its owner got
it (`since`). A request about a partition names the generation of its records. So a member that has lost the
partition meanwhile, and perhaps got it back, is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from edge.consumers.ack_tracker import Rules
from edge.consumers.assignment import complete_moves, plan_moves
from edge.consumers.group_partition import GroupPartition
from edge.consumers.group_replay import GroupReplay
from edge.consumers.requester import Requester
from edge.consumers.selection import Selection

Mode = Literal["ordered", "queue"]


@dataclass(slots=True, eq=False)
class Member:
    """A process, or a part of one, that gets records."""

    id: str  # random, chosen by the broker: knowing it is the right to act as the member
    name: str  # shown to people
    instance: str  # chosen by the client: a join with the same one replaces the earlier member
    session_s: float
    deadline_s: float
    peer: Requester  # connection whose quota it counts in
    in_flight_max: int = 0  # records; 0: no limit
    priority: int = 0


@dataclass(eq=False)
class ConsumerGroup:
    """Members and partitions of one group."""

    name: str
    mode: Mode
    filters: tuple[str, ...]
    selection: Selection
    rules: Rules
    generation: int = 1
    members: dict[str, Member] = field(default_factory=dict)
    partitions: dict[str, GroupPartition] = field(default_factory=dict)
    turn: int = 0  # number of the partition that is checked first
    changes: int = 0  # events after which a fetch that found nothing may find records
    replay: GroupReplay = field(default_factory=GroupReplay)

    @property
    def ordered(self) -> bool:
        """True if each partition has one owner."""
        return self.mode == "ordered"

    # ---- members ----

    def join(self, member: Member) -> None:
        """Add a member."""
        if not self.members:
            self.replay.stop()
        self.members[member.id] = member
        self.changes += 1
        self.rebalance()

    def touch(self, member: Member, now_s: float) -> None:
        """Extend the session of a member."""
        member.deadline_s = now_s + member.session_s

    def leave(self, member_id: str, now_s: float, cause: str, *, died: bool) -> None:
        """Remove a member, and give its records to others; `died`: that counts as a failed try."""
        del self.members[member_id]
        for partition in self.partitions.values():
            partition.tracker.drop_member(member_id, now_s, cause, counts=died)
        self.changes += 1
        self.rebalance()

    def expire(self, now_s: float) -> list[Member]:
        """Remove members that were silent for too long, and return them."""
        silent = [member for member in self.members.values() if member.deadline_s <= now_s]
        for member in silent:
            self.leave(member.id, now_s, f"consumer {member.name or member.id} was lost", died=True)
        return silent

    # ---- partitions ----

    def change_rules(self, rules: Rules, speed: float) -> None:
        """Deliver by these rules from now on, new records at `speed` (GroupReplay)."""
        self.rules = rules
        self.replay.speed = speed
        for partition in self.partitions.values():
            partition.tracker.change_rules(rules)
        self.changes += 1

    def add(self, partition: GroupPartition) -> None:
        """Add a partition."""
        self.partitions[partition.ring] = partition
        self.changes += 1
        self.rebalance()

    def rings_of(self, member_id: str) -> list[str]:
        """Partitions that a member gets records of from now on."""
        if not self.ordered:
            return list(self.partitions)
        return [
            partition.ring
            for partition in self.partitions.values()
            if (partition.successor or partition.owner) == member_id
        ]

    def open_to(self, member_id: str) -> list[GroupPartition]:
        """Partitions that may deliver to a member now, beginning with another one each time."""
        open_ones = [
            partition
            for partition in self.partitions.values()
            if not self.ordered or (partition.owner == member_id and partition.successor is None)
        ]
        self.turn += 1
        first = self.turn % len(open_ones) if open_ones else 0
        return open_ones[first:] + open_ones[:first]

    def room_of(self, member: Member, unlimited: int) -> int:
        """Number of records that a member may get now; `unlimited` if the member has no limit."""
        if not member.in_flight_max:
            return unlimited
        in_flight = sum(
            partition.tracker.in_flight_by_member()[member.id] for partition in self.partitions.values()
        )
        return max(member.in_flight_max - in_flight, 0)

    def rebalance(self) -> None:
        """Distribute the partitions again, moving as few as possible."""
        if self.ordered:
            highest = max((member.priority for member in self.members.values()), default=0)
            chosen = [member.id for member in self.members.values() if member.priority == highest]
            plan_moves(self.partitions, self.members, chosen)
            self.complete_moves()

    def complete_moves(self) -> None:
        """Complete the moves of partitions without records in flight at their owner."""
        self.generation = complete_moves(self.partitions.values(), self.generation)

    def owned_since(self, member_id: str, partition: GroupPartition, generation: int) -> bool:
        """True if the member has owned that partition at least since that generation."""
        return not self.ordered or (partition.owner == member_id and generation >= partition.since)
