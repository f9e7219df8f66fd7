"""Access rules: the topics that users may publish and receive, compiled to trees.

A rule allows reading (to receive), writing (to publish) or both, or denies both, for the topics that an MQTT
filter matches. Rules of a user apply only to that user, rules without a user to clients without a name,
patterns to all. A topic that no rule allows is denied, and a denial overrides every permission.

    pattern read devices/%c/#         %c: client identifier, %u: user name; filled in for each client

A permitting pattern does not apply to a client without that name, or with + # or / in it: otherwise it could
reach topics of other clients. A denying pattern reads + in that place for such a client: it denies more.

Cost: one walk along the topic in the tree of the user, and one in the tree of the patterns; rules of other
users cost nothing. Owns no text form (edge.auth.acl_file) and no clients. Topics that begin with $ match only
rules that begin with $.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct, field

from edge.auth.access_rule import Access, AccessRule
from edge.auth.acl_patterns import NAMES, filled, names_of
from edge.auth.interfaces import AllowedFilters, ClientInfo
from edge.auth.packed_rules import PackedRules
from edge.mqtt.topic_filters import split_share

__all__ = ["Access", "AccessRule", "AccessRules"]


class _AclNode(Struct):
    """One level of a tree. `here`: rules that end with this level; `below`: rules that end with #."""

    here: int = 0
    below: int = 0
    children: dict[str, _AclNode] = field(default_factory=dict)  # "+" is a key like any other
    templates: dict[str, _AclNode] = field(default_factory=dict)  # levels that contain %c or %u

    def add(self, rule: AccessRule) -> None:
        node = self
        for level in rule.topic_filter.split("/"):
            if level == "#":
                node.below |= int(rule.access)
                return
            has_name = rule.is_pattern and NAMES.search(level)
            node = (node.templates if has_name else node.children).setdefault(level, _AclNode())
        node.here |= int(rule.access)


READ, WRITE, DENY = int(Access.READ), int(Access.WRITE), int(Access.DENY)
ALLOWED_FILTERS_MAX = 64  # filters in the answer of allowed_filters() at most
NO_TOPIC = ("",)  # one empty level: `+` and `/#` have only that in common, and no topic is empty
_EMPTY = _AclNode()


