"""Conditions leave out what does not fulfil them: whole files by name, and then records."""
# ruff: noqa: E402

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow", reason="needs the spark extra: pip install 'brim[spark]'")

from bridge.arrow.schema import TYPES, DecodedColumns
from bridge.errors import SourceOptionError
from bridge.format.file_name import FileName
from bridge.spark.conditions import Condition, Where, moment
from bridge.spark.options import SourceOptions
from bridge.spark.task_planning import FileTask, clipped

NAME = FileName("edge-1", 7, "press", 2, 5, 100, 199, "2026-01-31")
T0 = datetime(2026, 1, 31, 12, tzinfo=UTC)


def where(**options: str) -> Where:
    return SourceOptions.read({"path": "/lake", **options}).where


@pytest.mark.parametrize(
    ("options", "may"),
    [
        ({}, True),
        ({"partition": "1, 2"}, True),
        ({"partition": "1"}, False),
        ({"offsets": "199-"}, True),
        ({"offsets": "200-"}, False),
        ({"offsets": "-99"}, False),
        ({"offsets": "120-130"}, True),
        ({"since": "2026-02-01T23:59"}, True),  # a clock may have been set back
        ({"since": "2026-02-02"}, False),
        ({"until": "2020-01-01"}, True),  # it may have been drained late
        ({"topic": "plant/#"}, True),
    ],
)
def test_a_file_is_left_out_by_its_name(options: dict[str, str], may: bool) -> None:
    assert where(**options).may_be_in(NAME) is may


@pytest.mark.parametrize(
    ("condition", "may"),
    [
        (Condition("edge", "=", "edge-1"), True),
        (Condition("edge", "starts", "edge-2"), False),
        (Condition("stream", "in", ("oven", "press")), True),
        (Condition("epoch", ">", 5), False),
        (Condition("offset", "<", 100), False),
        (Condition("offset", ">", 198), True),
        (Condition("offset", "in", (3, 250)), True),
        (Condition("offset", "in", (3, 4)), False),
    ],
)
def test_what_spark_pushes_down_leaves_files_out_too(condition: Condition, may: bool) -> None:
    assert Where((condition,)).may_be_in(NAME) is may


conditions = st.one_of(
    st.builds(
        Condition,
        st.just("timestamp"),
        st.sampled_from(["=", "<", "<=", ">", ">="]),
        st.integers(-2, 12).map(lambda s: T0 + timedelta(seconds=s)),
    ),
    st.builds(Condition, st.just("qos"), st.just("in"), st.lists(st.integers(0, 2)).map(tuple)),
    st.builds(Condition, st.just("topic"), st.just("starts"), st.sampled_from(["a", "b/", ""])),
    st.builds(Condition, st.just("topic"), st.just("in"), st.just(("a/x", "c"))),
    st.builds(Condition.of_topics, st.sampled_from(["a/+", "#", "b/#", "c"])),
    st.builds(Condition, st.just("retain"), st.just("="), st.booleans()),
)
rows_strategy = st.lists(
    st.tuples(
        st.integers(0, 10),
        st.sampled_from(["a/x", "b/y/z", "b", "c", "$a"]),
        st.integers(0, 2),
        st.booleans(),
    ),
    min_size=1,
    max_size=30,
)


@given(st.lists(conditions, max_size=3), rows_strategy)
def test_records_are_left_out_one_by_one(chosen: list[Condition], rows: list[tuple[Any, ...]]) -> None:
    names = ("timestamp", "topic", "qos", "retain")
    values = [(T0 + timedelta(seconds=row[0]), *row[1:]) for row in rows]
    columns = {name: pa.array([row[at] for row in values], TYPES[name]) for at, name in enumerate(names)}
    found = Where(tuple(chosen)).of(DecodedColumns(0, len(rows), columns))
    expected = [row for row in values if all(it.holds(row[names.index(it.column)]) for it in chosen)]
    assert list(zip(*(found.columns[name].to_pylist() for name in names), strict=True)) == expected
    assert found.rows == len(expected)


def test_ranges_are_cut_to_the_offsets() -> None:
    task = FileTask("f", 1, ((0, 9), (20, 29), (40, 49)))
    assert clipped([task], *where(offsets="5-25").offsets)[0].ranges == ((5, 9), (20, 25))
    assert clipped([task], *where(offsets="10-19").offsets) == []
    assert clipped([task], *where().offsets) == [task]


def test_times_are_utc_unless_they_say_where() -> None:
    assert moment("2026-01-31T12:00") == T0 == moment("2026-01-31T13:00+01:00")


@pytest.mark.parametrize(
    "options",
    [
        {"partition": "one"},
        {"offsets": "-"},
        {"offsets": "1"},
        {"since": "yesterday"},
        {"topic": "a#"},
        {"pushDown": "x"},
    ],
)
def test_an_option_that_cannot_be_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(SourceOptionError, match=next(iter(options)) if "topic" not in options else "filter"):
        where(**options)


@pytest.mark.parametrize(
    ("options", "may"),
    [
        ({"until": "2026-01-30T18:00"}, True),  # a clock may have been set back
        ({"until": "2026-01-29"}, False),
        ({"since": "2026-02-01T23:59"}, True),
        ({"since": "2026-02-03"}, False),
        ({"since": "2026-01-31", "until": "2026-02-01"}, True),
    ],
    ids=str,
)
def test_a_file_is_left_out_for_the_times_in_its_footer(options: dict[str, str], may: bool) -> None:
    first, last = (int((T0 + timedelta(hours=hours)).timestamp()) * 10**9 for hours in (0, 24))
    assert where(**options).may_be_between(first, last) == may
    assert where(**options).may_be_between(last, first) == may
