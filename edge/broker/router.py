"""Router: the sessions that receive each topic, and the ring that stores it.

Owns the rules for new topics and the subscriptions, and keeps the engine's routes equal to them. The routes
of a topic are made when the topic is first used, and changed when a matching subscription is added or
removed. Not called for each message.

The engine's parser makes topics by the rules of `streams` (ringbuf/c/mqtt/route/new_topics.c). A topic about
which those rules do not decide is an event, and made here.

Invariant: the routes of each topic that the engine knows are those of all subscriptions that match its name,
without the sessions that may_receive() denies.
"""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from edge.auth.interfaces import AllowedFilters
from edge.auth.tenant_names import is_reserved
from edge.broker.delayed_topics import delayed_target
from edge.broker.durability import RingDurability
from edge.broker.engine_rings import EngineRings, PartitionLike, StreamRules
from edge.broker.quotas import NO_OWNER
from edge.broker.session_routes import SessionRoutes
from edge.broker.sessions import Session, SessionLimits
from edge.broker.sliced_work import Steps, at_once
from edge.broker.subscription_tree import SubscriptionTree, is_share
from edge.engine.engine import NO_TOPIC, Engine, Match, Table, counters_of
from edge.engine.subscription_options import (
    OF_GROUP,
    QOS,
    RETAIN_AS_PUBLISHED,
    is_plain,
    options_of,
    route_options,
)
from edge.mqtt import Subscription, split_share
from edge.session_store.journal_writer import SessionJournal

_ENDED = object()
# topics that are forgotten at once when the table is full: a part, so that not each new topic needs a search
RECYCLE_DIVISOR = 64
RECYCLED_TOPICS_MIN = 16
RECYCLED_TOPICS_MAX = 256  # so that no client waits long
LEVEL_BYTES = 128  # cost of one level of a filter, whatever its name
STRING_MAX_BYTES = 65_535  # of MQTT
IDLE_TABLE_MIN = 16_384  # topics; a smaller table takes a few MB, and is not searched for idle topics
IDLE_SEARCH_PAUSE_S = 1.0  # between two searches for idle topics
IDLE_SEARCH_MAX = 1_024  # places of the table that one search examines
ROUTE_ATTEMPTS_MAX = 8  # to route a new topic while its subscriptions change; the last one does not yield
DECIDED_SESSIONS_MAX = 128  # sessions of a new topic that may_receive() decides about between two yields
REMOVED_FILTERS_MAX = 64  # removed from the tree between two yields


class TopicLimits(Struct, frozen=True):
    """Bounds of a topic name or filter. Names as in the configuration file."""

    topic_max_bytes: int = 65_535
    topic_levels_max: int = 201  # the depth of both tries
    topics_idle_s: float = 3_600.0  # after this time an unused topic may be forgotten

    def allow(self, topic: str) -> bool:
        """True if `topic` is within the bounds."""
        return topic.count("/") < self.topic_levels_max and len(topic.encode()) <= self.topic_max_bytes

    def allow_filter(self, topic_filter: str) -> bool:
        """True if a valid filter is within the bounds. A shared filter names a group in every version."""
        group, rest = split_share(topic_filter)
        return self.allow(rest) and (group is None or is_share(topic_filter))


class SharedGroup(Struct, eq=False):
    """One shared subscription: its queue, and its members with their options."""

    handle: int  # the engine's session that is its queue
    members: dict[Session, int]


