"""Retained messages: what a new subscription gets, and what a restart puts back.

The messages are the engine's, one copy each, set and cleared in C as they are published, because that may
happen at any rate.  A retained copy keeps its topic known, so whoever knows the topics finds it.

A store that is full keeps what it has, and refuses what does not fit (ringbuf/c/mqtt/retained.c); here it is
reported.

Retained messages live in memory.  After a restart they are put back from edge/state/retained_file.py and from
what the rings, or the log, hold since.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from edge.engine import DropCause, Engine, counters_of, limits_of
from edge.log_throttle import LogThrottle
from edge.logs import pairs
from edge.router import Router
from edge.sessions import Session
from edge.steps import Steps
from edge.topics import is_share
from ringbuf import FLAG_EXPIRY, FLAG_QOS, FLAG_RETAIN

if TYPE_CHECKING:
    from edge.state.retained_file import RetainedRecord
    from ringbuf import Record

__all__ = ["Retained"]

log = logging.getLogger(__name__)


class Retained:
    """Sends retained messages to who subscribes, and puts them back after a restart."""

    def __init__(
        self,
        engine: Engine,
        router: Router,
        topic_of: Callable[[str], int | None],
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._counters = counters_of(engine)
        self._reported = 0  # refused messages that the log knows of
        self._may_warn = LogThrottle(clock)
        self._router = router
        self._topic_of = topic_of

    def send(self, session: Session, topic_filter: str) -> Steps[None]:
        """Send `session` what is retained for a subscription that it has [MQTT-3.3.1-6], as it takes it."""
        if is_share(topic_filter):  # [3.8.3.1]
            return
        routes = self._router.routes
        topics = yield from routes.retaining(session, topic_filter)  # in the order of the table of topics
        terms = session.subscriptions.get(topic_filter)
        if terms is not None and (topics is None or len(topics) > 0):
            with routes.tags_of(terms) as (tag,):
                self._engine.replay_begin(session.handle, tag, topic_filter.encode(), topics)

    def report_refused(self) -> None:
        """Log how many messages were not retained since the last report, if there are any."""
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

    def restore(self, records: Iterable[Record | RetainedRecord]) -> int:
        """Take the RETAIN flags of `records`, oldest first, as the publisher meant them; how many are kept.

        Clears too: the last record of a topic counts.  Records whose key is no topic are left out.
        """
        kept: set[int] = set()
        for record in records:
            if not record.flags & FLAG_RETAIN:
                continue
            topic = self._topic_of(record.key.decode("utf-8", "replace"))
            if topic is None:
                continue
            flags = min(record.flags & FLAG_QOS, 2) | record.flags & FLAG_EXPIRY
            if self._engine.retain(topic, record.bytes(), flags, record.properties, record.timestamp_ns):
                kept.add(topic)
            else:
                kept.discard(topic)
        return len(kept)
