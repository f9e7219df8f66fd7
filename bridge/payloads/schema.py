"""Payload schema: a small file that declares payload formats by topic, and the columns of their fields.

    # payloads.toml
    [[payload]]
    topic = "plant/+/+/data"          # a topic filter as in MQTT; the first that matches counts
    format = "msgpack"                # msgpack, json, cbor, sparkplug, or text
    [payload.fields]
    temp = "double"                   # column = type, from the key of the same name
    vib = { path = "motor.vib", type = "double" }      # or from inside: keys with dots between them
    [[payload]]
    topic = "meter/#"
    format = "text"                   # the payload is the value: one field, path "."
    [payload.fields]
    value = { path = ".", type = "double" }
    meter = { level = 2, type = "int" }                # the second level of the topic, not of the payload

Types: long, int, double, float, boolean, string, binary, timestamp, array<T>, map<string,T>
(bridge/payloads/kinds.py has them, and `unit` of a timestamp). A column of several entries has one type. A
field that is absent or nil in a payload is null. msgpack and cbor may be a single value, too (path ".").
A field of sparkplug is the name of a metric, or "#7" for the metric with the alias 7. A path may be a list
of keys: keys with dots are written in this way. `level` is the number of a level of the topic, from 1 on. Its
type is string (default), long or int; the column is null if the topic has fewer levels.

Columns in addition to those of the fields:

    _undecoded  string  the values that do not fit their columns, with the name of each column and the reason
                        (form: undecoded_text.py); these columns are null, the other fields keep their
                        values.  Or the reason why nothing of this payload could be decoded.  Null: every
                        value fits
    _raw        binary  the payload, if nothing of it could be decoded; otherwise null

Owns the file and the entry of each topic; decode.py decodes. Plain values that can be pickled.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from bridge.arrow.schema import CORRUPT, TYPES
from bridge.errors import SourceOptionError
from bridge.payloads.kinds import ELEMENTS, KINDS, UNITS, is_list, is_map

UNDECODED: Final = "_undecoded"
RAW: Final = "_raw"
FORMATS: Final = ("msgpack", "json", "cbor", "sparkplug", "text")
LEVEL_KINDS: Final = ("string", "long", "int")
TYPE_NAMES: Final = "long, int, double, float, boolean, string, binary, timestamp, array<T>, map<string,T>"
NO_RULE: Final = "no entry of the payload schema matches this topic"
FIELDS_MAX = 64  # per entry: RB_UNPACK_FIELDS_MAX
DEPTH_MAX = 8  # keys in a path: RB_UNPACK_DEPTH_MAX
KEY_MAX_BYTES = 255
LEVEL_MAX = 128
FILE_MAX_BYTES = 1 << 20
TOPICS_KEPT = 1 << 20  # topics whose entry is cached
_COLUMN = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}")


@dataclass(frozen=True, slots=True)
class Field:
    """One column of one format.  `path` is empty for the payload itself, and for a level of the topic."""

    column: str
    path: tuple[str, ...]
    kind: str  # one of KINDS
    unit: str = ""  # of a timestamp that is a number
    level: int = 0  # from 1 on: this level of the topic; 0: the field is in the payload


@dataclass(frozen=True, slots=True)
class PayloadRule:
    """Decoding rule for the payloads of some topics."""

    topic: str
    format: str
    fields: tuple[Field, ...]

    @property
    def payload_fields(self) -> tuple[Field, ...]:
        """The fields that are in the payload."""
        return tuple(field for field in self.fields if not field.level)

    @property
    def level_fields(self) -> tuple[Field, ...]:
        """The fields that are levels of the topic."""
        return tuple(field for field in self.fields if field.level)


@dataclass(frozen=True)
class Payloads:
    """The checked payload schema."""

    rules: tuple[PayloadRule, ...]

    @classmethod
    def read(cls, path: str | Path) -> Payloads:
        """Read the file. Raises SourceOptionError for the first mistake."""
        try:
            with open(path, "rb") as file:
                content = file.read(FILE_MAX_BYTES + 1)
            if len(content) > FILE_MAX_BYTES:
                raise ValueError(f"it is longer than {FILE_MAX_BYTES} bytes")
            tables = tomllib.loads(content.decode())
        except (OSError, ValueError, RecursionError) as error:
            reason = getattr(error, "strerror", None) or error  # the text of an OSError has the path again
            raise SourceOptionError(
                f"payload schema {str(path)!r} cannot be read: {reason}",
                hint="correct it, or let `brim schema infer` write one from a sample",
            ) from error
        try:
            return cls.of(tables)
        except SourceOptionError as error:
            raise SourceOptionError(f"payload schema {str(path)!r}: {error}", hint=error.hint) from error

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Payloads:
        """The schema of a parsed file. Raises SourceOptionError."""
        entries = table.get("payload")
        if set(table) != {"payload"} or not isinstance(entries, list) or not entries:
            raise SourceOptionError("there must be at least one [[payload]] entry, and nothing next to them")
        schema = cls(tuple(_rule(number, entry) for number, entry in enumerate(entries, 1)))
        assert schema.columns  # checks that their types agree
        return schema

    @classmethod
    def of_text(cls, text: str) -> Payloads:
        """The schema of `text`. Raises SourceOptionError."""
        try:
            return cls.of(json.loads(text))
        except (ValueError, RecursionError, AttributeError) as error:
            raise SourceOptionError(f"a saved payload schema is damaged: {error}") from error

    @property
    def text(self) -> str:
        """The schema on one line, in JSON: the same for equal schemas in files of another form."""
        entries = [
            {
                "topic": rule.topic,
                "format": rule.format,
                "fields": {field.column: _settings(rule.format, field) for field in rule.fields},
            }
            for rule in self.rules
        ]
        return json.dumps({"payload": entries}, ensure_ascii=False, separators=(",", ":"))

    @cached_property
    def columns(self) -> dict[str, str]:
        """Name and type of each column, in the order of the file. Raises SourceOptionError."""
        columns: dict[str, str] = {}
        spelled: dict[str, str] = {}
        for field in (field for rule in self.rules for field in rule.fields):
            if columns.setdefault(field.column, field.kind) != field.kind:
                raise SourceOptionError(
                    f"column {field.column} is {columns[field.column]} in one entry "
                    f"and {field.kind} in another",
                    hint="give one of them another name",
                )
            if (other := spelled.setdefault(field.column.lower(), field.column)) != field.column:
                raise SourceOptionError(
                    f"columns {other} and {field.column} differ only in case, which SQL ignores",
                    hint="give one of them another name",
                )
        return columns

    @property
    def ddl(self) -> str:
        """The columns, for Spark."""
        named = ", ".join(f"{name} {kind}" for name, kind in self.columns.items())
        return f"{named}, {UNDECODED} string, {RAW} binary"

    @property
    def types(self) -> dict[str, pa.DataType]:
        """The columns, for Arrow."""
        types = {name: KINDS[kind] for name, kind in self.columns.items()}
        return {**types, UNDECODED: pa.string(), RAW: pa.binary()}

    @cached_property
    def _patterns(self) -> list[re.Pattern[str]]:
        return [re.compile(filter_pattern(rule.topic), re.DOTALL) for rule in self.rules]

    @cached_property
    def _known(self) -> dict[str, int]:
        return {}

    def rule_of(self, topic: str) -> int:
        """Number of the first entry that matches; -1: none does. Cached, because topics repeat."""
        rule = self._known.get(topic)
        if rule is None:
            if len(self._known) >= TOPICS_KEPT:
                self._known.clear()
            matching = (number for number, pattern in enumerate(self._patterns) if pattern.fullmatch(topic))
            rule = self._known[topic] = next(matching, -1)
        return rule

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle without the caches."""
        return (Payloads, (self.rules,))


