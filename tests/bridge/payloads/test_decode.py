"""Payloads into columns: the compiled decoder, pyarrow's and that in Python agree, on what is wrong too."""
# ruff: noqa: E402

import json
import math
import struct
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow", reason="needs the spark extra: pip install 'brim[spark]'")

from bridge.errors import SourceOptionError
from bridge.payloads import decode as decoding
from bridge.payloads.decode import decode_payloads, typed_columns
from bridge.payloads.kinds import KINDS
from bridge.payloads.msgpack_columns import unpack
from bridge.payloads.rows import Typed, decode_rows, unpack_one
from bridge.payloads.schema import (
    NO_RULE,
    RAW,
    UNDECODED,
    Field,
    PayloadRule,
    Payloads,
    filter_pattern,
)

FIELDS = (
    Field("number", ("a",), "long"),
    Field("real", ("b",), "double"),
    Field("flag", ("c",), "boolean"),
    Field("word", ("d",), "string"),
    Field("bytes", ("e",), "binary"),
    Field("inner", ("f", "a"), "long"),
    Field("deep", ("f", "b", "c"), "double"),
)
TEXTUAL = tuple(field for field in FIELDS if field.kind != "binary")

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.integers(-40, 300),
    st.floats(width=32),
    st.floats(),
    st.text(max_size=40),
    st.binary(max_size=40),
)
keys = st.sampled_from("abcdefgh")
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)
said = st.fixed_dictionaries(
    {},
    optional={
        "a": st.integers(-(2**63), 2**63 - 1) | values,
        "b": st.floats() | st.integers(-5, 5) | values,
        "c": st.booleans() | values,
        "d": st.text(max_size=20) | values,
        "e": st.binary(max_size=20) | values,
        "f": st.fixed_dictionaries({}, optional={"a": st.integers(-9, 9), "b": st.none() | values}) | values,
        "g": values,
    },
)


def table(found: Typed, fields: Any = FIELDS) -> list[tuple[Any, ...]]:
    """Rows; a NaN is a word, for it equals nothing."""
    for field in fields:
        found.columns[field.column].validate(full=True)
        assert found.columns[field.column].type == KINDS[field.kind]
    rows = zip(*(found.columns[field.column].to_pylist() for field in fields), strict=True)
    return [tuple("nan" if isinstance(it, float) and math.isnan(it) else it for it in row) for row in rows]


def outcome(found: Typed, rows: int) -> list[str | None]:
    return [None] * rows if found.reasons is None else found.reasons.to_pylist()


def lost(found: Typed, rows: int) -> list[bool]:
    return [False] * rows if found.lost is None else found.lost.to_pylist()


def payloads_of(given: list[bytes]) -> Any:
    """Not at the beginning of its buffers, as after a slice."""
    return pa.array([b"before", *given, b"behind"], pa.binary())[1:-1]


@given(
    st.lists(
        st.one_of(said.map(msgpack.packb), values.map(msgpack.packb), st.binary(max_size=30)), max_size=20
    )
)
def test_msgpack_is_unpacked_in_c_as_in_python(given: list[bytes]) -> None:
    data = payloads_of(given)
    compiled = unpack(data, FIELDS)
    portable = decode_rows(unpack_one, "msgpack", data, FIELDS)
    assert table(compiled) == table(portable)
    ours, theirs = outcome(compiled, len(given)), outcome(portable, len(given))
    assert [it is None for it in ours] == [it is None for it in theirs]
    assert lost(compiled, len(given)) == lost(portable, len(given))


@given(said.map(msgpack.packb), st.data())
def test_of_msgpack_that_is_cut_or_changed_nothing_is_half_decoded(whole: bytes, data: st.DataObject) -> None:
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    changed = bytearray(whole)
    changed[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    given = payloads_of([cut, bytes(changed), whole + b"\x00"])
    compiled = unpack(given, FIELDS)
    reasons, rows = outcome(compiled, 3), table(compiled)
    assert None not in {reasons[0], reasons[2]}
    assert rows[0] == rows[2] == (None,) * len(FIELDS)
    assert compiled.lost is not None
    assert compiled.lost[0].as_py() is compiled.lost[2].as_py() is True
    assert not compiled.lost[1].as_py() or rows[1] == (None,) * len(FIELDS)


finite = st.floats(allow_nan=False, allow_infinity=False)
sayable = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | finite | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=8,
)
spoken = st.fixed_dictionaries(
    {},
    optional={
        "a": st.integers(-9, 9) | sayable,
        "b": finite | st.integers(-9, 9),
        "c": st.booleans(),
        "d": st.text(max_size=20),
        "f": st.fixed_dictionaries({}, optional={"a": st.integers(-9, 9), "b": st.none() | sayable}),
        "g": sayable,
    },
)
odd = st.sampled_from(
    [
        *(b"", b"{}", b"{}{}", b"{", b"}", b'{"a":', b'"b":2}', b"[]", b"3", b" {} "),
        *(b'{"a":1}\n{"a":2}', b'{"d":"\xff"}', b'{"d":"\\ud800"}', b'{"a":1e3}', b'{"d":"}'),
        *(b'{"a":99999999999999999999}', b'{"a":1,"a":2}', b'{"a":NaN}'),
    ]
)


