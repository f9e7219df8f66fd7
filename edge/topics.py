"""The two tries of topics: filters -> who subscribed, and known names -> their ids.

Pure: no engine, no sessions; subscribers are whatever the caller uses as keys.  Filters and names must be
valid (edge.mqtt.topics) and within the broker's limits of length and levels: both tries are as deep as those.

A topic is matched against the filters once, when it is first seen; a new filter is matched against the names
once, when it is subscribed to.  Neither happens for a message.

Which topic a filter matches is defined once, by edge.mqtt.topics.matches(); a property test holds both tries
to it.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator
from typing import Generic, TypeAlias, TypeVar

__all__ = ["SubscriptionTree", "TopicNames", "has_wildcard"]

S = TypeVar("S", bound=Hashable)

TAG_QOS = 3


def has_wildcard(topic_filter: str) -> bool:
    """Whether it may match more than one name."""
    return "+" in topic_filter or "#" in topic_filter


class _Node(Generic[S]):
    """A level of the filters with wildcards.  Both dicts are made when they are needed."""

    __slots__ = ("children", "subscribers")

    def __init__(self) -> None:
        self.children: dict[str, _Node[S]] | None = None
        self.subscribers: dict[S, int] | None = None


class SubscriptionTree(Generic[S]):
    """Filters -> {subscriber: tag}.  Filters without a wildcard are one dict, the others a trie."""

    def __init__(self) -> None:
        self._exact: dict[str, dict[S, int]] = {}
        self._root: _Node[S] = _Node()

    def add(self, topic_filter: str, subscriber: S, tag: int) -> None:
        """Subscribe, or replace the tag of a subscription that is there."""
        if not has_wildcard(topic_filter):
            self._exact.setdefault(topic_filter, {})[subscriber] = tag
            return
        node = self._root
        for level in topic_filter.split("/"):
            if node.children is None:
                node.children = {}
            found = node.children.get(level)
            if found is None:
                found = node.children[level] = _Node()
            node = found
        if node.subscribers is None:
            node.subscribers = {}
        node.subscribers[subscriber] = tag

    def remove(self, topic_filter: str, subscriber: S) -> bool:
        """Whether there was such a subscription; what it alone needed of the tree is gone."""
        if not has_wildcard(topic_filter):
            subscribers = self._exact.get(topic_filter, {})
            was_there = subscribers.pop(subscriber, None) is not None
            if was_there and not subscribers:
                del self._exact[topic_filter]
            return was_there
        path: list[tuple[_Node[S], str]] = []
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

    def match(self, topic: str) -> dict[S, int]:
        """Everybody whose filters match `topic`, each once, with the highest QoS of them [MQTT-3.3.5-1]."""
        found: dict[S, int] = dict(self._exact.get(topic, {}))
        nodes = [self._root]
        wildcards = topic[:1] != "$"  # [MQTT-4.7.2-1], for the first level
        for level in topic.split("/"):
            below: list[_Node[S]] = []
            for node in nodes:
                if node.children is None:
                    continue
                if wildcards:
                    _merge(found, node.children.get("#"))
                    if plus := node.children.get("+"):
                        below.append(plus)
                if child := node.children.get(level):
                    below.append(child)
            nodes = below
            wildcards = True
        for node in nodes:
            _merge(found, node)
            if node.children is not None:  # `a/#` also matches `a`
                _merge(found, node.children.get("#"))
        return found


def _prune(path: list[tuple[_Node[S], str]], node: _Node[S]) -> None:
    """Take out `node` and those above it, as far as nothing else is there."""
    for parent, level in reversed(path):
        if node.subscribers or node.children or parent.children is None:
            return
        del parent.children[level]
        parent.children = parent.children or None
        node = parent


def _merge(found: dict[S, int], node: _Node[S] | None) -> None:
    if node is None or node.subscribers is None:
        return
    for subscriber, tag in node.subscribers.items():
        held = found.get(subscriber)
        if held is None or tag & TAG_QOS > held & TAG_QOS:
            found[subscriber] = tag


# A name that is no prefix of another is an int in its parent's dict; else a dict whose key None is its own
# id.
_Names: TypeAlias = "dict[str | None, _Names | int]"


class TopicNames:
    """Known names -> ids, asked by filter."""

    def __init__(self) -> None:
        self._root: _Names = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, name: str, topic: int) -> None:
        """A name that is not there yet."""
        *above, last = name.split("/")
        node = self._root
        for level in above:
            child = node.get(level)
            if not isinstance(child, dict):
                fresh: _Names = {} if child is None else {None: child}
                node[level] = child = fresh
            node = child
        child = node.get(last)
        if isinstance(child, dict):
            child[None] = topic
        else:
            node[last] = topic
        self._count += 1

    def remove(self, name: str) -> None:
        """A name that is there."""
        path: list[tuple[_Names, str]] = []
        node: _Names | int = self._root
        for level in name.split("/"):
            assert isinstance(node, dict)
            path.append((node, level))
            node = node[level]
        if isinstance(node, dict):
            del node[None]
        else:
            parent, level = path.pop()
            del parent[level]
            node = parent
        while not node and path:
            parent, level = path.pop()
            del parent[level]
            node = parent
        self._count -= 1

    def match(self, topic_filter: str) -> array[int]:
        """Ids of the names that `topic_filter` matches: array("I"), in no particular order."""
        found: array[int] = array("I")
        nodes: list[_Names | int] = [self._root]
        levels = topic_filter.split("/")
        for depth, level in enumerate(levels):
            if level == "#":
                found.extend(_ids_below(nodes, at_root=depth == 0))
                return found
            below: list[_Names | int] = []
            for node in nodes:
                if isinstance(node, int):
                    continue
                if level == "+":
                    below.extend(_children(node, at_root=depth == 0))
                elif (child := node.get(level)) is not None:
                    below.append(child)
            nodes = below
        for node in nodes:
            own = node if isinstance(node, int) else node.get(None)
            if isinstance(own, int):
                found.append(own)
        return found


def _children(node: _Names, *, at_root: bool) -> Iterator[_Names | int]:
    """What a wildcard stands for here: not what begins with $, at the root [MQTT-4.7.2-1]."""
    for level, child in node.items():
        if level is not None and not (at_root and level[:1] == "$"):
            yield child


def _ids_below(nodes: list[_Names | int], *, at_root: bool) -> Iterator[int]:
    stack: list[_Names | int] = list(_children(_only_dict(nodes), at_root=True)) if at_root else nodes[:]
    while stack:
        node = stack.pop()
        if isinstance(node, int):
            yield node
        else:
            stack.extend(node.values())


def _only_dict(nodes: list[_Names | int]) -> _Names:
    (root,) = nodes
    assert isinstance(root, dict)
    return root
