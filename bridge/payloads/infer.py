"""Inference of a payload schema from a sample of topics and payloads, with the share of values that fit.

Topics that differ in levels in the middle share an entry; a level that differs is + in its filter, and a
column. So do topics that differ in the last level, if their fields are the same (sibling_topics.py). The
format of an entry is that of most of its payloads. inferred_fields.py chooses the fields.

The shares are counted by the decoder itself (decode.py), with the inferred schema on the sample.

Invariant: the text of an inference is a valid payload schema.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import pyarrow as pa

from bridge.arrow.schema import CORRUPT, TYPES
from bridge.errors import SourceOptionError
from bridge.payloads import formats
from bridge.payloads.decode import decode_payloads, parse_json
from bridge.payloads.inferred_fields import FoundField, fields_of
from bridge.payloads.rows import BadPayload, loaded, unpack_one
from bridge.payloads.schema import FIELDS_MAX, LEVEL_MAX, Payloads, filter_pattern
from bridge.payloads.sibling_topics import precedence, siblings
from bridge.payloads.undecoded_text import Pairs

ENTRIES_MAX = 64
DECODED_ROWS = 256  # at a time; with the longest payloads their bytes have 32-bit positions
LEFT_OUT_MAX = 16  # lines: devices choose their keys
LITERALS_MAX = 8  # different first or last levels that have entries of their own
TAKEN: Final = frozenset(name.lower() for name in (*TYPES, CORRUPT)) | {
    "dt", "ring", "timestamp_ns", "flags", "payload_text",
}  # fmt: skip


@dataclass(slots=True)
class InferredField:
    """A column. `present`: payloads of the entry that have the field; `fitted`: those whose value fits."""

    column: str
    type: str
    path: tuple[str, ...] = ()
    unit: str = ""
    level: int = 0
    present: int = 0
    fitted: int = 0

    def setting(self, form: str) -> str:
        """The value of the field in the file."""
        parts = [f"level = {self.level}"] if self.level else []
        if not self.level and self.path != (self.column,):
            parts.append(f"path = {_path(self.path, form)}")
        if not parts and not self.unit:
            return _quoted(self.type)
        parts.append(f"type = {_quoted(self.type)}")
        parts += [f"unit = {_quoted(self.unit)}"] if self.unit else []
        return f"{{ {', '.join(parts)} }}"


@dataclass(slots=True)
class InferredEntry:
    """An entry for the topics of one filter. `decoded`: payloads in its format."""

    topic: str
    format: str
    records: int
    decoded: int
    fields: list[InferredField]
    left_out: list[str] = field(default_factory=list)

    @property
    def common(self) -> Hashable:
        """Format, and path, type and unit of the fields: equal for sibling topics."""
        numbers = {"long": "double"}
        fields = (
            (one.path, numbers.get(one.type, one.type), one.unit) for one in self.fields if not one.level
        )
        return self.format, frozenset(fields)


@dataclass(slots=True)
class Inference:
    """A payload schema and its fit."""

    records: int
    entries: list[InferredEntry]
    unknown: dict[str, int] = field(default_factory=dict)  # records by filter, if it has no entry

    @property
    def text(self) -> str:
        """The payload schema file, with the shares as comments."""
        return "\n".join(line for entry in self.entries for line in _lines(entry))

    def as_dict(self) -> dict[str, Any]:
        """The same for programs."""
        return asdict(self)


def infer(topics: Sequence[str], payloads: Sequence[bytes], filters: Sequence[str] = ()) -> Inference:
    """Infer the schema of these records.

    An empty topic is unknown: its records belong to the first of `filters`. Without `filters`, they are
    derived from the topics; that of the unknown topic is #.
    """
    groups: dict[str, list[int]] = defaultdict(list)
    filter_of = _filter_of_given(filters) if filters else _filter_of_sample(topics)
    for row, topic in enumerate(topics):
        groups[filter_of(topic)].append(row)
    result = Inference(len(topics), [])
    for topic_filter, rows in sorted(groups.items(), key=lambda group: -len(group[1])):
        entry = None
        if topic_filter and len(result.entries) < ENTRIES_MAX:
            entry = _entry(topic_filter, [payloads[row] for row in rows])
        if entry is None:
            result.unknown[topic_filter or "topics outside the filters"] = len(rows)
        else:
            result.entries.append(entry)
    if not filters:
        _merge_siblings(result, groups, topics, payloads)
    _unify_columns(result.entries)
    if filters:
        result.entries.sort(key=lambda entry: filters.index(entry.topic))
    else:
        result.entries.sort(key=lambda entry: precedence(entry.topic))
    if result.entries:
        _measure(result, groups, payloads)
    return result


def _merge_siblings(
    result: Inference, groups: dict[str, list[int]], topics: Sequence[str], payloads: Sequence[bytes]
) -> None:
    entries = {entry.topic: entry for entry in result.entries}
    fields = {name: entry.common for name, entry in entries.items()}
    for merged, names in siblings(fields, {name: {topics[row] for row in groups[name]} for name in entries}):
        groups[merged] = sorted(row for name in names for row in groups.pop(name))
        rows = groups[merged]
        entry = _entry(merged, [payloads[row] for row in rows])
        assert entry is not None, names
        result.entries = [each for each in result.entries if each.topic not in names] + [entry]


# ---- topics ----


def _filter_of_given(filters: Sequence[str]) -> Callable[[str], str]:
    patterns = [(name, re.compile(filter_pattern(name), re.DOTALL)) for name in filters]

    def filter_of(topic: str) -> str:
        if not topic:
            return filters[0]
        return next((name for name, pattern in patterns if pattern.fullmatch(topic)), "")

    return filter_of


def _filter_of_sample(topics: Iterable[str]) -> Callable[[str], str]:
    """Function from a topic to its filter. First and last level are + only if many topics differ there."""
    distinct = {topic: topic.split("/") for topic in topics if topic}
    by_depth: dict[int, list[list[str]]] = defaultdict(list)
    for levels in distinct.values():
        by_depth[len(levels)].append(levels)
    few_first = {depth: len({each[0] for each in alike}) <= LITERALS_MAX for depth, alike in by_depth.items()}
    groups: dict[tuple[int, str], list[list[str]]] = defaultdict(list)
    for levels in distinct.values():
        groups[_group(levels, few_first)].append(levels)
    few_last = {key: len({each[-1] for each in alike}) <= LITERALS_MAX for key, alike in groups.items()}
    members: dict[tuple[int, str, str], list[list[str]]] = defaultdict(list)
    filters = {"": "#"}
    for levels in distinct.values():
        members[_key(levels, few_first, few_last)].append(levels)
    for (depth, first, last), alike in members.items():
        middle = [{each[at] for each in alike} for at in range(1, depth - 1)]
        inner = [next(iter(names)) if len(names) == 1 else "+" for names in middle]
        topic_filter = "/".join([first, *inner, last] if depth > 1 else [first])
        filters |= {"/".join(each): topic_filter for each in alike}
    return filters.__getitem__


def _group(levels: list[str], few_first: dict[int, bool]) -> tuple[int, str]:
    first = levels[0]
    return len(levels), first if few_first[len(levels)] or first.startswith("$") else "+"


def _key(
    levels: list[str], few_first: dict[int, bool], few_last: dict[tuple[int, str], bool]
) -> tuple[int, str, str]:
    group = _group(levels, few_first)
    return (*group, levels[-1] if few_last[group] else "+")


# ---- formats ----


def _entry(topic_filter: str, payloads: Sequence[bytes]) -> InferredEntry | None:
    """The entry; None if no payload has a known format, or no field can be a column."""
    is_sparkplug = topic_filter.startswith("spBv1.0/")
    decoded = [_decoded(payload, is_sparkplug) for payload in payloads]
    counts = Counter(form for form, _ in decoded if form)
    if not counts:
        return None
    form, count = counts.most_common(1)[0]
    found, left_out = fields_of(value for other, value in decoded if other == form)
    found = [one for one in found if (form == "text") == (not one.path) or form in {"msgpack", "cbor"}]
    found.sort(key=lambda one: -one.present)
    levels = [
        InferredField(f"level_{number}", "string", level=number)
        for number, level in enumerate(topic_filter.split("/")[:LEVEL_MAX], 1)
        if level == "+"
    ]
    room = FIELDS_MAX - len(levels)
    left_out += [f"{'.'.join(one.path)}: above the limit of {FIELDS_MAX} fields" for one in found[room:]]
    if len(left_out) > LEFT_OUT_MAX:
        left_out = [*left_out[:LEFT_OUT_MAX], f"and {len(left_out) - LEFT_OUT_MAX} more"]
    fields = _named(levels, [one for one in found[:room] if form != "json" or one.kind != "binary"])
    return InferredEntry(topic_filter, form, len(payloads), count, fields, left_out) if fields else None


def _decoded(payload: bytes, is_sparkplug: bool) -> tuple[str, Any]:
    """Format of a payload, and its content; "" for an unknown format."""
    if is_sparkplug:
        return _decoded_as("sparkplug", _sparkplug, payload)
    if payload[:1] in {b"{", b" ", b"\t", b"\r", b"\n"}:
        form, value = _decoded_as("json", parse_json, payload)
        if form:
            return form, value
    byte = payload[0] if payload else 0
    if 0x80 <= byte <= 0x8F or byte in {0xDE, 0xDF}:  # a map of msgpack; maps of CBOR begin with other bytes
        return _decoded_as("msgpack", unpack_one, payload)
    if 0xA0 <= byte <= 0xBF:
        return _decoded_as("cbor", _cbor, payload)
    return _text(payload)


def _sparkplug(payload: bytes) -> Any:
    return formats.sparkplug()(payload)


def _cbor(payload: bytes) -> Any:
    return formats.cbor()(payload)


def _decoded_as(form: str, loads: Callable[[bytes], Any], payload: bytes) -> tuple[str, Any]:
    try:
        value = loaded(loads, form, payload)
    except (BadPayload, SourceOptionError):
        return "", None
    return (form, value) if isinstance(value, dict | Pairs) else ("", None)


def _text(payload: bytes) -> tuple[str, Any]:
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return "", None
    if re.fullmatch(r"-?\d{1,18}", text, re.ASCII):
        return "text", int(text)
    if re.fullmatch(r"-?\d+(\.\d+)?([eE][+-]?\d{1,3})?", text, re.ASCII):
        return "text", float(text)
    return "text", text == "true" if text in {"true", "false"} else text


# ---- columns ----


def _named(levels: list[InferredField], found: Sequence[FoundField]) -> list[InferredField]:
    """The fields with names that no other column has."""
    names = {one.column for one in levels}
    fields = list(levels)
    for one in found:
        name = _free("_".join(one.path) or "value", names)
        names.add(name.lower())
        fields.append(InferredField(name, one.kind, one.path, one.unit, present=one.present))
    return fields


def _free(text: str, names: Collection[str]) -> str:
    name = re.sub(r"[^A-Za-z0-9_]+", "_", text)[:100]
    if not re.match(r"[A-Za-z]", name) or name.lower() in TAKEN:
        name = f"payload_{name.lstrip('_')}"
    base, number = name, 2
    while name.lower() in names or name.lower() in TAKEN:
        name, number = f"{base}_{number}", number + 1
    return name


def _unify_columns(entries: Sequence[InferredEntry]) -> None:
    """Give a column of several entries one type. Columns of different types get different names."""
    kinds: dict[str, set[str]] = defaultdict(set)
    for each in (one for entry in entries for one in entry.fields):
        kinds[each.column.lower()].add(each.type)
    used = dict.fromkeys(kinds, "")
    for entry in entries:
        for each in entry.fields:
            name = each.column.lower()
            if kinds[name] == {"long", "double"}:
                each.type = "double"
            spelled = used[name] = used[name] or each.column
            if len(kinds[name] - {"long", "double"}) + bool(kinds[name] & {"long", "double"}) > 1:
                suffix = re.sub(r"[^a-z]+", "_", each.type).strip("_")
                each.column = _free(f"{name}_{suffix}", kinds.keys() - {f"{name}_{suffix}"})
            else:
                each.column = spelled


def _measure(result: Inference, groups: dict[str, list[int]], payloads: Sequence[bytes]) -> None:
    """Count the values that fit. The decoder is that of the bridge."""
    for entry in result.entries:
        (rule,) = Payloads.of(tomllib.loads("\n".join(_lines(entry)))).rules
        rows = groups[entry.topic]
        fitted: Counter[str] = Counter()
        for begin in range(0, len(rows), DECODED_ROWS):
            part = [payloads[row] for row in rows[begin : begin + DECODED_ROWS]]
            columns = decode_payloads(rule, rule.payload_fields, pa.array(part, pa.binary())).columns
            fitted.update({name: len(part) - column.null_count for name, column in columns.items()})
        for each in entry.fields:
            each.fitted = len(rows) if each.level else fitted[each.column]
            each.present = max(each.present, each.fitted)


# ---- the file ----


def _lines(entry: InferredEntry) -> list[str]:
    noun = "record" if entry.records == 1 else "records"
    lines = [
        "[[payload]]",
        f"topic = {_quoted(entry.topic)}  # {entry.records} {noun} of the sample",
        f"format = {_quoted(entry.format)}  # {_share(entry.decoded, entry.records)} of them",
        "[payload.fields]",
    ]
    for one in entry.fields:
        note = f"  # in {_share(one.present, entry.records)}"
        if one.fitted < one.present:
            note += f", and fits in {_share(one.fitted, one.present)} of these"
        lines.append(f"{one.column} = {one.setting(entry.format)}" + ("" if one.level else note))
    lines += [f"# left out: {json.dumps(text, ensure_ascii=True)}" for text in entry.left_out]
    return [*lines, ""]


def _share(part: int, whole: int) -> str:
    """Percentage of `part`. Only all are 100%, and only zero is 0%."""
    if part in {0, whole}:
        return "100%" if part else "0%"
    return f"{min(max(100 * part / whole, 0.1), 99.9):.1f}%"


def _path(path: tuple[str, ...], form: str) -> str:
    if not path:
        return '"."'
    if form == "sparkplug" or (len(path) == 1 and "." not in path[0]):
        return _quoted(path[0])
    if any("." in key for key in path) or path == (".",):
        return f"[{', '.join(map(_quoted, path))}]"
    return _quoted(".".join(path))


def _quoted(text: str) -> str:
    """A basic string of TOML."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