class AccessRules:
    """An AccessList. Immutable: new rules are a new object."""

    def __init__(self, rules: Iterable[AccessRule], text_hash: int | None = None) -> None:
        """Create the list. `text_hash`: of the text that has these rules; None: they have no text."""
        self.text_hash = text_hash
        self._users: dict[str | None, _AclNode] = {}
        self._patterns = _AclNode()
        self.denies_all = True  # True if no rule permits anything
        self.names_users = False  # True if a pattern contains %u
        self.permits_anonymous = False  # True if some rule permits something to a client without a name
        self._denied: set[str | None] = set()  # users with a rule that denies
        self._patterns_deny = False
        self._publish_rules, self._receive_rules = PackedRules(Access.WRITE), PackedRules(Access.READ)
        for rule in rules:
            self.denies_all &= rule.access is Access.DENY
            self.names_users |= rule.is_pattern and "%u" in rule.topic_filter
            if rule.access is not Access.DENY and rule.user is None:
                self.permits_anonymous |= not (rule.is_pattern and "%u" in rule.topic_filter)
            tree = self._patterns if rule.is_pattern else self._users.setdefault(rule.user, _AclNode())
            tree.add(rule)
            self._publish_rules.add(rule)
            self._receive_rules.add(rule)
            if rule.access & DENY and rule.is_pattern:
                self._patterns_deny = True
            elif rule.access & DENY:
                self._denied.add(rule.user)

    @property
    def users(self) -> frozenset[str]:
        """Users with rules of their own."""
        return frozenset(user for user in self._users if user is not None)

    def may_publish(self, client: ClientInfo, topic: str) -> bool:
        """True if a rule allows `client` to write to `topic`, and no rule denies it."""
        return self._allows(client, topic, WRITE)

    def may_receive(self, client: ClientInfo, topic: str) -> bool:
        """True if a rule allows `client` to read `topic`, and no rule denies it."""
        return self._allows(client, topic, READ)

    @property
    def anonymous_may_all(self) -> bool:
        """See edge.auth.interfaces.Surveyable."""
        return self._access_to_all(None) & (READ | WRITE) == READ | WRITE

    def publishes_all(self, client: ClientInfo) -> bool:
        """See edge.auth.interfaces.Surveyable."""
        return bool(self._access_to_all(client.identity) & WRITE)

    def receives_all(self, client: ClientInfo) -> bool:
        """See edge.auth.interfaces.Surveyable."""
        return bool(self._access_to_all(client.identity) & READ)

    def publish_rules(self, client: ClientInfo) -> bytes | None:
        """See edge.auth.interfaces.Surveyable."""
        return self._publish_rules.of(client)

    def receive_rules(self, client: ClientInfo) -> bytes | None:
        """See edge.auth.interfaces.Surveyable."""
        return self._receive_rules.of(client)

    def _access_to_all(self, identity: str | None) -> int:
        """Access that a user has to every topic which does not begin with $. Needs no walk: a client
        connects.
        """
        if self._patterns_deny or identity in self._denied:
            return int(Access.NONE)
        return self._users.get(identity, _EMPTY).below | self._patterns.below

    def allowed_filters(self, client: ClientInfo, topic_filter: str) -> AllowedFilters | None:
        """See edge.auth.interfaces.Surveyable."""
        levels, trees = topic_filter.split("/"), self._trees(client)
        filters: set[str] = set()
        for common in itertools.chain.from_iterable(tree.common(levels) for tree in trees):
            filters.add("/".join(common))
            if topic_filter in filters:
                filters = {topic_filter}
                break
            if len(filters) > ALLOWED_FILTERS_MAX:
                return None
        filters.discard("")
        return AllowedFilters(tuple(filters), not any(tree.denies_some(levels) for tree in trees))

    def changed_users(self, before: object) -> frozenset[str | None] | None:
        """See edge.auth.interfaces.Surveyable."""
        if not isinstance(before, AccessRules):
            return None
        old, new = before._users, self._users
        try:
            if before._patterns != self._patterns:
                return None
            return frozenset(user for user in old.keys() | new.keys() if old.get(user) != new.get(user))
        except RecursionError:  # rules of very many levels
            return None

    def may_subscribe(self, client: ClientInfo, topic_filter: str) -> bool:
        """True if there may be a topic for `topic_filter` that `client` may receive.

        may_receive() decides each delivery, topic by topic: a filter wider than the rules is granted, and
        delivers the allowed topics.
        """
        _, inner = split_share(topic_filter)
        levels = inner.split("/")
        trees = self._trees(client)
        readable = (common for tree in trees for common in tree.common(levels) if common != NO_TOPIC)
        return any(not any(tree.denies_all(common) for tree in trees) for common in readable)

    def _allows(self, client: ClientInfo, topic: str, access: int) -> bool:
        levels = topic.split("/")
        granted = 0
        for tree in self._trees(client):
            granted |= tree.access(levels)
        return bool(granted & access) and not granted & DENY

    def _trees(self, client: ClientInfo) -> tuple[_Walk, _Walk]:
        names = names_of(client)
        own = self._users.get(client.identity, _EMPTY)
        return _Walk(own, names), _Walk(self._patterns, names)


