"""The jobs: from files to a table, once; from the table to minutes; and proof that nothing is missing."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the spark extra: pip install 'brim[spark]'")
pytest.importorskip("pyspark", reason="needs the spark extra: pip install 'brim[spark]'")

import msgpack
import pyarrow as pa
import pyarrow.parquet as pq

from bridge.errors import SourceOptionError
from bridge.spark.jobs import bronze, compact, gaps, kafka, latest, live, silver, windows
from bridge.spark.jobs.common import TYPES_HINT
from bridge.spark.table_places import table_lock
from bridge.spark.tables import FORMATS
from tests.support.drained_files import drained_file_of, store
from tests.support.lake_ledger import table_at
from tests.support.project import ROOT

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

Said = pytest.CaptureFixture[str]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    root = tmp_path / "lake"
    store(root, *(drained_file_of(10 * seq, 10 * seq + 9, drain_seq=seq + 1) for seq in range(4)))
    return root


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "bronze"


def told(capsys: Said) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def run_bronze(lake: Path, table: Path, capsys: Said, **options: object) -> dict[str, Any]:
    more = [f"--option={key}={value}" for key, value in options.items()]
    assert bronze.main([str(lake), "--to", str(table), "--json", *more]) == 0
    return told(capsys)


def test_each_record_is_in_the_table_once_for_every_reader(
    spark: Any, lake: Path, table: Path, capsys: Said
) -> None:
    """Late files, files that hold the same again, a lost commit: and no orphans next to the table."""
    assert run_bronze(lake, table, capsys, maxFilesPerTrigger=2)["records"] == 40
    other_day = lake / "edge=edge-1" / "dt=2023-11-15"
    other_day.mkdir()
    shutil.copy(min(lake.rglob("*.brim")), other_day)
    store(lake, drained_file_of(35, 59, drain_seq=5), drained_file_of(0, 9, drain_seq=1, edge="kiln"))
    for name in ("1", ".1.crc"):
        (Path(f"{table}.state") / "checkpoint" / "commits" / name).unlink()
    assert run_bronze(lake, table, capsys)["records"] == 20 + 30
    expected = [("edge-1", offset) for offset in range(60)] + [("kiln", offset) for offset in range(10)]
    rows = spark.read.parquet(str(table)).select("edge", "offset").collect()
    assert sorted(tuple(row) for row in rows) == expected
    by_file = [
        (row["edge"], row["offset"])
        for path in table.glob("batch=*/*.parquet")
        for row in pq.read_table(path, partitioning=None).to_pylist()
    ]
    assert sorted(by_file) == expected
    assert gaps.main([str(lake), "--table", str(table)]) == 0


def test_what_does_not_verify_is_in_quarantine_and_the_rest_in_the_table(
    spark: Any, lake: Path, table: Path, capsys: Said
) -> None:
    path = sorted(lake.rglob("*.brim"))[1]
    data = bytearray(path.read_bytes())
    data[data.index(b"plant/1/temp")] ^= 1
    path.write_bytes(data)
    done = {"table": str(table), "batches": 1, "records": 39, "quarantined": 1}
    assert run_bronze(lake, table, capsys) == done
    (bad,) = spark.read.parquet(f"{table}.state/quarantine").collect()
    assert (bad["edge"], bad["offset"]) == ("edge-1", 13)
    assert "does not verify" in bad["_corrupt_record"]
    assert gaps.main([str(lake), "--table", str(table), "--json"]) == 0
    (row,) = told(capsys)["table"]
    assert (row["records"], row["quarantined"], row["missing"]) == (39, 1, [])
    # And a new checkpoint with an old table is refused: it would write over its batches.
    shutil.rmtree(Path(f"{table}.state") / "checkpoint")
    assert bronze.main([str(lake), "--to", str(table)]) == 2
    assert "numbers of batches would be given twice" in capsys.readouterr().err


def test_the_report_finds_what_is_missing_from_the_table_and_what_is_twice(
    spark: Any, lake: Path, table: Path, capsys: Said
) -> None:
    run_bronze(lake, table, capsys, maxFilesPerTrigger=1)
    batches = sorted(table.glob("batch=*"))
    assert len(batches) == 4
    shutil.rmtree(batches[1])
    shutil.copytree(batches[3], table / "batch=000000099")
    sorted(lake.rglob("*.brim"))[2].unlink()
    assert gaps.main([str(lake), "--table", str(table), "--json"]) == 1
    found = told(capsys)
    assert found["epochs"][0]["missing"] == [[20, 29]]
    assert found["edges"][0]["missing"] == [[3, 3]]
    (row,) = found["table"]
    assert (row["missing"], row["doubled"], row["unknown"]) == ([[10, 19]], 10, [[20, 29]])


def number(offset: int) -> Any:
    return "broken" if offset == 7 else offset * 1.5


def packed(value: object) -> bytes:
    data: bytes = msgpack.packb(value)
    return data


KINDS: dict[str, Callable[[int], bytes]] = {
    "json": lambda offset: json.dumps({"temp": {"c": number(offset)}, "ok": True}).encode(),
    "json of a number": lambda offset: json.dumps(number(offset)).encode(),
    "msgpack": lambda offset: packed({"temp": {"c": number(offset)}}),
    "msgpack of a number": lambda offset: packed(number(offset)),
    "text": lambda offset: str(number(offset)).encode(),
}


def expect_minutes(rows: list[dict[str, Any]]) -> None:
    """Of 200 records of four topics, one of which is no number, all in one minute."""
    assert [row["device"] for row in rows] == [f"plant/{line}/temp" for line in range(4)]
    for line, row in enumerate(rows):
        good = [offset * 1.5 for offset in range(line, 200, 4) if offset != 7]
        assert str(row["minute"]) == "2023-11-14 22:13:00"
        assert (row["edge"], row["count"], row["undecodable"]) == ("edge-1", len(good), 50 - len(good))
        assert (row["min"], row["max"]) == (min(good), max(good))
        assert row["avg"] == pytest.approx(sum(good) / len(good))


@pytest.mark.parametrize("kind", KINDS)
def test_minutes_are_what_the_payloads_say(spark: Any, tmp_path: Path, kind: str) -> None:
    store(tmp_path / "lake", drained_file_of(0, 199, payload=KINDS[kind]))
    records = spark.read.format("brim").load(str(tmp_path / "lake"))
    rows = windows.by_minute(records, kind.split(maxsplit=1)[0], "temp.c").orderBy("device").collect()
    expect_minutes([row.asDict() for row in rows])


def test_days_that_are_computed_again_replace_themselves_alone(
    spark: Any, tmp_path: Path, table: Path, capsys: Said
) -> None:
    minutes = tmp_path / "minutes"
    store(tmp_path / "lake", drained_file_of(0, 199, payload=KINDS["json"]))
    run_bronze(tmp_path / "lake", table, capsys)
    how = ["--to", str(minutes), "--field", "temp.c", "--json"]
    assert windows.main([str(table), *how]) == 0
    expect_minutes(told(capsys)["rows"])
    kept = minutes / "dt=2020-01-01"
    shutil.copytree(minutes / "dt=2023-11-14", kept)
    assert windows.main([str(table), *how, "--since", "2023-01-01"]) == 0
    assert told(capsys)["minutes"] == 4
    assert list(kept.glob("*.parquet"))
    assert spark.read.parquet(str(minutes)).count() == 8


def test_a_field_or_payload_that_cannot_be_is_refused(spark: Any, lake: Path) -> None:
    records = spark.read.format("brim").load(str(lake))
    for payload, field in (("xml", "value"), ("json", "a b"), ("json", "a'] or $['b")):
        with pytest.raises(SourceOptionError):
            windows.with_value(records, payload, field)


def ended_within(process: subprocess.Popen[bytes], seconds: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def test_a_second_job_on_a_table_is_refused_and_a_missing_table_is_named(
    lake: Path, table: Path, capsys: Said
) -> None:
    schema = table.with_name("payloads.toml")
    schema.write_text('[[payload]]\ntopic = "#"\nformat = "json"\nfields = { temp = "double" }\n')
    to = ["--to", str(table)]
    with table_lock(str(table), "write"):
        for job, arguments in (
            (bronze, [str(lake)]),
            (silver, [str(lake), f"--payloads={schema}"]),
            (live, [str(lake), "--field=temp"]),
            (kafka, ["localhost:1", "records"]),
        ):
            assert job.main([*arguments, *to]) == 2
            assert f"{table} is in use by another write job" in capsys.readouterr().err
    assert compact.main([str(table)]) == 2
    assert f"there is no table in {table}" in capsys.readouterr().err


def test_a_format_that_is_not_that_of_the_table_is_refused_before_spark_starts(
    lake: Path, table: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    deltalake = pytest.importorskip("deltalake", reason="needs the delta extra")
    deltalake.write_deltalake(table, pa.table({"offset": [1]}))
    monkeypatch.setattr(bronze, "spark_of", lambda *_: pytest.fail("Spark starts"))
    assert bronze.main([str(lake), "--to", str(table)]) == 2
    assert capsys.readouterr().err.endswith(f"{table} is a table of the format delta\n  --format delta\n")


def test_a_table_with_a_changed_type_or_without_payloads_is_an_error_with_a_remedy(
    spark: Any, table: Path, capsys: Said
) -> None:
    """As silver writes it with a payload schema in which temp was a double, and becomes a string."""
    for batch, temp in enumerate((20.5, "warm")):
        row = {"edge": "e", "partition": 0, "epoch": 1, "offset": batch, "topic": "a", "temp": temp, "n": 1}
        (directory := table / f"batch={batch:09d}").mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist([row]), directory / "part-0.parquet")
    assert latest.main([str(table)]) == 2
    *_, said, hint = capsys.readouterr().err.splitlines()
    assert said in {
        f"brim spark latest: columns of the table have several types: temp is {one} and {other}"
        for one, other in (("DOUBLE", "STRING"), ("STRING", "DOUBLE"))
    }
    assert hint == f"  {TYPES_HINT}"
    assert windows.main([str(table), "--field", "temp"]) == 2
    assert "the table has no column payload\n  name a bronze table" in capsys.readouterr().err


@pytest.mark.campaign
@pytest.mark.timeout(580)
@pytest.mark.parametrize("form", FORMATS)
def test_a_driver_that_is_killed_again_and_again_makes_the_same_table(
    spark: Any, tmp_path: Path, table: Path, form: str
) -> None:
    """kill -9 of driver, JVM and workers together, at random times while batches are being written."""
    library = {"delta": "deltalake", "iceberg": "pyiceberg"}.get(form)
    if library:
        pytest.importorskip(library, reason=f"needs the {form} extra: pip install 'brim[{form}]'")
    lake, chosen = tmp_path / "lake", random.Random(11)
    store(lake, *(drained_file_of(100 * seq, 100 * seq + 99, drain_seq=seq + 1) for seq in range(60)))
    command = [sys.executable, "-m", "bridge.spark.jobs.bronze", str(lake), "--to", str(table)]
    command.append(f"--format={form}")
    killed = 0
    for _ in range(5):
        limited = [*command, "--option=maxFilesPerTrigger=1"]
        driver = subprocess.Popen(limited, cwd=ROOT, start_new_session=True, stdout=subprocess.PIPE)
        batches = len(list(table.glob("batch?*")))
        while driver.poll() is None and len(list(table.glob("batch?*"))) < batches + 2:
            ended_within(driver, 0.1)
        ended_within(driver, chosen.uniform(0, 2))
        killed += driver.poll() is None
        os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()
    assert subprocess.run(command, cwd=ROOT, check=True, timeout=300).returncode == 0
    assert killed >= 3
    assert gaps.main([str(lake), "--table", str(table)]) == 0
    rows = table_at(table)
    assert sorted(rows["offset"].to_pylist()) == list(range(6000))
