"""What users may publish and receive: rules on topics, compiled to trees.

A rule allows reading (to receive), writing (to publish) or both, or denies both, for the topics that an MQTT
filter matches.  Rules of a user hold for that user alone, those of nobody for clients without a name,
patterns for all.  What nothing allows is denied, and a denial beats every permission.

    pattern read devices/%c/#         %c: client identifier, %u: user name; put in when the client asks

A client that has no such name, or one with + # or / in it, is not served by a pattern that permits: it could
reach what is others'.  One that denies reads + there for such a client: it denies more.

Cost: one walk along the topic in the tree of the user, one in that of the patterns; rules of other users are
not looked at.  Owns no text form (edge.auth.acl_file) and no clients.  Topics that begin with $ are only for
rules that do.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntFlag

from edge.access import ClientFacts, Reach
from edge.mqtt.topics import split_share

__all__ = ["Access", "Rule", "Rules"]


class Access(IntFlag):
    """What a rule says.  Trees hold plain numbers, which cost a tenth of it to combine."""

    NONE = 0
    READ = 1
    WRITE = 2
    READWRITE = 3
    DENY = 4


@dataclass(frozen=True, slots=True)
class Rule:
    """One line.  `user` is None for clients without a name; patterns have none."""

    access: Access
    topic_filter: str
    user: str | None = None
    is_pattern: bool = False


@dataclass(slots=True)
class _Node:
    """One level of a tree.  `here`: rules that end with this level; `below`: that end with # behind it."""

    here: int = 0
    below: int = 0
    children: dict[str, _Node] = field(default_factory=dict)  # "+" is a name like others
    templates: dict[str, _Node] = field(default_factory=dict)  # levels with %c or %u in them

    def add(self, rule: Rule) -> None:
        node = self
        for level in rule.topic_filter.split("/"):
            if level == "#":
                node.below |= int(rule.access)
                return
            has_name = rule.is_pattern and _NAMES.search(level)
            node = (node.templates if has_name else node.children).setdefault(level, _Node())
        node.here |= int(rule.access)


READ, WRITE, DENY = int(Access.READ), int(Access.WRITE), int(Access.DENY)
REACH_MOST = 64  # filters that a client's reach is told in
NO_TOPIC = ("",)  # one empty level: `+` and `/#` have nothing else in common, and no topic is empty
_NAMES = re.compile("%[cu]")
_EMPTY = _Node()


