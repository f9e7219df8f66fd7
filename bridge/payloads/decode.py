"""Payloads into typed columns, by the entries of a payload schema (schema.py).

msgpack is unpacked by the compiled core (ringbuf/c/arrow/msgpack.c). JSON is read by pyarrow and text is
converted by it, both a batch at a time. A batch with an invalid payload is halved until that payload is
isolated, so it costs its neighbours little. CBOR and Sparkplug are decoded one by one, by their libraries.

msgspec reads maps in JSON (json_maps.py). Maps and arrays of msgpack are decoded one by one. int, float and
timestamp are decoded as another type, then converted (conversion.py). Levels of the topic need no payload
(topic_levels.py).

A value that does not fit its column leaves that column null, and goes to `_undecoded` (undecoded_text.py).
The other fields of the payload keep their values. A payload that is not in its format is not decoded at all.
Only the requested columns are decoded and checked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from bridge.payloads.conversion import converted, merged
from bridge.payloads.json_maps import read_maps
from bridge.payloads.kinds import KINDS, decoded_kind, is_list, is_map
from bridge.payloads.rows import NO_MAP, BadPayload, Fields, Typed, decode_rows, unpack_one
from bridge.payloads.schema import NO_RULE, RAW, UNDECODED, Field, PayloadRule, Payloads
from bridge.payloads.topic_levels import with_levels
from bridge.payloads.undecoded_text import Pairs, entry

HALVED_TO = 64  # rows: fewer are decoded one by one


def typed_columns(
    payloads: Payloads, topics: pa.Array, data: pa.Array, columns: Collection[str]
) -> dict[str, pa.Array]:
    """The wanted columns of the payload schema, with one row per topic and payload."""
    wanted = set(payloads.columns) & set(columns) or set(payloads.columns)
    encoded = topics.dictionary_encode()
    numbers = [payloads.rule_of(topic) for topic in encoded.dictionary.to_pylist()]
    needs_reasons = not {RAW, UNDECODED}.isdisjoint(columns)
    if len(set(numbers)) == 1:
        decoded = _by_rule(payloads, numbers[0], data, wanted, needs_reasons)
    else:
        entries = pa.array(numbers, pa.int32()).take(encoded.indices)
        decoded = _by_rules(payloads, entries, data, wanted, needs_reasons)
    decoded = with_levels(payloads, numbers, encoded, decoded, wanted)
    reasons = decoded.reasons
    if RAW in columns:
        nothing = pa.nulls(len(data), pa.binary())
        decoded.columns[RAW] = nothing if decoded.lost is None else pc.if_else(decoded.lost, data, nothing)
    if UNDECODED in columns:
        decoded.columns[UNDECODED] = pa.nulls(len(data), pa.string()) if reasons is None else reasons
    return {name: array for name, array in decoded.columns.items() if name in columns}


def check_libraries(payloads: Payloads) -> None:
    """Check that the library of each format is installed. Raises SourceOptionError."""
    for rule in payloads.rules:
        if rule.format in {"cbor", "sparkplug"}:
            _single(rule.format)


def _by_rule(
    payloads: Payloads, number: int, data: pa.Array, wanted: Collection[str], needs_reasons: bool
) -> Typed:
    """All rows by one entry; columns that the entry does not have are null.

    `needs_reasons`: payloads are decoded for the reasons even if the entry has none of the columns.
    """
    columns = {
        name: pa.nulls(len(data), KINDS[kind]) for name, kind in payloads.columns.items() if name in wanted
    }
    if number < 0:
        every = pa.repeat(pa.scalar(NO_RULE), len(data)), pa.repeat(pa.scalar(True), len(data))
        return Typed(columns, *every)
    rule = payloads.rules[number]
    fields = tuple(field for field in rule.payload_fields if field.column in wanted)
    if not fields and needs_reasons:
        fields = rule.payload_fields
    if not fields:
        return Typed(columns)
    decoded = decode_payloads(rule, fields, data)
    columns |= {name: array for name, array in decoded.columns.items() if name in wanted}
    return decoded._replace(columns=columns)


def _by_rules(
    payloads: Payloads, numbers: pa.Array, data: pa.Array, wanted: Collection[str], needs_reasons: bool
) -> Typed:
    """The rows of each entry separately, then all in their order."""
    places, parts = [], []
    for number in pc.unique(numbers).to_pylist():
        rows = pc.indices_nonzero(pc.equal(numbers, number))
        places.append(rows)
        parts.append(_by_rule(payloads, number, data.take(rows), wanted, needs_reasons))
    order = pc.sort_indices(pa.concat_arrays(places))
    return _joined(parts, order)


def _joined(parts: Sequence[Typed], order: pa.Array | None = None) -> Typed:
    """The parts joined, then reordered."""

    def put(arrays: Sequence[pa.Array]) -> pa.Array:
        joined = pa.concat_arrays(arrays)
        return joined if order is None else joined.take(order)

    lengths = [len(next(iter(part.columns.values()))) for part in parts]
    columns = {name: put([part.columns[name] for part in parts]) for name in parts[0].columns}
    if all(part.reasons is None for part in parts):
        return Typed(columns)
    with_lengths = list(zip(parts, lengths, strict=True))
    reasons = [part.reasons or pa.nulls(length, pa.string()) for part, length in with_lengths]
    lost = [part.lost or pa.repeat(pa.scalar(False), length) for part, length in with_lengths]
    return Typed(columns, put(reasons), put(lost))


def decode_payloads(rule: PayloadRule, fields: Fields, data: pa.Array) -> Typed:
    """Decode these fields of payloads of one format."""
    as_decoded = [replace(field, kind=decoded_kind(field.kind, field.unit)) for field in fields]
    return converted(_decoded(rule.format, as_decoded, data), fields, data)


def _decoded(form: str, fields: Fields, data: pa.Array) -> Typed:
    """Decode the fields, without the conversion to final types."""
    if form == "text":
        return _halved(_cast, _cast_rows, data, fields)
    single = _single(form)
    one_by_one = [field for field in fields if _is_single(form, field)]
    whole = [field for field in fields if not _is_single(form, field)]
    if not whole:
        return decode_rows(*single, data, fields)
    decoded = _whole(form, whole, data)
    return merged(decoded, decode_rows(*single, data, one_by_one)) if one_by_one else decoded


def _is_single(form: str, field: Field) -> bool:
    """True if no decoder of batches reads such a field."""
    return form != "json" and (form != "msgpack" or is_map(field.kind) or is_list(field.kind))


def _single(form: str) -> tuple[Callable[[bytes], Any], str]:
    """The decoder of one payload, and the name of the format."""
    if form == "msgpack":
        return unpack_one, "msgpack"
    if form == "json":
        return parse_json, "JSON"
    from bridge.payloads import formats

    return (formats.cbor(), "CBOR") if form == "cbor" else (formats.sparkplug(), "Sparkplug B")


def _whole(form: str, fields: Fields, data: pa.Array) -> Typed:
    if form == "json":
        return _halved(_read_json, lambda part, of: decode_rows(parse_json, "JSON", part, of), data, fields)
    from bridge.payloads.msgpack_columns import unpack

    return unpack(data, fields)


Whole: TypeAlias = Callable[[pa.Array, Fields], dict[str, pa.Array] | None]


def _halved(
    whole: Whole, one_by_one: Callable[[pa.Array, Fields], Typed], data: pa.Array, fields: Fields
) -> Typed:
    """Decode with `whole`, which returns None for an invalid payload; halve the batch in that case."""
    columns = whole(data, fields)
    if columns is not None:
        return Typed(columns)
    if len(data) <= HALVED_TO:
        return one_by_one(data, fields)
    half = len(data) // 2
    return _joined([_halved(whole, one_by_one, part, fields) for part in (data[:half], data[half:])])


# ---- JSON ----


def _read_json(data: pa.Array, fields: Fields) -> dict[str, pa.Array] | None:
    """Decode all payloads at once by pyarrow. Returns None if one is invalid.

    Each payload begins with { and ends with }. So none can begin in one line and end in the next: the newline
    between them can be part of neither an object nor a string. As many rows as payloads therefore means one
    object per payload.
    """
    try:
        text = data.cast(pa.string())  # JSON is UTF-8, also where no field reads it
    except pa.ArrowInvalid:
        return None
    if not pc.all(pc.and_(pc.starts_with(data, b"{"), pc.ends_with(data, b"}"))).as_py():
        data = pc.ascii_trim_whitespace(text).cast(pa.binary())
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
        columns = {field.column: _inside(table, field) for field in fields if not is_map(field.kind)}
        for column in columns.values():
            if pa.types.is_string(column.type) or pa.types.is_list(column.type):
                column.validate(full=True)  # UTF-8
    except pa.ArrowException:
        return None
    if len(columns) == len(fields):
        return columns
    maps = read_maps(data.to_pylist(), [field for field in fields if is_map(field.kind)])
    return None if maps is None else columns | maps


def _tree(fields: Fields, depth: int = 0) -> list[pa.Field]:
    """The fields in the structure of JSON: fields inside an object are a struct, a map is an empty struct."""
    by_key: dict[str, list[Field]] = {}
    for field in fields:
        by_key.setdefault(field.path[depth], []).append(field)
    return [
        pa.field(
            key,
            KINDS[inside[0].kind]
            if len(inside[0].path) == depth + 1 and not is_map(inside[0].kind)
            else pa.struct(_tree([field for field in inside if len(field.path) > depth + 1], depth + 1)),
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


def parse_json(payload: bytes) -> Any:
    """Decode one payload in JSON, for decode_rows(). Raises BadPayload if it is not an object; ValueError."""
    value = json.loads(payload, object_pairs_hook=Pairs, parse_constant=_refuse_constant)
    if not isinstance(value, Pairs):
        raise BadPayload(NO_MAP)
    return value


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
    typed = [pa.nulls(1, KINDS[field.kind]) if column is None else column[field.column] for column in columns]
    reasons = [None if payload is None else _misfit(field, payload) for payload in _misfits(columns, data)]
    lost = pa.array([column is None for column in columns])
    return Typed({field.column: pa.concat_arrays(typed)}, pa.array(reasons, pa.string()), lost)


def _misfits(columns: Sequence[dict[str, pa.Array] | None], data: pa.Array) -> list[bytes | None]:
    return [
        payload if column is None else None for column, payload in zip(columns, data.to_pylist(), strict=True)
    ]


def _misfit(field: Field, payload: bytes) -> str:
    text = payload.decode(errors="surrogateescape")
    return entry([field.column], f"no {field.kind}", [text], len(payload))