def filter_pattern(topic_filter: str) -> str:
    """A regular expression for an MQTT topic filter, to be matched in full. Raises SourceOptionError.

    As in MQTT, + is one level, # this level and all below, and neither matches a first level with $.
    """
    levels = topic_filter.split("/")
    wrong = not topic_filter or any(
        ("#" in level and (level != "#" or number != len(levels) - 1)) or ("+" in level and level != "+")
        for number, level in enumerate(levels)
    )
    if wrong:
        raise SourceOptionError(
            f"{topic_filter!r} is no topic filter", hint="+ stands for one level, # for the rest, alone in it"
        )
    head = r"(?!\$)" if levels[0] in {"+", "#"} else ""
    if levels == ["#"]:
        return f"{head}.*"
    below = levels[-1] == "#"
    parts = [r"[^/]*" if level == "+" else re.escape(level) for level in (levels[:-1] if below else levels)]
    return head + "/".join(parts) + ("(?:/.*)?" if below else "")


def _rule(number: int, entry: Any) -> PayloadRule:
    where = f"payload entry {number}"
    if not isinstance(entry, dict) or set(entry) != {"topic", "format", "fields"}:
        raise SourceOptionError(f"{where} must have topic, format and fields, and nothing else")
    topic, form, fields = entry["topic"], entry["format"], entry["fields"]
    if not isinstance(topic, str):
        raise SourceOptionError(f"{where}: topic is {topic!r}, and must be a topic filter")
    filter_pattern(topic)
    if form not in FORMATS:
        raise SourceOptionError(f"{where}: format is {form!r}, and must be one of {', '.join(FORMATS)}")
    if not isinstance(fields, dict) or not 1 <= len(fields) <= FIELDS_MAX:
        raise SourceOptionError(f"{where}: fields must be a table of 1 to {FIELDS_MAX} columns")
    parsed = tuple(_field(where, form, column, setting) for column, setting in fields.items())
    rule = PayloadRule(topic, form, parsed)
    _check_paths(where, form, rule.payload_fields)
    return rule


