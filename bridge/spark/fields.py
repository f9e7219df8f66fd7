"""Payloads into typed columns, by the entries of a payload schema (payloads.py).

msgpack is unpacked by the compiled core (ringbuf/c/unpack.c), JSON read by pyarrow, text cast by it; both a
batch at a time.  A batch in which they find a mistake is halved until what is wrong stands alone, so one bad
payload costs its neighbours little.  CBOR and Sparkplug are decoded one by one, by their libraries; so is
msgpack where the compiled core is not.

A payload is decoded as a whole or not at all.  Only the columns that are asked for are decoded, and judged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgpack
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from bridge.errors import SourceOptionError
from bridge.spark.payloads import KINDS, NO_RULE, RAW, UNDECODED, Field, Payloads, Rule

__all__ = ["Typed", "decode_payloads", "decode_rows", "typed_columns"]

HALVED_TO = 64  # rows: fewer are decoded one by one

NO_MAP = "a map belongs where something else is"
NOT_WHOLE = "no {format}, or cut short"


class Typed(NamedTuple):
    """Columns by name, and for each row why it could not be decoded; None: every one was."""

    columns: dict[str, pa.Array]
    reasons: pa.Array | None


class _Bad(ValueError):
    """Why this payload gives no values."""


class Pairs(list[tuple[Any, Any]]):
    """An object, with the keys that are there twice."""


Fields: TypeAlias = Sequence[Field]


def typed_columns(
    payloads: Payloads, topics: pa.Array, data: pa.Array, wanted: Collection[str]
) -> dict[str, pa.Array]:
    """Those of the payload schema's columns that are wanted, a row for each topic and payload."""
    judged = set(payloads.columns) & set(wanted) or set(payloads.columns)
    numbers = _rules_of(payloads, topics)
    if isinstance(numbers, int):
        found = _by_rule(payloads, numbers, data, judged)
    else:
        found = _by_rules(payloads, numbers, data, judged)
    reasons = found.reasons
    if RAW in wanted:
        nothing = pa.nulls(len(data), pa.binary())
        found.columns[RAW] = nothing if reasons is None else pc.if_else(reasons.is_valid(), data, nothing)
    if UNDECODED in wanted:
        found.columns[UNDECODED] = pa.nulls(len(data), pa.string()) if reasons is None else reasons
    return {name: array for name, array in found.columns.items() if name in wanted}


def _rules_of(payloads: Payloads, topics: pa.Array) -> int | pa.Array:
    """The number of the entry for each row, or the one that all rows have."""
    encoded = topics.dictionary_encode()
    numbers = [payloads.rule_of(topic) for topic in encoded.dictionary.to_pylist()]
    if len(set(numbers)) == 1:
        return numbers[0]
    return pa.array(numbers, pa.int32()).take(encoded.indices)


def _by_rule(payloads: Payloads, number: int, data: pa.Array, judged: Collection[str]) -> Typed:
    """All rows by one entry; the columns that it does not have are null."""
    columns = {
        name: pa.nulls(len(data), KINDS[kind]) for name, kind in payloads.columns.items() if name in judged
    }
    if number < 0:
        return Typed(columns, pa.repeat(pa.scalar(NO_RULE), len(data)))
    rule = payloads.rules[number]
    fields = tuple(field for field in rule.fields if field.column in judged) or rule.fields
    found = decode_payloads(rule, fields, data)
    columns |= {name: array for name, array in found.columns.items() if name in judged}
    return Typed(columns, found.reasons)


def _by_rules(payloads: Payloads, numbers: pa.Array, data: pa.Array, judged: Collection[str]) -> Typed:
    """Each entry's rows apart, and all in their order again."""
    places, parts = [], []
    for number in pc.unique(numbers).to_pylist():
        rows = pc.indices_nonzero(pc.equal(numbers, number))
        places.append(rows)
        parts.append(_by_rule(payloads, number, data.take(rows), judged))
    order = pc.sort_indices(pa.concat_arrays(places))
    return _joined(parts, order)


