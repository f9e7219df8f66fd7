"""Payloads one by one: Python objects into typed columns, and the reason for each value that does not fit.

Owns the result of every decoder (Typed). Slow, and used for the formats that libraries decode and for the
rows that a decoder of whole batches refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import msgpack
import pyarrow as pa

from bridge.errors import SourceOptionError
from bridge.payloads.kinds import KINDS, is_list, is_map
from bridge.payloads.schema import Field
from bridge.payloads.undecoded_text import Pairs, entry

NO_MAP = "a map belongs where something else is"
NOT_WHOLE = "no {format}, or cut short"
TWICE = "a key that is there twice"
TOO_LARGE = "more values than its payload has bytes for"
GROWN_MAX = 4  # values, and characters of texts, per byte of the payload; Sparkplug has each value twice


class Typed(NamedTuple):
    """Columns by name. If the other two are None, every row was decoded in full."""

    columns: dict[str, pa.Array]
    reasons: pa.Array | None = None  # string: reason why a row, or a field of it, was not decoded
    lost: pa.Array | None = None  # boolean: True if nothing of the row was decoded


class BadPayload(ValueError):
    """Reason why a payload gives no values, or a value does not fit."""


Fields: TypeAlias = Sequence[Field]


def unpack_one(payload: bytes) -> Any:
    """Decode one msgpack payload, for decode_rows()."""
    return msgpack.unpackb(
        payload, object_pairs_hook=Pairs, strict_map_key=False, unicode_errors="surrogateescape"
    )


def decode_rows(loads: Callable[[bytes], Any], form: str, data: pa.Array, fields: Fields) -> Typed:
    """Decode payloads one by one with `loads`, which returns Python objects: dicts or Pairs, numbers,
    strings.

    An exception of `loads`, except SourceOptionError, means that the payload is not in that format.
    """
    columns: dict[str, list[Any]] = {field.column: [] for field in fields}
    reasons: list[str | None] = []
    lost: list[bool] = []
    for payload in data.to_pylist():
        row = _Row(len(payload))
        try:
            row.gather(loaded(loads, form, payload), fields, 0)
            reasons.append(row.reason(len(payload)))
            lost.append(reasons[-1] is not None and not fields[0].path)  # a bare value is the whole payload
        except BadPayload as bad:
            row = _Row(0)
            reasons.append(str(bad))
            lost.append(True)
        for column, rows in columns.items():
            rows.append(row.values.get(column))
    arrays = {field.column: pa.array(columns[field.column], KINDS[field.kind]) for field in fields}
    return Typed(arrays, pa.array(reasons, pa.string()), pa.array(lost)) if any(reasons) else Typed(arrays)


def loaded(loads: Callable[[bytes], Any], form: str, payload: bytes) -> Any:
    """The content of a payload. Raises BadPayload if it is not in that format; SourceOptionError."""
    try:
        return loads(payload)
    except (BadPayload, SourceOptionError):
        raise
    except Exception as error:
        raise BadPayload(NOT_WHOLE.format(format=form)) from error


class _Row:
    """Values of one payload by column, and the values that do not fit.

    Payloads are hostile: a few bytes of CBOR can refer to one text a million times, which Arrow copies. So
    the values of one payload are at most GROWN_MAX times as long as the payload.
    """

    def __init__(self, payload_bytes: int) -> None:
        self._room = 64 + GROWN_MAX * payload_bytes
        self.values: dict[str, Any] = {}
        self._met: dict[str, list[Any]] = {}  # by column: the values in the payload
        self._misfits: dict[str, str] = {}  # by column: the reason

    def gather(self, value: Any, fields: Fields, depth: int) -> None:
        """Take the values of `fields` out of `value`. Raises BadPayload: it has none of them."""
        if len(fields) == 1 and len(fields[0].path) == depth:
            self._take(value, fields[0])
            return
        if value is None and depth > 0:
            return
        if not isinstance(value, dict | Pairs):
            if depth == 0:
                raise BadPayload(NO_MAP)
            for field in fields:
                self._refuse(value, field, NO_MAP)
            return
        for key, inner in value if isinstance(value, Pairs) else value.items():
            inside = [field for field in fields if isinstance(key, str) and field.path[depth] == key]
            if inside:
                self.gather(inner, inside, depth + 1)

    def reason(self, payload_bytes: int) -> str | None:
        """Text for `_undecoded`; None: every value fits. Raises BadPayload: the text would be too long."""
        alike: dict[tuple[str, tuple[int, ...]], list[str]] = {}
        for column, reason in self._misfits.items():
            alike.setdefault((reason, tuple(map(id, self._met[column]))), []).append(column)
        texts = []
        for (reason, _), columns in alike.items():
            try:
                texts.append(entry(columns, reason, self._met[columns[0]], payload_bytes))
            except ValueError as error:
                raise BadPayload(
                    f"field {columns[0]}: {reason}; the value cannot be shown: {error}"
                ) from None
        return "; ".join(texts) or None

    def _take(self, value: Any, field: Field) -> None:
        if field.column in self._met:
            self._refuse(value, field, TWICE)
            return
        try:
            self._charge(value)
            self.values[field.column] = _value(value, field)
            self._met[field.column] = [value]
        except BadPayload as bad:
            self._refuse(value, field, str(bad))

    def _charge(self, value: Any) -> None:
        """Count the length of a value. Raises BadPayload if the sum is above the limit for this payload."""
        if self._room >= 0:
            self._room -= sum(1 + len(one) if type(one) in {str, bytes} else 1 for one in _scalars(value))
        if self._room < 0:
            raise BadPayload(TOO_LARGE)

    def _refuse(self, value: Any, field: Field, reason: str) -> None:
        met = self._met.setdefault(field.column, [])
        met.append(value)
        self.values.pop(field.column, None)
        self._misfits[field.column] = TWICE if len(met) > 1 else reason


def _scalars(value: Any) -> Iterable[Any]:
    """The elements of an array, the keys and values of a map, or the value itself."""
    if isinstance(value, Mapping | Pairs):
        return chain.from_iterable(value.items() if isinstance(value, Mapping) else value)
    return value if isinstance(value, list | tuple) else (value,)


def _value(value: Any, field: Field) -> Any:
    """Convert a value to the type of the field's column. Raises BadPayload."""
    kind = type(value)
    if value is None or (kind is bool and field.kind == "boolean"):
        return value
    if kind is int and field.kind == "long":
        if not -(1 << 63) <= value < 1 << 63:
            raise BadPayload("an integer beyond 64 bits")
        return value
    if kind in {int, float} and field.kind == "double":
        try:
            return float(value)
        except OverflowError:
            raise BadPayload("no double") from None
    if kind is bytes and field.kind == "binary":
        return value
    if kind in {list, tuple} and is_list(field.kind):
        return [_element(element, field) for element in value]
    if kind in {dict, Pairs} and is_map(field.kind):
        return _map(value, field)
    if kind is str and field.kind in {"string", "binary"}:
        try:
            encoded = value.encode(errors="surrogateescape" if field.kind == "binary" else "strict")
        except UnicodeEncodeError:
            raise BadPayload("a string that is no UTF-8") from None
        return encoded if field.kind == "binary" else value
    raise BadPayload(f"no {field.kind}")


def _element(value: Any, field: Field, kind: str = "") -> Any:
    """Convert an element of an array or map, or a key (`kind`). Raises BadPayload."""
    kind = kind or field.kind.rstrip(">").rpartition("<")[2].rpartition(",")[2]
    try:
        return _value(value, Field(field.column, (), kind))
    except BadPayload:
        raise BadPayload(f"no {field.kind}") from None


def _map(value: Any, field: Field) -> list[tuple[str, Any]]:
    """The entries of a map. Raises BadPayload if a key is not a text, or occurs twice."""
    pairs = list(value) if isinstance(value, Pairs) else list(value.items())
    entries = {_element(key, field, "string"): _element(inner, field) for key, inner in pairs}
    if None in entries:
        raise BadPayload(f"no {field.kind}")
    if len(entries) < len(pairs):
        raise BadPayload(TWICE)
    return list(entries.items())
