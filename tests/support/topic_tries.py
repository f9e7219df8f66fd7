"""Topic tries in Python: filters to subscribers, and topic names to their ids. The oracle of the C engine's.

Pure: a subscriber is any key. Filters and names must be valid (edge.mqtt.topic_filters).
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Hashable, Iterator
from typing import Generic, TypeAlias, TypeVar

from edge.broker.subscription_tree import has_wildcard
from edge.engine.subscription_options import SubscriptionOptions, combined
from edge.mqtt.topic_filters import matches

S = TypeVar("S", bound=Hashable)

REST_COST = 2  # cost in branches of comparing the rest of one name


class _FilterNode(Generic[S]):
    """One level of the filters with wildcards. Both dicts are created on demand."""

    __slots__ = ("children", "subscribers")

    def __init__(self) -> None:
        self.children: dict[str, _FilterNode[S]] | None = None
        self.subscribers: dict[S, int] | None = None


class SubscriptionTree(Generic[S]):
    """Filters -> {subscriber: terms}. Filters without a wildcard are in one dict, the others in a trie."""

    def __init__(self) -> None:
        self._exact: dict[str, dict[S, int]] = {}
        self._root: _FilterNode[S] = _FilterNode()

    def add(self, topic_filter: str, subscriber: S, options: int) -> None:
        """Add a subscription, or replace its terms."""
        if not has_wildcard(topic_filter):
            self._exact.setdefault(topic_filter, {})[subscriber] = options
            return
        node = self._root
        for level in topic_filter.split("/"):
            if node.children is None:
                node.children = {}
            found = node.children.get(level)
            if found is None:
                found = node.children[level] = _FilterNode()
            node = found
        if node.subscribers is None:
            node.subscribers = {}
        node.subscribers[subscriber] = options

    def remove(self, topic_filter: str, subscriber: S) -> bool:
        """Remove a subscription and the nodes that only it needed. True if it was there."""
        if not has_wildcard(topic_filter):
            subscribers = self._exact.get(topic_filter, {})
            was_there = subscribers.pop(subscriber, None) is not None
            if was_there and not subscribers:
                del self._exact[topic_filter]
            return was_there
        path: list[tuple[_FilterNode[S], str]] = []
        node = self._root
        for level in topic_filter.split("/"):
            found = (node.children or {}).get(level)
            if found is None:
                return False
            path.append((node, level))
            node = found
        if node.subscribers is None or node.subscribers.pop(subscriber, None) is None:
            return False
        node.subscribers = node.subscribers or None
        _prune(path, node)
        return True

    def match(self, topic: str) -> dict[S, SubscriptionOptions]:
        """Subscribers whose filters match `topic`: each once, with the combined terms of all its filters."""
        found: dict[S, SubscriptionOptions] = {**self._exact.get(topic, {})}
        for subscribers in self._matching(topic):
            for subscriber, options in subscribers.items():
                held = found.get(subscriber)
                found[subscriber] = options if held is None else combined(held, options)
        return found

    def _matching(self, topic: str) -> list[dict[S, int]]:
        """Subscribers of each filter with wildcards that matches `topic`."""
        found: list[dict[S, int]] = []
        nodes = [self._root]
        wildcards = topic[:1] != "$"  # wildcards of the first level do not match $ topics [MQTT-4.7.2-1]
        for level in topic.split("/"):
            below: list[_FilterNode[S]] = []
            for node in nodes:
                if node.children is None:
                    continue
                if wildcards:
                    if (rest := node.children.get("#")) and rest.subscribers:
                        found.append(rest.subscribers)
                    if plus := node.children.get("+"):
                        below.append(plus)
                if child := node.children.get(level):
                    below.append(child)
            nodes = below
            wildcards = True
        for node in nodes:
            if node.subscribers:
                found.append(node.subscribers)
            if node.children is not None and (rest := node.children.get("#")) and rest.subscribers:
                found.append(rest.subscribers)  # `a/#` also matches `a`
        return found


def _prune(path: list[tuple[_FilterNode[S], str]], node: _FilterNode[S]) -> None:
    """Remove `node` and those above it, up to the first that is in use."""
    for parent, level in reversed(path):
        if node.subscribers or node.children or parent.children is None:
            return
        del parent.children[level]
        parent.children = parent.children or None
        node = parent


# Content below one level of a name. An int is the id of the only name, which ends here. A pair is the rest of
# the only name, which continues here, and its id. A dict stands for several names: their next levels, and
# None for a name that ends here. Most devices have one topic of their own: the pair saves a dict for each.
_Below: TypeAlias = "int | tuple[str, int] | _Level"
_Level: TypeAlias = "dict[str | None, _Below]"


class TopicNames:
    """Known names -> ids, searched by filter."""

    def __init__(self) -> None:
        self._root: _Level = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, name: str, topic: int) -> None:
        """Add a name that is not in the trie."""
        self._count += 1
        node, rest = self._root, name
        while True:
            level, slash, rest = rest.partition("/")
            child = node.get(level)
            if child is None:
                node[level] = (rest, topic) if slash else topic
                return
            if not isinstance(child, dict):
                node[level] = child = _opened(child)
            if not slash:
                child[None] = topic
                return
            node = child

    def remove(self, name: str) -> None:
        """Remove a name that is in the trie."""
        self._count -= 1
        path: list[tuple[_Level, str]] = []
        node = self._root
        for level in name.split("/"):
            path.append((node, level))
            child = node[level]
            if not isinstance(child, dict):
                break
            node = child
        else:
            del node[None]
            if node:
                return
        for parent, level in reversed(path):
            del parent[level]
            if parent:
                return

    def match(self, topic_filter: str, most: int | None = None) -> array[int] | None:
        """Ids of the names that `topic_filter` matches: array("I"), unordered.

        None if more than about `most` branches must be examined: scanning all names in C is faster then.
        """
        found: array[int] = array("I")
        left = sys.maxsize if most is None else most
        nodes: list[_Level] = [self._root]
        levels = topic_filter.split("/")
        for depth, level in enumerate(levels):
            if level == "#":
                if sum(map(len, nodes)) > left:
                    return None
                return _collect(nodes, found, at_root=depth == 0, most=most)
            if level != "+":
                left -= len(nodes)
            else:
                left -= sum(map(len, nodes)) * (1 if depth + 1 == len(levels) else REST_COST)
            if left < 0:
                return None
            rest, below = levels[depth + 1 :], []
            for child in _children(nodes, level, at_root=depth == 0):
                if isinstance(child, dict):
                    below.append(child)
                elif _ends_as(child, rest):
                    found.append(child if isinstance(child, int) else child[1])
            nodes = below
        found.extend(own for node in nodes if isinstance(own := node.get(None), int))
        return found


def _opened(child: int | tuple[str, int]) -> _Level:
    """The entry of one name as a dict, ready for a second name."""
    if isinstance(child, int):
        return {None: child}
    level, slash, rest = child[0].partition("/")
    return {level: (rest, child[1]) if slash else child[1]}


def _ends_as(child: int | tuple[str, int], rest: list[str]) -> bool:
    """True if the only name below matches the rest of a filter, which never begins at the first level."""
    if isinstance(child, int):
        return not rest or rest == ["#"]
    return bool(rest) and matches("/".join(["_", *rest]), f"_/{child[0]}")


def _children(nodes: list[_Level], level: str, *, at_root: bool) -> Iterator[_Below]:
    """Entries below `level`, or below every level for `+`, without $ names at the root [MQTT-4.7.2-1]."""
    for node in nodes:
        if level != "+":
            if (child := node.get(level)) is not None:
                yield child
            continue
        for name, child in node.items():
            if name is not None and not (at_root and name[:1] == "$"):
                yield child


def _collect(nodes: list[_Level], found: array[int], *, at_root: bool, most: int | None) -> array[int] | None:
    """Add all ids below `nodes`, and those of names that end there: `a/#` also matches `a`.

    None if more than `most` entries must be examined.
    """
    stack: list[_Below] = list(_children(nodes, "+", at_root=True)) if at_root else [*nodes]
    while stack:
        node = stack.pop()
        if isinstance(node, int):
            found.append(node)
        elif isinstance(node, tuple):
            found.append(node[1])
        else:
            if most is not None and len(found) + len(stack) + len(node) > most:
                return None
            stack.extend(node.values())
    return found
