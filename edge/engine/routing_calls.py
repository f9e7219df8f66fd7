"""Routing calls of the C engine: subscriptions, matches, and rules for new topics (ringbuf/c/mqtt/route)."""

from __future__ import annotations

from array import array
from typing import Protocol, TypeAlias

PLAIN_FILTERS_MAX = 512

Match: TypeAlias = object  # a walk over the filters that match one name


class RoutingEngine(Protocol):
    """The part of edge.engine.engine.Engine that matches topics with filters."""

    # Subscriptions: filters, with the sessions that have them.

    def filter_add(self, topic_filter: bytes, session: int, options: int, /) -> None:
        """Add a subscription to a valid filter, or replace its edge.engine.subscription_options."""

    def plain_subscribe(
        self, body: bytes, version: int, filters_max: int, /
    ) -> tuple[int, list[str], bytes] | None:
        """Packet identifier, filters and QoS of each, of the body of a SUBSCRIBE. None if it is not a plain
        SUBSCRIBE: up to `filters_max` filters (PLAIN_FILTERS_MAX at most) without wildcards, groups, reserved
        topics, properties and options, within topic_limits(), and no error.
        """

    def filters_add(self, filters: list[str], qos: bytes, session: int, /) -> list[str]:
        """Add subscriptions to plain filters, which the session does not have yet, and their routes. No other
        subscription of the session may be no-local or have an identifier. Returns the filters whose topic has
        a retained message.
        """

    def plain_unsubscribe(
        self, body: bytes, version: int, filters_max: int, /
    ) -> tuple[int, list[str]] | None:
        """Packet identifier and filters of the body of an UNSUBSCRIBE. None as of plain_subscribe()."""

    def filters_remove(self, filters: list[str], session: int, /) -> bytes:
        """Remove subscriptions to plain filters, with their routes and retained messages not sent yet, from a
        session that may receive all topics and has no subscription that is no-local or has an identifier.
        Returns a byte for each of the first filters: 1 if it was there. The others would take long, and have
        not changed.
        """

    def filter_remove(self, topic_filter: bytes, session: int, /) -> bool:
        """Remove a subscription. True if it was there."""

    def match_begin(self, name: bytes, session: int, /) -> Match:
        """Begin to find the subscriptions of `session` that match a topic name; 0: of all sessions."""

    def match_step(self, match: Match, work: int, /) -> bool:
        """Examine about `work` filters and subscriptions. True: the match is complete. Filters that change
        between two steps may be found or not.
        """

    def match_sessions(self, match: Match, /) -> bytes:
        """Session of each subscription that was found, as uint64."""

    def match_routes(self, match: Match, topic: int, denied: array[int] | bytes, /) -> None:
        """Route a topic to the sessions of a match, which have no routes there yet, except the sessions of
        `denied` (uint64). Each session gets all its messages once, with the options of all its subscriptions.
        """

    # Rules by which the parser makes new topics without an event.

    def streams_set(self, streams: list[tuple[bytes, array[int]]], /) -> None:
        """Use these streams, in the order in which they are tried: the filters of each, separated by NUL, and
        the rings of its partitions, as uint16 (0: not known yet). The last stream takes all topics. After an
        exception the earlier streams stay.
        """

    def topics_move(self, first: int, places: int, /) -> tuple[int, int | None]:
        """Move topics to the rings of their present streams, in `places` places of the table from `first` on.

        Returns the number of moved topics, and the next place; None at the end.
        """

    def topic_ring(self, topic: int, /) -> int:
        """Ring that gets the new records of a topic."""

    def stream_ring(self, stream: int, partition: int, ring: int, /) -> None:
        """Set the ring of a partition. Until then, new topics of that partition are events."""

    def topic_limits(self, max_bytes: int, levels_max: int, /) -> None:
        """Set the limits of names of new topics; others are events. Both are 0 at first."""

    def check_receivers(self, checked: bool, /) -> None:
        """Set whether new topics are events if a session subscribes to them about which rules decide."""

    def session_receives(self, session: int, everything: bool, /) -> bool:
        """Set whether no rule denies the session a topic. False at first."""
