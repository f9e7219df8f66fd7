"""Minutes as a stream: each written once when it is over, late records counted separately, none lost."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the spark extra: pip install 'brim[spark]'")
pytest.importorskip("pyspark", reason="needs the spark extra: pip install 'brim[spark]'")

from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

from bridge.errors import TableUnreachable
from bridge.spark import job_state
from bridge.spark.jobs import bronze, compact, live, windows
from bridge.spark.table_layout import write_files
from tests.support.drained_files import T0_NS, drained_file_of, store

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

Said = pytest.CaptureFixture[str]

# Records are a millisecond apart, and the first is 40 s before the end of its minute.
MINUTE, FIRST_END = 60_000, 40_000


def payload(offset: int) -> bytes:
    return b"none" if offset % 1000 == 7 else b'{"temp": %d}' % (offset % 500)


def some(first: int, drain_seq: int, edge: str = "edge-1") -> Any:
    return drained_file_of(first, first + 19, drain_seq=drain_seq, edge=edge, payload=payload)


def run(lake: Path, table: Path, capsys: Said, *more: str) -> dict[str, Any]:
    how = ["--field", "temp", "--delay", "30", "--json", "--option=maxFilesPerTrigger=3"]
    assert live.main([str(lake), "--to", str(table), *how, *more]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def minutes_of(frame: Any) -> dict[tuple[str, str, int], tuple[int, int]]:
    """Count and undecodable, by edge, device and the minute's number."""
    rows = frame.select(
        "edge", "device", f.unix_seconds("minute").alias("at"), "count", "undecodable"
    ).collect()
    found = {(edge, device, at // 60): (count, bad) for edge, device, at, count, bad in rows}
    assert len(found) == len(rows)
    return found


def test_a_minute_is_written_once_and_what_is_late_is_beside_it(
    spark: Any, tmp_path: Path, capsys: Said
) -> None:
    lake, table, state = tmp_path / "lake", tmp_path / "minutes", tmp_path / "minutes.state"
    second, third = FIRST_END + 10_000, FIRST_END + MINUTE + 29_000
    store(lake, some(0, 1), some(second, 2), some(third, 3), some(third, 1, edge="kiln"))
    assert (
        run(lake, table, capsys)["records"] == 4
    )  # the first minute; the second one would be a second later
    # Late for the first minute, in time for the second, and such that the second is over.  Of other edges:
    # late by its own clock, and in time, because only its own clock counts.
    last = FIRST_END + MINUTE + 31_000
    store(lake, some(100, 4), some(second + 100, 5), some(last, 6), some(0, 2, edge="kiln"))
    store(lake, some(0, 1, edge="oven"))
    for again in (False, True):
        if again:  # killed when it had written a batch, and not yet said so
            commits = sorted((state / "checkpoint" / "commits").glob("[0-9]*"), key=lambda it: int(it.name))
            commits[-1].unlink()
            commits[-1].with_name(f".{commits[-1].name}.crc").unlink()
            shutil.rmtree(max(table.glob("batch=*")))
        run(lake, table, capsys)
        ended, late = spark.read.parquet(str(table)), spark.read.parquet(f"{state}/late")
        on_time, too_late = minutes_of(ended), minutes_of(late)
        zero = min(at for _, _, at in on_time)
        devices = [f"plant/{line}/temp" for line in range(4)]
        assert set(on_time) == {("edge-1", it, zero + at) for it in devices for at in (0, 1)}
        assert set(too_late) == {(edge, it, zero) for edge in ("edge-1", "kiln") for it in devices}
        assert sum(count + bad for count, bad in on_time.values()) == 60
        assert {row["late_s"] for row in late.where("edge = 'edge-1'").collect()} == {89.019}
        still_open = spark.read.schema(live.OPEN).parquet(str(max((state / "open").glob("batch=*/*"))))
        everything = [ended, late, live.shown(still_open)]
        expect_what_windows_say(spark, lake, everything)


def test_killed_at_each_step_of_a_batch_each_value_is_counted_once(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    """Each write first deletes what is there, and then fails; or all is written, and the job dies."""
    lake, table, state = tmp_path / "lake", tmp_path / "minutes", tmp_path / "minutes.state"
    store(lake, some(0, 1), some(FIRST_END + 10_000, 2))
    run(lake, table, capsys)
    store(lake, some(100, 3), some(FIRST_END + MINUTE + 31_000, 4))
    for name, behind in (
        ("marks", False),
        ("late", False),
        ("open", False),
        ("minutes", False),
        ("minutes", True),
    ):
        dies_at(monkeypatch, f"/{name}/", behind=behind)
        with pytest.raises(StreamingQueryException, match="killed"):
            run(lake, table, capsys)
        monkeypatch.undo()
    run(lake, table, capsys)
    store(lake, some(FIRST_END + 2 * MINUTE, 5))
    run(lake, table, capsys)
    still_open = spark.read.schema(live.OPEN).parquet(str(max((state / "open").glob("batch=*/*"))))
    everything = [spark.read.parquet(str(table)), spark.read.parquet(f"{state}/late"), live.shown(still_open)]
    expect_what_windows_say(spark, lake, everything)


def dies_at(monkeypatch: pytest.MonkeyPatch, place: str, *, behind: bool) -> None:
    """Kill a job at its next write to this place: in the middle of it, or behind it."""

    def dies(frame: Any, directory: str, *, by_day: bool) -> None:
        killed = place in directory
        poison = f.raise_error(f.lit("killed")).isNull()
        write_files(frame.where(poison) if killed and not behind else frame, directory, by_day=by_day)
        if killed:
            raise RuntimeError("killed")

    for module in (live, job_state):
        monkeypatch.setattr(module, "write_files", dies)


@pytest.mark.parametrize("name", ["marks", "open"])
def test_a_run_that_was_cut_off_takes_no_state_from_its_successor(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said, name: str
) -> None:
    """It resumes when the other one has gone on, and is killed while it writes the same batch once more."""
    table = tmp_path / "minutes"
    cut_off, successor = (bronze.TableTarget(str(table), "", f"{table}.state", None, it) for it in "12")

    def values(first_s: int) -> Any:
        rows = [(f"edge-{it}", "line", 1_700_000_000 + first_s + it, 1.0) for it in range(3)]
        frame = spark.createDataFrame(rows, "edge string, topic string, at long, value double")
        now = f.timestamp_seconds(f.lit(1_700_001_000)).alias("now")
        return frame.select("edge", "topic", f.timestamp_seconds("at").alias("timestamp"), "value", now)

    live.step(spark, values(0), successor, 0, 30)
    dies_at(monkeypatch, f"/{name}/", behind=False)
    with pytest.raises(Exception, match="killed"):
        live.step(spark, values(0), cut_off, 0, 30)
    monkeypatch.undo()
    assert live.step(spark, values(200), successor, 1, 30) == (3, 0)
    assert live.step(spark, values(0), successor, 2, 30) == (0, 0)  # late
    assert spark.read.parquet(str(table)).agg(f.sum("count")).collect()[0][0] == 3
    assert spark.read.parquet(f"{table}.state/late").agg(f.sum("count")).collect()[0][0] == 3


def test_a_state_that_is_gone_is_an_error_and_one_of_an_earlier_version_is_read(
    spark: Any, tmp_path: Path
) -> None:
    place = tmp_path / "a state" / "batch=000000000"
    place.mkdir(parents=True)
    with pytest.raises(TableUnreachable, match="has no state of the job"):
        job_state.state_before(spark, str(place.parent), 1, "x int")
    written: list[tuple[int, str]] = [(1, ""), (2, "run-018f"), (3, "run-019a")]
    for number, run_name in written:
        frame = spark.createDataFrame([(number,)], "x int").coalesce(1)
        frame.write.mode("append").parquet(f"{place}/{run_name}")
        found = job_state.state_before(spark, str(place.parent), 1, "x int").collect()
        assert [row.x for row in found] == [number]
    (place / "run-019b" / "_temporary").mkdir(parents=True)  # killed in the middle
    assert job_state.state_before(spark, str(place.parent), 1, "x int").collect()[0].x == 3


def test_minutes_are_the_same_after_a_compaction(spark: Any, tmp_path: Path, capsys: Said) -> None:
    lake, table = tmp_path / "lake", tmp_path / "minutes"
    store(lake, *(some(FIRST_END + MINUTE * number, number + 1) for number in range(6)))
    assert run(lake, table, capsys, "--option=maxFilesPerTrigger=1")["batches"] == 6
    before = minutes_of(spark.read.parquet(str(table)))
    assert compact.main([str(table)]) == 0
    assert minutes_of(spark.read.parquet(str(table))) == before
    assert len(list(table.glob("batch=*"))) == 3


def test_a_clock_that_was_in_the_future_once_does_not_make_all_that_comes_late(
    spark: Any, tmp_path: Path, capsys: Said
) -> None:
    lake, table, state = tmp_path / "lake", tmp_path / "minutes", tmp_path / "minutes.state"
    years = 40 * 366 * 86_400_000  # in records, which are a millisecond apart
    store(lake, some(0, 1), some(years, 2))
    assert run(lake, table, capsys)["ahead"] == 20
    assert spark.read.parquet(str(table)).count() == 4  # the first minute: its edge may be that far
    far = spark.read.schema(live.OPEN).parquet(str(max((state / "open").glob("batch=*/*"))))
    assert far.count() == 4
    soon = int(time.time() * 1000) + 3 * MINUTE // 2  # in time: the mark is a minute from now at most
    store(lake, some(soon - soon % MINUTE - T0_NS // 1_000_000, 3))  # all in one minute
    assert run(lake, table, capsys)["records"] == 0
    still = spark.read.schema(live.OPEN).parquet(str(max((state / "open").glob("batch=*/*"))))
    assert still.count() == 8
    assert not [it for it in (state / "late").glob("batch=*") if spark.read.parquet(str(it)).count()]


def expect_what_windows_say(spark: Any, lake: Path, frames: list[Any]) -> None:
    """Over, late and open minutes together are those of the whole."""
    names = ["edge", "device", "minute", "count", "min", "avg", "max", "undecodable"]
    both = frames[0].select(*names)
    for it in frames[1:]:
        both = both.unionByName(it.select(*names))
    added = both.groupBy("edge", "device", "minute").agg(
        f.sum("count").alias("count"),
        f.min("min").alias("min"),
        (f.sum(f.col("avg") * f.col("count")) / f.sum("count")).alias("avg"),
        f.max("max").alias("max"),
        f.sum("undecodable").alias("undecodable"),
    )
    whole = windows.by_minute(spark.read.format("brim").load(str(lake)), "json", "temp").select(*names)
    by = sorted(map(tuple, added.select(*names).collect()))
    wanted = sorted(map(tuple, whole.collect()))
    assert [it[:5] + it[6:] for it in by] == [it[:5] + it[6:] for it in wanted]
    assert [it[5] for it in by] == pytest.approx([it[5] for it in wanted])
