"""Inference of payload schemas: the file is always valid, and its shares are those of the decoder."""
# ruff: noqa: E402

import io
import json
import struct
import tomllib
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow", reason="needs the spark extra: pip install 'brim[spark]'")

from bridge.errors import SourceOptionError
from bridge.payloads.infer import Inference, InferredEntry, infer
from bridge.payloads.samples import PAYLOAD_MAX_BYTES, SAMPLE_MAX_BYTES, Sample, of_drained_files, of_lines
from bridge.payloads.schema import FIELDS_MAX, Payloads
from tests.support.drained_files import drained_file_of, store


def of_json(*values: Any, topic: str = "plant/1/data") -> InferredEntry:
    (entry,) = infer([topic] * len(values), [json.dumps(value).encode() for value in values]).entries
    return entry


def types(entry: InferredEntry) -> dict[str, str]:
    return {field.column: field.type for field in entry.fields}


def schema_of(inference: Inference) -> Payloads:
    return Payloads.of(tomllib.loads(inference.text))


def test_each_key_becomes_a_field_with_the_type_of_its_values() -> None:
    entry = of_json(
        {
            "n": 1, "x": 1, "b": True, "s": "a", "at": "2026-11-27T10:00:00Z", "ts": 1_700_000_000_123,
            "motor": {"speed": 1.5, "a.b": 2}, "list": [1, 2.5, None], "words": ["a"], "offset": 3,
            "dt": 1, "_x": 1, "ü": 2, "none": None, "empty": [],
        },
        {"n": 2, "x": 1.5, "N": 5, "motor": {"speed": 2}},
    )  # fmt: skip
    assert types(entry) == {
        "n": "long", "x": "double", "b": "boolean", "s": "string", "at": "timestamp", "ts": "timestamp",
        "motor_speed": "double", "motor_a_b": "long", "list": "array<double>", "words": "array<string>",
        "payload_offset": "long", "payload_dt": "long", "payload_x": "long", "payload_": "long",
        "N_2": "long",
    }  # fmt: skip
    by_name = {field.column: field for field in entry.fields}
    assert by_name["ts"].unit == "ms"
    assert by_name["motor_a_b"].path == ("motor", "a.b")
    assert all(field.fitted == field.present for field in entry.fields)
    assert (by_name["n"].present, by_name["b"].present) == (2, 1)
    assert entry.left_out == ["empty: an array of other values"]


def test_shares_are_those_of_payloads_with_the_field_and_of_values_that_fit() -> None:
    values = [{"temp": number + 0.5} for number in range(98)] + [{"temp": "warm"}, {"other": 1}]
    topics, payloads = ["a"] * 101, [json.dumps(value).encode() for value in values] + [b"{"]
    inference = infer(topics, payloads)
    (entry,) = inference.entries
    assert (entry.records, entry.decoded) == (101, 100)
    temp = next(field for field in entry.fields if field.column == "temp")
    assert (temp.type, temp.present, temp.fitted) == ("double", 99, 98)
    assert 'temp = "double"  # in 98.0%, and fits in 99.0% of these' in inference.text
    assert 'format = "json"  # 99.0% of them' in inference.text
    assert inference.as_dict()["entries"][0]["fields"][0]["fitted"] == 98


def test_an_object_with_many_keys_that_few_payloads_share_is_a_map() -> None:
    values = [{"sensors": {f"s{number}": number / 2, f"t{number}": 1}} for number in range(20)]
    assert types(of_json(*values)) == {"sensors": "map<string,double>"}
    fixed = [{"sensors": {f"s{number}": 1 for number in range(12)}} for _ in range(20)]
    assert len(types(of_json(*fixed))) == 12
    assert types(of_json({"m": {}, "n": 1}, {"m": 5}, {"m": 6})) == {"m": "long", "n": "long"}


def test_topics_that_differ_in_the_middle_share_an_entry_with_a_column_for_the_level() -> None:
    topics = [
        f"plant/{site}/{line}/{last}" for site in ("a", "b") for line in range(9) for last in ("x", "y")
    ]
    topics += ["other", *(f"id/{number}" for number in range(9)), "$SYS/load", "plain/one/x"]
    payloads = [b'{"n":1}' if topic.endswith("x") else b'{"m":1}' for topic in topics]
    inference = infer(topics, payloads)
    assert sorted(entry.topic for entry in inference.entries) == [
        "$SYS/load", "id/+", "other", "plain/one/x", "plant/+/+/x", "plant/+/+/y",
    ]  # fmt: skip
    entry = next(entry for entry in inference.entries if entry.topic == "plant/+/+/x")
    assert [(field.column, field.level) for field in entry.fields[:2]] == [("level_2", 2), ("level_3", 3)]
    schema = schema_of(inference)
    assert all(schema.rule_of(topic) >= 0 for topic in topics)
    given_filters = infer(topics, payloads, ["plant/a/#", "plant/#"])
    assert [entry.topic for entry in given_filters.entries] == ["plant/a/#", "plant/#"]
    assert given_filters.unknown == {"topics outside the filters": 12}