class _Walk:
    """A tree with the names of one client. A step is (node, True if only its denials count)."""

    def __init__(self, root: _AclNode, names: dict[str, str]) -> None:
        self._root = root
        self._names = names

    def access(self, levels: Sequence[str]) -> int:
        """Combined access of all rules that match a topic."""
        steps = [(self._root, False)]
        access = 0
        for depth, level in enumerate(levels):
            dollar = depth == 0 and level[:1] == "$"
            if not dollar:
                for node, strict in steps:
                    access |= node.below & DENY if strict else node.below
            steps = [after for node, strict in steps for after in self._after(node, strict, level, dollar)]
            if not steps:
                return access
        for node, strict in steps:
            matching = node.below | node.here
            access |= matching & DENY if strict else matching
        return access

    def _after(
        self, node: _AclNode, strict: bool, level: str, dollar: bool
    ) -> Iterator[tuple[_AclNode, bool]]:
        """Nodes one level below that match `level`, each with True if only its denials count.

        `dollar`: the level begins with $, so no wildcard matches it.
        """
        if child := node.children.get(level):
            yield child, strict
        if dollar:
            return
        if child := node.children.get("+"):
            yield child, strict
        for template, child in node.templates.items():
            text = filled(template, self._names)
            if text is None or text == level:
                yield child, strict or text is None

    # ---- filters ----

    def common(self, filter_levels: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """Common part of `filter_levels` and of each rule that allows reading, as filters."""
        yield from self._common(self._root, filter_levels, ())

    def _common(
        self, node: _AclNode, filter_levels: Sequence[str], above: tuple[str, ...]
    ) -> Iterator[tuple[str, ...]]:
        first = not above
        if node.below & READ and not (first and filter_levels[0].startswith("$")):
            yield (*above, *filter_levels)
        if node.here & READ and (not filter_levels or filter_levels[0] == "#"):
            yield above
        if not filter_levels:
            return
        for level, child in self._readable_children(node, first=first):
            if filter_levels[0] != "#":
                if (both := _both(filter_levels[0], level, first=first)) is not None:
                    yield from self._common(child, filter_levels[1:], (*above, both))
            elif not (first and level.startswith("$")):
                yield from self._common(child, filter_levels, (*above, level))

    def _readable_children(self, node: _AclNode, *, first: bool) -> Iterator[tuple[str, _AclNode]]:
        yield from node.children.items()
        for template, child in node.templates.items():
            text = filled(template, self._names)
            if text is not None and not (first and text.startswith("$")):
                yield text, child

    def denies_some(self, filter_levels: Sequence[str]) -> bool:
        """True if a rule may deny a topic of `filter_levels`. Topics with $ are not distinguished."""
        return self._denies_some(self._root, filter_levels)

    def _denies_some(self, node: _AclNode, filter_levels: Sequence[str]) -> bool:
        if node.below & DENY or (node.here & DENY and (not filter_levels or filter_levels[0] == "#")):
            return True
        if not filter_levels:
            return False
        rest = filter_levels if filter_levels[0] == "#" else filter_levels[1:]
        return any(
            self._denies_some(child, rest)
            for level, child in self._denying_children(node, dollar=False)
            if filter_levels[0] in {"#", "+", level} or level == "+"
        )

    def denies_all(self, topics: Sequence[str]) -> bool:
        """True if one rule denies every topic of the filter `topics`."""
        steps = [self._root]
        for depth, level in enumerate(topics):
            dollar = depth == 0 and level.startswith("$")
            if not dollar and any(node.below & DENY for node in steps):
                return True
            if level == "#":
                return False
            steps = [
                child
                for node in steps
                for name, child in self._denying_children(node, dollar=dollar)
                if name == level or (name == "+" and not dollar)
            ]
        return any((node.below | node.here) & DENY for node in steps)

    def _denying_children(self, node: _AclNode, *, dollar: bool) -> Iterator[tuple[str, _AclNode]]:
        yield from node.children.items()
        if dollar:
            return
        for template, child in node.templates.items():
            yield filled(template, self._names) or "+", child


def _both(filter_level: str, level: str, *, first: bool) -> str | None:
    """The level that two levels have in common; None if there is none."""
    if filter_level == level:
        return level
    if filter_level == "+":
        return None if first and level.startswith("$") else level
    if level == "+":
        return None if first and filter_level.startswith("$") else filter_level
    return None
