"""Subscription tree: filters with their sessions, as the engine keeps them (ringbuf/c/mqtt/route).

Owns the latest changes of filters, by which a match that took several steps is checked. Filters must be valid
(edge.mqtt.topic_filters) and within the broker's limits of length and levels.

A topic is matched against the filters once, when it is first used: by the parser, or here. A new filter is
matched against the known topics once, when it is subscribed. Neither happens for each message.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from itertools import zip_longest

from edge.broker.sliced_work import Steps
from edge.engine.engine import Engine, Match
from edge.mqtt.topic_filters import matches, split_share

STEP_MAX = 2_048  # filters and subscriptions between two yields
CHANGES_KEPT = 256  # latest filters that has_changed() compares


def has_wildcard(topic_filter: str) -> bool:
    """True if a filter may match more than one name."""
    return "+" in topic_filter or "#" in topic_filter


def is_share(topic_filter: str) -> bool:
    """True if a filter is $share/<group>/<filter> with a valid group. The inner filter must be valid."""
    group, rest = split_share(topic_filter)
    return group is not None and group != "" and rest != "" and "+" not in group and "#" not in group


def overlap(one: str, other: str) -> bool:
    """True if some name can match both filters."""
    for level, other_level in zip_longest(one.split("/"), other.split("/")):
        if "#" in (level, other_level):
            return True
        if level != other_level and "+" not in (level, other_level):
            return False
        if level is None or other_level is None:
            return False
    return True


class SubscriptionTree:
    """Filters, with handles of the sessions that subscribe to them and their options."""

    def __init__(self, engine: Engine) -> None:
        self.changes = 0  # number of filters that were added or removed since the start
        self._changed: deque[str] = deque(maxlen=CHANGES_KEPT)
        self._engine = engine

    def add(self, topic_filter: str, session: int, options: int) -> None:
        """Add a subscription, or replace its options."""
        self.add_changes((topic_filter,))
        self._engine.filter_add(topic_filter.encode(), session, options)

    def remove(self, topic_filter: str, session: int) -> bool:
        """Remove a subscription. True if it was there."""
        self.add_changes((topic_filter,))
        return self._engine.filter_remove(topic_filter.encode(), session)

    def matching(self, topic: str, session: int = 0) -> Steps[Match]:
        """Subscriptions that match `topic`, of one session or (0) of all, in steps: filters of hostile
        clients can make a topic match thousands of them.

        Subscriptions that change meanwhile may be in the result or not: see has_changed().
        """
        match = self._engine.match_begin(topic.encode(), session)
        while not self._engine.match_step(match, STEP_MAX):
            yield
        return match

    def has_changed(self, since: int, topic: str) -> bool:
        """True if subscriptions that match `topic` were added or removed after `changes` was `since`."""
        new = self.changes - since
        if new > len(self._changed):
            return True
        latest = itertools.islice(reversed(self._changed), new)
        return any(matches(topic_filter, topic) for topic_filter in latest)

    def add_changes(self, topic_filters: Sequence[str]) -> None:
        """Count filters that were added or removed without add() and remove()."""
        self.changes += len(topic_filters)
        self._changed.extend(topic_filters)