def test_siblings_with_the_same_fields_share_an_entry_and_others_keep_theirs() -> None:
    payloads = {
        "plant/s1": b'{"temp":1,"at":"x"}', "plant/s2": b'{"temp":1.5,"at":"y"}', "plant/s3": b'{"temp":2}',
        "plant/status": b'{"state":"on"}', "plant/raw": b"7", "$SYS/a": b"1", "$SYS/b": b"2", "one": b"1",
        "two": b"1", "plant/s1/more": b'{"temp":1,"at":"x"}',
    }  # fmt: skip
    inference = infer(list(payloads), list(payloads.values()))
    assert {entry.topic: entry.records for entry in inference.entries} == {
        "plant/+": 2, "plant/s3": 1, "plant/status": 1, "plant/raw": 1, "$SYS/+": 2, "one": 1, "two": 1,
        "plant/s1/more": 1,
    }  # fmt: skip
    entry = next(entry for entry in inference.entries if entry.topic == "plant/+")
    assert [(field.column, field.level) for field in entry.fields] == [("level_2", 2), ("temp", 0), ("at", 0)]
    assert all(field.fitted == field.present == 2 for field in entry.fields)
    schema = schema_of(inference)
    assert schema.rules[schema.rule_of("plant/s1")].topic == "plant/+"
    assert schema.rules[schema.rule_of("plant/status")].topic == "plant/status"


def test_siblings_stay_apart_if_their_filter_takes_topics_of_another_entry() -> None:
    """a/+/u and a/+/v would be a/+/+, which has the topics of a/m/+ as well."""
    payloads = {
        "a/m/x": b'{"n":1}', "a/m/y": b'{"n":1}', "a/m/u": b'{"k":1}', "a/o/u": b'{"k":1}',
        "a/m/v": b'{"k":1}', "a/o/v": b'{"k":1}',
    }  # fmt: skip
    inference = infer(list(payloads), list(payloads.values()))
    schema = schema_of(inference)
    for topic, payload in payloads.items():
        rule = schema.rules[schema.rule_of(topic)]
        assert {field.column for field in rule.payload_fields} == set(json.loads(payload))


def test_a_device_that_chooses_its_keys_makes_a_file_of_few_lines() -> None:
    values = [{f"k{at}_{number}": {"": 1, "n": 1} for number in range(40)} for at in range(40)]
    inference = infer(["a"] * 40, [json.dumps(value).encode() for value in values])
    assert len(inference.text.splitlines()) < 100
    assert inference.entries[0].left_out[-1].startswith("and ")


def test_each_format_is_found() -> None:
    cbor2 = pytest.importorskip("cbor2")
    payloads = {
        b"\xff\xfe\x00": None,
        msgpack.packb({"a": 1, "b": b"x", "m": {"k": "t"}}): (
            "msgpack",
            {"a": "long", "b": "binary", "m_k": "string"},
        ),
        cbor2.dumps({"a": 1.5}): ("cbor", {"a": "double"}),
        b' {"a":1}': ("json", {"a": "long"}),
        b"21.5": ("text", {"value": "double"}),
        b"7": ("text", {"value": "long"}),
        b"on": ("text", {"value": "string"}),
        b"": ("text", {"value": "string"}),
        b"true": ("text", {"value": "boolean"}),
        b"2026-11-27T10:00:00Z": ("text", {"value": "timestamp"}),
    }
    for payload, expected in payloads.items():
        inference = infer(["a"], [payload])
        assert [(entry.format, types(entry)) for entry in inference.entries] == (
            [expected] if expected else []
        )
        assert inference.unknown == ({} if expected else {"a": 1})
        for entry in inference.entries:
            assert all(field.fitted == 1 for field in entry.fields)


def test_metrics_of_sparkplug_are_found_with_their_names() -> None:
    pytest.importorskip("google.protobuf")
    metric = b"\x0a\x03a/b\x20\x0a\x69" + struct.pack("<d", 1.5)
    inference = infer(["spBv1.0/g/DDATA/n"], [b"\x12" + bytes([len(metric)]) + metric])
    (entry,) = inference.entries
    assert (entry.format, types(entry), entry.fields[0].fitted) == ("sparkplug", {"a_b": "double"}, 1)
    assert schema_of(inference).rules[0].fields[0].path == ("a/b",)


def test_a_column_of_several_entries_has_one_type_or_another_name() -> None:
    inference = infer(["a", "b", "c"], [b'{"x":1,"n":1}', b'{"x":"y","n":1.5}', b'{"x":true,"N":2}'])
    columns = schema_of(inference).columns
    assert columns["n"] == "double"
    assert {"x_long": "long", "x_string": "string", "x_boolean": "boolean"}.items() <= columns.items()


