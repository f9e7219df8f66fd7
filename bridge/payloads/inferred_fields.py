"""Fields of sampled payloads: the type of each key, by the values that the sample has.

    types      the type that most values of a key fit: long, or double if one value has a fraction; timestamp,
               if each text is a time, or if the key is called ts, time or timestamp and the number is a time
               between 2000 and 2100
    arrays     of values of one type
    maps       an object with many keys that few payloads share; any other object gives a field for each key
    left out   arrays of objects, keys that no path can hold, and the rarest keys above the limit of an entry

Owns these rules. infer.py chooses topics and formats.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bridge.payloads.kinds import ELEMENTS
from bridge.payloads.schema import DEPTH_MAX, KEY_MAX_BYTES
from bridge.payloads.undecoded_text import Pairs

MAP_KEYS_MIN = 9  # an object with fewer different keys is no map
MAP_SHARE_MAX = 0.5  # of the objects with a key, on average over the keys
KEYS_MAX = 4096  # different paths that are counted
TIME_KEY: Final = re.compile(r"(?:^|_)(?:ts|time|timestamp)(?:$|_)", re.ASCII | re.IGNORECASE)
TIME_TEXT: Final = re.compile(
    r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d(?::?\d\d)?)?", re.ASCII
)
UNITS: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
YEAR_2000_S, YEAR_2100_S = 946_684_800, 4_102_444_800


@dataclass(slots=True)
class FoundField:
    """A key of the sample. `present`: payloads that have it, and not null."""

    path: tuple[str, ...]
    kind: str
    unit: str
    present: int


@dataclass(slots=True)
class _Key:
    """Values of one path."""

    kinds: Counter[str] = field(default_factory=Counter)
    objects: int = 0
    elements: Counter[str] = field(default_factory=Counter)  # of arrays
    units: Counter[str] = field(default_factory=Counter)  # numbers that are times of this century
    numbers: int = 0


def fields_of(values: Iterable[Any]) -> tuple[list[FoundField], list[str]]:
    """The fields of decoded payloads, and a line for each key that is left out, with the reason."""
    keys: dict[tuple[str, ...], _Key] = {}
    dropped: set[str] = set()
    for value in values:
        for path, inner in _walk(value, (), dropped):
            if path in keys or len(keys) < KEYS_MAX:
                _count(keys.setdefault(path, _Key()), inner)
            else:
                dropped.add(f"keys after the first {KEYS_MAX}")
    fields = list(_chosen(keys, dropped))
    return fields, sorted(dropped)


def _walk(value: Any, path: tuple[str, ...], dropped: set[str]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each key with its value, outer ones first. The payload itself has the path ()."""
    if path or not isinstance(value, Pairs | Mapping):
        yield path, value
    if not isinstance(value, Pairs | Mapping):
        return
    for key, inner in value if isinstance(value, Pairs) else value.items():
        if not isinstance(key, str) or not _is_key(key) or len(path) == DEPTH_MAX:
            if len(dropped) < KEYS_MAX:
                dropped.add(f"{_name(path)}: keys that no path can hold")
            continue
        yield from _walk(inner, (*path, key), dropped)


def _is_key(key: str) -> bool:
    try:
        return 0 < len(key.encode()) <= KEY_MAX_BYTES
    except UnicodeEncodeError:
        return False


def _count(key: _Key, value: Any) -> None:
    if isinstance(value, Pairs | Mapping):
        key.objects += 1
    elif isinstance(value, list | tuple):
        key.kinds["array"] += 1
        key.elements.update(filter(None, (kind_of(element) or "null" for element in value)))
    elif value is not None:
        key.kinds[kind_of(value)] += 1
        if type(value) in {int, float}:
            key.numbers += 1
            seconds = ((unit, value / factor) for unit, factor in UNITS.items())
            key.units.update(unit for unit, time in seconds if YEAR_2000_S <= time < YEAR_2100_S)


def kind_of(value: Any) -> str:
    """The type of a value; "": null; "other": no field can hold it."""
    kind = type(value)
    if kind is int:
        return "long" if -(1 << 63) <= value < 1 << 63 else "double" if abs(value) < 1 << 1023 else "other"
    if kind is str:
        return "timestamp" if TIME_TEXT.fullmatch(value) else "string"
    names = {float: "double", bool: "boolean", bytes: "binary", type(None): ""}
    return names.get(kind, "other")


def _best(kinds: Mapping[str, int]) -> tuple[str, int]:
    """The narrowest type that most values fit, and the number of these values."""
    long, text = kinds.get("long", 0), kinds.get("timestamp", 0) + kinds.get("string", 0)
    fits = {
        "boolean": kinds.get("boolean", 0),
        "long": long,
        "double": long + kinds.get("double", 0),
        "timestamp": kinds.get("timestamp", 0),
        "string": text,
        "binary": kinds.get("binary", 0),
    }
    best = max(fits, key=lambda kind: fits[kind])  # the first of equals
    return best, fits[best]


def _chosen(keys: dict[tuple[str, ...], _Key], dropped: set[str]) -> Iterator[FoundField]:
    closed: set[tuple[str, ...]] = set()  # paths below which there are no fields
    for path, key in keys.items():
        if any(path[:depth] in closed for depth in range(len(path))):
            continue
        kind, count = _best(key.kinds)
        if key.objects and key.objects >= max(count, key.kinds["array"]):
            if (map_kind := _map_kind(path, key, keys)) is not None:
                closed.add(path)
                yield FoundField(path, map_kind, "", key.objects + key.kinds.total())
            continue
        closed.add(path)
        unit = ""
        if key.kinds["array"] > count:
            kind = _array_kind(key) or ""
            if not kind:
                dropped.add(f"{_name(path)}: an array of other values")
                continue
        elif count == 0:
            continue
        elif kind in {"long", "double"}:
            unit = _unit(path, key)
        yield FoundField(path, "timestamp" if unit else kind, unit, key.objects + key.kinds.total())


def _unit(path: tuple[str, ...], key: _Key) -> str:
    """The unit, if the numbers are times."""
    if not path or not TIME_KEY.search(path[-1]) or not key.units:
        return ""
    unit, count = key.units.most_common(1)[0]
    return unit if count == key.numbers else ""


def _array_kind(key: _Key) -> str | None:
    elements = {kind: count for kind, count in key.elements.items() if kind != "null"}
    kind, count = _best(elements)
    kind = "string" if kind == "timestamp" else kind
    if not elements:
        return None
    return f"array<{kind}>" if count == sum(elements.values()) and kind in ELEMENTS else None


def _map_kind(path: tuple[str, ...], key: _Key, keys: dict[tuple[str, ...], _Key]) -> str | None:
    """The type of an object that is a map; None: its keys are fields."""
    children = [inner for other, inner in keys.items() if other[:-1] == path and len(other) == len(path) + 1]
    if len(children) < MAP_KEYS_MIN:
        return None
    values = Counter[str]()
    for child in children:
        if child.objects or child.kinds["array"]:
            return None
        values.update(child.kinds)
    shared = values.total() / (len(children) * key.objects)
    kind, count = _best(values)
    kind = "string" if kind == "timestamp" else kind
    if shared > MAP_SHARE_MAX or count < values.total() or kind not in ELEMENTS:
        return None
    return f"map<string,{kind}>"


def _name(path: tuple[str, ...]) -> str:
    return ".".join(path) or "payload"