class Router:
    """Topics, subscriptions, and the ring of each topic."""

    def __init__(
        self,
        engine: Engine,
        partition_of: Callable[[str], PartitionLike],
        limits: TopicLimits,
        queues: SessionLimits,
        journal: SessionJournal,
        streams: StreamRules = (),
    ) -> None:
        """Create an empty router. `queues` bounds the queues of shared subscriptions.

        `streams`: filters and partitions of each stream, in the order in which they are tried; the last takes
        the rest. They must decide as `partition_of` does, with which all topics are made otherwise.
        """
        self._engine = engine
        self._partition_of = partition_of
        self.durability = RingDurability(engine)
        self.rings = EngineRings(engine, journal, self.durability, streams)
        self.delay_max_s = 0  # of messages to $delayed/SECONDS/TOPIC; 0: that topic is reserved
        self.routes = SessionRoutes(engine)
        # Runs steps for which no client waits.
        self.run_later: Callable[[Steps[None]], object] = at_once
        self._tree = SubscriptionTree(engine)
        # the rules by which the engine decides as may_receive(), and the prefix of names, if it can
        self.receive_rules: Callable[[Session], tuple[bytes, bytes] | None] = lambda session: None
        self._targets: dict[int, Session | SharedGroup] = {}  # handle -> session or group with subscriptions
        self._groups: dict[str, SharedGroup] = {}  # $share/<group>/<filter> -> group
        self._journal = journal
        self._table_size = 0  # lower bound of the size of the engine's table of topics
        self._searched_s = 0.0  # time of the last search for idle topics
        self.subscription_count = 0  # of all sessions
        self._counters = counters_of(engine)
        self.apply_limits(limits, queues)

    def apply_limits(self, limits: TopicLimits, queues: SessionLimits) -> None:
        """Use other limits, for topics, filters and shared queues that are new from now on."""
        self.limits, self.queues = limits, queues
        self._engine.topic_limits(min(limits.topic_max_bytes, STRING_MAX_BYTES), limits.topic_levels_max)

    def ring_name_of(self, topic: str) -> str:
        """Name of the ring that stores messages of this topic."""
        return self._partition_of(topic).name

    def topic_of(self, name: str, owner: bytes = NO_OWNER) -> int | None:
        """The result of topic_steps(), without a yield."""
        return at_once(self.topic_steps(name, owner=owner))

    def topic_steps(self, name: str, session: int = 0, owner: bytes = NO_OWNER) -> Steps[int | None]:
        """The id of a valid topic name, which is made known if necessary.

        None if the table is full of topics in use, or if the owner of `session`, or `owner`, may have no more
        topics. A new topic counts for that owner.
        """
        data = name.encode()
        topic = self._engine.topic_find(data)
        if topic == NO_TOPIC and not (
            self._engine.session_may(session, Table.TOPICS, 1)
            if session
            else self._engine.owner_may(owner, Table.TOPICS, 1)
        ):
            return None
        for attempt in range(ROUTE_ATTEMPTS_MAX):
            if topic != NO_TOPIC:
                return topic
            changes, rules = self._tree.changes, self.routes.rules
            steps = self._matching(name)
            match, denied = (yield from steps) if attempt < ROUTE_ATTEMPTS_MAX - 1 else at_once(steps)
            # another client may have made the topic known meanwhile
            topic = self._engine.topic_find(data)
            if topic == NO_TOPIC and rules == self.routes.rules and not self._tree.has_changed(changes, name):
                return self._create(name, session, owner, match, denied)
        return topic

    def _create(self, name: str, session: int, owner: bytes, match: Match, denied: array[int]) -> int | None:
        data = name.encode()
        ring_number = self.rings.number_of(self._partition_of(name))
        # reserved for the server [MQTT-4.7.2-1]
        reserved = is_reserved(name) and delayed_target(name, self.delay_max_s) is None
        topic = self._engine.topic_add(data, ring_number, reserved, session, owner)
        if topic == NO_TOPIC and self._recycle():
            topic = self._engine.topic_add(data, ring_number, reserved, session, owner)
        if topic == NO_TOPIC:
            return None
        self._engine.match_routes(match, topic, denied)
        return topic

    # ---- subscriptions ----

    @property
    def may_receive(self) -> Callable[[Session, str], bool] | None:
        """Returns True if a session may receive a topic; None: every session may receive every topic."""
        return self.routes.may_receive

    @may_receive.setter
    def may_receive(self, may_receive: Callable[[Session, str], bool] | None) -> None:
        self.routes.may_receive = may_receive
        self._engine.check_receivers(may_receive is not None)

    def subscribe(self, session: Session, subscription: Subscription, identifier: int = 0) -> bool:
        """The result of subscribing(), without a yield."""
        return at_once(self.subscribing(session, subscription, identifier))

    def subscribing(self, session: Session, subscription: Subscription, identifier: int = 0) -> Steps[bool]:
        """Add a subscription, or replace the one with the same filter [MQTT-3.8.4-3]. True if it is new.

        `identifier` 0 stands for no Subscription Identifier. Retained messages are not sent here:
        Retained.send() does that after the SUBACK.
        """
        topic_filter, options = subscription.topic_filter, options_of(subscription, identifier)
        known = session.subscriptions.get(topic_filter)
        session.subscriptions[topic_filter] = options
        if known is None:
            self._count_filters(session, 1, filter_bytes(topic_filter))
        self._targets[session.handle] = session
        self._journal.subscribed(session, topic_filter)
        if is_share(topic_filter):
            yield from self._join(session, topic_filter, options)
            return known is None
        session.not_plain += _not_plain(options) - _not_plain(known)
        self._tree.add(topic_filter, session.handle, options)
        yield from self._add(session, topic_filter, options, only_adds=_only_adds(known, options))
        return known is None

    def subscribe_plain(self, session: Session, filters: list[str], qos: bytes, more_bytes: int) -> list[str]:
        """Add new subscriptions to plain filters (Engine.filters_add), and return those whose topic has a
        retained message.

        Every subscription of the session must be plain, and no rule may deny it a topic of the filters.
        """
        retaining = self._engine.filters_add(filters, qos, session.handle)
        session.subscriptions.add_new(filters, qos)
        self._count_filters(session, len(filters), more_bytes)
        self._targets[session.handle] = session
        self._tree.add_changes(filters)
        if session.kept:
            for topic_filter in filters:
                self._journal.subscribed(session, topic_filter)
        return retaining

    def _add(self, session: Session, topic_filter: str, options: int, *, only_adds: bool) -> Steps[None]:
        """Make the routes of a subscription of `session`. `only_adds`: True if it takes no route away."""
        if (
            session.not_plain == 0
            and only_adds
            and self.routes.allowed_filters_of(session, topic_filter).certain
        ):
            yield from self.routes.add_routes(session, topic_filter, options)
        else:
            yield from self.routes.recompute_routes(session, topic_filter, self._tree.matching)

    def unsubscribe(self, session: Session, topic_filters: Sequence[str]) -> list[bool]:
        """The result of unsubscribing(), without a yield."""
        return at_once(self.unsubscribing(session, topic_filters))

    def unsubscribing(self, session: Session, topic_filters: Sequence[str]) -> Steps[list[bool]]:
        """Remove subscriptions. True for each filter that was subscribed, False for a repeated one."""
        removed = []
        for topic_filter in topic_filters:
            removed.append(topic_filter in session.subscriptions)
            if removed[-1]:
                yield from self._remove(session, topic_filter)
            yield
        return removed

    def unsubscribe_plain(self, session: Session, topic_filters: Sequence[str]) -> Steps[list[bool]]:
        """As unsubscribing(), for a session that has only plain subscriptions and may receive all topics.

        Filters whose topics match very many others of the session are removed in steps.
        """
        done = self._engine.filters_remove(list(topic_filters), session.handle)
        if removed := list(itertools.compress(topic_filters, done)):
            for topic_filter in removed:
                del session.subscriptions[topic_filter]
                session.end_retained(topic_filter)
            self._count_filters(session, -len(removed), -plain_bytes(removed))
            self._tree.add_changes(removed)
            self._journal.unsubscribed(session, removed)
        rest = yield from self.unsubscribing(session, topic_filters[len(done) :])
        return [*map(bool, done), *rest]

    def _remove(self, session: Session, topic_filter: str) -> Steps[None]:
        options = session.subscriptions.pop(topic_filter)
        session.end_retained(topic_filter)
        self._count_filters(session, -1, -filter_bytes(topic_filter))
        self._journal.unsubscribed(session, [topic_filter])
        if is_share(topic_filter):
            yield from self._leave(session, topic_filter)
            return
        self._engine.stop_retained(session.handle, topic_filter.encode())
        session.not_plain -= _not_plain(options)
        self._tree.remove(topic_filter, session.handle)
        yield from self.routes.recompute_routes(session, topic_filter, self._tree.matching)

    def forget(self, session: Session) -> None:
        """End a session. Its routes are not searched: they end with the session's handle."""
        session.ended = True
        self._targets.pop(session.handle, None)
        if not session.subscriptions:
            return
        for topic_filter in [
            shared_filter for shared_filter in session.subscriptions if is_share(shared_filter)
        ]:
            leaving = self._leave(session, topic_filter)
            # the engine must be notified before the session is closed
            if next(leaving, _ENDED) is not _ENDED:
                self.run_later(leaving)
        own = [plain_filter for plain_filter in session.subscriptions if not is_share(plain_filter)]
        self._count_filters(session, -len(session.subscriptions), -session.filters_bytes)
        session.subscriptions.clear()
        self.run_later(self._forgetting(session, own))

    def _count_filters(self, session: Session, more: int, more_bytes: int) -> None:
        self.subscription_count += more
        session.filters_bytes += more_bytes
        self._engine.session_filters(session.handle, session.filters_bytes)

    def _forgetting(self, session: Session, topic_filters: list[str]) -> Steps[None]:
        for number, topic_filter in enumerate(topic_filters, 1):
            self._tree.remove(topic_filter, session.handle)
            if number % REMOVED_FILTERS_MAX == 0:
                yield

    # ---- shared subscriptions ----

    @property
    def shared_count(self) -> int:
        """Number of shared subscriptions."""
        return len(self._groups)

    def group_of(self, shared_filter: str) -> int | None:
        """Queue of a shared subscription; None if it has no member."""
        group = self._groups.get(shared_filter)
        return None if group is None else group.handle

    def groups(self) -> list[int]:
        """Queues of all shared subscriptions."""
        return [group.handle for group in self._groups.values()]

    def groups_of_kept(self) -> list[tuple[int, str]]:
        """Queue and filter of each shared subscription with at least one member in the journal."""
        return [
            (group.handle, shared_filter)
            for shared_filter, group in self._groups.items()
            if any(member.kept for member in group.members)
        ]

    def _join(self, session: Session, shared_filter: str, options: int) -> Steps[None]:
        group = self._groups.get(shared_filter)
        is_new = group is None
        if group is None:
            handle = self._engine.share_open(self.queues.queued_records_max, self.queues.drop_newest)
            group = self._groups[shared_filter] = self._targets[handle] = SharedGroup(handle, {})
            self._tree.add(split_share(shared_filter)[1], handle, OF_GROUP)
        group.members[session] = options
        if self.may_receive is not None and not is_new:
            yield from self._route_group(group, shared_filter)
            self._purge(group)
            if session.ended:
                return
        ((option_bits, identifiers),) = route_options(options)
        self._engine.share_join(group.handle, session.handle, option_bits, identifiers)
        if session.kept:
            self._journal.group(group.handle, shared_filter, is_kept=True)
        if is_new:
            yield from self._route_group(group, shared_filter)

    def _leave(self, session: Session, shared_filter: str) -> Steps[None]:
        """Remove a member. The last member takes the waiting messages with it [4.8.2]."""
        group = self._groups[shared_filter]
        del group.members[session]
        self._engine.share_leave(group.handle, session.handle)
        if not group.members:
            del self._groups[shared_filter]
            del self._targets[group.handle]
            self._tree.remove(split_share(shared_filter)[1], group.handle)
            self._engine.session_close(group.handle)
            return
        if session.kept and not any(member.kept for member in group.members):
            self._journal.group(group.handle, shared_filter, is_kept=False)
        if self.may_receive is not None:
            yield from self._route_group(group, shared_filter)

    def _route_group(self, group: SharedGroup, shared_filter: str) -> Steps[None]:
        rules, topic_filter = self.routes.rules, split_share(shared_filter)[1]
        for topics in self.routes.pieces(topic_filter, few=self.may_receive is not None):
            denied: array[int] = array("I")
            if not self._gets_all(group, topic_filter):
                denied.extend(
                    topic for topic in topics if not self._may_receive(group, self.routes.name_of(topic))
                )
            self._engine.routes_drop(denied, group.handle, 0)
            self._engine.routes_set(array("I", set(topics).difference(denied)), group.handle, OF_GROUP)
            yield
            if not group.members or self.routes.rules != rules:
                return

    def _gets_all(self, group: SharedGroup, topic_filter: str) -> bool:
        """True if each member may receive all topics of `topic_filter`."""
        whole = AllowedFilters((topic_filter,), certain=True)
        return all(
            self.routes.allowed_filters_of(session, topic_filter) == whole for session in group.members
        )

    # ---- rules ----

    def acl_changed(self, sessions: Iterable[Session], changed: Sequence[Session] | None = None) -> None:
        """Make routes again after a change of may_receive, and purge waiting messages that are denied now.

        `sessions` must contain all sessions, `changed` those whose rights may differ from before; None: all.
        Waiting messages of the others were allowed by the same rules.
        The loop runs by session rather than by topic, so that the cost is in proportion to the routes.
        """
        self.routes.rules += 1
        every = list(sessions)
        purged = every if changed is None else changed
        # steps under way end now, and leave partial routes
        if changed is None or self.routes.under_way or 2 * len(changed) > len(every):
            changed = every
            for topic in array("I", self._engine.topics()):
                self._engine.routes_clear(topic)
        else:
            for session in changed:
                self._drop_routes(session)
        for session in changed:
            for topic_filter, options in session.subscriptions.items():
                if not is_share(topic_filter):
                    at_once(self._add(session, topic_filter, options, only_adds=True))
        for shared_filter, group in self._groups.items():
            at_once(self._route_group(group, shared_filter))
        self.purge(purged)
        self._journal.acl_changed()

    def _drop_routes(self, session: Session) -> None:
        for topic_filter in session.subscriptions:
            if not is_share(topic_filter):
                for topics in self.routes.pieces(topic_filter, few=False):
                    self._engine.routes_drop(topics, session.handle, 0)

    def purge(self, sessions: Iterable[Session]) -> None:
        """Purge waiting messages that these sessions, or groups with one of them, may not receive.

        Those of an ended subscription are among them.
        """
        by_handle = {session.handle: session for session in sessions}
        for group in self._groups.values():
            if any(member.handle in by_handle for member in group.members):
                self._purge(group)
        for session in by_handle.values():
            self._purge(session)

    def _purge(self, target: Session | SharedGroup) -> None:
        """Purge waiting messages that a session or group may not receive."""
        if self.may_receive is None:
            return
        denied = self._denied(target, self._engine.queue_topics(target.handle))
        if denied:
            self._engine.queue_purge(target.handle, denied)
        self.purge_unnamed(target)

    def purge_unnamed(self, target: Session | SharedGroup) -> None:
        """Purge messages that a session or group may not receive, of those that have no topic of the table.

        A restart knows no topic of a record that is only in the log. Call this when such records were read.
        """
        if self.may_receive is None or not (names := self._engine.queue_names(target.handle)):
            return
        denied = {name: not self._may_receive(target, name.decode(errors="replace")) for name in set(names)}
        self._engine.queue_resolve_names(target.handle, bytes(denied[name] for name in names))

    def _denied(self, target: Session | SharedGroup, topics: bytes) -> array[int]:
        """Those of `topics` that a session, or a member of a group, may not receive."""
        members = target.members if isinstance(target, SharedGroup) else (target,)
        denied: array[int] = array("I")
        for rules in map(self.receive_rules, members) if topics else ():
            if rules is None:
                names = {topic: self.routes.name_of(topic) for topic in array("I", topics)}
                return array("I", (it for it, name in names.items() if not self._may_receive(target, name)))
            denied.frombytes(self._engine.topics_denied(topics, *rules))
        return denied

    # ---- routes ----

    def _matching(self, name: str) -> Steps[tuple[Match, array[int]]]:
        """Subscriptions that match a new topic, and the sessions and groups that may not receive it."""
        match = yield from self._tree.matching(name)
        denied: array[int] = array("Q")
        if self.may_receive is not None:
            for number, handle in enumerate(set(array("Q", self._engine.match_sessions(match))), 1):
                target = self._targets.get(handle)
                if target is None or not self._may_receive(target, name):
                    denied.append(handle)
                if number % DECIDED_SESSIONS_MAX == 0:
                    yield
        return match, denied

    def _may_receive(self, target: Session | SharedGroup, name: str) -> bool:
        """True if `target` may receive a topic; of a group every member must have the right."""
        if self.may_receive is None:
            return True
        if isinstance(target, SharedGroup):
            return all(self.may_receive(session, name) for session in target.members)
        return self.may_receive(target, name)

    def forget_idle_topics(self, now_s: float) -> float:
        """Forget topics not used for `topics_idle_s`, or up to twice that; return the next search's time."""
        self._table_size = max(self._table_size, self._counters.topics)
        if self._table_size < IDLE_TABLE_MIN:
            return math.inf
        idle_s = self.limits.topics_idle_s
        pause_s = min(IDLE_SEARCH_PAUSE_S, idle_s * IDLE_SEARCH_MAX / self._table_size)
        if now_s < self._searched_s + pause_s:
            return self._searched_s + pause_s
        passed_s, self._searched_s = now_s - self._searched_s, now_s
        places = self._table_size * min(passed_s / idle_s, 1.0)
        self._engine.topics_age(min(math.ceil(places), IDLE_SEARCH_MAX))
        return now_s + pause_s

    def _recycle(self) -> bool:
        """Forget topics that were not used lately. True if there were any."""
        share = max(self._counters.topics // RECYCLE_DIVISOR, RECYCLED_TOPICS_MIN)
        return self._engine.topics_recycle(min(share, RECYCLED_TOPICS_MAX)) > 0


def filter_bytes(topic_filter: str) -> int:
    """Cost of a subscription in bytes: the length of its filter, and a tree node for each level."""
    return len(topic_filter.encode()) + LEVEL_BYTES * (topic_filter.count("/") + 1)


def plain_bytes(filters: list[str]) -> int:
    """Sum of filter_bytes() for one filter or more, in a tenth of the time."""
    text = "\n".join(filters)
    return len(text.encode()) + 1 + text.count("/") * LEVEL_BYTES + len(filters) * (LEVEL_BYTES - 1)


def _not_plain(options: int | None) -> int:
    """1 for a subscription that is no-local or has an identifier: routes of its session must be computed."""
    return 0 if options is None or is_plain(options) else 1


def _only_adds(known: int | None, options: int) -> bool:
    """True if the new options include all that the old options of the same filter granted."""
    return known is None or (
        is_plain(known) and known & QOS <= options & QOS and not known & RETAIN_AS_PUBLISHED & ~options
    )
