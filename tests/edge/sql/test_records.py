"""The relation `records` over real logs, archives and rings: every record once, and losses declared."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import brim
from edge.errors import EdgeError, InvalidArgument
from edge.log.offline_reader import LogView
from edge.mqtt.topic_filters import matches
from edge.sql.losses import QueryLosses
from edge.sql.plan import QueryScope, plan
from edge.sql.result import QueryError
from edge.sql.scan import RecordSource
from persistence import OsFiles
from persistence.archive import archive_name, archive_segment
from persistence.segment.format import segment_name
from ringbuf import FLAG_RETAIN, Ring
from tests.support.archives import ends_of
from tests.support.kept_logs import MINUTE_NS, NOON_NS, Kept, keep

SEGMENT_BYTES = 12_288
NOON = datetime.fromtimestamp(NOON_NS / 1e9, UTC)


def archive(directory: Path, segments: int) -> list[int]:
    """Archive the first segments of a closed log, as the broker does."""
    files = OsFiles()
    ends = list(ends_of(files, str(directory)).items())[:segments]
    for base, end in ends:
        archive_segment(files, str(directory), base, end, group_bytes=4096)
        (directory / segment_name(base)).unlink()
    return [base for base, _ in ends]


def flip(file: Path, place: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


def readings(count: int, size: int = 600) -> list[Kept]:
    return [
        Kept(
            f"a/{number % 3}", json.dumps({"n": number, "pad": "x" * size}).encode(), number, FLAG_RETAIN | 1
        )
        for number in range(count)
    ]


@pytest.fixture
def place(tmp_path: Path) -> dict[str, Any]:
    """Thirty records in three segments, of which the first is archived; the arguments that select them."""
    keep(tmp_path / "log", "a-0", readings(30), segment_bytes=SEGMENT_BYTES)
    archive(tmp_path / "log", 1)
    return {"log": tmp_path / "log", "runtime_dir": tmp_path / "rings"}


def offsets(result: Any) -> list[int]:
    return sorted(offset for (offset,) in result)


def test_log_and_archive_are_one_relation(place):
    result = brim.sql('SELECT "offset" FROM records', **place)
    assert offsets(result) == list(range(30))
    assert (result.missing, result.damage) == (0, ())


def test_a_record_has_its_columns(place):
    (row,) = brim.records(rings=["a-0"], **place).sql('SELECT * FROM records WHERE "offset" = 4')
    when = datetime.fromtimestamp((NOON_NS + 4 * MINUTE_NS) / 1e9, UTC).replace(tzinfo=None)
    payload = readings(30)[4].payload
    assert row == (
        "a", "a-0", 7, 4, when, NOON_NS + 4 * MINUTE_NS, "a/1", 1, True, None, payload, payload.decode(),
    )  # fmt: skip


def test_the_same_row_comes_from_log_and_archive(place):
    before = sorted(brim.sql("SELECT * FROM records", **place))
    archive(place["log"], 2)
    assert sorted(brim.sql("SELECT * FROM records", **place)) == before


@pytest.mark.parametrize(
    ("narrowing", "found"),
    [
        ({"topics": "a/1"}, range(1, 30, 3)),
        ({"topics": ["a/0", "+/2"]}, [number for number in range(30) if number % 3 != 1]),
        ({"topics": "none/#"}, []),
        ({"since": NOON.replace(second=0)}, range(30)),
        ({"since": f"@{NOON_NS // 10**9 + 25 * 60}"}, range(25, 30)),
        ({"until": f"@{NOON_NS // 10**9 + 120}"}, range(2)),
        ({"streams": ["a"], "topics": "a/2"}, range(2, 30, 3)),
    ],
)
def test_records_are_narrowed(place, narrowing, found):
    result = brim.sql('SELECT "offset" FROM records', **place, **narrowing)
    assert offsets(result) == list(found)
    assert result.missing == 0


def test_narrowing_by_time_opens_no_other_part(place):
    (place["log"] / segment_name(min(ends_of(OsFiles(), str(place["log"]))))).chmod(0o600)
    since = f"@{NOON_NS // 10**9 + 29 * 60}"
    archived = place["log"] / archive_name(0)
    flip(archived, 200)
    result = brim.sql("SELECT count(*) FROM records", since=since, **place)
    assert list(result) == [(1,)]
    assert result.damage == ()


def test_a_row_group_that_is_damaged_is_declared_and_the_rest_is_read(place):
    flip(place["log"] / archive_name(0), 200)
    result = brim.sql('SELECT "offset" FROM records', **place)
    found = offsets(result)
    assert found == sorted(set(found))
    assert 10 < len(found) < 30
    assert result.missing == 30 - len(found)
    assert "row group 0" in result.damage[0]


def test_an_archive_without_its_footer_is_declared(place):
    file = place["log"] / archive_name(0)
    file.write_bytes(file.read_bytes()[:-20])
    result = brim.sql('SELECT "offset" FROM records', **place)
    assert len(offsets(result)) < 30
    assert any(archive_name(0) in damage for damage in result.damage)


@pytest.mark.parametrize("where", ["true", "topic = 'a/2'"])
def test_a_damaged_record_of_a_segment_is_declared(place, where):
    base = min(ends_of(OsFiles(), str(place["log"])))
    segment = place["log"] / segment_name(base)
    data = segment.read_bytes()
    flip(segment, data.index(b"xxxx", data.index(b'"n": 17')) + 5)
    result = brim.sql(f'SELECT "offset" FROM records WHERE {where}', **place)
    assert offsets(result) == [it for it in range(30) if it != 17 and (where == "true" or it % 3 == 2)]
    assert segment.name in result.damage[0]
    assert result.missing == 1 or where != "true"


def test_a_segment_that_is_gone_is_missing(place):
    keep(place["log"], "a-0", readings(14), segment_bytes=SEGMENT_BYTES)
    bases = sorted(ends_of(OsFiles(), str(place["log"])))
    (place["log"] / segment_name(bases[1])).unlink()
    result = brim.sql("SELECT count(*) FROM records", **place)
    ((count,),) = result
    assert 0 < count < 44
    assert result.missing == 44 - count


def test_records_of_a_ring_that_the_log_does_not_have_are_there(place, runtime_directory):
    with Ring.create(runtime_directory / "a-0", capacity_bytes=1 << 16, epoch=7, first_offset=30) as ring:
        for number in range(5):
            ring.writer().publish(b"new %d" % number, "a/new")
        result = brim.sql(
            "SELECT \"offset\", payload_text FROM records WHERE starts_with(payload_text, 'new')",
            log=place["log"], runtime_dir=runtime_directory,
        )  # fmt: skip
        assert sorted(result) == [(30 + number, f"new {number}") for number in range(5)]
        everything = brim.sql(
            'SELECT count(*), count(DISTINCT "offset") FROM records',
            log=place["log"],
            runtime_dir=runtime_directory,
        )
        assert list(everything) == [(35, 35)]


def test_a_ring_that_overlaps_with_the_log_gives_no_record_twice(tmp_path, runtime_directory):
    keep(tmp_path, "a-0", [Kept("a", b"%d" % number) for number in range(6)])
    with Ring.create(runtime_directory / "a-0", capacity_bytes=1 << 16, epoch=7) as ring:
        for number in range(9):
            ring.writer().publish(b"%d" % number, "a")
        result = brim.sql("SELECT payload_text FROM records", log=tmp_path, runtime_dir=runtime_directory)
        assert sorted(result) == [(str(number),) for number in range(9)]


def test_records_that_a_ring_hides_until_they_are_durable_are_neither_read_nor_missing(
    tmp_path, runtime_directory
):
    with Ring.create(runtime_directory / "a-0", capacity_bytes=1 << 16, epoch=1) as ring:
        ring.show_durable(True)
        for number in range(9):
            ring.writer().publish(b"%d" % number, "a")
            if number == 5:
                ring.durable(ring.extremes().end_position)
        records = brim.records(log=tmp_path / "none", runtime_dir=runtime_directory)
        first, ends = records.query('SELECT "offset" FROM records', {})
        assert offsets(first) == [0, 1, 2, 3, 4, 5]
        assert first.missing == 0
        assert ends == records.ends() == {("a-0", 1): 6}
        ring.durable(ring.extremes().end_position)
        second, _ = records.query('SELECT "offset" FROM records', ends)
        assert offsets(second) == [6, 7, 8]


def test_a_ring_without_a_log_is_enough(tmp_path, runtime_directory):
    with Ring.create(runtime_directory / "a-0", capacity_bytes=1 << 16, epoch=1) as ring:
        ring.writer().publish(b"1", "a")
        found = brim.sql("SELECT topic FROM records", log=tmp_path / "none", runtime_dir=runtime_directory)
        assert list(found) == [("a",)]


def test_the_journal_of_sessions_is_read_only_by_its_name(tmp_path, runtime_directory):
    for name in ("sessions", "a-0"):
        with Ring.create(runtime_directory / name, capacity_bytes=1 << 16, epoch=1) as ring:
            ring.writer().publish(b"1", name)
    where = {"log": tmp_path / "none", "runtime_dir": runtime_directory}
    assert list(brim.sql("SELECT topic FROM records", **where)) == [("a-0",)]
    assert list(brim.sql("SELECT topic FROM records", rings="sessions", **where)) == [("sessions",)]
    with pytest.raises(EdgeError, match="does not exist") as refused:
        brim.sql("SELECT topic FROM records", streams="b", **where)
    assert refused.value.hint == "rings and log have a"


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_library_that_is_missing_is_named_before_rows_are_read(library, place, monkeypatch):
    rows = brim.records("a/1", **place).sql("SELECT count(*) FROM records")
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(EdgeError, match=f"{library} is not installed"):
        getattr(rows, library)()
    assert list(rows) == [(10,)]


def test_arrow_pandas_and_polars_have_the_same_rows(place):
    records = brim.records("a/1", **place)
    tables = [records.arrow().to_pandas(), records.pandas(), records.polars().to_pandas()]
    for table in tables:
        assert sorted(table["offset"]) == list(range(1, 30, 3))
        assert list(table.columns) == list(tables[0].columns)
    assert sum(batch.num_rows for batch in records.batches(3)) == 10


def test_short_runs_of_the_log_are_decoded_together(place):
    view, losses = LogView(place["log"]), QueryLosses()
    parts = plan(view, place["runtime_dir"], QueryScope(), {}, losses).parts
    batches = list(RecordSource(view, parts, losses, 1).scanner(["offset"]).to_reader())
    assert len(batches) == len(parts) == 2
    assert [value for batch in batches for value in batch["offset"].to_pylist()] == list(range(10, 30))


def test_a_query_that_ends_early_leaves_no_thread(place):
    import threading

    before = threading.active_count()
    with brim.sql("SELECT 1 FROM records LIMIT 1", **place) as result:
        assert list(result) == [(1,)]
    until = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_a_query_ends_without_the_rest_of_a_pause(place, monkeypatch):
    import threading

    from persistence.processor_priority import Pauses

    pauses_s = iter([0.0])
    monkeypatch.setattr(Pauses, "due_s", lambda _: next(pauses_s, 3600.0))
    before = threading.active_count()
    with brim.sql("SELECT 1 FROM records LIMIT 1", threads=1, **place) as result:
        assert list(result) == [(1,)]
    assert next(pauses_s, None) is None
    until = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.active_count() <= before


@pytest.mark.parametrize("is_archived", [False, True])
def test_payload_text_is_the_payload_if_it_is_utf8(tmp_path, is_archived):
    payloads = [
        b"", b"a\0b", "\u00fc\u20ac\U0001f600".encode(), b"\xed\x9f\xbf", b"\xf4\x8f\xbf\xbf",
        b"\xff", b"a\x80", b"\xc3", b"\xe2\x82", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"?\xc3(",
    ]  # fmt: skip
    pad = Kept("pad", b"x" * SEGMENT_BYTES)
    keep(tmp_path, "a-0", [*(Kept("t", payload) for payload in payloads), pad], segment_bytes=SEGMENT_BYTES)
    assert len(archive(tmp_path, int(is_archived))) == is_archived
    query = "SELECT payload_text FROM records WHERE topic = 't' ORDER BY \"offset\""
    found = [text for (text,) in brim.sql(query, log=tmp_path, runtime_dir=tmp_path / "none")]
    assert found[:5] == [payload.decode() for payload in payloads[:5]]
    assert found[5:] == [None] * len(payloads[5:])


def test_batches_of_large_values_are_small(place):
    query = "SELECT repeat('x', 100_000) AS x FROM range(2000)"
    batches = list(brim.sql(query, **place).batches())
    assert sum(batch.num_rows for batch in batches) == 2000
    assert max(batch.nbytes for batch in batches) < 100 << 20
    assert [batch.num_rows for batch in brim.sql("FROM range(1200)", **place).batches(700)] == [512, 688]


def test_mistakes_are_reported(place, tmp_path):
    with pytest.raises(QueryError, match="nothing"):
        brim.sql("SELECT nothing FROM records", **place)
    with pytest.raises(EdgeError, match="stream 'b' does not exist"):
        brim.sql("SELECT 1 FROM records", streams=["b"], **place)
    with pytest.raises(InvalidArgument, match="is an offset"):
        brim.records(since="5", **place)
    with pytest.raises(InvalidArgument, match="# must be"):
        brim.records("a/#/b", **place)
    for threads in (-1, 257):
        with pytest.raises(InvalidArgument, match=f"invalid number of threads {threads} .allowed: 1 to 256"):
            brim.records(threads=threads, **place)
    assert brim.records(threads=256, **place).threads == 256
    with pytest.raises(EdgeError, match="there is no log"):
        brim.sql("SELECT 1 FROM records", log=tmp_path / "none", runtime_dir=tmp_path / "none")


def test_an_error_while_rows_are_read_names_its_cause_without_control_characters(tmp_path):
    keep(tmp_path, "a-0", [Kept("a", b"\x1b[31m")])
    with pytest.raises(QueryError, match=r"\\x1b\[31m"):
        list(
            brim.sql("SELECT payload_text::INTEGER FROM records", log=tmp_path, runtime_dir=tmp_path / "none")
        )


TOPICS = ["a", "a/b", "a/b/c", "$a/b", "", "a+", "ä/b", "a//c"]
FILTERS = ["a", "#", "+", "a/#", "+/b", "a/+/c", "+/+", "a/b/#", "ä/#", "$a/+", "+/#", "a//c"]
KEPT = st.builds(
    Kept,
    topic=st.sampled_from([topic for topic in TOPICS if topic]),
    payload=st.binary(max_size=40) | st.integers(0, 99).map(lambda number: b'{"n":%d}' % number),
    minute=st.integers(0, 50),
    flags=st.sampled_from([0, 1, 2, FLAG_RETAIN]),
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    records=st.lists(KEPT, min_size=1, max_size=40),
    filters=st.lists(st.sampled_from(FILTERS), max_size=2),
    since=st.integers(-1, 51),
    archived=st.integers(0, 3),
)
def test_sql_and_python_agree(tmp_path_factory, records, filters, since, archived):
    directory = tmp_path_factory.mktemp("log")
    keep(directory, "a-0", records, segment_bytes=SEGMENT_BYTES)
    archive(directory, archived)
    wanted = [
        it
        for it in records
        if it.minute >= since and (not filters or any(matches(f, it.topic) for f in filters))
    ]
    arguments = {"log": directory, "runtime_dir": directory / "none", "topics": filters}
    narrowed = brim.records(since=f"@{NOON_NS // 10**9 + since * 60}", **arguments)
    rows = narrowed.sql("SELECT topic, payload, timestamp_ns, qos, retain FROM records")
    assert Counter(rows) == Counter(
        (
            it.topic,
            it.payload,
            NOON_NS + int(it.minute * MINUTE_NS),
            it.flags & 3,
            bool(it.flags & FLAG_RETAIN),
        )
        for it in wanted
    )
    counts = narrowed.sql("SELECT topic, count(*) FROM records GROUP BY 1")
    assert dict(counts) == Counter(it.topic for it in wanted)
    one = narrowed.sql("SELECT count(*) FROM records WHERE topic = 'a/b'")
    assert list(one) == [(sum(it.topic == "a/b" for it in wanted),)]
