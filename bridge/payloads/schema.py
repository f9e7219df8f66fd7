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
    fields = { value = { path = ".", type = "double" } }

Types: long, double, boolean, string, binary. A column of several entries has one type. A field that is absent
or nil in a payload is null. msgpack and cbor may be a single value, too (path "."). A field of sparkplug is
the name of a metric, or "#7" for the metric with the alias 7.

Columns in addition to those of the fields:

    _undecoded  string  the values that do not fit their columns, with the name of each column and the reason
                        (form: undecoded_text.py); these columns are null, the other fields keep their
                        values.  Or the reason why nothing of this payload could be decoded.  Null: every
                        value fits
    _raw        binary  the payload, if nothing of it could be decoded; otherwise null

Owns the file and the entry of each topic; decode.py decodes. Plain values that can be pickled.
"""

from __future__ import annotations

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

__all__ = ["FORMATS", "KINDS", "RAW", "UNDECODED", "Field", "PayloadRule", "Payloads", "filter_pattern"]

UNDECODED: Final = "_undecoded"
RAW: Final = "_raw"
FORMATS: Final = ("msgpack", "json", "cbor", "sparkplug", "text")
KINDS: Final[dict[str, pa.DataType]] = {
    "long": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
}
NO_RULE: Final = "no entry of the payload schema matches this topic"
FIELDS_MAX = 64  # per entry: RB_UNPACK_FIELDS_MAX
DEPTH_MAX = 8  # keys in a path: RB_UNPACK_DEPTH_MAX
KEY_MAX_BYTES = 255
TOPICS_KEPT = 1 << 20  # topics whose entry is cached
_COLUMN = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}")


@dataclass(frozen=True, slots=True)
class Field:
    """One column of one format.  `path` is empty for the payload itself."""

    column: str
    path: tuple[str, ...]
    kind: str  # one of KINDS


@dataclass(frozen=True, slots=True)
class PayloadRule:
    """Decoding rule for the payloads of some topics."""

    topic: str
    format: str
    fields: tuple[Field, ...]


@dataclass(frozen=True)
class Payloads:
    """The checked payload schema."""

    rules: tuple[PayloadRule, ...]

    @classmethod
    def read(cls, path: str | Path) -> Payloads:
        """Read the file. Raises SourceOptionError for the first mistake."""
        try:
            tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SourceOptionError(
                f"payload schema {str(path)!r} cannot be read: {error}",
                hint="bridge/payloads/schema.py shows what is in it",
            ) from error
        return cls.of(tables)

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Payloads:
        """The schema of a parsed file. Raises SourceOptionError."""
        entries = table.get("payload")
        if set(table) != {"payload"} or not isinstance(entries, list) or not entries:
            raise SourceOptionError("a payload schema consists of [[payload]] entries, one at least")
        schema = cls(tuple(_rule(number, entry) for number, entry in enumerate(entries, 1)))
        assert schema.columns  # checks that their types agree
        return schema

    @cached_property
    def columns(self) -> dict[str, str]:
        """Name and type of each column, in the order of the file. Raises SourceOptionError."""
        columns: dict[str, str] = {}
        for field in (field for rule in self.rules for field in rule.fields):
            if columns.setdefault(field.column, field.kind) != field.kind:
                raise SourceOptionError(
                    f"column {field.column} is {columns[field.column]} in one entry "
                    f"and {field.kind} in another",
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
    _check_paths(where, form, parsed)
    return PayloadRule(topic, form, parsed)


def _field(where: str, form: str, column: str, setting: Any) -> Field:
    if isinstance(setting, str):
        setting = {"type": setting}
    if (
        not isinstance(setting, dict)
        or not set(setting) <= {"path", "type"}
        or setting.get("type") not in KINDS
    ):
        raise SourceOptionError(
            f"{where}: field {column} is {setting!r}, and must be a type ({', '.join(KINDS)}), "
            "or a table of path and type"
        )
    if not _COLUMN.fullmatch(column) or column.lower() in {name.lower() for name in (*TYPES, CORRUPT)}:
        raise SourceOptionError(
            f"{where}: a field cannot be called {column!r}",
            hint="write letters, digits and _, a letter first, and no name that a record's own column has",
        )
    path = setting.get("path", column)
    if not isinstance(path, str) or not path:
        raise SourceOptionError(f"{where}: the path of {column} is {path!r}, and must be keys, or .")
    if form == "sparkplug":
        keys: tuple[str, ...] = (path,)  # names of metrics contain dots and slashes
    else:
        keys = () if path == "." else tuple(path.split("."))
    if len(keys) > DEPTH_MAX or any(not 0 < len(key.encode()) <= KEY_MAX_BYTES for key in keys):
        raise SourceOptionError(
            f"{where}: path {path!r} must be 1 to {DEPTH_MAX} keys of 1 to {KEY_MAX_BYTES} bytes"
        )
    return Field(column, keys, setting["type"])


def _check_paths(where: str, form: str, fields: tuple[Field, ...]) -> None:
    paths = [field.path for field in fields]
    for number, path in enumerate(paths):
        for other in paths[:number]:
            common = min(len(path), len(other))
            if path[:common] == other[:common]:
                one, two = ".".join(path) or ".", ".".join(other) or "."
                raise SourceOptionError(f"{where}: paths {two!r} and {one!r} cannot both be read")
    if form == "text" and paths != [()]:
        raise SourceOptionError(f'{where}: of text there is one field, and its path is "."')
    if form in {"json", "sparkplug"} and () in paths:
        raise SourceOptionError(
            f'{where}: {form} has no path "."', hint='use format = "text" for bare values'
        )
    if form == "json" and any(field.kind == "binary" for field in fields):
        raise SourceOptionError(f"{where}: json has no binary", hint="read it as a string")
