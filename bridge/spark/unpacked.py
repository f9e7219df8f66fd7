"""msgpack payloads into Arrow columns by the compiled core: ringbuf/c/unpack.c.

Owns the memory of the columns, and the words for what was wrong with a payload.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bridge.spark.decode import compiled
from bridge.spark.fields import NO_MAP, NOT_WHOLE, Typed
from bridge.spark.payloads import KINDS, Field

__all__ = ["unpack"]

TYPES = {
    "long": "RB_LONG",
    "double": "RB_DOUBLE",
    "boolean": "RB_BOOLEAN",
    "string": "RB_STRING",
    "binary": "RB_BINARY",
}


def unpack(data: pa.Array, fields: Sequence[Field]) -> Typed | None:
    """The fields of msgpack payloads, none of them null; None where there is no compiled core."""
    core = compiled()
    if core is None:
        return None
    ffi, lib = core
    rows, (_, ends, payloads) = len(data), data.buffers()
    if rows == 0:
        return Typed({field.column: pa.nulls(0, KINDS[field.kind]) for field in fields}, None)
    first = ffi.cast("int32_t *", ends.address) + data.offset
    total = first[rows] - first[0]
    out = ffi.new("rb_unpack_field[]", len(fields))
    kept = [_prepared(ffi, lib, one, field, rows, total) for one, field in zip(out, fields, strict=True)]
    outcomes = pa.allocate_buffer(2 * rows)
    # A buffer without bytes has no address, and payloads may all be empty.
    begin = ffi.cast("uint8_t *", payloads.address if payloads is not None else 0)
    found = lib.rb_unpack(begin, first, rows, out, len(fields), ffi.cast("uint16_t *", outcomes.address))
    assert found == lib.RB_OK, fields
    columns = {
        field.column: pa.Array.from_buffers(KINDS[field.kind], rows, buffers)
        for field, (buffers, _) in zip(fields, kept, strict=True)
    }
    return Typed(columns, _reasons(lib, pa.Array.from_buffers(pa.uint16(), rows, [None, outcomes]), fields))


def _prepared(
    ffi: Any, lib: Any, out: Any, field: Field, rows: int, total: int
) -> tuple[list[pa.Buffer], Any]:
    """Room for one column, and what keeps its path alive."""
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
    out.ends, out.room = ffi.cast("int32_t *", ends.address), total
    return [valid, ends, values], path


def _reasons(lib: Any, outcomes: pa.Array, fields: Sequence[Field]) -> pa.Array | None:
    distinct = outcomes.unique()
    if distinct.to_pylist() == [lib.RB_UNPACKED]:
        return None
    words = pa.array([_words(lib, outcome, fields) for outcome in distinct.to_pylist()], pa.string())
    return words.take(pc.index_in(outcomes, distinct))


def _words(lib: Any, outcome: int, fields: Sequence[Field]) -> str | None:
    code, about = outcome & (1 << lib.RB_UNPACK_BITS) - 1, fields[outcome >> lib.RB_UNPACK_BITS]
    said = {
        lib.RB_UNPACKED: None,
        lib.RB_UNPACK_CUT: NOT_WHOLE.format(format="msgpack"),
        lib.RB_UNPACK_REST: NOT_WHOLE.format(format="msgpack"),
        lib.RB_UNPACK_NO_MAP: NO_MAP,
        lib.RB_UNPACK_TYPE: f"field {about.column}: no {about.kind}",
        lib.RB_UNPACK_RANGE: f"field {about.column}: an integer beyond 64 bits",
        lib.RB_UNPACK_TEXT: f"field {about.column}: a string that is no UTF-8",
        lib.RB_UNPACK_TWICE: f"field {about.column}: a key that is there twice",
    }
    return said[code]
