"""Parquet files with typed columns: every reader gets values, and no payload is lost or stops a file."""
# ruff: noqa: E402

import io
import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'brim[spark]'")
from pyarrow import parquet

from bridge.arrow.schema import TYPES
from bridge.errors import BadName, SinkBlocked, SinkUnavailable, SourceOptionError
from bridge.format.file_builder import DrainedFile, build
from bridge.format.write_intent import WriteIntent
from bridge.payloads import decode
from bridge.payloads.evolution import evolved
from bridge.payloads.schema import NO_RULE, Payloads
from bridge.sinks.parquet import RESCUED, RESCUED_MAX, ParquetSink, parquet_bytes, schema_id, table_of
from bridge.sinks.registry import open_file_sink
from tests.support.bridges import FailingSink, drain, ring, run_dry, settings
from tests.support.drained_files import CREATED_NS, EPOCH, batch_of, record

SCHEMA = """
[[payload]]
topic = "plant/#"
format = "FORMAT"
[payload.fields]
site = { level = 2 }
line = { level = 3, type = "int" }
temp = "double"
count = "long"
small = "int"
ratio = "float"
ok = "boolean"
name = "string"
measured = { path = "at", type = "timestamp" }
sent = { path = "ms", type = "timestamp", unit = "ms" }
speed = { path = "motor.speed", type = "double" }
samples = "array<double>"
words = "array<string>"
limits = "map<string,double>"
"""
WHOLE: dict[str, Any] = {
    "temp": 21.5, "count": 2**40, "small": -7, "ratio": 0.25, "ok": True, "name": "ü",
    "at": "2026-11-27T10:00:00.123456789+01:00", "ms": 1_700_000_000_123, "motor": {"speed": 3},
    "samples": [1, 2.5, None], "words": ["a", None, "ü"], "limits": {"low": 1, "high": 2.5, "none": None},
}  # fmt: skip
VALUES: dict[str, Any] = {
    "site": "north", "line": 4, "temp": 21.5, "count": 2**40, "small": -7, "ratio": 0.25, "ok": True,
    "name": "ü", "measured": datetime(2026, 11, 27, 9, 0, 0, 123456, UTC),
    "sent": datetime(2023, 11, 14, 22, 13, 20, 123000, UTC), "speed": 3.0, "samples": [1.0, 2.5, None],
    "words": ["a", None, "ü"], "limits": [("low", 1.0), ("high", 2.5), ("none", None)],
}  # fmt: skip
TOPIC = "plant/north/4"


@pytest.fixture(scope="module", autouse=True)
def polars_runtime() -> None:
    """The threads of Polars and their descriptors stay until the process ends: they start before any test."""
    polars = pytest.importorskip("polars")
    frames = [polars.DataFrame({"a": [1]}), polars.DataFrame({"b": [1.5]})]
    polars.concat(frames, how="diagonal_relaxed").sort("a")


def file_of(
    payloads: Sequence[bytes], topic: str = TOPIC, payload_schema: str = "", drain_seq: int = 1
) -> DrainedFile:
    records = (record(offset, payload, topic=topic) for offset, payload in enumerate(payloads))
    batch = batch_of(records, epoch=EPOCH)
    place = (drain_seq, CREATED_NS, "default", 0, EPOCH, 0, None, 0, len(payloads) - 1)
    return build("edge-1", WriteIntent(*place, (), (), payloads=payload_schema), batch)


def schema_of(tmp_path: Path, text: str = SCHEMA.replace("FORMAT", "json")) -> Path:
    path = tmp_path / "payloads.toml"
    path.write_text(text)
    return path


def written(tmp_path: Path, payloads: Sequence[bytes], form: str = "json", topic: str = TOPIC) -> Any:
    schema = Payloads.read(schema_of(tmp_path, SCHEMA.replace("FORMAT", form)))
    file = file_of(payloads, topic)
    return parquet.read_table(pa.BufferReader(parquet_bytes(table_of(file, schema), file)))