@given(st.lists(spoken.map(lambda it: json.dumps(it).encode()) | odd, max_size=200))
def test_json_is_read_by_pyarrow_as_by_python(given: list[bytes]) -> None:
    """Also where one payload holds two objects and another none: rows never move to other records."""
    data = payloads_of(given)
    rule = PayloadRule("#", "json", TEXTUAL)
    whole = decode_payloads(rule, TEXTUAL, data)
    by_row = decode_rows(decoding.parse_json, "JSON", data, TEXTUAL)
    assert table(whole, TEXTUAL) == table(by_row, TEXTUAL)
    assert outcome(whole, len(given)) == outcome(by_row, len(given))
    assert lost(whole, len(given)) == lost(by_row, len(given))


def test_a_bare_value_is_a_column() -> None:
    bare = (Field("value", (), "double"),)
    data = payloads_of([msgpack.packb(it) for it in (1, 2.5, None, "x", 2**64 - 1)])
    found = unpack(data, bare)
    assert found is not None
    assert found.columns["value"].to_pylist() == [1.0, 2.5, None, None, float(2**64 - 1)]
    assert outcome(found, 5) == [None, None, None, 'field value: no double: "x"', None]
    assert lost(found, 5) == [False, False, False, True, False]
    data = payloads_of([b"21.5", b"-3", b"warm", b"\xff", b""])
    found = decode_payloads(PayloadRule("#", "text", bare), bare, data)
    assert found.columns["value"].to_pylist() == [21.5, -3.0, None, None, None]
    assert outcome(found, 5) == [
        None,
        None,
        *(f"field value: no double: {it}" for it in ('"warm"', "0xff", '""')),
    ]
    assert lost(found, 5) == [False, False, True, True, True]


DRIFTED = (
    Field("temp", ("temp",), "double"),
    Field("count", ("count",), "long"),
    Field("note", ("note",), "string"),
    Field("vib", ("motor", "vib"), "double"),
    Field("load", ("motor", "load"), "long"),
)
DRIFT = [
    {"temp": "warm", "count": 5, "motor": {"vib": 1.5, "load": [1, None]}},
    {"temp": 2, "count": 1.5, "note": {"a": True}, "motor": 7},
    {"temp": 3.5, "note": "ok", "motor": {"vib": 2}},
]
KEPT = [(None, 5, None, 1.5, None), (2.0, None, None, None, None), (3.5, None, "ok", 2.0, None)]
SAID = [
    {'field temp: no double: "warm"', "field load: no long: [1, null]"},
    {
        "field count: no long: 1.5",
        'field note: no string: {"a": true}',
        "fields vib, load: a map belongs where something else is: 7",
    },
    None,
]


@pytest.mark.parametrize("form", ["msgpack", "msgpack in Python", "json", "cbor"])
def test_a_value_that_does_not_fit_goes_to_undecoded_and_the_other_fields_stay(form: str) -> None:
    packs: Any = {"json": lambda it: json.dumps(it).encode()}
    if form == "cbor":
        packs["cbor"] = pytest.importorskip("cbor2").dumps
    data = payloads_of([packs.get(form, msgpack.packb)(it) for it in DRIFT])
    if form == "msgpack in Python":
        found = decode_rows(unpack_one, "msgpack", data, DRIFTED)
    else:
        found = decode_payloads(PayloadRule("#", form, DRIFTED), DRIFTED, data)
    assert table(found, DRIFTED) == KEPT
    assert [it and set(it.split("; ")) for it in outcome(found, 3)] == SAID
    assert lost(found, 3) == [False] * 3


def test_a_metric_of_sparkplug_that_does_not_fit_leaves_the_others() -> None:
    pytest.importorskip("google.protobuf")
    text, number = b"\x0a\x01a\x20\x0c\x7a\x03off", b"\x0a\x01b\x20\x0a\x69" + struct.pack("<d", 1.5)
    payload = b"".join(b"\x12" + bytes([len(it)]) + it for it in (text, number))
    fields = (Field("a", ("a",), "double"), Field("b", ("b",), "double"))
    found = decode_payloads(PayloadRule("#", "sparkplug", fields), fields, payloads_of([payload]))
    assert table(found, fields) == [(None, 1.5)]
    assert outcome(found, 1) == ['field a: no double: "off"']


