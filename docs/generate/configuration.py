"""Page of the configuration file: sections, keys, and the rules between them, from edge/config*.py.

The types, ranges and hints are those that `brim check` reports; the meaning is the string below each field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import EnumType
from inspect import isfunction
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
from msgspec import inspect

import edge.config.schema
import edge.config.setting_rules
import edge.config.units
from docs.generate import MissingDescription
from docs.generate.markdown import code, prose, table
from docs.generate.sinks import sinks
from docs.generate.source import doc_of, field_docs
from edge.config.live_settings import START_LIMITS
from edge.config.setting_reader import table_type, tables_of

_HEADER = ("Key", "Type", "Unit", "Default", "Allowed", "Meaning")
_NAMES = {
    inspect.BoolType: "true or false",
    inspect.IntType: "integer",
    inspect.FloatType: "number",
    inspect.StrType: "string",
    inspect.CustomType: "path",
    inspect.AnyType: "any",
    inspect.EnumType: "string",
    inspect.LiteralType: "string",
}


def page() -> str:
    """Text of configuration.md."""
    parts = ["# Configuration\n"]
    for title, cls in tables_of(edge.config.schema.Config):
        parts += [f"## {title}\n"] if title else []
        parts += [prose(doc_of(cls, cls.__name__)) + "\n", table(_HEADER, _rows(cls, title))]
    units = prose(doc_of(edge.config.units, "edge.config.units").partition("\n\n")[2])
    parts += [sinks(), _live()]
    texts = (prose(doc_of(rule, rule.__name__)) for rule in edge.config.setting_rules.RULES)
    rules = (f"- {' '.join(text.split())}\n" for text in texts)  # a paragraph would end the list
    parts += ["## Rules between settings\n\n" + "".join(rules), f"## Sizes and durations\n\n{units}"]
    return "\n".join(parts)


def _live() -> str:
    """Settings that a running broker applies."""
    limits = ", ".join(code(f"limits.{name}") for name in sorted(START_LIMITS))
    return (
        "## Changes without a restart\n\n"
        "`brim reload` and SIGHUP read the configuration file again and apply `log_level`, `[quota]`, "
        f"`[[tenant]]`, `[[bridge]]`, `[limits]` except {limits}, and streams that were added. "
        "They also read passwords, access rules and certificates again. "
        "Limits of a queue and of an in-flight window hold for sessions "
        "that are opened, and clients that connect, after the reload. All other settings need a restart; "
        "`brim reload` names each that has changed. A mistake in any file changes nothing.\n\n"
        "An added `[[stream]]` gets its topics at once, also those that are known already: their later "
        "records go to its rings. Records before that stay in the earlier ring; MQTT subscribers and kept "
        "sessions get both in order. Readers of several rings (shared memory, consumer groups, bridges) have "
        "no order between the two, as after a restart. No stream is added, and `brim reload` gives the "
        "reason, in these cases: another stream is removed, changed or moved; it would be the first stream "
        'with a log; it is before a stream with `visible = "durable"`; sessions would be synced in another '
        "way; or the runtime directory has rings of an earlier stream of this name.\n"
    )


def _rows(cls: type[msgspec.Struct], section: str) -> Iterator[tuple[str, ...]]:
    docs: dict[str, str] = {}
    for base in cls.__mro__:  # a section may have the keys of another one
        if issubclass(base, msgspec.Struct) and base is not msgspec.Struct:
            docs |= field_docs(base)
    for field in msgspec.structs.fields(cls):
        key, kind = field.encode_name, inspect.type_info(field.type)
        if field.name not in docs:
            raise MissingDescription(
                f"{section or 'top'}: key {key} of {cls.__name__} has no description; write a string below it"
            )
        if table_type(kind) is not None:
            continue
        unit = edge.config.units.unit_of(key)
        name, allowed = type_and_range(kind, field.type, unit)
        yield code(key), name, unit, default_of(field, unit), allowed, prose(docs[field.name])


def type_and_range(kind: inspect.Type, annotation: object, unit: str) -> tuple[str, str]:
    """Name of the type of a field, and the values that are allowed."""
    name, allowed = _type_and_range(kind, unit)
    return name, allowed or ", ".join(code(f'"{choice}"') for choice in _choices(annotation))


def _type_and_range(kind: inspect.Type, unit: str) -> tuple[str, str]:
    """Name of a type, and its range, choices and hint."""
    match kind:
        case inspect.Metadata(type=inner, extra_json_schema=extra):
            name, allowed = _type_and_range(inner, unit)
            hint = prose((extra or {}).get("description", ""))
            return name, "; ".join(text for text in (allowed, hint) if text)
        case inspect.UnionType(types=types):
            pairs = [_type_and_range(one, unit) for one in types if not isinstance(one, inspect.NoneType)]
            return ", ".join(name for name, _ in pairs), "; ".join(text for _, text in pairs if text)
        case inspect.VarTupleType(item_type=item):
            name, allowed = _type_and_range(item, unit)
            return f"list of {name}s", allowed
        case inspect.DictType():
            return "table", ""
        case inspect.LiteralType() | inspect.EnumType():
            return _NAMES[type(kind)], ""  # See _choices().
        case inspect.IntType(ge=low, le=high) | inspect.FloatType(ge=low, le=high) if low is not None:
            return _NAMES[type(kind)], f"{amount(low, unit)} to {amount(high, unit)}"
        case inspect.StrType(pattern=pattern) if pattern:
            return _NAMES[type(kind)], ""
    return _NAMES[type(kind)], ""


def _choices(annotation: object) -> tuple[object, ...]:
    """The values of a Literal or an Enum in the order of the source, which msgspec does not keep."""
    if isinstance(annotation, EnumType):
        return tuple(annotation)
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return next(filter(None, map(_choices, get_args(annotation))), ())


def default_of(field: msgspec.structs.FieldInfo, unit: str) -> str:
    """Default of a field as the file has it; "required" without one."""
    if field.required:
        return "required"
    if isfunction(field.default_factory):  # Reads the machine: its docstring is the same everywhere.
        return prose(doc_of(field.default_factory, field.name).rstrip("."))
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return "" if value is None else code(_toml(value, unit))


def _toml(value: object, unit: str) -> str:
    """`value` as the file has it."""
    match value:
        case bool():
            return str(value).lower()
        case int():
            shown = amount(value, unit).replace(",", "_" if value >= 10_000 else "")
            return shown if shown.replace("_", "").isdigit() else f'"{shown.replace("_", "")}"'
        case str() | Path():
            return f'"{value}"'
        case tuple():
            return f"[{', '.join(_toml(item, unit) for item in value)}]"
        case Mapping():
            return "{}"
    return str(value)


def amount(value: Any, unit: str) -> str:
    """`value` in the largest unit that leaves a whole number: "64 MiB", "7 d", "5,000"."""
    lengths = dict(edge.config.units.DURATIONS)
    if unit.startswith("bytes"):
        lengths = {name: length for name, length in edge.config.units.SIZES.items() if "i" in name}
    if not value or value != int(value) or unit in {"", "percent"}:
        return f"{value:,}"
    value = int(value) * lengths.get(unit, 1)
    fitting = [(length, name) for name, length in lengths.items() if value % length == 0]
    length, name = max(fitting, default=(1, ""))
    return f"{value // length:,} {name}".rstrip()
