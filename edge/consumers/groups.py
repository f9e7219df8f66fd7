"""Group: its members, and the assignment of partitions to members. No I/O, no clock.

A member stays while it sends a request at least every session_s. An `ordered` group gives each partition to
one member at a time; in a `queue` every member takes from every partition.

A partition that moves first stops delivering new records to its owner. It changes hands when the owner has
acknowledged its records, or their leases have expired, or the owner has gone. So moving records are not
delivered twice, and two members never have records of one key at the same time.

Generations: each change of owners raises `generation`, and a partition stores the one in which its owner got
it (`since`). A request about a partition names the generation of its records. So a member that has lost the
partition meanwhile, and perhaps got it back, is refused.

Invariants: in an ordered group, each partition has an owner while there are members. The numbers of
partitions that members have, or will have, differ by one at most.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from edge.consumers.ack_tracker import AckTracker
from edge.consumers.ring_source import RingRecords
from edge.consumers.selection import Selection

__all__ = ["ConsumerGroup", "GroupPartition", "LogAnswer", "Member", "Mode"]

Mode = Literal["ordered", "queue"]


@dataclass(slots=True, eq=False)
class Member:
    """A process, or a part of one, that gets records."""

    id: str  # random, chosen by the broker: knowing it is the right to act as the member
    name: str  # shown to people
    instance: str  # chosen by the client: a join with the same one replaces the earlier member
    session_s: float
    deadline_s: float


class LogAnswer(NamedTuple):
    """Records that the log has from an offset on."""

    epoch: int
    offset: int
    records: RingRecords | None


@dataclass(slots=True, eq=False)
class GroupPartition:
    """Partition of a ring in a group: its owner, and the acknowledgements of its records."""

    ring: str
    epoch: int
    tracker: AckTracker
    owner: str | None = None
    since: int = 0
    successor: str | None = None
    idle: bool = False  # no new records were found, and the ring has reported none since
    reading: bool = False  # a read of the log is under way
    cold: LogAnswer | None = None  # answer of the log
    publishing_dead_letters: bool = False  # dead letters of it are being published
    retry_s: float = 0.0  # no new attempt before this time: there was no room, or the log was unreadable


@dataclass(eq=False)
class ConsumerGroup:
    """Members and partitions of one group."""

    name: str
    mode: Mode
    filters: tuple[str, ...]
    selection: Selection
    generation: int = 1
    members: dict[str, Member] = field(default_factory=dict)
    partitions: dict[str, GroupPartition] = field(default_factory=dict)
    turn: int = 0  # number of the partition that is checked first

    @property
    def ordered(self) -> bool:
        """True if each partition has one owner."""
        return self.mode == "ordered"

    # ---- members ----

    def join(self, member: Member) -> None:
        """Add a member."""
        self.members[member.id] = member
        self.rebalance()

    def touch(self, member: Member, now_s: float) -> None:
        """Extend the session of a member."""
        member.deadline_s = now_s + member.session_s

    def leave(self, member_id: str, now_s: float, cause: str, *, died: bool) -> None:
        """Remove a member, and give its records to others; `died`: that counts as a failed try."""
        del self.members[member_id]
        for partition in self.partitions.values():
            partition.tracker.drop_member(member_id, now_s, cause, counts=died)
        self.rebalance()

    def expire(self, now_s: float) -> list[Member]:
        """Remove members that were silent for too long, and return them."""
        silent = [it for it in self.members.values() if it.deadline_s <= now_s]
        for member in silent:
            self.leave(member.id, now_s, f"consumer {member.name or member.id} was lost", died=True)
        return silent

    # ---- partitions ----

    def add(self, partition: GroupPartition) -> None:
        """Add a partition."""
        self.partitions[partition.ring] = partition
        self.rebalance()

    def rings_of(self, member_id: str) -> list[str]:
        """Partitions that a member gets records of from now on."""
        if not self.ordered:
            return list(self.partitions)
        return [it.ring for it in self.partitions.values() if (it.successor or it.owner) == member_id]

    def open_to(self, member_id: str) -> list[GroupPartition]:
        """Partitions that may deliver to a member now, beginning with another one each time."""
        records = [
            it
            for it in self.partitions.values()
            if not self.ordered or (it.owner == member_id and it.successor is None)
        ]
        self.turn += 1
        at = self.turn % len(records) if records else 0
        return records[at:] + records[:at]

    def rebalance(self) -> None:
        """Distribute the partitions again, moving as few as possible."""
        if not self.ordered:
            return
        wanted = self._assign_partitions()
        for ring, partition in self.partitions.items():
            member = wanted.get(ring)
            if partition.owner not in self.members:
                partition.owner, partition.successor = None, member
            else:
                partition.successor = None if member == partition.owner else member
        self.settle()

    def settle(self) -> None:
        """Complete the moves of partitions without records in flight at their owner."""
        moving = [
            it
            for it in self.partitions.values()
            if it.successor is not None and (it.owner is None or not it.tracker.has_in_flight(it.owner))
        ]
        if moving:
            self.generation += 1
        for it in moving:
            it.owner, it.successor, it.since = it.successor, None, self.generation

    def owned_since(self, member_id: str, partition: GroupPartition, generation: int) -> bool:
        """True if the member has owned that partition at least since that generation."""
        return not self.ordered or (partition.owner == member_id and generation >= partition.since)

    def _assign_partitions(self) -> dict[str, str]:
        """Owner of each partition; owners keep theirs up to a fair share."""
        if not self.members:
            return {}
        has: dict[str, list[str]] = {member: [] for member in self.members}
        loose = []
        for ring, partition in self.partitions.items():
            member = partition.successor or partition.owner
            has[member].append(ring) if member in has else loose.append(ring)
        each, more = divmod(len(self.partitions), len(has))
        for place, member in enumerate(sorted(has, key=lambda it: -len(has[it]))):
            keeps = each + (place < more)
            loose += has[member][keeps:]
            del has[member][keeps:]
        for ring in loose:
            member = min(has, key=lambda it: len(has[it]))
            has[member].append(ring)
        return {ring: member for member, rings in has.items() for ring in rings}
