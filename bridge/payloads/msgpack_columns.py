"""msgpack payloads into Arrow columns by the compiled core: ringbuf/c/arrow/msgpack.c.

Owns the memory of the columns. The core returns no values for a payload with a value that does not fit.
Python decodes such a payload again, keeps its other fields and shows the value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bridge.payloads.kinds import KINDS
from bridge.payloads.rows import NOT_WHOLE, Typed, decode_rows, unpack_one
from bridge.payloads.schema import Field
from ringbuf.native import ffi, lib

TYPES = {
    "long": "RB_LONG",
    "double": "RB_DOUBLE",
    "boolean": "RB_BOOLEAN",
    "string": "RB_STRING",
    "binary": "RB_BINARY",
}


def unpack(data: pa.Array, fields: Sequence[Field]) -> Typed:
    """Decode the fields of msgpack payloads; no payload is null."""
    rows, (_, ends, payloads) = len(data), data.buffers()
    if rows == 0:
        return Typed({field.column: pa.nulls(0, KINDS[field.kind]) for field in fields})
    first = ffi.cast("int32_t *", ends.address) + data.offset
    total = first[rows] - first[0]
    out = ffi.new("rb_unpack_field[]", len(fields))
    outputs = [_prepared(one, field, rows, total) for one, field in zip(out, fields, strict=True)]
    outcomes = pa.allocate_buffer(2 * rows)
    # A buffer without bytes has no address, and all payloads may be empty.
    begin = ffi.cast("uint8_t *", payloads.address if payloads is not None else 0)
    code = lib.rb_unpack(begin, first, rows, out, len(fields), ffi.cast("uint16_t *", outcomes.address))
    assert code == lib.RB_OK, fields
    columns = {
        field.column: pa.Array.from_buffers(KINDS[field.kind], rows, buffers)
        for field, (buffers, _) in zip(fields, outputs, strict=True)
    }
    codes = pc.bit_wise_and(
        pa.Array.from_buffers(pa.uint16(), rows, [None, outcomes]), (1 << lib.RB_UNPACK_BITS) - 1
    )
    return _with_reasons(columns, codes, data, fields, lib.RB_UNPACK_NO_MAP)


def _prepared(out: Any, field: Field, rows: int, total: int) -> tuple[list[pa.Buffer], Any]:
    """Memory for one column, and the objects that keep its path alive."""
    bits, text = (rows + 7) // 8, field.kind in {"string", "binary"}
    path = ffi.from_buffer(b"".join(bytes([len(key)]) + key for key in map(str.encode, field.path)))
    valid = pa.allocate_buffer(bits)
    length = total if text else bits if field.kind == "boolean" else 8 * rows
    values = pa.allocate_buffer(length)
    out.path, out.path_length = path, len(path)
    out.type = getattr(lib, TYPES[field.kind])
    out.values, out.valid = ffi.cast("void *", values.address), ffi.cast("uint8_t *", valid.address)
    if not text:
        return [valid, values], path
    ends = pa.allocate_buffer(4 * rows + 4)
    out.ends, out.capacity = ffi.cast("int32_t *", ends.address), total
    return [valid, ends, values], path


def _with_reasons(
    columns: dict[str, pa.Array], codes: pa.Array, data: pa.Array, fields: Sequence[Field], misfit: int
) -> Typed:
    """The columns with reasons. Codes from `misfit` on belong to payloads of which some fields may fit."""
    if pc.max(codes).as_py() == 0:
        return Typed(columns)
    lost = pc.not_equal(codes, 0)
    nothing = pa.nulls(len(data), pa.string())
    reasons = pc.if_else(lost, NOT_WHOLE.format(format="msgpack"), nothing)
    again = pc.greater_equal(codes, misfit)
    rows = decode_rows(unpack_one, "msgpack", data.filter(again), fields)
    columns = {
        name: pc.replace_with_mask(column, again, rows.columns[name]) for name, column in columns.items()
    }
    count = len(next(iter(rows.columns.values())))
    reasons = pc.replace_with_mask(reasons, again, rows.reasons or pa.nulls(count, pa.string()))
    lost = pc.replace_with_mask(lost, again, rows.lost or pa.repeat(pa.scalar(False), count))
    return Typed(columns, reasons, lost)
