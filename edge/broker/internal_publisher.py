"""Internal publisher: stores messages of the broker itself, such as wills and messages of the embedder.

Owns the messages that wait for room in a full ring: in order, up to WAITING_MAX. Further messages are dropped
and counted.
"""

from __future__ import annotations

from collections import deque

from msgspec import Struct

from edge.auth.tenant_names import prefix_in
from edge.broker.quotas import owner_in
from edge.broker.retained_authors import UNKNOWN_AUTHOR
from edge.broker.router import Router
from edge.engine.engine import FULL, OK, Engine
from edge.mqtt import ProtocolError, check_name
from ringbuf import FLAG_RETAIN

WAITING_MAX = 1_024
RETRY_S = 0.005


class _InternalMessage(Struct, frozen=True):
    topic: str
    payload: bytes
    flags: int
    properties: bytes
    owner: bytes = b""  # key of edge.broker.quotas: a retained message counts for this owner
    author: bytes = b""  # author (edge.broker.retained_authors) of a retained message
    publisher: int = 0  # handle of a session: its subscriptions with No Local do not get the message


class InternalPublisher:
    """Publisher of messages that do not come from a client's PUBLISH. offer() answers at once."""

    def __init__(self, engine: Engine, router: Router) -> None:
        self.dropped = 0
        self._engine = engine
        self._router = router
        self._waiting: deque[_InternalMessage] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def topic_of(self, name: str, owner: bytes = b"") -> int | None:
        """The id of `name`; None if it is not a topic within the limits, or the table is full, or `owner`,
        for which a new topic counts, may have no more.
        """
        try:
            check_name(name)
        except ProtocolError:
            return None
        return self._router.topic_of(name, owner) if self._router.limits.allow(name) else None

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
        publisher: int = 0,
    ) -> bool:
        """Store a message and deliver it. False if it was dropped, which is counted.

        `properties` are encoded as in a record; `expiry_flag` is FLAG_EXPIRY if one of them is an expiry. If
        the ring is full and its publishers wait, this message waits too.
        """
        flags = qos | expiry_flag | (FLAG_RETAIN if retain else 0)
        return self._publish(_InternalMessage(topic, payload, flags, properties, owner, author, publisher))

    def offer(self, topic: str, payload: bytes, flags: int, properties: bytes) -> int | None:
        """Store a message at once, or not at all. Returns OK, FULL or another code of the engine.

        For callers that report the result or repeat: a message without room does not wait, and does not
        overtake those that wait. None: the topic is invalid, or the table of topics is full.
        """
        if self._waiting:
            return FULL
        return self._append(_InternalMessage(topic, payload, flags, properties))

    def tick(self) -> None:
        """Store the waiting messages in order, up to the first that still has no room."""
        waiting, self._waiting = self._waiting, deque()
        for message in waiting:
            self._publish(message)

    def _publish(self, message: _InternalMessage) -> bool:
        if self._waiting:
            return self._wait(message)
        result = self._append(message)
        return self._wait(message) if result == FULL else result == OK

    def _append(self, message: _InternalMessage) -> int | None:
        topic = self.topic_of(message.topic)
        if topic is None:
            self.dropped += 1
            return None
        owner, author = message.owner, message.author
        if message.flags & FLAG_RETAIN and not owner and (prefix := prefix_in(message.topic)):
            owner, author = owner_in(prefix), UNKNOWN_AUTHOR  # such as a delayed message
        return self._engine.publish(
            topic, message.payload, message.flags, message.properties, owner, author, message.publisher
        )

    def _wait(self, message: _InternalMessage) -> bool:
        if len(self._waiting) >= WAITING_MAX:
            self.dropped += 1
            return False
        self._waiting.append(message)
        return True
