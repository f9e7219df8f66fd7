"""Routes of one session: kept equal to its filters, a piece of the topics at a time.

Owns the way from a filter to the known topics that match it: a search in the engine's trie of names if they
are few, otherwise a scan of all topics in C, piece by piece. Each piece is found and routed between two
yields, so that its topics cannot be forgotten in between.

Invariants: the session's own filters do not change while one of its steps runs (edge.broker.deferred runs the
work of a session in order). Steps end when the session has ended. They also end when rules have changed:
Router.acl_changed() makes all routes then, because `under_way` is not 0.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeAlias, TypeGuard

from edge.auth.interfaces import AllowedFilters
from edge.broker.sessions import Session
from edge.broker.sliced_work import Steps
from edge.broker.subscription_tree import has_wildcard, is_share, overlap
from edge.engine.engine import NO_TOPIC, OPTION_IDS_SHIFT, Engine, Match, counters_of
from edge.engine.subscription_options import SubscriptionOptions, combined, route_options

OPTIONS_MASK = (1 << OPTION_IDS_SHIFT) - 1
# at most, between two yields:
ROUTED_TOPICS_MAX = 1_024  # topics that get equal routes in one call of the engine
PYTHON_TOPICS_MAX = 128  # topics that Python examines one by one
SCANNED_PLACES_MAX = 8_192  # places of the table of topics that C examines
COMPARED_FILTERS_MAX = 128  # filters of a session that are compared
WALK_MAX = 4_096  # branches of the trie of names that one search examines
PYTHON_WALK_MAX = 128  # the same, if Python then examines each topic
OVERLAPS_MAX = 16  # filters that overlap a changed one: with more, Python examines each topic
Matching: TypeAlias = "Callable[[str, int], Steps[Match]]"  # SubscriptionTree.matching()


def is_route_options(options: SubscriptionOptions) -> TypeGuard[int]:
    """True for options of one route without a Subscription Identifier."""
    return isinstance(options, int) and options <= OPTIONS_MASK


class SessionRoutes:
    """Topics of filters, and the engine's routes from them to sessions."""

    def __init__(self, engine: Engine) -> None:
        self.may_receive: Callable[[Session, str], bool] | None = None
        # the filters that a session may receive of a filter, if known for many topics at once
        self.allowed_filters: Callable[[Session, str], AllowedFilters | None] | None = None
        self.rules = 0  # number of changes of the rules
        self.under_way = 0  # number of add_routes() and recompute_routes() that have begun and not ended
        self._engine = engine
        self._counters = counters_of(engine)

    # ---- topics ----

    def name_of(self, topic: int) -> str:
        """Name of a topic."""
        return self._engine.topic_name(topic).decode()

    def allowed_filters_of(self, session: Session, topic_filter: str) -> AllowedFilters:
        """The part of `topic_filter` that `session` may receive, as filters. The session has routes for that
        part only.
        """
        if self.may_receive is None:
            return AllowedFilters((topic_filter,), certain=True)
        decide = self.allowed_filters
        allowed = None if decide is None else decide(session, topic_filter)
        return AllowedFilters((topic_filter,), certain=False) if allowed is None else allowed

    def walked(self, topic_filter: str, limit: int | None = None) -> array[int] | None:
        """Known topics that a filter matches, found in the trie of names; None if they are too many.

        `limit`: branches of the trie that are examined; by default WALK_MAX.
        """
        limit = WALK_MAX if limit is None else limit
        if has_wildcard(topic_filter):
            matching = self._engine.topics_match(topic_filter.encode(), limit)
            return None if matching is None else array("I", matching)
        topic = self._engine.topic_find(topic_filter.encode())
        return array("I", () if topic == NO_TOPIC else (topic,))

    def _scanned(self, topic_filter: str, limit: int) -> Iterator[tuple[array[int], tuple[int, int]]]:
        """Topics that a filter matches, at most `limit` at a time, and the table places of each piece.

        A topic may be forgotten and its id reused at a yield, so the caller finishes with a piece before
        that.
        """
        first: int | None = 0
        data = topic_filter.encode()
        while first is not None:
            matching, after = self._engine.topics_scan(data, first, SCANNED_PLACES_MAX, limit)
            yield array("I", matching), (first, SCANNED_PLACES_MAX if after is None else after - first)
            first = after

    def pieces(self, topic_filter: str, *, few: bool) -> Iterator[array[int]]:
        """All known topics that a filter matches, in pieces; small ones (`few`) for work in Python."""
        topics_found = self.walked(topic_filter, PYTHON_WALK_MAX if few else WALK_MAX)
        if topics_found is not None:
            yield topics_found
            return
        yield from self._scanned_topics(topic_filter, PYTHON_TOPICS_MAX if few else ROUTED_TOPICS_MAX)

    def _scanned_topics(self, topic_filter: str, limit: int) -> Iterator[array[int]]:
        return (topics for topics, _ in self._scanned(topic_filter, limit))

    # ---- subscriptions that come and go ----

    def add_routes(self, session: Session, topic_filter: str, options: int) -> Steps[None]:
        """Add the routes of a subscription that changes no other route of the session; see Router._add()."""
        yield from self._counted(self._adding(session, topic_filter, options))

    def _counted(self, steps: Steps[None]) -> Steps[None]:
        self.under_way += 1
        try:
            yield from steps
        finally:
            self.under_way -= 1

    def _adding(self, session: Session, topic_filter: str, options: int) -> Steps[None]:
        rules = self.rules
        for allowed_filter in self.allowed_filters_of(session, topic_filter).filters:
            for topics in self.pieces(allowed_filter, few=False):
                self._engine.routes_merge(topics, session.handle, options)
                yield
                if session.ended or self.rules != rules:
                    return

    def recompute_routes(self, session: Session, topic_filter: str, matching: Matching) -> Steps[None]:
        """Recompute the routes of the topics that a filter matches, from all filters of the session."""
        yield from self._counted(self._recomputing(session, topic_filter, matching))

    def _recomputing(self, session: Session, topic_filter: str, matching: Matching) -> Steps[None]:
        rules, allowed = self.rules, self.allowed_filters_of(session, topic_filter)
        for allowed_filter in allowed.filters:
            few = self.walked(allowed_filter, PYTHON_WALK_MAX)
            others = None
            if few is None and allowed.certain:
                others = yield from self._overlapping(session, topic_filter)
            if others is not None:
                yield from self._recompute_by_filter(session, allowed_filter, others, rules)
            else:
                pieces = (
                    (few,) if few is not None else self._scanned_topics(allowed_filter, PYTHON_TOPICS_MAX)
                )
                for topics in pieces:
                    yield from self._recompute_by_topic(session, topics, matching, allowed.certain, rules)
            if session.ended or self.rules != rules:
                return

    def _recompute_by_topic(
        self, session: Session, topics: array[int], matching: Matching, certain: bool, rules: int
    ) -> Steps[None]:
        """Recompute routes topic by topic, and by name: ids may change at a yield."""
        for data in [self._engine.topic_name(topic) for topic in topics]:
            name = data.decode()
            match = yield from matching(name, session.handle)
            topic = self._engine.topic_find(data)
            if session.ended or self.rules != rules:
                return
            if topic == NO_TOPIC:
                continue
            self._engine.routes_drop(array("I", (topic,)), session.handle, 0)
            if certain or self.may_receive is None or self.may_receive(session, name):
                self._engine.match_routes(match, topic, b"")
            yield

    def _recompute_by_filter(
        self, session: Session, topic_filter: str, others: list[str], rules: int
    ) -> Steps[None]:
        """Recompute routes in pieces. `others`: filters of the session that may match those topics."""
        only_filter = others == [topic_filter]
        for topics, places in self._scanned(
            topic_filter, ROUTED_TOPICS_MAX if only_filter or not others else PYTHON_TOPICS_MAX
        ):
            if not others:
                self._engine.routes_drop(topics, session.handle, 0)
            elif only_filter:
                self._assign(session, topics, session.subscriptions[topic_filter])
            else:
                self._assign_all(session, self._options_by_filter(session, topics, others, places))
            yield
            if session.ended or self.rules != rules:
                return

    def _overlapping(self, session: Session, topic_filter: str) -> Steps[list[str] | None]:
        """Filters of `session` that overlap `topic_filter`; None if there are more than OVERLAPS_MAX."""
        filters: list[str] = []
        for number, own_filter in enumerate(list(session.subscriptions), 1):
            if not is_share(own_filter) and overlap(own_filter, topic_filter):
                filters.append(own_filter)
                if len(filters) > OVERLAPS_MAX:
                    return None
            if number % COMPARED_FILTERS_MAX == 0:
                yield
        return filters

    def _options_by_filter(
        self, session: Session, topics: array[int], others: list[str], places: tuple[int, int]
    ) -> Iterable[tuple[int, SubscriptionOptions | None]]:
        options_by_topic: dict[int, SubscriptionOptions | None] = dict.fromkeys(topics)
        for topic_filter in others:
            options = session.subscriptions.get(topic_filter)
            if options is None:  # the session has ended
                continue
            matching, _ = self._engine.topics_scan(topic_filter.encode(), *places, places[1])
            for topic in array("I", matching):
                if topic in options_by_topic:
                    previous = options_by_topic[topic]
                    options_by_topic[topic] = options if previous is None else combined(previous, options)
        return options_by_topic.items()

    def _assign_all(
        self, session: Session, options_by_topic: Iterable[tuple[int, SubscriptionOptions | None]]
    ) -> None:
        removed: array[int] = array("I")
        alike: dict[SubscriptionOptions, array[int]] = {}
        for topic, options in options_by_topic:
            if options is None:
                removed.append(topic)
            else:
                alike.setdefault(options, array("I")).append(topic)
        self._engine.routes_drop(removed, session.handle, 0)
        for options, same in alike.items():
            self._assign(session, same, options)

    def _assign(self, session: Session, topics: array[int], options: SubscriptionOptions) -> None:
        with self.route_options_of(options) as (first, *second):
            self._engine.routes_set(topics, session.handle, first)
            for more in second:
                self._engine.routes_add(topics, session.handle, more)

    # ---- options of routes ----

    @contextmanager
    def route_options_of(self, options: SubscriptionOptions) -> Iterator[list[int]]:
        """Options of the one or two routes of a session, for the engine.

        Valid while the context lasts: routes have their own references to the subscription ids.
        """
        if is_route_options(options):
            yield [options]
            return
        all_options, taken = [], []
        try:
            for option_bits, identifiers in route_options(options):
                number = self._engine.subscription_ids_take(identifiers) if identifiers else 0
                if number:
                    taken.append(number)
                all_options.append(option_bits | number << OPTION_IDS_SHIFT)
            yield all_options
        finally:
            for number in taken:
                self._engine.subscription_ids_drop(number)
