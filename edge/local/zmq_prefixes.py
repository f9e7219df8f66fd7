"""Subscribed prefixes of a ZeroMQ publisher: which of them at least one peer holds.

libzmq reports each subscription and each cancellation (XPUB_VERBOSER), a cancellation also if the peer has no
such subscription. So a cancellation counts only if that peer holds the prefix: otherwise one peer could end
the feed of another. `peer` is the descriptor of its connection. If a connection ends, libzmq cancels its
subscriptions without that number (NO_PEER), which may be used again by then; `ended` counts these.

Invariant: a prefix that a peer holds is never missing. A prefix without a holder may stay: its records are
read, and libzmq sends them to no peer.

Memory is bounded: more than PREFIXES_MAX prefixes are only counted, and then all topics match.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

NO_PEER = -1
PREFIXES_MAX = 10_000
SUBSCRIBE, CANCEL = 1, 0


@dataclass(slots=True)
class _Holders:
    """Subscriptions to one prefix by peer, and the number of these whose connection has ended."""

    by_peer: Counter[int] = field(default_factory=Counter)
    ended: int = 0

    @property
    def count(self) -> int:
        return self.by_peer.total() - self.ended


class Prefixes:
    """Prefixes of all peers."""

    def __init__(self) -> None:
        self._holders: dict[bytes, _Holders] = {}
        self._more = 0  # subscriptions beyond PREFIXES_MAX prefixes

    def __len__(self) -> int:
        """Number of known prefixes, and one if there are more."""
        return len(self._holders) + bool(self._more)

    def take(self, message: bytes, peer: int) -> bool:
        """Handle a message of XPUB. True if the matching topics may have changed."""
        before = len(self)
        prefix = message[1:]
        if message[:1] == bytes([SUBSCRIBE]):
            self._subscribe(prefix, peer)
        elif message[:1] == bytes([CANCEL]):
            self._cancel(prefix, peer)
        return len(self) != before

    def starts(self) -> tuple[bytes, ...] | None:
        """The beginnings of matching topics; None: all topics match."""
        return None if self._more or b"" in self._holders else tuple(self._holders)

    def _subscribe(self, prefix: bytes, peer: int) -> None:
        holders = self._holders.get(prefix)
        if holders is None and len(self._holders) >= PREFIXES_MAX:
            self._more += 1
            return
        if holders is None:
            holders = self._holders[prefix] = _Holders()
        holders.by_peer[peer] += 1

    def _cancel(self, prefix: bytes, peer: int) -> None:
        holders = self._holders.get(prefix)
        if holders is None:
            self._more -= bool(self._more and peer == NO_PEER)
            return
        if peer == NO_PEER:
            holders.ended += 1
        elif holders.by_peer[peer] > 0:
            holders.by_peer[peer] -= 1
            holders.ended -= bool(holders.ended)  # the number may be that of a connection that has ended
        if holders.count <= 0:
            del self._holders[prefix]