def test_the_most_frequent_fields_are_kept() -> None:
    common = {f"k{number:03}": 1 for number in range(FIELDS_MAX)}
    entry = of_json({"rare": 1, **common}, common)
    assert len(entry.fields) == FIELDS_MAX
    assert "rare" not in types(entry)
    assert entry.left_out == [f"rare: above the limit of {FIELDS_MAX} fields"]


keys = st.sampled_from(
    ["a", "A", "a.b", "_", "offset", "dt", "é", "x y", "\x7f", '"', "\\", "\n", ".", ""]
) | st.text(max_size=4)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.just("2026-11-27T10:00"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=12),
    max_leaves=20,
)
topics = st.text(st.characters(exclude_characters="+#", exclude_categories=["Cs"]), min_size=1, max_size=8)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a/1", "a/2", "b/x/1", "$s/a", "spBv1.0/g"]) | topics,
            st.dictionaries(keys, values, max_size=6).map(lambda value: json.dumps(value).encode())
            | values.map(lambda value: json.dumps(value).encode())
            | st.dictionaries(keys, st.integers(-9, 9) | st.binary(max_size=3), max_size=4).map(msgpack.packb)
            | st.binary(max_size=12),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_the_text_is_a_valid_payload_schema_of_whatever_sample(records: list[tuple[str, bytes]]) -> None:
    inference = infer([topic for topic, _ in records], [payload for _, payload in records])
    assert sum(entry.records for entry in inference.entries) + sum(inference.unknown.values()) == len(records)
    json.dumps(inference.as_dict())
    if not inference.entries:
        return
    schema = schema_of(inference)
    for entry in inference.entries:
        for field in entry.fields:
            assert 0 <= field.fitted <= field.present <= entry.records
            assert schema.columns[field.column] == field.type
    for topic, _ in records:
        number = schema.rule_of(topic)
        assert number >= 0 or inference.unknown


def test_drained_files_of_both_kinds_are_sampled_evenly(tmp_path: Path) -> None:
    files = [drained_file_of(at * 10, at * 10 + 9, drain_seq=at + 1) for at in range(70)]
    store(tmp_path, *files[:35])
    from bridge.sinks.registry import open_file_sink

    sink = open_file_sink(tmp_path.as_uri(), {"format": "parquet"})
    for file in files[35:]:
        sink.put(file)
    sink.close()
    sample = of_drained_files(tmp_path, 128)
    assert len(sample.topics) == 128
    assert {int(payload) // 100 for payload in sample.payloads} == set(range(7))
    assert len(of_drained_files(tmp_path, 10_000).topics) == 640
    next(tmp_path.rglob("*.brim")).write_bytes(b"damaged")
    assert len(of_drained_files(tmp_path, 10_000).topics) == 630
    with pytest.raises(SourceOptionError, match="has no drained files"):
        of_drained_files(tmp_path / "edge=edge-1" / "none", 1)


def test_a_long_payload_is_counted_and_not_used() -> None:
    sample = Sample()
    sample.add("a", b"x" * (PAYLOAD_MAX_BYTES + 1))
    sample.add("a", None)
    sample.add("a", b"x" * PAYLOAD_MAX_BYTES)
    assert (len(sample.topics), sample.too_long) == (1, 2)
    for _ in range(2 * SAMPLE_MAX_BYTES // PAYLOAD_MAX_BYTES):
        sample.add("a", b"x" * PAYLOAD_MAX_BYTES)
    assert sum(map(len, sample.payloads)) == SAMPLE_MAX_BYTES


def test_a_line_with_a_topic_that_is_none_counts_as_a_line_without() -> None:
    topics = ["a/#/b", "a/+", "\ud800", "a\0", "", "good/1"]
    lines = [json.dumps({"topic": topic, "payload": {"n": 1}}).encode() for topic in topics]
    sample = of_lines(io.BytesIO(b"\n".join(lines)), 100)
    assert sample.topics == [""] * 5 + ["good/1"]
    inference = infer(sample.topics, sample.payloads)
    assert [entry.topic for entry in inference.entries] == ["good/1", "#"]
    inference.text.encode()


def test_lines_of_any_length_and_a_last_one_without_its_end_are_read() -> None:
    long = b"x" * (PAYLOAD_MAX_BYTES + 1)
    lines = [b"a", b"y" * 3 * PAYLOAD_MAX_BYTES, b"", b"b", long, b"z" * PAYLOAD_MAX_BYTES, b"c"]
    sample = of_lines(io.BytesIO(b"\n".join(lines)), 100)
    assert sample.payloads == [b"a", b"b", b"z" * PAYLOAD_MAX_BYTES, b"c"]
    assert sample.too_long == 2
    assert of_lines(io.BytesIO(b"\n".join(lines)), 2).payloads == [b"a", b"b"]
    exact = b"q" * (2 * PAYLOAD_MAX_BYTES)
    assert of_lines(io.BytesIO(exact + b"\nd"), 2).payloads == [b"d"]
