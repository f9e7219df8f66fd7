"""Messages of the broker's own: wills, and what its embedder publishes.

Owns those that wait for a full ring: in order, up to WAITING_MAX of them, then they are dropped and counted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from edge.engine import FULL, OK, Engine
from edge.mqtt import ProtocolError, check_name
from edge.router import Router
from ringbuf import FLAG_RETAIN

__all__ = ["RETRY_S", "OwnMessages"]

WAITING_MAX = 1_024
RETRY_S = 0.005


@dataclass(frozen=True, slots=True)
class _Message:
    topic: str
    payload: bytes
    flags: int
    properties: bytes
    owner: bytes = b""  # of edge.owners: what it retains counts for it
    author: bytes = b""  # of edge.authors, of what it retains


class OwnMessages:
    """Stores messages that no client has sent, or one that is answered at once: see store()."""

    def __init__(self, engine: Engine, router: Router) -> None:
        self.dropped = 0
        self._engine = engine
        self._router = router
        self._waiting: deque[_Message] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def topic_of(self, name: str) -> int | None:
        """The id of `name` if it is a topic within the limits, and the table has room."""
        try:
            check_name(name)
        except ProtocolError:
            return None
        return self._router.topic_of(name) if self._router.limits.allow(name) else None

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: bytes = b"",
        expiry_flag: int = 0,
        owner: bytes = b"",
        author: bytes = b"",
    ) -> bool:
        """Store a message and deliver it.  False: it was dropped, and counted.

        `properties` as in a record, with `expiry_flag` FLAG_EXPIRY if one of them says so.  A full ring that
        makes publishers wait makes this one wait too.
        """
        flags = qos | expiry_flag | (FLAG_RETAIN if retain else 0)
        return self._publish(_Message(topic, payload, flags, properties, owner, author))

    def store(
        self, topic: str, payload: bytes, qos: int, retain: bool, properties: bytes, expiry_flag: int
    ) -> bool:
        """As publish(), for somebody who is told: a message that has no room now is not stored, and does not
        wait; nor does it overtake those that do.
        """
        if self._waiting:
            return False
        flags = qos | expiry_flag | (FLAG_RETAIN if retain else 0)
        return self._append(_Message(topic, payload, flags, properties)) == OK

    def tick(self) -> None:
        """Try again what waits; behind one that still has no room the others keep their places."""
        waiting, self._waiting = self._waiting, deque()
        for message in waiting:
            self._publish(message)

    def _publish(self, message: _Message) -> bool:
        if self._waiting:
            return self._wait(message)
        result = self._append(message)
        return self._wait(message) if result == FULL else result == OK

    def _append(self, message: _Message) -> int | None:
        topic = self.topic_of(message.topic)
        if topic is None:
            self.dropped += 1
            return None
        it = message
        return self._engine.publish(topic, it.payload, it.flags, it.properties, it.owner, it.author)

    def _wait(self, message: _Message) -> bool:
        if len(self._waiting) >= WAITING_MAX:
            self.dropped += 1
            return False
        self._waiting.append(message)
        return True
