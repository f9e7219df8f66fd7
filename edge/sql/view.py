"""The relation `records` in SQL: the columns of a record, and those of a payload schema.

    stream        VARCHAR    "press" of the rings press-0, press-1; with @ also of local producers
    ring          VARCHAR
    epoch         BIGINT     with ring and offset: the permanent identity of the record
    offset        BIGINT     quoted in SQL: "offset"
    timestamp     TIMESTAMP  time at which the broker took it; UTC, microseconds
    timestamp_ns  BIGINT     the same in nanoseconds since 1970
    topic         VARCHAR
    qos           INTEGER
    retain        BOOLEAN
    properties    BLOB       MQTT 5 properties in wire form with their length first; NULL: no properties
    payload       BLOB
    payload_text  VARCHAR    the payload if it is UTF-8, otherwise NULL

A payload schema (bridge/payloads/schema.py) adds a column for each field, NULL where a value is absent or
does not fit its type, and `_undecoded` and `_raw`. Only the fields that a query names are decoded. DuckDB
decodes JSON itself; of a key that an object has twice, the first value counts. Other formats are decoded by
bridge.payloads, a vector of rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa

from bridge.payloads.decode import typed_columns
from bridge.payloads.schema import RAW, UNDECODED, Field, PayloadRule, Payloads
from edge.errors import InvalidArgument
from edge.sql.topic_filters import quoted, topic_condition
from ringbuf import FLAG_QOS, FLAG_RETAIN

SOURCE_COLUMNS: Final = 'ring, epoch, "offset", timestamp_ns, topic, flags, properties, payload'
# decode() without 'ignore' fails, and TRY() copies every value. DuckDB decodes once here.
DECODED: Final = "decode(payload, 'ignore')"
TEXT: Final = f"CASE WHEN strlen({DECODED}) = octet_length(payload) THEN {DECODED} END"
COLUMNS: Final[Mapping[str, str]] = {
    "stream": "CASE WHEN contains(ring, '@') THEN split_part(ring, '@', 1) "
    "ELSE regexp_replace(ring, '-[0-9]+$', '') END",
    "ring": "ring",
    "epoch": "epoch",
    "offset": '"offset"',
    "timestamp": "make_timestamp(timestamp_ns // 1000)",
    "timestamp_ns": "timestamp_ns",
    "topic": "topic",
    "qos": f"(flags & {FLAG_QOS})::INTEGER",
    "retain": f"(flags & {FLAG_RETAIN}) <> 0",
    "properties": "properties",
    "payload": "payload",
    "payload_text": TEXT,
}
ELEMENTS: Final[Mapping[str, str]] = {
    "long": "BIGINT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "string": "VARCHAR",
}
SQL_TYPES: Final[Mapping[str, str]] = {
    **ELEMENTS,
    "binary": "BLOB",
    "int": "INTEGER",
    "float": "FLOAT",
    "timestamp": "TIMESTAMP",
    **{f"array<{kind}>": f"{name}[]" for kind, name in ELEMENTS.items()},
    **{f"map<string,{kind}>": f"MAP(VARCHAR, {name})" for kind, name in ELEMENTS.items()},
}
# The text of a JSON value as a value of the type, NULL if the value has another type.
OF_JSON: Final[Mapping[str, str]] = {
    "long": "TRY_CAST(regexp_extract({}, '^-?[0-9]+$') AS BIGINT)",
    "double": "TRY_CAST(regexp_extract({}, '^-?[0-9].*$') AS DOUBLE)",
    "boolean": "TRY_CAST(regexp_extract({}, '^(true|false)$') AS BOOLEAN)",
    "string": "TRY(json_extract_string(regexp_extract({}, '^\".*\"$'), '$'))",
}


class PayloadFunction(NamedTuple):
    """A function of topic and payload that SQL calls for a column."""

    name: str
    type: str  # of the result, in SQL
    decode: Callable[[pa.ChunkedArray, pa.ChunkedArray], pa.Array]


def projection(payloads: Payloads | None) -> str:
    """The columns of the relation, as expressions on SOURCE_COLUMNS."""
    columns = dict(COLUMNS)
    for name, expression in _payload_columns(payloads) if payloads is not None else ():
        if name.lower() in COLUMNS:
            raise InvalidArgument(
                f"payload schema: column {name!r} is a column of every record",
                hint="give the field another name",
            )
        columns[name] = expression
    return ", ".join(f'{expression} AS "{name}"' for name, expression in columns.items())


def functions(payloads: Payloads) -> Iterator[PayloadFunction]:
    """The functions that the expressions call."""
    kinds = {name: SQL_TYPES[kind] for name, kind in payloads.columns.items()}
    for name, kind in {**kinds, UNDECODED: "VARCHAR", RAW: "BLOB"}.items():
        yield PayloadFunction(_function(name), kind, _decoder(payloads, name))


def _decoder(payloads: Payloads, column: str) -> Callable[[pa.ChunkedArray, pa.ChunkedArray], pa.Array]:
    def decode(topics: pa.ChunkedArray, data: pa.ChunkedArray) -> pa.Array:
        values = typed_columns(payloads, _whole(topics), _whole(data), {column})[column]
        # `records` has all times as TIMESTAMP in UTC.
        return values.cast(pa.timestamp("us")) if pa.types.is_timestamp(values.type) else values

    return decode


def _whole(array: Any) -> pa.Array:
    joined = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    return joined.chunk(0) if isinstance(joined, pa.ChunkedArray) else joined


def _function(column: str) -> str:
    return f"brim_payload_{column}"


def _payload_columns(payloads: Payloads) -> Iterator[tuple[str, str]]:
    for name in payloads.columns:
        yield name, _column(payloads, name)
    for name in (UNDECODED, RAW):
        yield name, f'"{_function(name)}"(topic, payload)'


def _column(payloads: Payloads, name: str) -> str:
    """The value of the first entry whose filter matches the topic."""
    if all(_of_rule(rule, name) is None or not _is_sql(rule, name) for rule in payloads.rules):
        return f'"{_function(name)}"(topic, payload)'
    cases = []
    for rule in payloads.rules:
        field = _of_rule(rule, name)
        value = "NULL" if field is None else f'"{_function(name)}"(topic, payload)'
        if field is not None and _is_sql(rule, name):
            value = _json(field)
        cases.append(f"WHEN {topic_condition(rule.topic)} THEN {value}")
    return f"CASE {' '.join(cases)} END"


def _of_rule(rule: PayloadRule, name: str) -> Field | None:
    return next((field for field in rule.fields if field.column == name), None)


def _is_sql(rule: PayloadRule, name: str) -> bool:
    """True if DuckDB decodes the column itself: JSON, whose keys its paths can quote."""
    field = _of_rule(rule, name)
    if rule.format != "json" or field is None or field.level or field.kind not in OF_JSON:
        return False
    return not any('"' in key for key in field.path)


def _json(field: Field) -> str:
    path = quoted("$" + "".join(f'."{key}"' for key in field.path))
    return OF_JSON[field.kind].format(f"TRY(json_extract(decode(payload), {path}))::VARCHAR")
