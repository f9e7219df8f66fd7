"""Terms: on what conditions a session gets messages, by one subscription or by several together.

Pure.  The terms of one subscription are an int: its options in the lower eight bits, as the engine's tags
have them, and its identifier above (0: none).  Several together are an int again where that says all, else a
tuple of ints.  What the engine must be told is worked out once a route, by tags().

One delivery is made for all subscriptions of a session that match, with the highest QoS [MQTT-3.3.4-2] and
all their identifiers [MQTT-3.3.4-4]; RETAIN goes along as published if any of them wants it.
"""

from __future__ import annotations

from typing import TypeAlias

from edge.mqtt import Subscription

__all__ = [
    "NO_LOCAL",
    "OF_GROUP",
    "OWN_ONLY",
    "QOS",
    "RETAIN_AS_PUBLISHED",
    "Terms",
    "combined",
    "is_plain",
    "subscription_of",
    "tags",
    "terms_of",
]

Terms: TypeAlias = "int | tuple[int, ...]"

QOS = 3
NO_LOCAL = 16
RETAIN_AS_PUBLISHED = 32
OWN_ONLY = 64  # in tags only: for what the session publishes itself
OF_GROUP = 128 | RETAIN_AS_PUBLISHED | QOS - 1  # of a route to a group: its members have their own
OPTIONS = 0xFF
IDENTIFIER_SHIFT = 8
_PLAIN = QOS | RETAIN_AS_PUBLISHED
_IDENTIFIER_PROPERTY = 0x0B


def terms_of(subscription: Subscription, identifier: int = 0) -> int:
    """The terms of one subscription; `identifier` 1..268,435,455, or 0."""
    options = subscription.qos
    if subscription.no_local:
        options |= NO_LOCAL
    if subscription.retain_as_published:
        options |= RETAIN_AS_PUBLISHED
    return options | identifier << IDENTIFIER_SHIFT


def subscription_of(topic_filter: str, terms: int) -> tuple[Subscription, int]:
    """The subscription that has these terms, and its identifier: what terms_of() was given."""
    subscription = Subscription(
        topic_filter,
        terms & QOS,
        no_local=bool(terms & NO_LOCAL),
        retain_as_published=bool(terms & RETAIN_AS_PUBLISHED),
    )
    return subscription, terms >> IDENTIFIER_SHIFT


def is_plain(terms: int) -> bool:
    """Whether they combine with other such ones to an int: no identifier, not no-local."""
    return not terms & ~_PLAIN


def combined(held: Terms, more: int) -> Terms:
    """What is held, and one subscription more."""
    if isinstance(held, int):
        if (held | more) & ~_PLAIN == 0:
            return (held | more) & RETAIN_AS_PUBLISHED | max(held & QOS, more & QOS)
        return held, more
    return (*held, more)


def tags(terms: Terms) -> list[tuple[int, bytes]]:
    """(options, Subscription Identifier properties) of the one route that says it, or of the two.

    Two when some subscriptions are no-local and some are not: what the session publishes itself then has
    terms of its own.
    """
    every = (terms,) if isinstance(terms, int) else terms
    own = tuple(one for one in every if not one & NO_LOCAL)
    if len(own) == len(every):
        return [_together(every, 0)]
    others = _together(every, NO_LOCAL)
    return [others, _together(own, OWN_ONLY)] if own else [others]


def _together(every: tuple[int, ...], mark: int) -> tuple[int, bytes]:
    options = max(one & QOS for one in every) | mark
    if any(one & RETAIN_AS_PUBLISHED for one in every):
        options |= RETAIN_AS_PUBLISHED
    return options, b"".join(_property(one >> IDENTIFIER_SHIFT) for one in every if one >> IDENTIFIER_SHIFT)


def _property(identifier: int) -> bytes:
    """As it stands in a PUBLISH: the property's own identifier, then a Variable Byte Integer."""
    wire = bytearray((_IDENTIFIER_PROPERTY,))
    while identifier > 0x7F:
        wire.append(identifier & 0x7F | 0x80)
        identifier >>= 7
    wire.append(identifier)
    return bytes(wire)
