"""Fields of a payload schema as columns: the values are those of the Spark source."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import brim
from bridge.payloads.decode import typed_columns
from bridge.payloads.schema import Payloads
from edge.errors import InvalidArgument
from tests.support.kept_logs import Kept, keep

SCHEMA = """
[[payload]]
topic = "m/#"
format = "msgpack"
fields = { temp = "double", n = "long" }
[[payload]]
topic = "t/+"
format = "text"
fields = { temp = { path = ".", type = "double" } }
[[payload]]
topic = "j/#"
format = "json"
[payload.fields]
temp = "double"
n = "long"
ok = "boolean"
name = "string"
deep = { path = "a.b c", type = "long" }
odd = { path = 'q"q', type = "string" }
"""
COLUMNS = ["temp", "n", "ok", "name", "deep", "odd", "_undecoded", "_raw"]
VALUES = (
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.text(max_size=8)
    | st.floats(allow_nan=False, allow_infinity=False) | st.just([1]) | st.just({"x": 1})
)  # fmt: skip
OBJECTS = st.fixed_dictionaries(
    {},
    optional={
        "temp": VALUES, "n": VALUES, "ok": VALUES, "name": VALUES, 'q"q': VALUES,
        "a": st.fixed_dictionaries({}, optional={"b c": VALUES}) | VALUES,
    },
)  # fmt: skip
JSON = st.tuples(st.just("j/x"), OBJECTS.map(lambda value: json.dumps(value).encode()))
OTHERS = st.tuples(st.sampled_from(["j/x", "m/x", "t/x", "z"]), st.binary(max_size=12))
TEXT = st.tuples(st.just("t/x"), st.floats(allow_nan=False).map(lambda value: str(value).encode()))
PACKED = st.tuples(
    st.just("m/y"),
    st.dictionaries(st.sampled_from(["temp", "n"]), st.integers(-9, 9) | st.text(max_size=3)).map(
        msgpack.packb
    ),
)


def rows_of(directory: Path, schema: Path) -> list[dict[str, Any]]:
    query = f'SELECT {", ".join(COLUMNS)} FROM records ORDER BY "offset"'
    result = brim.sql(query, log=directory, runtime_dir=directory / "none", payloads=schema)
    found: list[dict[str, Any]] = result.arrow().to_pylist()
    return found


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=st.lists(JSON | JSON | OTHERS | TEXT | PACKED, min_size=1, max_size=25))
def test_columns_have_the_values_of_the_payload_decoder(tmp_path_factory, records):
    directory = tmp_path_factory.mktemp("log")
    schema = directory / "payloads.toml"
    schema.write_text(SCHEMA)
    keep(directory, "a-0", [Kept(topic, payload) for topic, payload in records])
    topics, data = pa.array([it for it, _ in records]), pa.array([it for _, it in records], pa.binary())
    expected = typed_columns(Payloads.read(schema), topics, data, COLUMNS)
    rows = rows_of(directory, schema)
    for name in COLUMNS:
        assert [row[name] for row in rows] == expected[name].to_pylist(), name


def test_a_field_with_the_name_of_a_record_column_is_refused(tmp_path):
    keep(tmp_path, "a-0", [Kept("a", b"1")])
    schema = tmp_path / "payloads.toml"
    schema.write_text('[[payload]]\ntopic = "a"\nformat = "json"\nfields = { ring = "long" }\n')
    with pytest.raises(InvalidArgument, match="column 'ring'"):
        brim.sql("SELECT 1 FROM records", log=tmp_path, runtime_dir=tmp_path / "none", payloads=schema)


def test_all_types_and_levels_of_a_payload_schema_are_columns(tmp_path):
    keep(
        tmp_path,
        "a-0",
        [Kept("plant/n/7", b'{"i":1,"f":0.5,"t":"2026-11-27T10:00:00Z","s":[1],"m":{"a":2}}')],
    )
    schema = tmp_path / "payloads.toml"
    schema.write_text(
        '[[payload]]\ntopic = "plant/#"\nformat = "json"\n[payload.fields]\n'
        'i = "int"\nf = "float"\nt = "timestamp"\ns = "array<long>"\nm = "map<string,double>"\n'
        'site = { level = 2 }\nline = { level = 3, type = "long" }\n'
    )
    result = brim.sql(
        "SELECT i, f, t, s, m, site, line, _undecoded FROM records WHERE t < TIMESTAMP '2026-11-28'",
        log=tmp_path, runtime_dir=tmp_path / "none", payloads=schema,
    )  # fmt: skip
    (row,) = result.arrow().to_pylist()
    time = datetime(2026, 11, 27, 10)  # noqa: DTZ001 - `records` has all times in UTC
    expected = {"i": 1, "f": 0.5, "t": time, "s": [1], "m": [("a", 2.0)], "site": "n", "line": 7}
    assert row == {**expected, "_undecoded": None}
