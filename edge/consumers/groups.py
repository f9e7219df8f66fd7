"""Group: who its members are, and which of them has which partition.  No I/O, no clock.

A member lives as long as it says something now and then (session_s).  An `ordered` group gives each partition
to one member at a time; in a `queue` every member takes from every partition.

A partition that is to move is first taken from its owner only as far as new records go: it changes hands when
the owner has acknowledged what it has, or has let it lapse, or has gone.  So what moves is not handed out
twice, and two members never have records of one key at the same time.

Generations: each change of owners raises `generation`, and a partition remembers in which one its owner got
it (`since`).  Whoever speaks for a partition says of which generation it has the records: a member that has
lost the partition meanwhile, and perhaps got it back, is told that it has.

Invariants: of an ordered group, each partition has an owner while there are members; the numbers of
partitions that members have, or will have, differ by one at most.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from edge.consumers.selection import Selection
from edge.consumers.source import Found
from edge.consumers.window import Window

__all__ = ["ColdAnswer", "Group", "Holding", "Member", "Mode"]

Mode = Literal["ordered", "queue"]


@dataclass(slots=True, eq=False)
class Member:
    """A process, or a part of one, that takes records."""

    id: str  # made by us, not to be guessed: who has it may speak for the member
    name: str  # for people
    instance: str  # made by the client: who joins again with the same one takes the place of the first
    session_s: float
    deadline_s: float


class ColdAnswer(NamedTuple):
    """What the log has from an offset on."""

    epoch: int
    offset: int
    found: Found | None


@dataclass(slots=True, eq=False)
class Holding:
    """A partition in a group."""

    ring: str
    epoch: int
    window: Window
    owner: str | None = None
    since: int = 0
    successor: str | None = None
    idle: bool = False  # nothing new was there; until the ring tells that there is
    reading: bool = False  # the log is being read for it
    cold: ColdAnswer | None = None  # what the log said
    burying: bool = False  # dead records of it are on their way
    retry_s: float = 0.0  # not before it: what had no room, or could not be read


@dataclass(eq=False)
class Group:
    """Members and holdings of one group."""

    name: str
    mode: Mode
    filters: tuple[str, ...]
    selection: Selection
    generation: int = 1
    members: dict[str, Member] = field(default_factory=dict)
    holdings: dict[str, Holding] = field(default_factory=dict)
    turn: int = 0  # which holding is asked first

    @property
    def ordered(self) -> bool:
        """Whether each partition has one owner."""
        return self.mode == "ordered"

    # ---- members ----

    def join(self, member: Member) -> None:
        """Another one."""
        self.members[member.id] = member
        self.rebalance()

    def touch(self, member: Member, now_s: float) -> None:
        """It lives."""
        member.deadline_s = now_s + member.session_s

    def leave(self, member_id: str, now_s: float, cause: str, *, died: bool) -> None:
        """What it had goes to the others; that is a try in vain if it died."""
        del self.members[member_id]
        for holding in self.holdings.values():
            holding.window.drop_member(member_id, now_s, cause, counts=died)
        self.rebalance()

    def expire(self, now_s: float) -> list[Member]:
        """Ends members that have been silent for too long, and says which."""
        silent = [it for it in self.members.values() if it.deadline_s <= now_s]
        for member in silent:
            self.leave(member.id, now_s, f"consumer {member.name or member.id} was lost", died=True)
        return silent

    # ---- partitions ----

    def add(self, holding: Holding) -> None:
        """Another partition."""
        self.holdings[holding.ring] = holding
        self.rebalance()

    def rings_of(self, member_id: str) -> list[str]:
        """What a member takes from now on."""
        if not self.ordered:
            return list(self.holdings)
        return [it.ring for it in self.holdings.values() if (it.successor or it.owner) == member_id]

    def open_to(self, member_id: str) -> list[Holding]:
        """What it may be handed records of now, another one first each time."""
        found = [
            it
            for it in self.holdings.values()
            if not self.ordered or (it.owner == member_id and it.successor is None)
        ]
        self.turn += 1
        at = self.turn % len(found) if found else 0
        return found[at:] + found[:at]

    def rebalance(self) -> None:
        """Shares the partitions out anew, and moves as few as that takes."""
        if not self.ordered:
            return
        wanted = self._shared_out()
        for ring, holding in self.holdings.items():
            member = wanted.get(ring)
            if holding.owner not in self.members:
                holding.owner, holding.successor = None, member
            else:
                holding.successor = None if member == holding.owner else member
        self.settle()

    def settle(self) -> None:
        """Hands over what is to move and nobody is at work on any more."""
        moving = [
            it
            for it in self.holdings.values()
            if it.successor is not None and (it.owner is None or not it.window.has_in_flight(it.owner))
        ]
        if moving:
            self.generation += 1
        for it in moving:
            it.owner, it.successor, it.since = it.successor, None, self.generation

    def may_speak(self, member_id: str, holding: Holding, generation: int) -> bool:
        """Whether the member has that partition, since that generation or before."""
        return not self.ordered or (holding.owner == member_id and generation >= holding.since)

    def _shared_out(self) -> dict[str, str]:
        """Who shall have which partition: owners keep what is not too much."""
        if not self.members:
            return {}
        has: dict[str, list[str]] = {member: [] for member in self.members}
        loose = []
        for ring, holding in self.holdings.items():
            member = holding.successor or holding.owner
            has[member].append(ring) if member in has else loose.append(ring)
        each, more = divmod(len(self.holdings), len(has))
        for place, member in enumerate(sorted(has, key=lambda it: -len(has[it]))):
            keeps = each + (place < more)
            loose += has[member][keeps:]
            del has[member][keeps:]
        for ring in loose:
            member = min(has, key=lambda it: len(has[it]))
            has[member].append(ring)
        return {ring: member for member, rings in has.items() for ring in rings}