def _joined(parts: Sequence[Typed], order: pa.Array | None = None) -> Typed:
    """One after the other, then in another order."""

    def put(arrays: Sequence[pa.Array]) -> pa.Array:
        joined = pa.concat_arrays(arrays)
        return joined if order is None else joined.take(order)

    lengths = [len(next(iter(part.columns.values()))) for part in parts]
    columns = {name: put([part.columns[name] for part in parts]) for name in parts[0].columns}
    if all(part.reasons is None for part in parts):
        return Typed(columns, None)
    reasons = [
        pa.nulls(length, pa.string()) if part.reasons is None else part.reasons
        for part, length in zip(parts, lengths, strict=True)
    ]
    return Typed(columns, put(reasons))


def decode_payloads(rule: Rule, fields: Fields, data: pa.Array) -> Typed:
    """These fields of payloads of one format."""
    if rule.format == "msgpack":
        from bridge.spark.unpacked import unpack

        return unpack(data, fields) or decode_rows(_unpack_one, "msgpack", data, fields)
    if rule.format == "json":
        return _halved(_read_json, lambda part, of: decode_rows(_json_one, "JSON", part, of), data, fields)
    if rule.format == "text":
        return _halved(_cast, _cast_rows, data, fields)
    from bridge.spark import formats

    loads = formats.cbor() if rule.format == "cbor" else formats.sparkplug()
    return decode_rows(loads, "CBOR" if rule.format == "cbor" else "Sparkplug B", data, fields)


Whole: TypeAlias = Callable[[pa.Array, Fields], dict[str, pa.Array] | None]


def _halved(
    whole: Whole, one_by_one: Callable[[pa.Array, Fields], Typed], data: pa.Array, fields: Fields
) -> Typed:
    """By `whole`, which gives None when it finds a mistake."""
    columns = whole(data, fields)
    if columns is not None:
        return Typed(columns, None)
    if len(data) <= HALVED_TO:
        return one_by_one(data, fields)
    half = len(data) // 2
    return _joined([_halved(whole, one_by_one, part, fields) for part in (data[:half], data[half:])])


# ---- JSON ----


def _read_json(data: pa.Array, fields: Fields) -> dict[str, pa.Array] | None:
    """By pyarrow, all at once.  None: something in it is not as it should be.

    Each payload begins with { and ends with }: then none can begin in one and end in the next, for between
    them stands a newline where neither an object nor a string has one.  So as many rows as payloads means
    one object in each.
    """
    if not pc.all(pc.and_(pc.starts_with(data, b"{"), pc.ends_with(data, b"}"))).as_py():
        try:
            data = pc.ascii_trim_whitespace(data.cast(pa.string())).cast(pa.binary())
        except pa.ArrowInvalid:
            return None
        if not pc.all(pc.and_(pc.starts_with(data, b"{"), pc.ends_with(data, b"}"))).as_py():
            return None
    lists = pa.ListArray.from_arrays(pa.array([0, len(data)], pa.int32()), data)
    joined = pc.binary_join(lists, b"\n")[0].as_buffer()
    options = pyarrow.json.ParseOptions(
        explicit_schema=pa.schema(_tree(fields)), newlines_in_values=True, unexpected_field_behavior="ignore"
    )
    reading = pyarrow.json.ReadOptions(use_threads=False, block_size=joined.size + 1)
    try:
        table = pyarrow.json.read_json(pa.BufferReader(joined), reading, options)
        if table.num_rows != len(data):
            return None
        columns = {field.column: _inside(table, field) for field in fields}
        for field in fields:
            if field.kind == "string":
                columns[field.column].validate(full=True)  # UTF-8
    except pa.ArrowException:
        return None
    return columns


def _tree(fields: Fields, depth: int = 0) -> list[pa.Field]:
    """The fields as JSON has them: those inside an object are a struct."""
    by_key: dict[str, list[Field]] = {}
    for field in fields:
        by_key.setdefault(field.path[depth], []).append(field)
    return [
        pa.field(
            key,
            KINDS[inside[0].kind]
            if len(inside[0].path) == depth + 1
            else pa.struct(_tree(inside, depth + 1)),
        )
        for key, inside in by_key.items()
    ]


def _inside(table: pa.Table, field: Field) -> pa.Array:
    column = table[field.path[0]].combine_chunks()
    for key in field.path[1:]:
        column = pc.struct_field(column, key)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _json_one(payload: bytes) -> Any:
    found = json.loads(payload, object_pairs_hook=Pairs, parse_constant=_refuse_constant)
    if not isinstance(found, Pairs):
        raise _Bad(NO_MAP)
    return found


