"""Quotas of consumers: limits of one connection, of all, and the share that one owner may have.

An owner is a user of this machine, an address, or a CURVE key; a program gets no further share by opening
further connections. The rule is that of MQTT clients (ringbuf/c/mqtt/quotas.c): an owner may take more while
what it then has is at most SHARE times what is then free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import TypeVar

from edge.consumers.protocol import NotDone
from edge.consumers.requester import Requester

K = TypeVar("K", bound=Hashable)

SHARE = 3  # so one owner gets at most three quarters, the next one three quarters of the rest


class OverShare(NotDone):
    """A request that was refused because of the share of its owner."""

    def __init__(self, error: str, owner: str, hint: str) -> None:
        super().__init__(error, "full", hint)
        self.owner = owner


def check_share(noun: str, owner: str, has: int, used: int, limit: int, hint: str, size: int = 1) -> None:
    """Raise OverShare if the owner, which `has` so many of all that are used, may not have `size` more."""
    if owner and has and has + size > SHARE * (limit - used - size):
        allowed = f"{limit} of all, and {SHARE} times the free ones of one owner"
        raise OverShare(f"{owner} has {has} of {used} {noun} (allowed: {allowed})", owner, hint)


class Quota:
    """Limits: `total` of all peers, `each` of one, `total_bytes` of all. `noun` names the
    requests in errors, and `hint` has the remedy.
    """

    def __init__(
        self,
        noun: str,
        total: int,
        each: int,
        total_bytes: int,
        hint: str = "wait for some answers, then repeat the request",
    ) -> None:
        self.bytes = 0
        self._noun = noun
        self._hint = hint
        self._limits = (total, each, total_bytes)
        self._of: Counter[Requester] = Counter()
        self._of_owner: Counter[str] = Counter()
        self._bytes_of_owner: Counter[str] = Counter()

    def __len__(self) -> int:
        """Requests under way."""
        return self._of_owner.total()

    def check(self, peer: Requester, size: int) -> None:
        """Raise NotDone if there is no room for a request of `size` bytes.

        A request longer than `total_bytes` is accepted while no other one is under way.
        """
        total, each, total_bytes = self._limits
        error = f"{self._of[peer]} {self._noun} of this client and {len(self)} of all are under way"
        if self._of[peer] >= each or len(self) >= total:
            raise NotDone(f"{error} (allowed: {each} and {total})", "full", self._hint)
        if self.bytes and self.bytes + size > total_bytes:
            text = f"{error}, with {self.bytes} bytes; {size} more exceed the limit of {total_bytes}"
            raise NotDone(text, "full", "repeat the request later")
        owner = peer.owner
        check_share(self._noun, owner, self._of_owner[owner], len(self), total, self._hint)
        if size:
            noun, has = f"bytes of {self._noun}", self._bytes_of_owner[owner]
            check_share(noun, owner, has, self.bytes, total_bytes, self._hint, size)

    def take(self, peer: Requester, size: int) -> None:
        """Count a request of `size` bytes. Raises NotDone, as check() does."""
        self.check(peer, size)
        self._count(peer, 1, size)

    def give(self, peer: Requester, size: int) -> None:
        """Count the end of a request."""
        self._count(peer, -1, -size)

    def _count(self, peer: Requester, number: int, size: int) -> None:
        self.bytes += size
        _add(self._of, peer, number)
        _add(self._of_owner, peer.owner, number)
        _add(self._bytes_of_owner, peer.owner, size)


def _add(counter: Counter[K], key: K, change: int) -> None:
    counter[key] += change
    if counter[key] <= 0:
        del counter[key]
