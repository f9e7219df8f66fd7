"""Acknowledgement history: the member that acknowledged each of the last records of a partition.

Owns one set of offsets for each of the last MEMBERS_MAX members that acknowledged, and the set of records
that were passed over because no filter of the group matches them. It distinguishes a repeated acknowledgement
from a late one, where another member did the record. In memory only: after a restart of the broker an
acknowledgement of a record that is done is refused.

Invariants: the sets are disjoint, and hold no offset below the tracker's floor less REMEMBERED and
FORGET_STEP; so together they take a few MiB at most.
"""

from __future__ import annotations

from pyroaring import BitMap64

REMEMBERED = 1 << 20  # records below the floor
FORGET_STEP = 1 << 16  # so many offsets are forgotten at once
MEMBERS_MAX = 256


class AckHistory:
    """History of one partition in one group."""

    def __init__(self, first: int) -> None:
        self.passed = BitMap64()
        self.first = first  # nothing is known of offsets below
        self._by_member: dict[str, BitMap64] = {}

    def of(self, member: str) -> BitMap64:
        """Offsets that `member` has done; do not change the set."""
        return self._by_member.get(member) or BitMap64()

    def add(self, member: str, offsets: BitMap64) -> None:
        """Record that `member` has done these."""
        if not offsets:
            return
        known = self._by_member.pop(member, None) or BitMap64()
        known |= offsets
        self._by_member[member] = known  # the last to acknowledge is last
        if len(self._by_member) > MEMBERS_MAX:
            del self._by_member[next(iter(self._by_member))]

    def forget_below(self, first: int) -> None:
        """Remove most offsets below `first`."""
        if first < self.first + FORGET_STEP:
            return
        self.first = first
        self.passed.remove_range(0, first)
        for offsets in self._by_member.values():
            offsets.remove_range(0, first)
