"""Pushed-down conditions: the topic and the times that a condition of DuckDB allows.

DuckDB gives a condition as a pyarrow expression, which has no public structure but its text. Only a
conjunction of comparisons is understood. Anything else excludes nothing, and is applied to the decoded rows.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from bridge.arrow.schema import RAW_TYPES, TYPES

_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
_COMPARISON = re.compile(r"\((\w+) (==|>=|>|<=|<) (-?\w+)\)")
_NAME = re.compile(r"\w+")
_OTHER = re.compile(r"\b(?:or|invert|if_else|is_in)\b")


@dataclass(frozen=True, slots=True)
class Pushed:
    """Columns that the condition reads, and the records that it can be true for."""

    columns: frozenset[str] = frozenset()
    topic: str = ""  # "": any
    since_ns: int | None = None
    until_ns: int | None = None  # exclusive


def pushed(condition: Any) -> Pushed:
    """The understood part of a condition: a pyarrow expression, or None."""
    if condition is None:
        return Pushed()
    texts: list[str] = []

    def placeholder(match: re.Match[str]) -> str:
        texts.append(match.group())
        return f"t{len(texts) - 1}t"

    plain = _TEXT.sub(placeholder, str(condition))
    columns = frozenset(_NAME.findall(plain)) & {*TYPES, *RAW_TYPES}
    if _OTHER.search(plain):
        return Pushed(columns)
    topic, since_ns, until_ns = "", None, None
    for name, operator, value in _COMPARISON.findall(plain):
        if name == "topic" and operator == "==" and (text := re.fullmatch(r"t(\d+)t", value)):
            topic = _unquoted(texts[int(text[1])])
        elif name == "timestamp_ns" and re.fullmatch(r"-?\d+", value):
            if operator in {">=", ">", "=="}:
                since_ns = max(int(value), since_ns or 0)
            if operator in {"<=", "<", "=="}:
                end_ns = int(value) + 1
                until_ns = end_ns if until_ns is None else min(end_ns, until_ns)
    return Pushed(columns, topic, since_ns, until_ns)


def _unquoted(text: str) -> str:
    """The string of a literal; "": its escapes are not those of JSON."""
    try:
        return str(json.loads(text))
    except ValueError:
        return ""
