"""int, float and timestamp columns, maps, and levels of topics: exact values, and reasons for the others."""
# ruff: noqa: E402

import calendar
import struct
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow", reason="needs the spark extra: pip install 'brim[spark]'")
import pyarrow.compute as pc

from bridge.errors import SourceOptionError
from bridge.payloads.conversion import ISO_TIME, join_reasons
from bridge.payloads.decode import typed_columns
from bridge.payloads.schema import RAW, UNDECODED, Payloads

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def schema(form: str = "msgpack", **fields: Any) -> Payloads:
    return Payloads.of({"payload": [{"topic": "#", "format": form, "fields": fields}]})


def decoded(payloads: Payloads, given_payloads: list[bytes], topic: str = "a") -> list[dict[str, Any]]:
    names = [*payloads.columns, UNDECODED, RAW]
    topics = pa.array([topic] * len(given_payloads))
    found = typed_columns(payloads, topics, pa.array(given_payloads, pa.binary()), names)
    for name in names:
        found[name].validate(full=True)
        assert found[name].type == payloads.types[name]
    return [{name: found[name][row].as_py() for name in names} for row in range(len(given_payloads))]


times = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))  # noqa: DTZ001
offsets = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(times, offsets)
def test_a_text_of_a_time_is_that_time_whatever_its_offset(time: datetime, offset: timezone) -> None:
    at = time.replace(tzinfo=offset)
    texts = [
        at.isoformat(),
        at.isoformat(" "),
        time.isoformat(),
        time.date().isoformat(),
        f"{time.isoformat()}Z",
    ]
    rows = decoded(schema(t="timestamp"), [msgpack.packb({"t": text}) for text in texts])
    utc, midnight = time.replace(tzinfo=UTC), datetime(time.year, time.month, time.day, tzinfo=UTC)
    assert [row["t"] for row in rows] == [at, at, utc, midnight, utc]
    assert [row[UNDECODED] for row in rows] == [None] * 5


def test_only_texts_of_days_that_exist_reach_the_cast_which_would_refuse_the_whole_batch() -> None:
    days = [(year, month, day) for year in range(1, 401) for month in range(14) for day in range(33)]
    texts = pa.array([f"{year:04}-{month:02}-{day:02}" for year, month, day in days])
    exists = [1 <= month <= 12 and 1 <= day <= calendar.monthrange(y, month)[1] for y, month, day in days]
    assert pc.match_substring_regex(texts, ISO_TIME).to_pylist() == exists


@pytest.mark.parametrize(
    "text",
    [
        "", "yesterday", "2026-02-30", "2026-13-01", "2026-11-27T24:01:00Z", "2026-11-27T10", "20261127",
        "0000-01-01", "+02026-01-01", "2026-11-27T10:00:00+99:00", "2026-11-27T10:00:00Z x", "１２３４-01-01",
    ],
)  # fmt: skip
def test_another_text_is_no_time_and_its_neighbours_keep_theirs(text: str) -> None:
    good = msgpack.packb({"t": "2026-11-27T10:00:00.123456789Z"})
    rows = decoded(schema(t="timestamp"), [good, msgpack.packb({"t": text}), good])
    time = datetime(2026, 11, 27, 10, 0, 0, 123456, UTC)
    assert [row["t"] for row in rows] == [time, None, time]
    assert rows[1][UNDECODED] == f'field t: no timestamp: "{text}"'
    assert rows[1][RAW] is None


@pytest.mark.parametrize(
    ("unit", "value", "microseconds"),
    [
        ("s", 1_700_000_000, 1_700_000_000_000_000),
        ("s", 1_700_000_000.123, 1_700_000_000_123_000),
        ("s", -0.5, -500_000),
        ("ms", 1_700_000_000_123, 1_700_000_000_123_000),
        ("us", 1_700_000_000_123_456, 1_700_000_000_123_456),
        ("ns", 1_700_000_000_123_456_789, 1_700_000_000_123_456),
        ("ns", -1, -1),
        ("ns", -1000, -1),
        ("ns", -(1 << 63), -9_223_372_036_854_776),
        ("s", 253_402_300_800, None),
        ("s", -62_135_596_801, None),
        ("ms", 1e300, None),
        ("s", float("nan"), None),
        ("s", float("inf"), None),
        ("ns", 1 << 63, None),
        ("ns", 1.5, None),
        ("ms", "2026-11-27", None),
    ],
)
def test_a_number_is_a_time_of_its_unit(unit: str, value: Any, microseconds: int | None) -> None:
    (row,) = decoded(schema(t={"type": "timestamp", "unit": unit}), [msgpack.packb({"t": value})])
    expected = None if microseconds is None else EPOCH + timedelta(microseconds=microseconds)
    assert row["t"] == expected
    assert (row[UNDECODED] is None) == (microseconds is not None)


@given(st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-(1 << 31) - 2, -(1 << 31) + 2))
def test_an_int_has_32_bits(value: int) -> None:
    (row,) = decoded(schema(i="int"), [msgpack.packb({"i": value})])
    fits = -(1 << 31) <= value < 1 << 31
    assert row["i"] == (value if fits else None)
    assert row[UNDECODED] == (None if fits else f"field i: an integer beyond 32 bits: {value}")