def _settings(form: str, field: Field) -> dict[str, Any]:
    """The settings from which _field() makes this field."""
    if field.level:
        return {"level": field.level, "type": field.kind}
    path: str | list[str] = "." if not field.path else list(field.path)
    if form == "sparkplug":
        (path,) = field.path
    unit = {"unit": field.unit} if field.unit else {}
    return {"path": path, "type": field.kind, **unit}


def _field(where: str, form: str, column: str, setting: Any) -> Field:
    if isinstance(setting, str):
        setting = {"type": setting}
    if not isinstance(setting, dict) or not set(setting) <= {"path", "type", "unit", "level"}:
        raise _no_field(where, column, setting)
    kind = setting.get("type", "string" if "level" in setting else None)
    kind = kind.replace(" ", "") if isinstance(kind, str) else kind
    if not isinstance(kind, str) or kind not in KINDS:
        raise _no_field(where, column, setting)
    if not _COLUMN.fullmatch(column) or column.lower() in {name.lower() for name in (*TYPES, CORRUPT)}:
        raise SourceOptionError(
            f"{where}: a field cannot be called {column!r}",
            hint="write letters, digits and _, a letter first, and no name that a record's own column has",
        )
    if "level" in setting:
        return _level(where, column, setting, kind)
    unit = setting.get("unit", "")
    if unit != "" and (kind != "timestamp" or unit not in UNITS):
        raise SourceOptionError(
            f"{where}: unit {unit!r} of {column} must be one of {', '.join(UNITS)}, of a timestamp"
        )
    return Field(column, _keys(where, form, column, setting.get("path", column)), kind, unit)


def _no_field(where: str, column: str, setting: Any) -> SourceOptionError:
    return SourceOptionError(
        f"{where}: field {column} is {setting!r}, and must be a type ({TYPE_NAMES}; "
        f"T is one of {', '.join(ELEMENTS)}), or a table of path, type and unit, or of level and type"
    )


def _level(where: str, column: str, setting: dict[str, Any], kind: str) -> Field:
    level = setting["level"]
    if not set(setting) <= {"level", "type"} or type(level) is not int or not 1 <= level <= LEVEL_MAX:
        raise SourceOptionError(
            f"{where}: level {level!r} of {column} must be a number from 1 to {LEVEL_MAX}, without a path"
        )
    if kind not in LEVEL_KINDS:
        raise SourceOptionError(f"{where}: level {column} is {kind}, and must be {', '.join(LEVEL_KINDS)}")
    return Field(column, (), kind, level=level)


def _keys(where: str, form: str, column: str, path: Any) -> tuple[str, ...]:
    keys: tuple[str, ...]
    if isinstance(path, list) and path and all(isinstance(key, str) for key in path) and form != "sparkplug":
        keys = tuple(path)
    elif not isinstance(path, str) or not path:
        raise SourceOptionError(f"{where}: the path of {column} is {path!r}, and must be keys, or .")
    elif form == "sparkplug":
        keys = (path,)  # names of metrics contain dots and slashes
    else:
        keys = () if path == "." else tuple(path.split("."))
    if len(keys) > DEPTH_MAX or any(not 0 < len(key.encode()) <= KEY_MAX_BYTES for key in keys):
        raise SourceOptionError(
            f"{where}: path {path!r} must be 1 to {DEPTH_MAX} keys of 1 to {KEY_MAX_BYTES} bytes"
        )
    return keys


def _check_paths(where: str, form: str, fields: tuple[Field, ...]) -> None:
    paths = [field.path for field in fields]
    for number, path in enumerate(paths):
        for other in paths[:number]:
            common = min(len(path), len(other))
            if path[:common] == other[:common]:
                one, two = ".".join(path) or ".", ".".join(other) or "."
                raise SourceOptionError(f"{where}: paths {two!r} and {one!r} cannot both be read")
    if form == "text" and paths not in ([()], []):
        raise SourceOptionError(f'{where}: of text there is one field, and its path is "."')
    if form == "text" and any(is_list(field.kind) or is_map(field.kind) for field in fields):
        raise SourceOptionError(f"{where}: text has no arrays or maps")
    if form in {"json", "sparkplug"} and () in paths:
        raise SourceOptionError(
            f'{where}: {form} has no path "."', hint='use format = "text" for bare values'
        )
    if form == "json" and any(field.kind == "binary" for field in fields):
        raise SourceOptionError(f"{where}: json has no binary", hint="read it as a string")
