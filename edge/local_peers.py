"""Peer table of the control socket: admits connections so that no process can keep the others out.

Owns which connections are open and which one gives way.  Never reads or writes a socket, but for shutdown()
of a connection that gives way.

    places free                     admitted
    a peer holds nothing            it gives way: the oldest that has sent no request, else the one that has
                                    been idle longest, for IDLE_S at least
    a user other than the broker's  the same among its own, once they are half of all
    otherwise                       brief: one request is answered, and the connection is closed

Brief connections have BRIEF_MAX places of their own, in which the oldest without a request gives way.  So
`brim status` is answered while other processes hold every place.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from edge.control import CREDENTIALS
from edge.log_throttle import LogThrottle
from edge.logs import pairs
from ringbuf import Ring

__all__ = ["Peer", "Peers"]

log = logging.getLogger(__name__)

IDLE_S = 10.0  # a peer that holds nothing and has asked something is not displaced earlier
BRIEF_MAX = 8


@dataclass(eq=False)
class Peer:
    """One connection, and what it holds."""

    socket: socket.socket
    pid: int
    uid: int
    since_s: float = field(default_factory=time.monotonic)  # its last request, or accept()
    asked: bool = False  # a request has come
    keeps: bool = False  # it uses what a request was answered with: rings, a gate, a bridge's progress
    brief: str = ""  # the reason for which it gets one answer only
    follows: bool = False
    gates: dict[tuple[str, int], Ring] = field(default_factory=dict)
    produces: set[str] = field(default_factory=set)

    def shut(self) -> None:
        """End the connection; its task sees that and gives everything back."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)


class Peers:
    """Connections of one control socket, up to `connections_max` and BRIEF_MAX."""

    def __init__(self, connections_max: int, counts: Counter[str]) -> None:
        """Count refusals and displaced connections in `counts`."""
        self.privileged = frozenset({os.geteuid(), 0})  # users whose `brim status` is always answered
        self._connections_max = connections_max
        self._user_max = max(1, connections_max // 2)
        self._counts = counts
        self._all: set[Peer] = set()
        self._brief: set[Peer] = set()
        self._log_refusal = LogThrottle()

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Peer]:
        return iter(tuple(self._all))

    def admit(self, connected: socket.socket) -> Peer | None:
        """The peer at the other end of `connected`.  None: there is no place; the socket is closed."""
        credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        pid, uid, _ = CREDENTIALS.unpack(credentials)
        peer = Peer(connected, pid, uid)
        crowd, limit = self._crowd(uid)
        if not limit or self._make_room(crowd):
            self._all.add(peer)
            return peer
        self._refused(peer, limit)
        if len(self._brief) >= BRIEF_MAX and not self._make_room(self._brief):
            connected.close()
            return None
        peer.brief = limit
        self._brief.add(peer)
        return peer

    def left(self, peer: Peer) -> None:
        """Its connection has ended."""
        self._all.discard(peer)
        self._brief.discard(peer)

    def _crowd(self, uid: int) -> tuple[Iterable[Peer], str]:
        """The peers of which one must give way to a new one of user `uid`, and the limit ("": none must)."""
        own = [peer for peer in self._all if peer.uid == uid]
        if uid not in self.privileged and len(own) >= self._user_max:
            return own, f"user {uid} has {len(own)} connections, half of local.connections_max"
        if len(self._all) >= self._connections_max:
            return (
                self._all,
                f"{len(self._all)} connections are open, as many as local.connections_max allows",
            )
        return (), ""

    def _make_room(self, crowd: Iterable[Peer]) -> bool:
        """True if one of `crowd` has given way."""
        idle_since_s = time.monotonic() - IDLE_S
        free = [peer for peer in crowd if not peer.keeps and (not peer.asked or peer.since_s < idle_since_s)]
        if not free:
            return False
        displaced = min(free, key=lambda peer: (peer.asked, peer.since_s))
        self._counts["displaced"] += 1
        self.left(displaced)
        displaced.shut()
        return True

    def _refused(self, peer: Peer, limit: str) -> None:
        self._counts["refused"] += 1
        if self._log_refusal():
            facts = pairs(pid=peer.pid, uid=peer.uid, reason=limit, refused=self._counts["refused"])
            log.warning("local process refused; close idle ones or raise local.connections_max %s", facts)
