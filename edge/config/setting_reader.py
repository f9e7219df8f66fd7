"""TOML reader: converts the tables of a configuration to frozen Structs, and reports every mistake with
its line: unknown keys, with the nearest known one or the table that has the key, types and ranges.

msgspec.convert stops at the first mistake and knows no lines, so this module walks the raw tables by the
types of the Structs. Owns the walk and its messages; knows no setting of the broker.

A problem has the form `file:line: key: value and allowed values; remedy`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import inspect

from edge.config.directories import expanded
from edge.config.units import InvalidUnit, milliseconds_of, size_of, unit_of
from edge.errors import EdgeError, with_hint

if TYPE_CHECKING:
    from decimal import Decimal

    from edge.config.toml_positions import Path

S = TypeVar("S", bound=msgspec.Struct)

_BAD = object()
_PLACES_MAX = 2  # tables named in a message: `name`, for example, is in too many to be a help
_SHOWN_MAX = 60  # of a value in a message: a whole file pasted into a string must not flood the terminal


class Problems:
    """The mistakes of one file."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.lines: dict[Path, int] | None = None  # None: the source has no lines
        self.root: type[msgspec.Struct] | None = None  # of all tables; None: only one table is read
        self._found: list[tuple[int, str]] = []
        self._paths: list[Path] = []

    def add(self, path: Path, text: str) -> None:
        """Add a problem: `text` has the value, the limit and the remedy for the key at `path`."""
        from edge.config.toml_positions import line_of

        line = 0 if self.lines is None else line_of(self.lines, path)
        place = f"{self.file}:{line}" if line else self.file
        self._found.append((line, f"{place}: {dotted(path)}: {text}"))
        self._paths.append(path)

    def blames(self, *paths: Path) -> bool:
        """True if one of these keys has a problem already, so that rules about it are skipped."""
        return any(bad[: len(path)] == path for bad in self._paths for path in paths)

    def messages(self) -> list[str]:
        """Messages in the order of the file."""
        return [text for _, text in sorted(self._found, key=lambda mistake: mistake[0])]


def dotted(path: Path) -> str:
    """Text of a path: stream[0].topics[1]."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "file"


def read_toml(text: str, problems: Problems) -> dict[str, Any]:
    """Tables of `text`. Empty, with one problem, if it is not TOML."""
    if not text:  # no file: the parser need not be imported
        problems.lines = {}
        return {}
    import tomllib

    from edge.config.toml_positions import key_lines

    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason, _, place = str(error).partition(" (at ")
        line = re.search(r"line (\d+)", place)
        problems.lines = {(): int(line.group(1)) if line else text.count("\n") + 1}
        problems.add((), f"not TOML: {reason[:1].lower()}{reason[1:]}; correct it: the rest was not read")
        return {}
    problems.lines = key_lines(text)
    return raw


def read_struct(
    kind: type[S], raw: Mapping[str, Any], problems: Problems, base: FilePath, path: Path = ()
) -> S:
    """Create a `kind` from `raw`. Mistakes go to `problems`; a default, or None, replaces invalid values."""
    values = read_values(kind, raw, problems, base, path)
    for field in msgspec.structs.fields(kind):
        if field.required and field.encode_name not in raw:
            problems.add((*path, field.encode_name), f"missing; add the line {field.encode_name} = ...")
        if field.required:
            values.setdefault(field.name, None)
    return kind(**values)


def read_values(
    kind: type[msgspec.Struct], raw: Mapping[str, Any], problems: Problems, base: FilePath, path: Path = ()
) -> dict[str, Any]:
    """Fields of a `kind` in `raw`. Mistakes go to `problems`; invalid values are left out."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    problems.root = problems.root if path else kind
    for key in raw.keys() - fields.keys():
        near = _near(key, fields) + [f"{key} {place}" for place in _places_of(key, problems.root)]
        hint = (
            f"did you mean {', or '.join(near)}?" if near else f"settings here: {', '.join(sorted(fields))}"
        )
        problems.add((*path, key), f"there is no such setting; {hint}")
    values: dict[str, Any] = {}
    for key in fields.keys() & raw.keys():
        field = fields[key]
        value = _ValueReader(problems, base).read(inspect.type_info(field.type), raw[key], (*path, key))
        if value is not _BAD:
            values[field.name] = value
    return values


class _ValueReader:
    """Reader of one value of a known type; _BAD if it is invalid. A table with mistakes is returned."""

    def __init__(self, problems: Problems, base: FilePath) -> None:
        self.problems = problems
        self.base = base

    def read(self, kind: inspect.Type, value: Any, path: Path) -> Any:
        description, kind = "", _member(kind, value)
        if isinstance(kind, inspect.Metadata):
            description = (kind.extra_json_schema or {}).get("description", "")
            kind = _member(kind.type, value)
        match kind:
            case inspect.StructType(cls=cls):
                return self._table(cls, value, path)
            case inspect.VarTupleType(item_type=item_type):
                return self._list(item_type, value, path)
            case inspect.DictType(value_type=value_type):
                return self._pairs(value_type, value, path)
            case inspect.AnyType():
                return value
            case inspect.CustomType():
                return self._path(value, path)
        try:
            value = _plain(kind, value, path)
        except InvalidUnit as error:
            return self._bad(path, str(error))
        wrong = _mistake(kind, value)
        if wrong:
            return self._bad(path, f"{wrong}; {description}" if description else wrong)
        return value

    def _bad(self, path: Path, text: str) -> object:
        self.problems.add(path, text)
        return _BAD

    def _table(self, cls: type[msgspec.Struct], value: Any, path: Path) -> Any:
        if not isinstance(value, dict):
            return self._bad(path, f"{shown(value)} is not a table; write [{dotted(path)}] on its own line")
        return read_struct(cls, value, self.problems, self.base, path)

    def _list(self, item_type: inspect.Type, value: Any, path: Path) -> Any:
        if not isinstance(value, list):
            tables = isinstance(item_type, inspect.StructType)
            remedy = f"write [[{dotted(path)}]], in double brackets" if tables else "write it in [ ]"
            return self._bad(path, f"{shown(value)} is not a list; {remedy}")
        items = tuple(self.read(item_type, item, (*path, index)) for index, item in enumerate(value))
        return _BAD if _BAD in items else items

    def _pairs(self, value_type: inspect.Type, value: Any, path: Path) -> Any:
        if not isinstance(value, dict):
            return self._bad(path, f"{shown(value)} is not a table; write {{ key = ..., key = ... }}")
        pairs = {key: self.read(value_type, item, (*path, key)) for key, item in value.items()}
        return _BAD if _BAD in pairs.values() else pairs

    def _path(self, value: Any, path: Path) -> Any:
        if not isinstance(value, str) or not value or "\0" in value:
            return self._bad(path, f"{shown(value)} is not a path; write it in quotes")
        try:
            return self.base / expanded(value)
        except EdgeError as error:
            return self._bad(path, with_hint(error))


