"""Maps in JSON payloads as Arrow columns, by msgspec.

pyarrow's reader has no maps. It checks the payloads, with the keys above each map (decode.py); this module
then reads the maps. If a payload may be invalid, the result is None, and the caller decodes it again.

No key of a map occurs twice if the number of entries is that of the colons in its bytes: each entry has one
colon, and texts may add more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import GenericAlias
from typing import Any

import msgspec
import pyarrow as pa

from bridge.payloads.kinds import KINDS
from bridge.payloads.schema import Field

ELEMENTS: dict[str, Any] = {"long": int, "double": float, "boolean": bool, "string": str}


def read_maps(payloads: Sequence[bytes], fields: Sequence[Field]) -> dict[str, pa.Array] | None:
    """The maps of payloads that are objects; None if one does not fit, or may be invalid."""
    try:
        return {field.column: _read(payloads, field) for field in fields}
    except (msgspec.MsgspecError, pa.ArrowException, ValueError, OverflowError, RecursionError):
        return None


@functools.lru_cache(maxsize=256)
def _decoders(field: Field) -> tuple[Callable[[bytes], Any], Callable[[bytes], Any]]:
    """Two decoders: of a payload, down the path to the map; of the bytes of the map."""
    kind: Any = msgspec.Raw
    absent: Any = msgspec.Raw(b"null")
    for key in reversed(field.path):
        kind = msgspec.defstruct("Level", [("inner", kind, msgspec.field(name=key, default=absent))]) | None
        absent = None
    element: Any = ELEMENTS[field.kind.removeprefix("map<string,").removesuffix(">")]
    entries = GenericAlias(dict, (str, element | None)) | None
    return msgspec.json.Decoder(kind).decode, msgspec.json.Decoder(entries).decode


def _read(payloads: Sequence[bytes], field: Field) -> pa.Array:
    outer, inner = _decoders(field)
    maps: list[Any] = []
    for payload in payloads:
        value = outer(payload)
        for _ in field.path:
            value = None if value is None else value.inner
        if value is None:
            maps.append(None)
            continue
        entries = inner(value)
        if entries is not None and len(entries) != bytes(value).count(b":"):
            raise ValueError("a key may be there twice")
        maps.append(None if entries is None else list(entries.items()))
    return pa.array(maps, KINDS[field.kind])
