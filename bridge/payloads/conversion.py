"""Conversion of decoded columns to their final types, a batch at a time: int, float and timestamp.

A decoder reads these columns as long, double or string (kinds.decoded_kind). A value outside of
its final type is null; the reasons of its row name it. Also joins the reasons of two decoders.

A timestamp lies in the years 1 to 9999. A text may have any number of digits for fractions of a second;
digits after the sixth are cut off. A number of seconds to microseconds is rounded to a microsecond.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from bridge.payloads.kinds import KINDS, decoded_kind
from bridge.payloads.rows import Fields, Typed
from bridge.payloads.schema import Field
from bridge.payloads.undecoded_text import entry

MICROSECONDS: Final = {"s": 1e6, "ms": 1e3, "us": 1.0}
TIME_MIN_US, TIME_MAX_US = -62_135_596_800_000_000, 253_402_300_799_999_999
CASTABLE_MAX: Final = float(1 << 62)  # a cast to int64 is safe; the limits above are no exact doubles
INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
_DAY: Final = (
    r"(?:\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)"
    r"|02-(?:0[1-9]|1\d|2[0-8]))"
    r"|(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
)
_MINUTE: Final = r"(?:[01]\d|2[0-3]):[0-5]\d"
_OFFSET: Final = r"(?:Z|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)"
ISO_TIME: Final = rf"^{_DAY}(?:[ T]{_MINUTE}(?::[0-5]\d(?:\.\d+)?)?{_OFFSET}?)?$"
"""Only times that exist: a cast refuses a batch as a whole."""
HAS_OFFSET: Final = r":\d\d(?:\.\d+)?(?:Z|[+-]\d\d(?::?\d\d)?)$"


def converted(typed: Typed, fields: Fields, data: pa.Array) -> Typed:
    """Convert the columns of `fields` from their decoded types to their final types; `data`: the payloads."""
    columns = dict(typed.columns)
    misfits: list[tuple[Field, pa.Array]] = []
    for field in fields:
        if decoded_kind(field.kind, field.unit) != field.kind:
            before = columns[field.column]
            after = columns[field.column] = _converted(before, field)
            if after.null_count != before.null_count:
                misfits.append((field, pc.and_(pc.is_valid(before), pc.is_null(after))))
    if not misfits:
        return typed._replace(columns=columns)
    texts: list[str | None] = [None] * len(data)
    lost = typed.lost or pa.repeat(pa.scalar(False), len(data))
    for field, bad in misfits:
        _add_reasons(texts, field, bad, typed.columns[field.column], data)
        if not field.path:  # the value is the whole payload
            lost = pc.or_(lost, bad)
    return Typed(columns, join_reasons(typed.reasons, pa.array(texts, pa.string())), lost)


def _add_reasons(
    texts: list[str | None], field: Field, bad: pa.Array, values: pa.Array, data: pa.Array
) -> None:
    rows = pc.indices_nonzero(bad)
    lengths = pc.binary_length(data.take(rows)).to_pylist()
    reason = "an integer beyond 32 bits" if field.kind == "int" else f"no {field.kind}"
    for row, value, length in zip(rows.to_pylist(), values.take(rows).to_pylist(), lengths, strict=True):
        text = entry([field.column], reason, [value], length)
        before = texts[row]
        texts[row] = text if before is None else f"{before}; {text}"


def join_reasons(one: pa.Array | None, other: pa.Array | None) -> pa.Array | None:
    """The reasons of both, row by row."""
    if one is None or other is None:
        return other if one is None else one
    # null_handling="skip" drops the rows in which both are null (pyarrow 26).
    return pc.coalesce(pc.binary_join_element_wise(one, other, "; "), one, other)


def merged(one: Typed, other: Typed) -> Typed:
    """The columns of two decoders of the same payloads. A payload that either could not decode is lost."""
    columns = one.columns | other.columns
    if one.reasons is None and other.reasons is None:
        return Typed(columns)
    rows = len(next(iter(columns.values())))
    all_decoded = pa.repeat(pa.scalar(False), rows)
    first, second = one.lost or all_decoded, other.lost or all_decoded
    lost = pc.or_(first, second)
    reasons = join_reasons(one.reasons, other.reasons)
    assert reasons is not None
    reasons = pc.if_else(first, one.reasons, reasons) if one.reasons is not None else reasons
    if other.reasons is not None:
        reasons = pc.if_else(pc.and_not(second, first), other.reasons, reasons)
    if not pc.equal(first, second).false_count:
        return Typed(columns, reasons, lost)
    kept = pc.if_else(lost, pa.scalar(None, pa.int64()), pa.array(range(rows), pa.int64()))
    return Typed({name: column.take(kept) for name, column in columns.items()}, reasons, lost)


def _converted(values: pa.Array, field: Field) -> pa.Array:
    """The values in the type of the field; null for values outside of that type."""
    kind = KINDS[field.kind]
    if field.kind == "int":
        return _within(values, INT_MIN, INT_MAX).cast(kind)
    if field.kind == "float":
        narrow = values.cast(kind)
        beyond = pc.and_(pc.is_finite(values), pc.invert(pc.is_finite(narrow)))
        return pc.if_else(beyond, pa.scalar(None, kind), narrow)
    if not field.unit:
        return _of_text(values)
    if field.unit == "ns":
        whole = pc.divide(values, 1000)
        below = pc.less(values, pc.multiply(whole, 1000))  # division rounds towards 0
        return _within(pc.subtract(whole, below.cast(pa.int64())), TIME_MIN_US, TIME_MAX_US).cast(kind)
    scaled = pc.round(pc.multiply(values, MICROSECONDS[field.unit]))
    whole = _within(scaled, -CASTABLE_MAX, CASTABLE_MAX).cast(pa.int64())
    return _within(whole, TIME_MIN_US, TIME_MAX_US).cast(kind)


def _within(values: pa.Array, value_min: float, value_max: float) -> pa.Array:
    inside = pc.and_(pc.greater_equal(values, value_min), pc.less_equal(values, value_max))
    return pc.if_else(inside, values, pa.scalar(None, values.type))


def _of_text(texts: pa.Array) -> pa.Array:
    texts = pc.if_else(pc.match_substring_regex(texts, ISO_TIME), texts, pa.scalar(None, pa.string()))
    texts = pc.replace_substring_regex(texts, r"(\.\d{6})\d+", r"\1")
    texts = pc.if_else(
        pc.equal(pc.utf8_length(texts), 10), pc.binary_join_element_wise(texts, "T00:00:00", ""), texts
    )
    has_offset = pc.match_substring_regex(texts, HAS_OFFSET)
    texts = pc.if_else(has_offset, texts, pc.binary_join_element_wise(texts, "Z", ""))
    kind = KINDS["timestamp"]
    return _within(texts.cast(kind).cast(pa.int64()), TIME_MIN_US, TIME_MAX_US).cast(kind)