def _member(kind: inspect.Type, value: Any) -> inspect.Type:
    """The member of a union that fits the value, or its first one. X | None: without the key it is None."""
    if not isinstance(kind, inspect.UnionType):
        return kind
    kinds = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
    return next((one for one in kinds[1:] if not _mistake(one, value)), kinds[0])


def _plain(kind: inspect.Type, value: Any, path: Path) -> Any:
    """`value`, with "64 MiB" or "7 d" as a number in the unit that ends the key.  Raises InvalidUnit."""
    if not isinstance(value, str) or not isinstance(kind, inspect.IntType | inspect.FloatType):
        return value
    match unit_of(str(path[-1])):
        case "bytes":
            return size_of(value)
        case "bytes/s":
            return size_of(value.removesuffix("/s"))
        case "ms":
            return _whole(milliseconds_of(value))
        case "s":
            return _whole(milliseconds_of(value) / 1000)
    return value


def _whole(amount: Decimal) -> int | float:
    """The amount as an int if possible: a setting without fractions reports other values."""
    return int(amount) if amount == int(amount) else float(amount)


def _mistake(kind: inspect.Type, value: Any) -> str:
    """Mistake in `value` for a number, string, truth value or choice; "" if it is valid."""
    match kind:
        case inspect.BoolType():
            return "" if isinstance(value, bool) else f"{shown(value)} is neither true nor false"
        case inspect.IntType(ge=low, le=high) | inspect.FloatType(ge=low, le=high):
            if isinstance(value, bool) or not isinstance(value, int | float):
                return f"{shown(value)} is not a number"
            if isinstance(kind, inspect.IntType) and not isinstance(value, int):
                return f"{shown(value)} is not a whole number"
            return _outside(value, low, high)
        case inspect.LiteralType(values=choices) | inspect.EnumType(cls=choices):
            words = sorted(map(str, choices))
            if value in words:
                return ""
            return f"{shown(value)} is not one of {', '.join(words)}{_nearest(value, words)}"
        case inspect.StrType(pattern=pattern):
            if not isinstance(value, str):
                return f"{shown(value)} is not a string; write it in quotes"
            return f"{shown(value)} is not allowed" if pattern and not re.search(pattern, value) else ""
    raise AssertionError(f"no rule for settings of type {kind}")


def _outside(value: float, low: float | None, high: float | None) -> str:
    if low is not None and value < low:
        return f"{value} is below the least, {low}"
    if high is not None and value > high:
        return f"{value} is above the limit, {high}"
    return ""


def _nearest(word: object, words: Iterable[str]) -> str:
    near = _near(word, words)
    return f"; did you mean {near[0]}?" if near else ""


def _near(word: object, words: Iterable[str]) -> list[str]:
    import difflib

    return difflib.get_close_matches(str(word), list(words), n=1, cutoff=0.6)


def _places_of(key: str, root: type[msgspec.Struct] | None) -> list[str]:
    """Places of a setting in the tables of `root`; empty for a name that many tables have."""
    places = [
        f"in {table}" if table else "above the first table"
        for table, kind in (tables_of(root) if root is not None else ())
        if any(field.encode_name == key for field in msgspec.structs.fields(kind))
    ]
    return places if len(places) <= _PLACES_MAX else []


def tables_of(kind: type[msgspec.Struct], table: str = "") -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """Heading and Struct of `table`, a `kind`, and of each table below it: "", "[limits]", "[[stream]]"."""
    yield table, kind
    for field in msgspec.structs.fields(kind):
        inner = table_type(inspect.type_info(field.type))
        if inner is not None:
            name = f"{table.strip('[]')}.{field.encode_name}".lstrip(".")
            yield from tables_of(inner[0], f"[[{name}]]" if inner[1] else f"[{name}]")


def table_type(kind: inspect.Type) -> tuple[type[msgspec.Struct], bool] | None:
    """The Struct of a setting that is a table, and True if it is a list of tables; None for a plain value."""
    match kind:
        case inspect.StructType(cls=cls):
            return cls, False
        case inspect.VarTupleType(item_type=inspect.StructType(cls=cls)):
            return cls, True
        case inspect.UnionType(types=types):
            return next((found for one in types if (found := table_type(one))), None)
    return None


def shown(value: object) -> str:
    """`value` for a message: short, and with control characters escaped."""
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 3] + "..."
