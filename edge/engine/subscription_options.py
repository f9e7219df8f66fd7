"""Subscription options: one int per subscription (QoS, no-local, retain-as-published, identifier), and their
combination for a session.

Pure. An int has the options in the lower eight bits, as in the engine, and the identifier above (0: none). A
combination is an int if that suffices, otherwise a tuple of ints. route_options() computes the options of
routes once per route.

All matching subscriptions of a session get one delivery, with the highest QoS [MQTT-3.3.4-2] and all their
identifiers [MQTT-3.3.4-4]. RETAIN is sent as published if any of them requests that.
"""

from __future__ import annotations

from typing import TypeAlias

from edge.mqtt import Subscription

SubscriptionOptions: TypeAlias = "int | tuple[int, ...]"

QOS = 3
SENDS_RETAINED = 4  # of journal records only: retained messages of the subscription may not have arrived
NO_LOCAL = 16
RETAIN_AS_PUBLISHED = 32
OWN_ONLY = 64  # of routes only: for messages that the session itself publishes
OF_GROUP = 128 | RETAIN_AS_PUBLISHED | QOS - 1  # of a route to a group, whose members have their own
IDENTIFIER_SHIFT = 8
_PLAIN = QOS | RETAIN_AS_PUBLISHED
_IDENTIFIER_PROPERTY = 0x0B


def options_of(subscription: Subscription, identifier: int = 0) -> int:
    """Options of one subscription; `identifier` is 1..268,435,455, or 0 for none."""
    options = subscription.qos
    if subscription.no_local:
        options |= NO_LOCAL
    if subscription.retain_as_published:
        options |= RETAIN_AS_PUBLISHED
    return options | identifier << IDENTIFIER_SHIFT


def subscription_of(topic_filter: str, options: int) -> tuple[Subscription, int]:
    """Subscription and identifier of an int: the inverse of options_of()."""
    subscription = Subscription(
        topic_filter,
        options & QOS,
        no_local=bool(options & NO_LOCAL),
        retain_as_published=bool(options & RETAIN_AS_PUBLISHED),
    )
    return subscription, options >> IDENTIFIER_SHIFT


def is_plain(options: int) -> bool:
    """True if the options have no identifier and are not no-local: such options combine to an int."""
    return not options & ~_PLAIN


def combined(options: SubscriptionOptions, added: int) -> SubscriptionOptions:
    """Subscription options combined with one more subscription."""
    if isinstance(options, int):
        if (options | added) & ~_PLAIN == 0:
            return (options | added) & RETAIN_AS_PUBLISHED | max(options & QOS, added & QOS)
        return options, added
    return (*options, added)


def route_options(options: SubscriptionOptions) -> list[tuple[int, bytes]]:
    """(options, Subscription Identifier properties) of the one or two routes for these options.

    Two routes are needed when some subscriptions are no-local and some are not: messages that the session
    itself publishes then have separate options.
    """
    every = (options,) if isinstance(options, int) else options
    own = tuple(each for each in every if not each & NO_LOCAL)
    if len(own) == len(every):
        return [_together(every, 0)]
    others = _together(every, NO_LOCAL)
    return [others, _together(own, OWN_ONLY)] if own else [others]


def _together(every: tuple[int, ...], mark: int) -> tuple[int, bytes]:
    option_bits = max(each & QOS for each in every) | mark
    if any(each & RETAIN_AS_PUBLISHED for each in every):
        option_bits |= RETAIN_AS_PUBLISHED
    return option_bits, b"".join(
        _property(each >> IDENTIFIER_SHIFT) for each in every if each >> IDENTIFIER_SHIFT
    )


def _property(identifier: int) -> bytes:
    """Encode the property for PUBLISH: the property identifier, then a Variable Byte Integer."""
    wire = bytearray((_IDENTIFIER_PROPERTY,))
    while identifier > 0x7F:
        wire.append(identifier & 0x7F | 0x80)
        identifier >>= 7
    wire.append(identifier)
    return bytes(wire)
