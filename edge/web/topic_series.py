"""Topic series: the newest messages of one topic, and its numeric fields as series for a chart.

A payload that is a number is a field without a name; of a JSON object each number is a field, also within
objects, by its path with dots. Reads the rings in shared memory; the broker takes no part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from edge.local.arrivals import Arrival, messages_of_batch
from edge.local.payloads import payload_fields
from edge.web.topic_sampler import newest

NEWEST = 200_000  # records of each ring that are searched
SERIES_MAX = 600  # messages
SHOWN = 20
SHOWN_BYTES = 4_096
FIELDS_MAX = 12
DEPTH_MAX = 4
JSON_MAX_BYTES = 64 << 10

Row = dict[str, Any]


def topic_series(runtime_dir: Path | None, topic: str) -> Row:
    """`messages`, the newest first, and `fields`: by name, a list of (time in s, value)."""
    batches = newest(runtime_dir, topic, NEWEST, SERIES_MAX)
    arrivals = [message for batch in batches for message in messages_of_batch(batch)]
    arrivals.sort(key=lambda message: int(message.fields["timestamp_ns"]))
    fields: dict[str, list[tuple[float, float]]] = {}
    for message in arrivals[-SERIES_MAX:]:
        at_s = round(message.fields["timestamp_ns"] / 1e9, 3)
        for name, value in numbers_of(message.payload):
            if name in fields or len(fields) < FIELDS_MAX:
                fields.setdefault(name, []).append((at_s, value))
    return {
        "topic": topic,
        "count": len(arrivals),
        "messages": [_row(message) for message in reversed(arrivals[-SHOWN:])],
        "fields": fields,
    }


def numbers_of(payload: bytes) -> Iterator[tuple[str, float]]:
    """Numeric fields of a payload, by name; none if the payload is not JSON."""
    if len(payload) > JSON_MAX_BYTES:
        return
    try:
        value = msgspec.json.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return
    yield from _numbers(value, "", DEPTH_MAX)


def _numbers(value: Any, name: str, depth: int) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict) and depth:
        for key, item in value.items():
            yield from _numbers(item, f"{name}.{key}" if name else str(key), depth - 1)
    elif isinstance(value, int | float):  # a truth value is 0 or 1
        number = float(value) if abs(value) < 1 << 63 else math.inf
        if math.isfinite(number):
            yield name, number


def _row(message: Arrival) -> Row:
    fields = {"size_bytes": len(message.payload), **message.fields}
    return fields | payload_fields(message.payload[:SHOWN_BYTES])
