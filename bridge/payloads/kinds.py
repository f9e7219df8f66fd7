"""Types of payload columns: their names in a payload schema, in Arrow, and the type that a decoder reads.

    long, int         integers of 64 and 32 bits
    double, float     floating-point numbers of 64 and 32 bits; an integer fits, too
    boolean, string
    binary            bytes, or the bytes of a string
    timestamp         microseconds, UTC. Without `unit` a text in the form of ISO 8601; without an offset it
                      is UTC. With `unit` (s, ms, us, ns) a number since 1970
    array<T>          a list; T: long, double, boolean or string. Elements may be null
    map<string,T>     an object with any keys; values may be null

A decoder reads an `int` as long, a `float` as double, a `timestamp` as string, double or long. conversion.py
converts these columns, a batch at a time.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

ELEMENTS: Final[dict[str, pa.DataType]] = {
    "long": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
}
KINDS: Final[dict[str, pa.DataType]] = {
    **ELEMENTS,
    "binary": pa.binary(),
    "int": pa.int32(),
    "float": pa.float32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    **{f"array<{name}>": pa.list_(pa.field("element", kind)) for name, kind in ELEMENTS.items()},
    **{f"map<string,{name}>": pa.map_(pa.string(), kind) for name, kind in ELEMENTS.items()},
}
UNITS: Final = ("s", "ms", "us", "ns")
WIDER: Final[dict[str, frozenset[str]]] = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
}
"""Types that a column may change to: every reader joins the files before and after the change."""


def decoded_kind(kind: str, unit: str = "") -> str:
    """Type in which a decoder reads a column of this final type."""
    if kind == "timestamp":
        return "long" if unit == "ns" else "double" if unit else "string"
    return {"int": "long", "float": "double"}.get(kind, kind)


def is_list(kind: str) -> bool:
    """True for array<T>."""
    return kind.startswith("array<")


def is_map(kind: str) -> bool:
    """True for map<string,T>."""
    return kind.startswith("map<")
