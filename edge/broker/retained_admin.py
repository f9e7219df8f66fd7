"""Retained-message administration: lists and clears retained messages at the request of an operator.

All methods run on the broker's thread, and each examines a limited part of the table of topics. Owns nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from edge.broker.subscription_tree import has_wildcard
from edge.engine.engine import NO_TOPIC, OK, TOO_LARGE
from ringbuf import FLAG_QOS, FLAG_RETAIN

if TYPE_CHECKING:
    from edge.broker.dispatcher import Broker

PLACES = 4_096  # of the table of topics, examined for one page
ROWS = 256
PAGE_BYTES = 64 << 10  # of topics, properties and payloads in one page, unless one message is longer


class RetainedAdmin:
    """Pages of retained messages, and their removal."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def page(
        self, topic_filter: str, first: int, payload_max: int
    ) -> tuple[list[dict[str, Any]], int | None]:
        """Retained messages that a valid filter matches, from place `first` of the table of topics on.

        Each has at most `payload_max` bytes of its payload. The second value is the place to continue from,
        None at the end. A page may be empty though others follow.
        """
        topics, after = self._topics(topic_filter, first)
        rows: list[dict[str, Any]] = []
        room = PAGE_BYTES
        for topic, (flags, timestamp_ns, properties, size_bytes, payload, withheld) in self._retained(
            topics, payload_max
        ):
            name = self._broker.engine.topic_name(topic)
            room -= len(name) + len(properties) + len(payload)
            if rows and room < 0:
                return rows, topic
            rows.append(
                {
                    "topic": name.decode("utf-8", "replace"),
                    "qos": flags & FLAG_QOS,
                    "timestamp_ns": timestamp_ns,
                    "size_bytes": size_bytes,
                    "payload": payload,
                    "properties": properties,
                    "withheld": withheld,
                }
            )
        return rows, after

    def clear(self, topic_filter: str, first: int) -> tuple[int, int | None, list[str]]:
        """Remove a page of retained messages: publish an empty one to each topic, as a client would do.

        Returns the number of removed messages, and the place to continue from, None at the end. The place is
        that of a topic whose ring has no room, or whose log takes no records now. The last value has the
        topics that can never be cleared, such as one that is too long for its ring. Topics of the broker,
        which begin with $SYS, stay.
        """
        topics, after = self._topics(topic_filter, first)
        cleared, size_bytes = 0, 0
        refused: list[str] = []
        for topic, _ in self._retained(topics, 0):
            name = self._broker.engine.topic_name(topic).decode("utf-8", "replace")
            if name.startswith("$SYS"):
                continue
            if refused and size_bytes + len(name.encode()) > PAGE_BYTES:
                return cleared, topic, refused
            result = self._broker.own_messages.offer(name, b"", FLAG_RETAIN, b"")
            if result == OK:
                cleared += 1
            elif result is None or result == TOO_LARGE:
                refused.append(name)
                size_bytes += len(name.encode())
            else:  # no room now, or the log takes no records
                return cleared, topic, refused
        return cleared, after, refused

    def _topics(self, topic_filter: str, first: int) -> tuple[array[int], int | None]:
        """Topics of one page, and the place to continue from."""
        engine = self._broker.engine
        topics: array[int] = array("I")
        if not has_wildcard(topic_filter):
            topic = engine.topic_find(topic_filter.encode())
            return (topics if topic == NO_TOPIC else array("I", [topic])), None
        content, after = engine.topics_scan(topic_filter.encode(), first, PLACES, ROWS)
        topics.frombytes(content)
        return topics, after

    def _retained(
        self, topics: array[int], payload_max: int
    ) -> Iterator[tuple[int, tuple[int, int, bytes, int, bytes, bool]]]:
        for topic in topics:
            message = self._broker.engine.retained_message(topic, payload_max)
            if message is not None:
                yield topic, message
