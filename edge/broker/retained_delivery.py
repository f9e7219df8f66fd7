"""Retained messages: finds those of a new subscription, delivers them, and restores them after a restart.

The engine owns the messages, one copy each. C code sets and clears them as they are published
(ringbuf/c/mqtt/route/retained.c) and sends them to new subscriptions (out/retained_delivery.c), because both
may happen at any rate. A retained copy keeps its topic known, so every retained message is found through the
table of topics.

A full store keeps its messages and refuses new ones; this module reports that.

Retained messages live in memory. After a restart they are restored from edge/recovery/retained_store.py and
from newer records of the rings, or of the log.

A restart begins the deliveries to kept sessions again that were not finished, each from its first message.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from edge.auth.interfaces import AllowedFilters, ClientInfo
from edge.auth.tenant_names import prefix_in
from edge.broker.quotas import NO_OWNER, key_of, owner_in
from edge.broker.retained_authors import NO_AUTHOR, UNKNOWN_AUTHOR, client_info_of_author
from edge.broker.router import Router
from edge.broker.sessions import Session
from edge.broker.sliced_work import Steps, at_once
from edge.broker.subscription_tree import is_share
from edge.engine.engine import DropCause, Engine, counters_of, limits_of
from edge.engine.subscription_options import QOS
from edge.log_throttle import LogThrottle
from edge.logging_setup import pairs
from edge.session_store.journal_writer import SessionJournal
from ringbuf import FLAG_EXPIRY, FLAG_QOS, FLAG_RETAIN

if TYPE_CHECKING:
    from ringbuf import Record

log = logging.getLogger(__name__)

AUTHORS_AT_ONCE = 64  # authors that are checked in one step
NOTE_S, NOTED_AT_ONCE = 0.1, 64  # interval, and sessions that are looked at each time
TRIES = 3  # attempts to find topics while others are forgotten


class RetainedRecord(NamedTuple):
    """A retained message in the form that Retained.restore() accepts."""

    key: bytes
    flags: int
    timestamp_ns: int
    properties: bytes
    payload: bytes
    author: bytes = b""

    def bytes(self) -> bytes:
        """Payload of the message."""
        return self.payload


def owner_of_author(author: bytes) -> bytes | None:
    """Key of the owner that the messages of an author count for; None: the author is not known."""
    client_info = client_info_of_author(author) if author else None
    return None if client_info is None else key_of(client_info)


class Retained:
    """Sends retained messages to subscribers, and restores them after a restart."""

    def __init__(
        self,
        engine: Engine,
        router: Router,
        journal: SessionJournal,
        topic_of: Callable[[str], int | None],
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._counters = counters_of(engine)
        self._reported = 0  # refused messages that are in the log already
        self._may_warn = LogThrottle(clock)
        # Calls its last argument with the answer, True if a client may publish to a topic.
        self.may_publish: Callable[[ClientInfo, str, Callable[[list[bool]], None]], None]
        self._router = router
        self._journal = journal
        self._sending: dict[int, Session] = {}  # handle -> session with filters in sends_retained
        self._note_s = 0.0  # time of the next look at them
        self._topic_of = topic_of

    def send(self, session: Session, topic_filter: str) -> Steps[None]:
        """Send `session` the retained messages of its subscription [MQTT-3.3.1-6].

        The engine sends them when the output and the in-flight window of the session have room.
        """
        if is_share(topic_filter):  # [3.8.3.1]
            return
        routes = self._router.routes
        topics = yield from self._topics_of(session, topic_filter)  # in the order of the table of topics
        options = session.subscriptions.get(topic_filter)
        if options is not None and (topics is None or len(topics) > 0):
            with routes.route_options_of(options) as (route_options,):
                self._engine.send_retained(session.handle, route_options, topic_filter.encode(), topics)
        if session.sends_retained and topic_filter in session.sends_retained:
            session.sends_retained[topic_filter] = True

    def begin(self, session: Session, topic_filters: Iterable[str]) -> None:
        """Note deliveries that a restart has to begin again if they are not finished by then.

        Call it before the client gets its SUBACK, and send() afterwards: the client may rely on both.
        """
        if not (session.expiry_s and self._counters.retained):
            return
        for topic_filter in topic_filters:
            if is_share(topic_filter) or not session.subscriptions.get(topic_filter, 0) & QOS:
                continue
            if session.sends_retained is None:
                session.sends_retained = {}
            session.sends_retained[topic_filter] = False
            self._sending[session.handle] = session
            self._journal.subscribed(session, topic_filter)

    def tick(self, now_s: float) -> None:
        """Report refused messages, and note deliveries that have arrived."""
        self._report_refused()
        if self._sending and now_s >= self._note_s:
            self._note_s = now_s + NOTE_S
            for session in list(islice(self._sending.values(), NOTED_AT_ONCE)):
                self._note_arrived(session)

    def _note_arrived(self, session: Session) -> None:
        """Note the deliveries of which the client has acknowledged all messages."""
        del self._sending[session.handle]
        if session.ended:
            return
        noted = session.sends_retained or {}
        if self._engine.retained_arrived(session.handle):
            session.sends_retained = {name: False for name, is_begun in noted.items() if not is_begun} or None
            for topic_filter, is_begun in noted.items():
                if is_begun and topic_filter in session.subscriptions:
                    self._journal.subscribed(session, topic_filter)
        if session.sends_retained:
            self._sending[session.handle] = session

    def _topics_of(self, session: Session, topic_filter: str) -> Steps[array[int] | None]:
        """Known topics of a filter with a retained message that `session` may receive.

        None if they are many and all allowed: the engine then scans all topics while it sends.
        """
        allowed = self._router.routes.allowed_filters_of(session, topic_filter)
        if allowed.certain and allowed.filters == (topic_filter,):
            topics = self._router.routes.walked(topic_filter)
            return None if topics is None else array("I", sorted(self._with_retained(topics)))
        for _ in range(TRIES):
            forgotten = self._counters.topics_recycled
            retained_topics = yield from self._allowed_topics(session, allowed)
            # ids of forgotten topics may belong to other topics by now
            if forgotten == self._counters.topics_recycled or session.ended:
                return array("I", sorted(retained_topics))
        return array("I", sorted(at_once(self._allowed_topics(session, allowed))))

    def _allowed_topics(self, session: Session, allowed: AllowedFilters) -> Steps[set[int]]:
        routes, retained_topics = self._router.routes, set[int]()
        for allowed_filter in allowed.filters:
            for topics in routes.pieces(allowed_filter, few=not allowed.certain):
                for topic in self._with_retained(topics):
                    may = None if allowed.certain else routes.may_receive
                    if may is None or may(session, routes.name_of(topic)):
                        retained_topics.add(topic)
                yield
        return retained_topics

    def _with_retained(self, topics: array[int]) -> array[int]:
        return array("I", self._engine.topics_retaining(topics))

    def _report_refused(self) -> None:
        """Log the number of messages that were not retained since the last report, if any."""
        counters = self._counters
        refused = counters.retained_refused + counters.dropped[DropCause.RETAINED_FULL]
        if refused == self._reported or not self._may_warn():
            return
        limits = limits_of(self._engine)
        log.warning(
            "messages not retained, the store is full; raise limits.retained_max or retained_max_bytes, or "
            "clear topics %s",
            pairs(
                messages=refused - self._reported,
                retained=counters.retained,
                retained_max=limits.retained_max,
                bytes=counters.retained_bytes,
                retained_max_bytes=limits.retained_max_bytes,
            ),
        )
        self._reported = refused

    def check_authors(self) -> Steps[None]:
        """Withhold retained messages whose authors may not publish to their topics now; release the others.

        Messages without a known author are delivered: those of local producers, and those that were only in a
        ring when the broker was killed.
        """
        first: int | None = 0
        while first is not None:
            rows, first = self._engine.retained_authors(first, AUTHORS_AT_ONCE)
            for topic, author in rows:
                self._check_author(topic, author)
            yield

    def _check_author(self, topic: int, author: bytes) -> None:
        client_info = client_info_of_author(author)
        name = self._engine.topic_name(topic)
        if client_info is None:
            return

        def decided(allowed: list[bool]) -> None:
            if self._engine.topic_find(name) == topic:  # the topic may have been forgotten meanwhile
                self._engine.retained_withhold(topic, author, not all(allowed))

        self.may_publish(client_info, name.decode(), decided)

    def restore(self, records: Iterable[Record | RetainedRecord]) -> int:
        """Apply the RETAIN flags of `records`, oldest first. Returns the number of messages that are retained
        then.

        An empty payload clears a topic: the last record of a topic counts. Records whose key is not a topic
        are skipped.
        """
        topics: set[int] = set()
        for record in records:
            if not record.flags & FLAG_RETAIN:
                continue
            name = record.key.decode("utf-8", "replace")
            topic = self._topic_of(name)
            if topic is None:
                continue
            flags = min(record.flags & FLAG_QOS, 2) | record.flags & FLAG_EXPIRY
            author = getattr(record, "author", NO_AUTHOR)
            owner = owner_of_author(author)
            if owner is None and (prefix := prefix_in(name)):
                owner, author = owner_in(prefix), UNKNOWN_AUTHOR
            parts = record.bytes(), flags, record.properties, record.timestamp_ns
            if self._engine.retain(topic, *parts, owner or NO_OWNER, author):
                topics.add(topic)
            else:
                topics.discard(topic)
        return len(topics)
