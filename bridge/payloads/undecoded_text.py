"""Values that do not fit their column, as text for `_undecoded`.

    field temp: no double: "warm"
    field temp: no double: "warm"; fields vib, load: a map belongs where something else is: 5

One entry for each value, with `; ` between entries: the column, the reason, and the value as JSON. Bytes, and
strings that are not UTF-8, are hexadecimal digits after 0x. Nothing is shortened.

Payloads are hostile: a few bytes of CBOR can refer to one value a million times. So the text of one payload
has at most SHOWN_MAX characters per byte of the payload. No payload without references needs more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

SHOWN_MAX = 16  # characters per byte of the payload: null takes 6 for one byte, with its separator
DEPTH_MAX = 32


class Pairs(list[tuple[Any, Any]]):
    """An object with the keys that occur twice."""


def entry(columns: Iterable[str], reason: str, values: Iterable[Any], payload_bytes: int) -> str:
    """One entry of `_undecoded`.  Raises ValueError as shown()."""
    names = list(columns)
    text = ", ".join(shown(value, payload_bytes) for value in values)
    return f"field{'s' if len(names) > 1 else ''} {', '.join(names)}: {reason}: {text}"


def shown(value: Any, payload_bytes: int) -> str:
    """A value from a payload of that length as text.  Raises ValueError: too long, or nested too deep."""
    parts, left = [], 64 + SHOWN_MAX * payload_bytes
    for part in _parts(value, 0):
        left -= len(part)
        if left < 0:
            raise ValueError("too long")
        parts.append(part)
    return "".join(parts)


def _parts(value: Any, depth: int) -> Iterator[str]:
    if depth > DEPTH_MAX:
        raise ValueError("nested too deep")
    if value is None or isinstance(value, bool):
        yield json.dumps(value)
    elif isinstance(value, str):
        yield _text(value)
    elif isinstance(value, bytes | bytearray):
        yield f"0x{value.hex()}"
    elif isinstance(value, Pairs | Mapping):
        yield from _joined("{}", _pairs(value, depth + 1))
    elif isinstance(value, list | tuple | set | frozenset):
        yield from _joined("[]", (_parts(element, depth + 1) for element in value))
    elif hasattr(value, "tag") and hasattr(value, "value"):  # of CBOR
        yield from _joined("()", [iter([str(value.tag)]), _parts(value.value, depth + 1)])
    else:
        yield str(value)


def _pairs(value: Pairs | Mapping[Any, Any], depth: int) -> Iterator[Iterator[str]]:
    def parts(key: Any, inner: Any) -> Iterator[str]:
        yield from _parts(key, depth)
        yield ": "
        yield from _parts(inner, depth)

    for key, inner in value if isinstance(value, Pairs) else value.items():
        yield parts(key, inner)


def _joined(brackets: str, items: Iterable[Iterator[str]]) -> Iterator[str]:
    yield brackets[0]
    for number, item in enumerate(items):
        if number:
            yield ", "
        yield from item
    yield brackets[1]


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        try:
            return f"0x{value.encode(errors='surrogateescape').hex()}"
        except UnicodeEncodeError:
            return json.dumps(value)
    return json.dumps(value, ensure_ascii=False)
