"""MQTT topic filters as conditions in SQL, in the order of their cost: equality, prefix, pattern."""

from __future__ import annotations

import re
from collections.abc import Iterable

from edge.mqtt.topic_filters import matches


def quoted(text: str) -> str:
    """A string literal."""
    escaped = text.replace("'", "''")
    return f"'{escaped}'"


def any_topic(filters: Iterable[str]) -> str:
    """The condition that one of the filters matches the column `topic`."""
    return " OR ".join(f"({topic_condition(topic_filter)})" for topic_filter in filters)


def topic_condition(topic_filter: str) -> str:
    """The condition that a valid filter matches the column `topic`, as edge.mqtt.topic_filters.matches()."""
    levels = topic_filter.split("/")
    if "+" not in levels and levels[-1] != "#":
        return f"topic = {quoted(topic_filter)}"
    if topic_filter == "#":
        return "NOT starts_with(topic, '$')"
    if "+" not in levels:
        parent = topic_filter[:-2]
        assert matches(topic_filter, parent)
        return f"topic = {quoted(parent)} OR starts_with(topic, {quoted(parent + '/')})"
    return f"regexp_full_match(topic, {quoted(_pattern(levels))}, 's')"


def _pattern(levels: list[str]) -> str:
    """A regular expression of RE2, which has no lookahead: a first level + is spelled out."""
    below = levels[-1] == "#"
    parts = ["[^/]*" if level == "+" else re.escape(level) for level in (levels[:-1] if below else levels)]
    if levels[0] == "+":
        parts[0] = "(?:[^/$][^/]*)?"
    return "/".join(parts) + ("(?:/.*)?" if below else "")