def _unpack_one(payload: bytes) -> Any:
    return msgpack.unpackb(
        payload, object_pairs_hook=Pairs, strict_map_key=False, unicode_errors="surrogateescape"
    )


# ---- text ----


def _cast(data: pa.Array, fields: Fields) -> dict[str, pa.Array] | None:
    (field,) = fields
    try:
        text = data if field.kind == "binary" else data.cast(pa.string())
        return {field.column: text.cast(KINDS[field.kind])}
    except pa.ArrowInvalid:
        return None


def _cast_rows(data: pa.Array, fields: Fields) -> Typed:
    (field,) = fields
    columns = [_cast(data[row : row + 1], fields) for row in range(len(data))]
    bad = f"field {field.column}: no {field.kind}"
    return Typed(
        {
            field.column: pa.concat_arrays(
                [pa.nulls(1, KINDS[field.kind]) if it is None else it[field.column] for it in columns]
            )
        },
        pa.array([bad if it is None else None for it in columns], pa.string()),
    )


# ---- one by one ----


def decode_rows(loads: Callable[[bytes], Any], form: str, data: pa.Array, fields: Fields) -> Typed:
    """By a function that makes Python objects: dicts or Pairs, numbers, strings; what it raises, but for
    SourceOptionError, means that the payload is not of that format.
    """
    columns: dict[str, list[Any]] = {field.column: [] for field in fields}
    reasons: list[str | None] = []
    for payload in data.to_pylist():
        values: dict[str, Any] = {}
        try:
            _gather(_loaded(loads, form, payload), fields, 0, values)
        except _Bad as bad:
            values = {}
            reasons.append(str(bad))
        else:
            reasons.append(None)
        for column, rows in columns.items():
            rows.append(values.get(column))
    made = {field.column: pa.array(columns[field.column], KINDS[field.kind]) for field in fields}
    return Typed(made, pa.array(reasons, pa.string()) if any(reasons) else None)


def _loaded(loads: Callable[[bytes], Any], form: str, payload: bytes) -> Any:
    try:
        return loads(payload)
    except (_Bad, SourceOptionError):
        raise
    except Exception as error:
        raise _Bad(NOT_WHOLE.format(format=form)) from error


def _gather(said: Any, fields: Fields, depth: int, values: dict[str, Any]) -> None:
    """Values of fields out of `said`, by column.  Raises _Bad."""
    if len(fields) == 1 and len(fields[0].path) == depth:
        if fields[0].column in values:
            raise _Bad(f"field {fields[0].column}: a key that is there twice")
        values[fields[0].column] = _value(said, fields[0])
        return
    if said is None and depth > 0:
        return
    pairs: Iterable[tuple[Any, Any]]
    if isinstance(said, dict):
        pairs = said.items()
    elif isinstance(said, Pairs):
        pairs = said
    else:
        raise _Bad(NO_MAP)
    for key, inner in pairs:
        inside = [field for field in fields if isinstance(key, str) and field.path[depth] == key]
        if inside:
            _gather(inner, inside, depth + 1, values)


def _value(said: Any, field: Field) -> Any:
    """As the column of the field can hold it.  Raises _Bad."""
    kind = type(said)
    if said is None or (kind is bool and field.kind == "boolean"):
        return said
    if kind is int and field.kind == "long":
        if not -(1 << 63) <= said < 1 << 63:
            raise _Bad(f"field {field.column}: an integer beyond 64 bits")
        return said
    if kind in {int, float} and field.kind == "double":
        try:
            return float(said)
        except OverflowError:
            raise _Bad(f"field {field.column}: no double") from None
    if kind is bytes and field.kind == "binary":
        return said
    if kind is str and field.kind in {"string", "binary"}:
        try:
            encoded = said.encode(errors="surrogateescape" if field.kind == "binary" else "strict")
        except UnicodeEncodeError:
            raise _Bad(f"field {field.column}: a string that is no UTF-8") from None
        return encoded if field.kind == "binary" else said
    raise _Bad(f"field {field.column}: no {field.kind}")