def packed(form: str, value: Any) -> bytes:
    if form == "json":
        return json.dumps(value).encode()
    if form == "cbor":
        return bytes(pytest.importorskip("cbor2").dumps(value))
    return bytes(msgpack.packb(value))


@pytest.mark.parametrize("form", ["json", "msgpack", "cbor"])
def test_fields_and_topic_levels_are_columns_next_to_those_of_the_record(tmp_path: Path, form: str) -> None:
    payload = packed(form, WHOLE)
    (row,) = written(tmp_path, [payload], form).to_pylist()
    assert {name: row[name] for name in VALUES} == VALUES
    assert row[RESCUED] is None
    assert row["payload"] == payload
    assert row["topic"] == TOPIC
    assert list(row)[-1] == RESCUED


@pytest.mark.parametrize("form", ["json", "msgpack", "cbor"])
def test_a_bad_field_costs_the_field_and_not_the_row(tmp_path: Path, form: str) -> None:
    bad = {
        "temp": "warm", "count": 1.5, "small": 2**31, "ratio": 1e300, "ok": 1, "name": 5, "at": "yesterday",
        "ms": 1e300, "motor": 7, "samples": [1, "x"], "words": [1], "limits": {"low": "x"},
    }  # fmt: skip
    for field, value in bad.items():
        row, after = written(
            tmp_path, [packed(form, {**WHOLE, field: value}), packed(form, WHOLE)], form
        ).to_pylist()
        column = {"ms": "sent", "at": "measured", "motor": "speed"}.get(field, field)
        assert {name: row[name] for name in VALUES} == {**VALUES, column: None}
        assert f"field {column}: " in row[RESCUED]
        assert after[RESCUED] is None
    everything = written(tmp_path, [packed(form, bad)], form).to_pylist()[0]
    assert all(everything[name] is None for name in VALUES if name not in {"site", "line"})
    assert everything["site"] == "north"
    assert everything[RESCUED].count("field ") == len(bad)