def test_a_float_is_the_nearest_one_and_none_if_there_is_none() -> None:
    values = [0.1, 1e300, -1e300, float("inf"), 3, 2**53]
    rows = decoded(schema(f="float"), [msgpack.packb({"f": value}) for value in values])
    found = [row["f"] for row in rows]
    assert found[0] == pytest.approx(0.1, rel=1e-7)
    assert found[1:] == [None, None, float("inf"), 3.0, float(2**53)]
    assert [row[UNDECODED] is None for row in rows] == [True, False, False, True, True, True]


def test_a_bare_value_that_does_not_fit_is_the_whole_payload() -> None:
    for kind, bad in (("timestamp", b"x"), ("int", b"2147483648")):
        (row,) = decoded(schema("text", v={"path": ".", "type": kind}), [bad])
        assert row["v"] is None
        assert row[RAW] == bad
        assert row[UNDECODED].startswith("field v: ")


@pytest.mark.parametrize("form", ["json", "msgpack"])
def test_a_map_with_a_key_twice_or_one_that_is_no_text_does_not_fit(form: str) -> None:
    twice = {"json": b'{"n":1,"m":{"a":1,"a":2}}', "msgpack": b"\x82\xa1n\x01\xa1m\x82\xa1a\x01\xa1a\x02"}
    other = {"json": b'{"n":1,"m":[1]}', "msgpack": b"\x82\xa1n\x01\xa1m\x81\x01\x01"}
    rows = decoded(schema(form, n="long", m="map<string, long>"), [twice[form], other[form]])
    assert [(row["n"], row["m"]) for row in rows] == [(1, None)] * 2
    assert rows[0][UNDECODED] == 'field m: a key that is there twice: {"a": 1, "a": 2}'
    assert rows[1][UNDECODED].startswith("field m: no map<string,long>: ")


def test_reasons_of_two_decoders_are_joined_row_by_row() -> None:
    one, other = pa.array(["a", None, None, "b"]), pa.array(["c", "d", None, None])
    joined = join_reasons(one, other)
    assert joined is not None
    assert joined.to_pylist() == ["a; c", "d", None, "b"]


def test_levels_need_no_payload_and_end_with_the_topic() -> None:
    payloads = schema("json", first={"level": 1}, third={"level": 3, "type": "long"}, n="long")
    for topic, first, third in (("a/b/7", "a", 7), ("/b/-1/d", "", -1), ("a", "a", None)):
        (row,) = decoded(payloads, [b"\xff"], topic)
        assert (row["first"], row["third"], row["n"]) == (first, third, None)
        assert row[UNDECODED] == "no JSON, or cut short"
    (row,) = decoded(payloads, [b'{"n":"x"}'], "a/b/99999999999999999999")
    assert row[UNDECODED] == 'field third: no long: "99999999999999999999"; field n: no long: "x"'
    only = schema("json", first={"level": 1})
    assert decoded(only, [b"\xff"])[0] == {"first": "a", UNDECODED: None, RAW: None}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"a": "array<int>"}, "must be a type"),
        ({"a": "map<long,long>"}, "must be a type"),
        ({"a": {"type": "long", "unit": "s"}}, "unit 's' of a must be"),
        ({"a": {"type": "timestamp", "unit": "h"}}, "unit 'h' of a must be"),
        ({"a": {"level": 0}}, "level 0 of a"),
        ({"a": {"level": True}}, "level True of a"),
        ({"a": {"level": 1, "path": "b"}}, "without a path"),
        ({"a": {"level": 1, "type": "double"}}, "level a is double"),
        ({"a": {"path": ["b", 1], "type": "long"}}, "the path of a"),
        ({"a": {"path": [], "type": "long"}}, "the path of a"),
        ({"a": {"path": [""], "type": "long"}}, "1 to 8 keys"),
        ({"a": ["long"]}, "must be a type"),
    ],
)
def test_a_mistake_in_a_field_is_named(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(SourceOptionError, match=said):
        schema(**fields)


def test_a_key_with_dots_is_a_path_of_one_key() -> None:
    payloads = schema("json", a={"path": ["x.y", "z"], "type": "long"})
    assert decoded(payloads, [b'{"x.y":{"z":5}}'])[0]["a"] == 5


@pytest.mark.parametrize("kind", ["array<string>", "map<string,string>"])
def test_a_payload_that_refers_to_one_text_many_times_does_not_grow(kind: str) -> None:
    pytest.importorskip("cbor2", reason="needs cbor2: pip install 'brim[spark]'")
    text, references = b"x" * 10_000, 5_000
    shared, again = b"\xd8\x1c\x7a" + struct.pack(">I", len(text)) + text, b"\xd8\x1d\x00"
    if kind == "array<string>":
        value = b"\x9a" + struct.pack(">I", references + 1) + shared + again * references
    else:
        keys = (b"\x68%08d" % number + again for number in range(1, references + 1))
        value = b"\xba" + struct.pack(">I", references + 1) + b"\x61a" + shared + b"".join(keys)
    payloads = schema("cbor", a=kind, b="long")
    topics, data = pa.array(["a"] * 2), pa.array([b"\xa2\x61b\x01\x61a" + value, b"\xa1\x61b\x02"])
    found = typed_columns(payloads, topics, data, ["a", "b", UNDECODED, RAW])
    assert found["a"].nbytes < 2 * len(value)
    assert found["b"].to_pylist()[1] == 2
    assert "more values than its payload has bytes for" in found[UNDECODED][0].as_py()
    assert found[UNDECODED][1].as_py() is None
