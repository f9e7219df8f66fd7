"""Packed rules: the access rules by which the C engine decides about the topics of one client.

    access  1 byte       MQ_ACL_ALLOW or MQ_ACL_DENY (ringbuf/c/mqtt/in/acl_rules.h)
    length  2 bytes      little-endian
    filter  length bytes UTF-8

Rules of one kind of access, to publish or to receive: a client gets its own and all patterns, with its names
filled in. The engine combines all rules that match a topic, as edge.auth.acl does. That module is the oracle,
and decides where the rules are too many.
"""

from __future__ import annotations

from collections.abc import Iterator

from edge.auth.access_rule import Access, AccessRule
from edge.auth.acl_patterns import NAMES, filled, names_of
from edge.auth.interfaces import ClientInfo

RULES_MAX = 64  # of one client: the engine examines each rule for a new topic
RULES_MAX_BYTES = 4_096  # of one client: each connection has a copy
ALLOW, DENY = b"\1", b"\2"


class PackedRules:
    """Rules of all users, and patterns, about `access`. Add all rules before the first call of of()."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._own: dict[str | None, list[bytes]] = {}  # by user; not more than RULES_MAX + 1
        self._patterns: list[AccessRule] = []

    def add(self, rule: AccessRule) -> None:
        """Add a rule. One that only allows the other access is left out."""
        if not rule.access & (self._access | Access.DENY):
            return
        if rule.is_pattern:
            self._patterns.append(rule)
        elif len(own := self._own.setdefault(rule.user, [])) <= RULES_MAX:
            own.append(_packed(rule.access, rule.topic_filter))

    def of(self, client: ClientInfo) -> bytes | None:
        """The packed rules of a client; None: too many, or too long."""
        own = self._own.get(client.identity, [])
        if len(own) + len(self._patterns) > RULES_MAX:
            return None
        rules = b"".join((*own, *self._filled_patterns(client)))
        return rules if len(rules) <= RULES_MAX_BYTES else None

    def _filled_patterns(self, client: ClientInfo) -> Iterator[bytes]:
        """A permission does not apply to a client without the name; a denial then has + in its place."""
        names = names_of(client)
        for rule in self._patterns:
            if not NAMES.search(rule.topic_filter):
                yield _packed(rule.access, rule.topic_filter)
                continue
            levels = [filled(level, names) for level in rule.topic_filter.split("/")]
            if rule.access & Access.DENY:
                yield _packed(rule.access, "/".join("+" if level is None else level for level in levels))
            elif None not in levels:
                yield _packed(rule.access, "/".join(level for level in levels if level is not None))


def _packed(access: Access, topic_filter: str) -> bytes:
    text = topic_filter.encode()
    length = min(len(text), 0xFFFF)  # a longer text exceeds RULES_MAX_BYTES
    return (DENY if access & Access.DENY else ALLOW) + length.to_bytes(2, "little") + text
