"""Which session gets the records of which topic, and which ring a topic is stored in.

Owns the two tries and keeps the engine's routes in step with them: a topic's routes are made when it is first
seen, and changed when a subscription that matches it comes or goes.  Nothing here runs for a message.

Invariant: for each topic the engine knows, its routes are what SubscriptionTree.match() says of its name.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from edge.engine import NO_TOPIC, TAG_QOS, Engine
from edge.sessions import Session
from edge.topics import SubscriptionTree, TopicNames, has_wildcard
from ringbuf import FLAG_RETAIN, Writer

__all__ = ["PartitionLike", "Router", "TopicLimits"]

RECYCLE_SHARE = 64  # of the table at a time, so that a full one does not ask for every new topic
RECYCLE_MIN = 16
WALK_MOST = 4_096  # names that are worth finding one by one: Python takes a microsecond for each


class PartitionLike(Protocol):
    """What routing needs of edge.streams.Partition."""

    @property
    def name(self) -> str:
        """Of its ring."""

    @property
    def writer(self) -> Writer:
        """The only one of that ring."""

    @property
    def durability(self) -> Literal["process", "interval", "disk"]:
        """`disk`: acknowledgements wait for the ring's durable word."""


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """Bounds of a topic name or filter.  Names as in the configuration file."""

    topic_max_bytes: int = 1_024
    topic_levels_max: int = 32  # tries are this deep

    def allow(self, topic: str) -> bool:
        """Whether `topic` is within them."""
        return topic.count("/") < self.topic_levels_max and len(topic.encode()) <= self.topic_max_bytes


class Router:
    """Topics, subscriptions, and where records go."""

    def __init__(
        self, engine: Engine, partition_of: Callable[[str], PartitionLike], limits: TopicLimits
    ) -> None:
        self.limits = limits
        self.names = TopicNames()
        self._engine = engine
        self._partition_of = partition_of
        self._tree: SubscriptionTree[int] = SubscriptionTree()  # subscribers are the engine's session handles
        self._sources: dict[str, int] = {}  # ring name -> source

    def topic_of(self, name: str) -> int | None:
        """The id of a valid topic name, made known if need be; None: the table is full of topics in use."""
        data = name.encode()
        topic = self._engine.topic_find(data)
        if topic != NO_TOPIC:
            return topic
        source = self._source_of(self._partition_of(name))
        reserved = name.startswith("$")  # the server's own [MQTT-4.7.2-1]
        topic = self._engine.topic_add(data, source, reserved)
        if topic == NO_TOPIC and self._recycle():
            topic = self._engine.topic_add(data, source, reserved)
        if topic == NO_TOPIC:
            return None
        self.names.add(name, topic)
        if routes := self._tree.match(name):
            self._engine.routes_new(topic, array("Q", routes), array("I", routes.values()))
        return topic

    def publish(self, topic: int, payload: bytes, qos: int, retain: bool) -> int:
        """Store a message of the broker's own: engine.OK, engine.FULL (try again), else dropped and
        counted.
        """
        return self._engine.publish(topic, payload, qos | (FLAG_RETAIN if retain else 0), b"")

    def subscribe(self, session: Session, topic_filter: str, tag: int) -> array[int]:
        """Add a subscription, or replace it [MQTT-3.8.4-3]; the known topics that it matches."""
        known = session.subscriptions.get(topic_filter)
        session.subscriptions[topic_filter] = tag
        self._tree.add(topic_filter, session.handle, tag)
        topics = self.topics_under(topic_filter)
        if known is None or known & TAG_QOS <= tag & TAG_QOS:
            self._engine.routes_merge(topics, session.handle, tag)
        else:
            self._derive(session, topics)
        return topics

    def topics_under(self, topic_filter: str) -> array[int]:
        """Ids of the known topics that `topic_filter` matches."""
        if not has_wildcard(topic_filter):
            topic = self._engine.topic_find(topic_filter.encode())
            return array("I", () if topic == NO_TOPIC else (topic,))
        found = self.names.match(topic_filter, WALK_MOST)
        return array("I", self._engine.topics_scan(topic_filter.encode())) if found is None else found

    def unsubscribe(self, session: Session, topic_filter: str) -> bool:
        """Whether there was such a subscription."""
        if session.subscriptions.pop(topic_filter, None) is None:
            return False
        self._tree.remove(topic_filter, session.handle)
        self._derive(session, self.topics_under(topic_filter))
        return True

    def forget(self, session: Session) -> None:
        """The session ends.  Its routes are not searched for: they die with its handle."""
        for topic_filter in session.subscriptions:
            self._tree.remove(topic_filter, session.handle)
        session.subscriptions.clear()

    def _derive(self, session: Session, topics: array[int]) -> None:
        """Make the routes of `topics` to `session` what its filters say together."""
        tags: dict[int, int] = {}
        if session.subscriptions:
            wanted = set(topics)
            for topic_filter, tag in session.subscriptions.items():
                for topic in wanted.intersection(self.topics_under(topic_filter)):
                    if topic not in tags or tag & TAG_QOS > tags[topic] & TAG_QOS:
                        tags[topic] = tag
        gone = array("I", (topic for topic in topics if topic not in tags)) if tags else topics
        self._engine.routes_drop(gone, session.handle, 0)
        for tag in set(tags.values()):
            same = array("I", (topic for topic, its_tag in tags.items() if its_tag == tag))
            self._engine.routes_set(same, session.handle, tag)

    def _source_of(self, partition: PartitionLike) -> int:
        source = self._sources.get(partition.name)
        if source is None:
            source = self._engine.add_ring(partition.writer, partition.durability == "disk")
            self._sources[partition.name] = source
        return source

    def _recycle(self) -> bool:
        """Forget topics that nobody used lately; whether there were any."""
        names = self._engine.topics_recycle(max(len(self.names) // RECYCLE_SHARE, RECYCLE_MIN))
        for name in names:
            self.names.remove(name.decode())
        return bool(names)
