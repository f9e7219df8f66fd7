"""Levels of topics as columns, for the fields of a payload schema that name a level.

They are computed once for each topic of a batch, and repeated for its records.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bridge.payloads.conversion import INT_MAX, INT_MIN, join_reasons
from bridge.payloads.kinds import KINDS
from bridge.payloads.rows import Typed
from bridge.payloads.schema import Field, Payloads
from bridge.payloads.undecoded_text import entry

NUMBER = re.compile(r"-?[0-9]{1,19}")
RANGES = {"long": (-(1 << 63), (1 << 63) - 1), "int": (INT_MIN, INT_MAX)}


def with_levels(
    payloads: Payloads,
    numbers: Sequence[int],
    topics: pa.DictionaryArray,
    decoded: Typed,
    wanted: Collection[str],
) -> Typed:
    """The decoded columns, and a column for each topic level of the schema.

    `numbers`: the entry of the schema for each topic of the dictionary of `topics`.

    A level that does not fit its type is null; the reasons of its records name it.
    """
    names = {field.column: field.kind for rule in payloads.rules for field in rule.level_fields}
    names = {name: kind for name, kind in names.items() if name in wanted}
    if not names:
        return decoded
    columns: dict[str, list[Any]] = {name: [] for name in names}
    reasons: list[str | None] = []
    for topic, number in zip(topics.dictionary.to_pylist(), numbers, strict=True):
        fields = {field.column: field for field in payloads.rules[number].level_fields} if number >= 0 else {}
        misfits = []
        for name, values in columns.items():
            value, misfit = _level(topic, fields.get(name))
            values.append(value)
            misfits += [misfit] if misfit else []
        reasons.append("; ".join(misfits) or None)
    arrays = dict(decoded.columns)
    for name, kind in names.items():
        levels = pa.array(columns[name], KINDS[kind]).take(topics.indices)
        arrays[name] = pc.coalesce(levels, arrays[name]) if name in arrays else levels
    if not any(reasons):
        return decoded._replace(columns=arrays)
    texts = pa.array(reasons, pa.string()).take(topics.indices)
    lost = decoded.lost or pa.repeat(pa.scalar(False), len(topics))
    return Typed(arrays, join_reasons(texts, decoded.reasons), lost)


def _level(topic: str, field: Field | None) -> tuple[str | int | None, str]:
    """The value of the level, and the reason if it does not fit."""
    levels = topic.split("/")
    if field is None or field.level > len(levels):
        return None, ""
    text = levels[field.level - 1]
    if field.kind == "string":
        return text, ""
    value_min, value_max = RANGES[field.kind]
    if NUMBER.fullmatch(text) and value_min <= int(text) <= value_max:
        return int(text), ""
    return None, entry([field.column], f"no {field.kind}", [text], len(topic.encode()))