def test_values_that_do_not_fit_are_shown_whole_and_bounded_by_their_payload() -> None:
    """A few bytes of CBOR can refer to one list 2**25 times, or to itself."""
    cbor2 = pytest.importorskip("cbor2")
    fields = (Field("a", ("a",), "long"), Field("b", ("b",), "long"))
    shares: Any = ["x" * 40]
    for _ in range(25):
        shares = [shares, shares]
    itself: Any = []
    itself.append(itself)
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    odd = {"raw": b"\x01\xff", 7: [True, None, -0.5], "tag": cbor2.CBORTag(4000, "ü\n")}
    given = [
        cbor2.dumps({"a": it, "b": 5}, value_sharing=it is shares or it is itself)
        for it in (shares, itself, deep, odd, "y" * 100_000)
    ]
    assert len(given[0]) < 300
    found = decode_payloads(PayloadRule("#", "cbor", fields), fields, payloads_of(given))
    assert found.columns["b"].to_pylist() == [None, None, None, 5, 5]
    assert lost(found, 5) == [True, True, True, False, False]
    reasons = outcome(found, 5)
    assert all("cannot be shown" in str(it) for it in reasons[:3])
    assert reasons[3] == r'field a: no long: {"raw": 0x01ff, 7: [true, null, -0.5], "tag": (4000, "ü\n")}'
    assert reasons[4] == f'field a: no long: "{"y" * 100_000}"'
    twice = payloads_of([b'{"a":1,"a":{"c":2},"b":3}', b'{"a":18446744073709551616,"b":3}'])
    found = decode_payloads(PayloadRule("#", "json", fields), fields, twice)
    assert table(found, fields) == [(None, 3), (None, 3)]
    assert outcome(found, 2) == [
        'field a: a key that is there twice: 1, {"c": 2}',
        "field a: an integer beyond 64 bits: 18446744073709551616",
    ]


def test_every_form_of_msgpack_is_read_and_passed_over() -> None:
    """As the specification lists them, each once wanted and once in the way."""
    forms: dict[bytes, Any] = {
        b"\x00": 0, b"\x7f": 127, b"\xff": -1, b"\xe0": -32, b"\xcc\xff": 255, b"\xcd\xff\xff": 65535,
        b"\xce\xff\xff\xff\xff": 2**32 - 1, b"\xcf" + b"\x7f" + b"\xff" * 7: 2**63 - 1, b"\xd0\x80": -128,
        b"\xd1\x80\x00": -32768, b"\xd2\x80\x00\x00\x00": -(2**31), b"\xd3\x80" + b"\x00" * 7: -(2**63),
    }  # fmt: skip
    others_hex = (
        "c0 c2 c3 ca00000000 cb0000000000000000 a178 d90178 da000178 db0000000178 c40178 c5000178 "
        "c60000000178 9101 dc000101 dd0000000101 810102 de00010102 df000000010102 d40578 d5057878 "
        "d60578787878 d7057878787878787878 d80578787878787878787878787878787878 c7010578 c800010578 "
        "c9000000010578"
    )
    others = [bytes.fromhex(it) for it in others_hex.split()]
    one = (Field("a", ("a",), "long"),)
    data = payloads_of(
        [b"\x82\xa1z" + skipped + b"\xa1a" + form for skipped in (*forms, *others) for form in forms]
    )
    found = unpack(data, one)
    assert found is not None
    assert found.reasons is None
    assert found.columns["a"].to_pylist() == list(forms.values()) * (len(forms) + len(others))
    real = (Field("a", ("a",), "double"),)
    halves = unpack(
        payloads_of([b"\x81\xa1a\xca" + struct.pack(">f", 1.5), b"\x81\xa1a\xcb" + struct.pack(">d", 0.1)]),
        real,
    )
    assert halves is not None
    assert halves.columns["a"].to_pylist() == [1.5, 0.1]


SCHEMA = """
[[payload]]
topic = "plant/+/data"
format = "msgpack"
fields = { temp = "double", note = "string" }
[[payload]]
topic = "meter/#"
format = "json"
fields = { temp = { path = "t.c", type = "double" }, count = "long" }
"""


def schema(tmp_path: Path, text: str = SCHEMA) -> Payloads:
    path = tmp_path / "payloads.toml"
    path.write_text(text)
    return Payloads.read(path)


