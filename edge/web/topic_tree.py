"""Topic tree: levels of topics with sums, rates and last values. No I/O; one thread at a time.

Bounded: topics beyond `topics_max` are counted in `others`. A rate is a moving average over about AVERAGE_S;
a topic without new messages needs no work for its rate to fall.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from typing import Any

AVERAGE_S = 10.0
VALUE_BYTES = 256  # shown of a last payload

Row = dict[str, Any]


class _Node:
    """A level. `topics`: topics at and below the node. `value`: of its own topic; None: no message of it."""

    __slots__ = (
        "at_s", "children", "count", "name", "qos", "rate", "retained", "sorted", "time_ns", "topics", "value"
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.children: dict[str, _Node] | None = None
        self.sorted: list[str] = []  # names of children; of another length: not up to date
        self.topics = 0
        self.count = 0
        self.rate = 0.0
        self.at_s = 0.0  # of the rate
        self.time_ns = 0
        self.value: bytes | None = None
        self.qos = 0
        self.retained = False

    def rate_at(self, now_s: float) -> float:
        return self.rate * math.exp((self.at_s - now_s) / AVERAGE_S)


def _by_name(node: _Node) -> Any:
    return node.name


SORTS = {
    "topic": _by_name,
    "rate": lambda node: (-node.rate, node.name),
    "count": lambda node: (-node.count, node.name),
    "age": lambda node: (-node.time_ns, node.name),
}
"""Sort keys of nodes by the name of the column."""


class TopicTree:
    """Levels of all topics seen."""

    def __init__(self, topics_max: int) -> None:
        self.others = 0  # messages of topics above the limit
        self._topics_max = topics_max
        self._began_s: float | None = None  # of the rates
        self._root = _Node("")

    @property
    def topics(self) -> int:
        """Number of topics."""
        return self._root.topics

    def add(
        self, topic: str, value: bytes, time_ns: int, qos: int, count: int, now_s: float, elapsed_s: float
    ) -> None:
        """Add `count` messages of a topic, of which `value` is the last. `elapsed_s`: 0: no rate is known."""
        path = self._path(topic)
        if path is None:
            self.others += count
            return
        if elapsed_s and self._began_s is None:
            self._began_s = now_s - elapsed_s
        for node in path:
            node.count += count
            node.time_ns = max(node.time_ns, time_ns)
            if elapsed_s:
                weight = 1 - math.exp(-elapsed_s / AVERAGE_S)
                node.rate = node.rate_at(now_s) + count / elapsed_s * weight
                node.at_s = now_s
        leaf = path[-1]
        leaf.value, leaf.qos = value[:VALUE_BYTES], qos

    def add_skipped(self, topic: str, value: bytes, time_ns: int, qos: int, count: int) -> None:
        """Add older messages, if the topic has none: an estimate has counted those of known topics."""
        path = self._path(topic)
        if path is None or path[-1].count == 0:
            self.add(topic, value, time_ns, qos, count, 0.0, 0.0)

    def add_retained(self, topic: str, value: bytes, time_ns: int, qos: int) -> None:
        """Mark a topic as one with a retained message, whose value is shown if there is no later one."""
        path = self._path(topic)
        if path is None:
            return
        leaf = path[-1]
        leaf.retained = True
        if leaf.time_ns < time_ns:
            leaf.value, leaf.time_ns, leaf.qos = value[:VALUE_BYTES], time_ns, qos

    def children(self, prefix: str, first: int, count: int, sort: str, now_s: float) -> tuple[list[Row], int]:
        """Rows of the levels below `prefix` ("" or "plant/1"), and the number of all of them."""
        node: _Node | None = self._root
        for level in prefix.split("/") if prefix else ():
            node = (node.children or {}).get(level) if node is not None else None
        if node is None or not node.children:
            return [], 0
        start = f"{prefix}/" if prefix else ""
        if sort == "topic":
            if len(node.sorted) != len(node.children):
                node.sorted = sorted(node.children)
            chosen = [node.children[name] for name in node.sorted[first : first + count]]
        else:
            for child in node.children.values():
                child.rate, child.at_s = child.rate_at(now_s), now_s
            chosen = heapq.nsmallest(first + count, node.children.values(), key=SORTS[sort])[first:]
        return [self._row(start + child.name, child, now_s) for child in chosen], len(node.children)

    def search(self, text: str, first: int, count: int, now_s: float) -> tuple[list[Row], int]:
        """Rows of topics that contain `text`, in no order, and their number."""
        matching = [(topic, node) for topic, node in self._leaves(self._root, "") if text in topic.casefold()]
        return [self._row(topic, node, now_s) for topic, node in matching[first : first + count]], len(
            matching
        )

    def _leaves(self, node: _Node, start: str) -> Iterator[tuple[str, _Node]]:
        todo = [(start, node)]
        while todo:
            prefix, node = todo.pop()
            for child in (node.children or {}).values():
                topic = prefix + child.name
                if child.value is not None:
                    yield topic, child
                if child.children:
                    todo.append((f"{topic}/", child))

    def _path(self, topic: str) -> list[_Node] | None:
        """Nodes from the root to the topic; None: there is no room for another topic."""
        levels = topic.split("/")
        path = [self._root]
        for level in levels:
            child = (path[-1].children or {}).get(level)
            if child is None:
                break
            path.append(child)
        if len(path) <= len(levels) or path[-1].value is None:
            if self._root.topics >= self._topics_max:
                return None
            for level in levels[len(path) - 1 :]:
                children = path[-1].children
                if children is None:
                    children = path[-1].children = {}
                node = children[level] = _Node(level)
                path.append(node)
            path[-1].value = b""
            for node in path:
                node.topics += 1
        return path

    def _row(self, topic: str, node: _Node, now_s: float) -> Row:
        # An average that began a moment ago has only a part of its weight yet.
        weight = 1 - math.exp((self._began_s - now_s) / AVERAGE_S) if self._began_s is not None else 1.0
        return {
            "topic": topic,
            "name": node.name,
            "topics": node.topics,
            "levels": len(node.children or ()),
            "count": node.count,
            "rate": round(node.rate_at(now_s) / max(weight, 1e-3), 2),
            "time_ns": node.time_ns,
            "qos": node.qos,
            "retained": node.retained,
            "value": node.value,
        }