class Rules:
    """An AccessList.  Never changes: new rules are a new one."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._users: dict[str | None, _Node] = {}
        self._patterns = _Node()
        self.denies_all = True  # no rule permits anything
        self.names_users = False  # a pattern has %u in it
        self.permits_anonymous = False  # some rule permits something to a client without a name
        for rule in rules:
            self.denies_all &= rule.access is Access.DENY
            self.names_users |= rule.is_pattern and "%u" in rule.topic_filter
            if rule.access is not Access.DENY and rule.user is None:
                self.permits_anonymous |= not (rule.is_pattern and "%u" in rule.topic_filter)
            tree = self._patterns if rule.is_pattern else self._users.setdefault(rule.user, _Node())
            tree.add(rule)

    @property
    def users(self) -> frozenset[str]:
        """Who has rules of their own."""
        return frozenset(user for user in self._users if user is not None)

    def may_publish(self, client: ClientFacts, topic: str) -> bool:
        """Whether a rule lets `client` write to `topic`, and none denies it."""
        return self._allows(client, topic, WRITE)

    def may_receive(self, client: ClientFacts, topic: str) -> bool:
        """Whether a rule lets `client` read `topic`, and none denies it."""
        return self._allows(client, topic, READ)

    def publishes_all(self, client: ClientFacts) -> bool:
        """See edge.access.Surveyable."""
        trees = self._trees(client)
        return any(tree.writes_all() for tree in trees) and not any(tree.denies_some(["#"]) for tree in trees)

    def reach(self, client: ClientFacts, topic_filter: str) -> Reach | None:
        """See edge.access.Surveyable."""
        levels, trees = topic_filter.split("/"), self._trees(client)
        filters: set[str] = set()
        for common in itertools.chain.from_iterable(tree.common(levels) for tree in trees):
            filters.add("/".join(common))
            if topic_filter in filters:
                filters = {topic_filter}
                break
            if len(filters) > REACH_MOST:
                return None
        filters.discard("")
        return Reach(tuple(filters), not any(tree.denies_some(levels) for tree in trees))

    def may_subscribe(self, client: ClientFacts, topic_filter: str) -> bool:
        """Whether there may be a topic for `topic_filter` that `client` may receive.

        What is delivered is judged by may_receive(), topic by topic: a filter that reaches further than the
        rules is granted, and brings what they allow.
        """
        _, inner = split_share(topic_filter)
        levels = inner.split("/")
        trees = self._trees(client)
        readable = (common for tree in trees for common in tree.common(levels) if common != NO_TOPIC)
        return any(not any(tree.denies_all(common) for tree in trees) for common in readable)

    def _allows(self, client: ClientFacts, topic: str, wanted: int) -> bool:
        levels = topic.split("/")
        found = 0
        for tree in self._trees(client):
            found |= tree.access(levels)
        return bool(found & wanted) and not found & DENY

    def _trees(self, client: ClientFacts) -> tuple[_Walk, _Walk]:
        names = {"%c": client.client_id, "%u": client.identity or ""}
        own = self._users.get(client.identity, _EMPTY)
        return _Walk(own, names), _Walk(self._patterns, names)


class _Walk:
    """A tree, as one client sees it.  A step is (node, whether only its denials count)."""

    def __init__(self, root: _Node, names: dict[str, str]) -> None:
        self._root = root
        self._names = names

    def access(self, levels: Sequence[str]) -> int:
        """Everything that is said about a topic."""
        steps = [(self._root, False)]
        found = 0
        for depth, level in enumerate(levels):
            dollar = depth == 0 and level[:1] == "$"
            if not dollar:
                for node, strict in steps:
                    found |= node.below & DENY if strict else node.below
            steps = [after for node, strict in steps for after in self._after(node, strict, level, dollar)]
            if not steps:
                return found
        for node, strict in steps:
            said = node.below | node.here
            found |= said & DENY if strict else said
        return found

    def _after(self, node: _Node, strict: bool, level: str, dollar: bool) -> Iterator[tuple[_Node, bool]]:
        if child := node.children.get(level):
            yield child, strict
        if dollar:
            return
        if child := node.children.get("+"):
            yield child, strict
        for template, child in node.templates.items():
            text = self._filled(template)
            if text is None or text == level:
                yield child, strict or text is None

    def _filled(self, template: str) -> str | None:
        """The level, with the client's names in it; None if one of them cannot be used."""
        for name in _NAMES.findall(template):
            value = self._names[name]
            if not value or any(char in value for char in "+#/"):
                return None
        return _NAMES.sub(lambda match: self._names[match.group()], template)

    # ---- filters ----

    def common(self, wanted: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """What the filter `wanted` and each rule that lets read have in common: filters, too."""
        yield from self._common(self._root, wanted, ())

    def _common(
        self, node: _Node, wanted: Sequence[str], above: tuple[str, ...]
    ) -> Iterator[tuple[str, ...]]:
        first = not above
        if node.below & READ and not (first and wanted[0].startswith("$")):
            yield (*above, *wanted)
        if node.here & READ and (not wanted or wanted[0] == "#"):
            yield above
        if not wanted:
            return
        for level, child in self._readable_children(node, first=first):
            if wanted[0] != "#":
                if (both := _both(wanted[0], level, first=first)) is not None:
                    yield from self._common(child, wanted[1:], (*above, both))
            elif not (first and level.startswith("$")):
                yield from self._common(child, wanted, (*above, level))

    def _readable_children(self, node: _Node, *, first: bool) -> Iterator[tuple[str, _Node]]:
        yield from node.children.items()
        for template, child in node.templates.items():
            text = self._filled(template)
            if text is not None and not (first and text.startswith("$")):
                yield text, child

    def writes_all(self) -> bool:
        """Whether one rule lets write to every topic."""
        return bool(self._root.below & WRITE)

    def denies_some(self, wanted: Sequence[str]) -> bool:
        """Whether a rule may deny a topic of the filter `wanted`: what begins with $ is not told apart."""
        return self._denies_some(self._root, wanted)

    def _denies_some(self, node: _Node, wanted: Sequence[str]) -> bool:
        if node.below & DENY or (node.here & DENY and (not wanted or wanted[0] == "#")):
            return True
        if not wanted:
            return False
        rest = wanted if wanted[0] == "#" else wanted[1:]
        return any(
            self._denies_some(child, rest)
            for level, child in self._denying_children(node, dollar=False)
            if wanted[0] in {"#", "+", level} or level == "+"
        )

    def denies_all(self, topics: Sequence[str]) -> bool:
        """Whether one rule denies every topic of the filter `topics`."""
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

    def _denying_children(self, node: _Node, *, dollar: bool) -> Iterator[tuple[str, _Node]]:
        yield from node.children.items()
        if dollar:
            return
        for template, child in node.templates.items():
            yield self._filled(template) or "+", child


def _both(wanted: str, level: str, *, first: bool) -> str | None:
    """What two levels have in common: a level, or None."""
    if wanted == level:
        return level
    if wanted == "+":
        return None if first and level.startswith("$") else level
    if level == "+":
        return None if first and wanted.startswith("$") else wanted
    return None