@pytest.mark.parametrize("form", ["cbor", "sparkplug"])
def test_formats_with_a_library_are_decoded_by_it(form: str) -> None:
    pytest.importorskip("cbor2" if form == "cbor" else "google.protobuf")
    fields = (Field("a", ("a",), "long"), Field("b", ("b",), "double"), Field("c", ("#7",), "string"))
    if form == "cbor":
        import cbor2

        good, bad = [cbor2.dumps({"a": -5, "b": 1.5, "#7": "x"}), cbor2.dumps({"a": None})], b"\x81"
    else:
        # By the tables of Sparkplug B and of protobuf's encoding: metrics are field 2.
        named = (
            b"\x0a\x01a\x20\x03\x50\xfb\xff\xff\xff\x0f",
            b"\x0a\x01b\x20\x0a\x69" + struct.pack("<d", 1.5),
        )
        aliased, absent = b"\x10\x07\x7a\x01x", b"\x0a\x01a\x38\x01"
        good = [
            b"".join(b"\x12" + bytes([len(it)]) + it for it in of) for of in ((*named, aliased), (absent,))
        ]
        bad = b"\x12\x7f"
    found = decode_payloads(PayloadRule("#", form, fields), fields, payloads_of([*good, bad, good[0]]))
    assert table(found, fields) == [(-5, 1.5, "x"), (None,) * 3, (None,) * 3, (-5, 1.5, "x")]
    assert [it is None for it in outcome(found, 4)] == [True, True, False, True]


def test_each_topic_has_its_format_and_what_is_not_decoded_is_kept_with_the_reason(tmp_path: Path) -> None:
    topics = ["meter/1", "plant/a/data", "other", "meter", "plant/b/data", "meter/2"]
    given = [
        b'{"t":{"c":1.5}}',
        msgpack.packb({"temp": 2, "note": "ü"}),
        b"x",
        b'{"count":7}',
        b"\xc1",
        b"{}",
    ]
    names = ["temp", "note", "count", UNDECODED, RAW]
    found = typed_columns(schema(tmp_path), pa.array(topics), payloads_of(given), names)
    rows = list(zip(*(found[name].to_pylist() for name in names), strict=True))
    assert rows == [
        (1.5, None, None, None, None),
        (2.0, "ü", None, None, None),
        (None, None, None, NO_RULE, b"x"),
        (None, None, 7, None, None),
        (None, None, None, "no msgpack, or cut short", b"\xc1"),
        (None, None, None, None, None),
    ]
    assert set(typed_columns(schema(tmp_path), pa.array(topics), payloads_of(given), ["count"])) == {"count"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("msgpack", "xml"), "format is 'xml'"),
        (('"plant/+/data"', '"plant/#/data"'), "no topic filter"),
        (('note = "string"', 'note = "text"'), "must be a type"),
        (('note = "string"', 'offset = "long"'), "cannot be called 'offset'"),
        (('note = "string"', 'x = { path = "temp.c", type = "long" }'), "cannot both be read"),
        (('count = "long"', 'note = "long"'), "column note is string in one entry and long in another"),
        (("fields = { temp", "field = { temp"), "must have topic, format and fields"),
        (("[[payload]]", "[[payloads]]"), r"at least one \[\[payload\]\] entry"),
        (('count = "long"', 'raw = "binary"'), "json has no binary"),
        (('type = "double" }', 'type = "double", x = 1 }'), "must be a type"),
    ],
)
def test_a_schema_with_a_mistake_is_refused_with_the_mistake(
    tmp_path: Path, change: tuple[str, str], said: str
) -> None:
    assert change[0] in SCHEMA
    with pytest.raises(SourceOptionError, match=said):
        schema(tmp_path, SCHEMA.replace(*change))


@pytest.mark.parametrize(
    ("topic_filter", "topic", "matches"),
    [
        ("#", "a/b", True), ("#", "$SYS/x", False), ("+/b", "$a/b", False), ("$SYS/#", "$SYS", True),
        ("a/#", "a", True), ("a/+", "a/", True), ("a/+", "a/b/c", False), ("a.c", "abc", False),
        ("+", "", True), ("a/#", "ab", False), ("a/#", "a/b\nc", True),
    ],
)  # fmt: skip
def test_topic_filters_are_those_of_mqtt(topic_filter: str, topic: str, matches: bool) -> None:
    made = Payloads((PayloadRule(topic_filter, "json", FIELDS[:1]),))
    assert (made.rule_of(topic) == 0) is matches
    for wrong in ("", "a#", "a/#/b", "a+/b"):
        with pytest.raises(SourceOptionError):
            filter_pattern(wrong)