HOSTILE = [
    b"", b"{", b"}", b"null", b"NaN", b"[]", b"[1]", b'"x"', b"\x00", b"\xff\xfe", b"{}" * 3,
    b'{"temp":NaN}', b'{"temp":Infinity}', b'{"temp":1e999}', b'{"count":18446744073709551616}',
    b'{"count":' + b"9" * 5000 + b"}", b'{"name":"\xff"}', b'{"name":"\\ud800"}', b'{"name":"\\u0000"}',
    b'{"temp":1,"temp":2}', b'{"limits":{"a":1,"a":2}}', b'{"limits":{"a":1},"limits":{"b":2}}',
    b'{"offset":1,"topic":"x","_rescued":"y","payload":2,"edge":3,"dt":4}', b'{"":1,"a.b":2}',
    b'{"motor":{"speed":{"speed":1}}}', b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"samples":' + b"[" * 50_000 + b"]" * 50_000 + b"}", b'{"x":' * 20_000 + b"1" + b"}" * 20_000,
    b'{"name":"' + b"x" * 10_000_000 + b'"}', b'{"samples":[' + b"1," * 200_000 + b"1]}",
    b'{"at":"0000-00-00"}', b'{"at":"2026-02-30"}', b'{"at":"2026-11-27T25:00:00Z"}', b'{"ms":-1e18}',
    b"{" + b",".join(b'"k%d":%d' % (at, at) for at in range(20_000)) + b"}", b'{"small":2147483648}',
]  # fmt: skip


@pytest.mark.parametrize("form", ["json", "msgpack", "cbor"])
def test_hostile_payloads_keep_their_row_and_cost_their_neighbours_nothing(tmp_path: Path, form: str) -> None:
    good = packed(form, WHOLE)
    given_payloads = [payload for hostile in HOSTILE for payload in (good, hostile)] + [good]
    rows = written(tmp_path, given_payloads, form)
    assert rows["payload"].to_pylist() == given_payloads
    assert rows["offset"].to_pylist() == list(range(len(given_payloads)))
    for row in rows.slice(0).to_pylist()[::2]:
        assert {name: row[name] for name in VALUES} == VALUES
        assert row[RESCUED] is None
    assert sum(text is not None for text in rows[RESCUED].to_pylist()) >= 10


MAPS = [
    b'{"limits":{}}', b'{"limits":{"a:b":1}}', b'{"limits":{"a":1,"\\u0061":2}}', b'{"limits":{"\\ud800":1}}',
    b'{"limits":{"a":1e999}}', b'{"limits":{"a":18446744073709551616}}',
    b'{"limits":{"a" :1,"a" :2}}',
    b'{"limits":{"a":{"b":1}}}', b'{"limits":null}', b'{"limits":{"a":-0}}', b'{"limits":{"\xff":1}}',
    b'{"x":' + b"[" * 2000 + b"]" * 2000 + b',"limits":{"a":1}}', b'{"limits":{"a":01}}',
    b'{"limits":{"a":true}}',
    b'{"limits":{"a":1},"\\u006cimits":{"b":1}}', b'{"limits" : { "a" : 1 , "b" : null } }',
]  # fmt: skip


@given(
    st.lists(
        st.sampled_from([*HOSTILE[:24], *MAPS])
        | st.binary(max_size=30)
        | st.fixed_dictionaries(
            {},
            optional={
                name: st.none() | st.integers() | st.floats() | st.text(max_size=5)
                | st.lists(st.integers() | st.text(max_size=3), max_size=3)
                | st.dictionaries(st.text(max_size=2), st.floats() | st.text(max_size=2), max_size=3)
                for name in WHOLE
            },
        ).map(lambda value: json.dumps(value).encode()),
        min_size=1, max_size=150,
    )
)  # fmt: skip
@example([b'{"\xff":1,"temp":2}', b"{"])  # no UTF-8 where no field reads it
def test_a_payload_gives_the_same_values_whatever_its_neighbours(given_payloads: list[bytes]) -> None:
    """So the rows of a file do not depend on the place where the file begins."""
    schema = Payloads.of_text(json.dumps(TABLES))
    together = table_of(file_of(given_payloads), schema)
    for at, payload in enumerate(given_payloads):
        (single,) = (
            table_of(file_of([payload]), schema)
            .drop(["offset", "timestamp", "properties", "qos", "retain"])
            .to_pylist()
        )
        (row,) = (
            together.slice(at, 1).drop(["offset", "timestamp", "properties", "qos", "retain"]).to_pylist()
        )
        assert same(row) == same(single)
        for name, value in row.items():
            if name not in TYPES and isinstance(value, float):
                assert not math.isnan(value)


def same(row: dict[str, Any]) -> dict[str, Any]:
    """The row without the order of entries in the reason."""
    text = row[RESCUED]
    return {**row, RESCUED: text and sorted(text.split("; "))}


TABLES = json.loads(json.dumps({"payload": [{"topic": "plant/#", "format": "json", "fields": {}}]}))
TABLES["payload"][0]["fields"] = {
    "site": {"level": 2}, "line": {"level": 3, "type": "int"}, "temp": "double", "count": "long",
    "small": "int", "ratio": "float", "ok": "boolean", "name": "string",
    "measured": {"path": "at", "type": "timestamp"},
    "sent": {"path": "ms", "type": "timestamp", "unit": "ms"},
    "speed": {"path": "motor.speed", "type": "double"}, "samples": "array<double>",
    "words": "array<string>", "limits": "map<string,double>",
}  # fmt: skip


def test_records_of_other_topics_have_the_reason_and_their_payload(tmp_path: Path) -> None:
    (row,) = written(tmp_path, [b"1"], topic="other").to_pylist()
    assert row[RESCUED] == NO_RULE
    assert row["site"] is None
    (row,) = written(tmp_path, [b"{}"], topic="plant/a/x").to_pylist()
    assert (row["site"], row["line"], row[RESCUED]) == ("a", None, 'field line: no int: "x"')
    (row,) = written(tmp_path, [b"{}"], topic="plant").to_pylist()
    assert (row["site"], row["line"], row[RESCUED]) == (None, None, None)


def test_a_long_text_of_a_value_that_does_not_fit_ends_early(tmp_path: Path) -> None:
    payloads = [json.dumps({"temp": "ü" * count}).encode() for count in (5000, 10)] + [b"{}"]
    long, short, fitting = written(tmp_path, payloads).to_pylist()
    whole = f'field temp: no double: "{"ü" * 5000}"'
    assert (long[RESCUED], long["payload"]) == (whole[: RESCUED_MAX - 3] + "...", payloads[0])
    assert short[RESCUED] == f'field temp: no double: "{"ü" * 10}"'
    assert fitting[RESCUED] is None


def test_a_decoder_that_fails_costs_columns_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(decode, "_read_json", fail)
    (row,) = written(tmp_path, [b"{}"]).to_pylist()
    assert row["payload"] == b"{}"
    assert row[RESCUED] == "the decoder failed: RuntimeError"


V1 = '[[payload]]\ntopic = "#"\nformat = "json"\nfields = { temp = "int", note = "string" }\n'
V2 = '[[payload]]\ntopic = "#"\nformat = "json"\nfields = { temp = "double", count = "long" }\n'
V3 = V2.replace('"double"', '"string"')


def publish_json(made: Any, *values: Any) -> None:
    for value in values:
        assert made.writer().publish(json.dumps(value).encode(), "plant/1") is not None


def sink_of(tmp_path: Path, schema: str = "", failing: FailingSink | None = None) -> ParquetSink:
    path = tmp_path / "payloads.toml"
    path.write_text(schema)
    return ParquetSink(failing or FailingSink(tmp_path / "lake"), str(path) if schema else "")


def columns_of(tmp_path: Path) -> list[list[str]]:
    """The columns of each file behind those of the record, in the order of draining."""
    schemas = [parquet.read_schema(path) for path in sorted(tmp_path.rglob("*.parquet"))]
    return [[name for name in schema.names if name not in TYPES] for schema in schemas]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("later", [V2, ""], ids=["changed", "removed"])
def test_a_file_that_is_put_again_has_the_schema_of_its_write_intent(
    tmp_path: Path, when: str, later: str
) -> None:
    """The bridge is killed before or after the put, and the schema is changed meanwhile."""
    chosen, failing = settings(tmp_path, tmp_path), FailingSink(tmp_path / "lake")
    getattr(failing, when).append(SinkUnavailable("the line is cut"))
    with ring(tmp_path) as made:
        publish_json(made, {"temp": 1, "note": "x"})
        with drain(chosen, sink_of(tmp_path, V1, failing)) as running, pytest.raises(SinkUnavailable):
            run_dry(running)
        publish_json(made, {"temp": 2.5, "count": 7})
        with drain(chosen, sink_of(tmp_path, later)) as running:
            run_dry(running)
            texts = [Payloads.read(schema_of(tmp_path, text)).text for text in (V1, later) if text]
            assert set(running.checkpoint.schemas) == set(map(schema_id, texts))
        after = ["temp", "count", RESCUED] if later else []
        assert columns_of(tmp_path) == [["temp", "note", RESCUED], after]
        publish_json(made, {"temp": 3})
        with drain(chosen, sink_of(tmp_path, later)) as running:
            run_dry(running)
            assert len(running.checkpoint.schemas) == bool(later)  # the old one is no longer needed
    rows = duck(tmp_path, 'SELECT "offset", temp, note FROM files ORDER BY 1')
    assert rows == [(0, 1.0, "x"), (1, 2.5 if later else None, None), (2, 3.0 if later else None, None)]


def test_a_saved_schema_that_is_damaged_or_missing_stops_the_bridge(tmp_path: Path) -> None:
    sink = sink_of(tmp_path)
    with pytest.raises(SinkBlocked, match="payload schema abc of files in flight"):
        sink.remember({"abc": "{"})
    with pytest.raises(SinkBlocked, match="payload schema abc is not known"):
        sink.put(file_of([b"{}"], payload_schema="abc"))


def test_a_schema_that_no_reader_can_join_stops_the_bridge_until_it_is_changed(tmp_path: Path) -> None:
    drain_versions(
        tmp_path,
        (V1, {"temp": 1, "note": "x"}),
        (V2, {"temp": 2.5, "count": 3}),
        ("", {"temp": 4}),
        (None, {"temp": "x"}),
    )
    wrong = {
        V3: "temp of the payload schema is string, and double",
        V1: "temp of the payload schema is int, and double",
        V2.replace("count", "note"): "note of the payload schema is long, and string",
    }
    for schema, text in wrong.items():
        chosen = settings(tmp_path, tmp_path)
        with drain(chosen, sink_of(tmp_path, schema)) as running, pytest.raises(SinkBlocked, match=text):
            run_dry(running)
    with drain(settings(tmp_path, tmp_path), sink_of(tmp_path, V2)) as running:
        run_dry(running)
    rows = duck(tmp_path, 'SELECT temp, note, count, _rescued FROM files ORDER BY "offset"')
    assert rows == [
        (1.0, "x", None, None),
        (2.5, None, 3, None),
        (None, None, None, None),
        (None, None, None, 'field temp: no double: "x"'),
    ]


@pytest.mark.parametrize(
    ("before", "now", "good"),
    [
        ({}, {"a": "long"}, True),
        ({"a": "long"}, {}, True),
        ({"a": "int"}, {"a": "long"}, True),
        ({"a": "int"}, {"a": "float"}, True),
        ({"a": "long"}, {"a": "double"}, True),
        ({"a": "float"}, {"a": "double"}, True),
        ({"a": "long"}, {"a": "int"}, False),
        ({"a": "double"}, {"a": "long"}, False),
        ({"a": "string"}, {"a": "long"}, False),
        ({"a": "array<long>"}, {"a": "array<double>"}, False),
        ({"a": "long"}, {"a": "timestamp"}, False),
        ({"A": "long"}, {"a": "long"}, False),
        ({"A": "long"}, {"b": "long"}, True),
    ],
)
def test_a_column_may_become_wider_and_nothing_else(
    before: dict[str, str], now: dict[str, str], good: bool
) -> None:
    if good:
        assert evolved(before, now) == {**before, **now}
    else:
        with pytest.raises(SourceOptionError, match="column a of the payload schema"):
            evolved(before, now)


def duck(tmp_path: Path, query: str) -> list[tuple[Any, ...]]:
    duckdb = pytest.importorskip("duckdb")
    files = f"read_parquet('{tmp_path}/lake/**/*.parquet', union_by_name = true)"
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        rows: list[tuple[Any, ...]] = connection.execute(query.replace("files", files)).fetchall()
    return rows


def drain_versions(tmp_path: Path, *versions: tuple[str | None, Any]) -> None:
    """Publish each value and drain it with its schema; None: not drained."""
    with ring(tmp_path) as made:
        for schema, value in versions:
            publish_json(made, value)
            if schema is not None:
                with drain(settings(tmp_path, tmp_path), sink_of(tmp_path, schema)) as running:
                    run_dry(running)


def test_duckdb_polars_pandas_and_arrow_join_files_of_two_schemas(tmp_path: Path) -> None:
    polars, pandas = pytest.importorskip("polars"), pytest.importorskip("pandas")
    drain_versions(tmp_path, (V1, {"temp": 1, "note": "x"}), (V2, {"temp": 2.5, "count": 3}))
    rows = [(1.0, "x", None), (2.5, None, 3)]
    assert duck(tmp_path, 'SELECT temp, note, count FROM files ORDER BY "offset"') == rows
    paths = sorted(tmp_path.rglob("*.parquet"))
    frames = [polars.read_parquet(io.BytesIO(path.read_bytes())) for path in paths]
    joined = polars.concat(frames, how="diagonal_relaxed").sort("offset")
    assert joined.select("temp", "note", "count").rows() == rows
    frame = pandas.concat([pandas.read_parquet(path, partitioning=None) for path in paths])
    assert frame["temp"].tolist() == [1.0, 2.5]
    assert frame["count"].tolist()[1] == 3
    tables = [parquet.read_table(path, partitioning=None) for path in paths]
    table = pa.concat_tables(tables, promote_options="permissive").sort_by("offset")
    assert list(zip(*(table[name].to_pylist() for name in ("temp", "note", "count")), strict=True)) == rows


def test_all_types_are_read_by_duckdb_and_polars(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    with ring(tmp_path) as made:
        assert made.writer().publish(json.dumps(WHOLE).encode(), TOPIC) is not None
        sink = sink_of(tmp_path, SCHEMA.replace("FORMAT", "json"))
        with drain(settings(tmp_path, tmp_path), sink) as running:
            run_dry(running)
    names = ", ".join(VALUES)
    (row,) = duck(tmp_path, f"SELECT {names} FROM files")
    assert dict(zip(VALUES, row, strict=True)) == {**VALUES, "limits": dict(VALUES["limits"])}
    types = duck(tmp_path, f"SELECT {', '.join(f'typeof({name})' for name in VALUES)} FROM files")
    assert types[0][:6] == ("VARCHAR", "INTEGER", "DOUBLE", "BIGINT", "INTEGER", "FLOAT")
    assert types[0][-3:] == ("DOUBLE[]", "VARCHAR[]", "MAP(VARCHAR, DOUBLE)")
    (path,) = tmp_path.rglob("*.parquet")
    frame = polars.read_parquet(io.BytesIO(path.read_bytes()))
    assert frame["samples"].to_list() == [VALUES["samples"]]
    assert frame["measured"].to_list() == [VALUES["measured"]]


@pytest.mark.parametrize(
    ("options", "text", "said"),
    [
        ({"format": "brim"}, V1, 'payloads needs another format'),
        ({"format": "parquet", "payloads": "payloads.toml"}, V1, "must be an absolute path"),
        ({"format": "parquet"}, V1.replace("note", "dt"), "which is in the path"),
        ({"format": "parquet"}, V1.replace("note", "Temp"), "differ only in case"),
        ({"format": "parquet"}, "x", "cannot be read"),
        ({"format": "parquet"}, "#" * (1 << 20) + "\n" + V1, "longer than"),
    ],
)  # fmt: skip
def test_a_wrong_payload_schema_is_refused_when_the_sink_is_opened(
    tmp_path: Path, options: dict[str, str], text: str, said: str
) -> None:
    path = str(schema_of(tmp_path, text))
    with pytest.raises((BadName, SourceOptionError), match=said):
        open_file_sink((tmp_path / "lake").as_uri(), {"payloads": path, **options})


def test_the_text_of_a_schema_gives_the_same_schema_and_ignores_the_form_of_the_file(tmp_path: Path) -> None:
    for form in ("json", "msgpack", "cbor"):
        schema = Payloads.read(schema_of(tmp_path, SCHEMA.replace("FORMAT", form)))
        assert Payloads.of_text(schema.text) == schema
        assert (
            Payloads.read(schema_of(tmp_path, "# x\n" + SCHEMA.replace("FORMAT", form))).text == schema.text
        )
    text = (
        '[[payload]]\ntopic = "s/#"\nformat = "sparkplug"\nfields = { x = { path = "a.b/c", type = "long" } }'
    )
    schema = Payloads.read(schema_of(tmp_path, text))
    assert Payloads.of_text(schema.text) == schema
    for damaged in ("", "[]", "{", '{"payload":[1]}'):
        with pytest.raises(SourceOptionError):
            Payloads.of_text(damaged)
