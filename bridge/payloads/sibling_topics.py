"""Sibling topics of a sample: entries with the same fields that differ only in the last level become one.

    plant/s1, plant/s2   with the fields temp and hum   ->   plant/+ with temp, hum and the last level

Owns this choice. An entry with a literal last level precedes those that end with +, so plant/status, with
other fields, keeps its entry. Entries are not merged if the new filter would match topics of another entry.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping

from bridge.payloads.schema import filter_pattern


def siblings(
    fields: Mapping[str, Hashable], topics: Mapping[str, Collection[str]]
) -> Iterator[tuple[str, list[str]]]:
    """The new filter of each group of siblings, and their present filters.

    `fields`: what siblings have in common; `topics`: the topics of the sample; both by filter.
    """
    alike = defaultdict[tuple[str, Hashable], list[str]](list)
    open_ended = [name for name in fields if _last(name) == "+"]
    taken: dict[str, Collection[str]] = {name: topics[name] for name in open_ended}
    for name, kind in fields.items():
        if "/" in name and _last(name) != "+":
            alike[name.rpartition("/")[0], kind].append(name)
    for (parent, _), names in sorted(alike.items(), key=lambda item: -len(item[1])):
        merged = f"{parent}/+"
        own = {topic for name in names for topic in topics[name]}
        if len(names) < 2 or any(
            _matches(other, own) or _matches(merged, taken[other]) for other in open_ended
        ):
            continue
        open_ended.append(merged)
        taken[merged] = own
        yield merged, names


def precedence(topic_filter: str) -> tuple[bool, bool]:
    """Key to sort filters: the first filter that matches a topic counts."""
    return topic_filter == "#", _last(topic_filter) == "+"


def _last(topic_filter: str) -> str:
    return topic_filter.rpartition("/")[2]


def _matches(topic_filter: str, topics: Iterable[str]) -> bool:
    pattern = re.compile(filter_pattern(topic_filter), re.DOTALL)
    return any(map(pattern.fullmatch, topics))
