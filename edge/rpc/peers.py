"""Peer table of a server: admits connections so that no process can exclude the others.

Owns the set of open connections, and the choice of the one to close for a new one. Never reads or writes a
socket, except for shutdown() of a closed connection.

A new connection needs a place. A user other than root and the broker's user may have half of the places.

    1. The user has fewer, and a place is free: the connection is admitted.
    2. Otherwise one connection is closed for it: one of the same user if that user has half of the places,
       otherwise any. Only a connection without resources may be closed: the oldest one without a request,
       otherwise the one with the longest idle time, at least IDLE_S.
    3. If there is none, the new connection is brief: one request is answered, then it is closed.

Brief connections have BRIEF_MAX separate places; the oldest one without a request is closed first. So `brim
status` is answered while other processes hold every place.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Generic, TypeVar

from msgspec import Struct, field

from edge.log_throttle import LogThrottle
from edge.logging_setup import pairs
from edge.rpc.client import credentials_of
from edge.user_names import user_name

log = logging.getLogger(__name__)

IDLE_S = 10.0  # a peer that holds nothing and has sent a request is not closed earlier
BRIEF_MAX = 8


class Peer(Struct, eq=False):
    """One connection.  A subclass may have the resources that it was granted."""

    socket: socket.socket
    pid: int
    uid: int
    since_s: float = field(default_factory=time.monotonic)  # time of its last request, or of accept()
    asked: bool = False  # True if it has sent a request
    keeps: bool = False  # True if it uses a granted resource: rings, a gate, a bridge's progress
    brief: str = ""  # reason for which it gets one answer only; "" otherwise

    def used(self) -> None:
        """Store the time of a request."""
        self.asked, self.since_s = True, time.monotonic()

    def shut(self) -> None:
        """End the connection. Its task notices that, and releases its resources."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)


P = TypeVar("P", bound=Peer)


class Peers(Generic[P]):
    """Connections of one server, up to `connections_max` and BRIEF_MAX.  `setting`: name of that limit."""

    def __init__(self, kind: type[P], connections_max: int, setting: str) -> None:
        self.counts: Counter[str] = Counter()  # of refusals and closed connections
        self.privileged = frozenset({os.geteuid(), 0})  # users whose `brim status` is always answered
        self.setting = setting
        self._kind = kind
        self._connections_max = connections_max
        self._user_max = max(1, connections_max // 2)
        self._all: set[P] = set()
        self._brief: set[P] = set()
        self._log_refusal = LogThrottle()

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[P]:
        return iter(tuple(self._all))

    def admit(self, connected: socket.socket) -> P | None:
        """Peer of a new connection. None: there is no place, and the socket was closed."""
        pid, uid = credentials_of(connected)
        peer = self._kind(connected, pid, uid)
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

    def left(self, peer: P) -> None:
        """Remove a peer whose connection has ended."""
        self._all.discard(peer)
        self._brief.discard(peer)

    def _crowd(self, uid: int) -> tuple[Iterable[P], str]:
        """Peers of which one must close for a new one of `uid`, and the limit; "": no limit is reached."""
        own = [peer for peer in self._all if peer.uid == uid]
        if uid not in self.privileged and len(own) >= self._user_max:
            return own, f"user {user_name(uid)} has {len(own)} connections, half of {self.setting}"
        if len(self._all) >= self._connections_max:
            return self._all, f"{len(self._all)} connections are open, as many as {self.setting} allows"
        return (), ""

    def _make_room(self, crowd: Iterable[P]) -> bool:
        """True if one of `crowd` was closed."""
        idle_since_s = time.monotonic() - IDLE_S
        free = [peer for peer in crowd if not peer.keeps and (not peer.asked or peer.since_s < idle_since_s)]
        if not free:
            return False
        displaced = min(free, key=lambda peer: (peer.asked, peer.since_s))
        self.counts["displaced"] += 1
        self.left(displaced)
        displaced.shut()
        return True

    def _refused(self, peer: P, limit: str) -> None:
        self.counts["refused"] += 1
        if self._log_refusal():
            details = pairs(pid=peer.pid, uid=peer.uid, reason=limit, refused=self.counts["refused"])
            log.warning("local process refused; close idle ones or raise %s %s", self.setting, details)
