"""Quota: a limit on requests under way, or members, of all peers and of each one."""

from __future__ import annotations

from collections import Counter

from edge.consumers.protocol import NotDone


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
        self._of: Counter[bytes] = Counter()

    def __len__(self) -> int:
        """Requests under way."""
        return self._of.total()

    def check(self, peer: bytes, size: int) -> None:
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

    def take(self, peer: bytes, size: int) -> None:
        """Count a request of `size` bytes. Raises NotDone, as check() does."""
        self.check(peer, size)
        self._of[peer] += 1
        self.bytes += size

    def give(self, peer: bytes, size: int) -> None:
        """Count the end of a request."""
        self.bytes -= size
        self._of[peer] -= 1
        if self._of[peer] <= 0:
            del self._of[peer]
