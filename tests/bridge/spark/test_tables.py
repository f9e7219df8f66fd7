"""Silver, latest, replay and compaction: tables made of files, and tables made of tables."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the spark extra: pip install 'brim[spark]'")
pytest.importorskip("pyspark", reason="needs the spark extra: pip install 'brim[spark]'")

import msgpack
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from bridge.errors import TableUnreachable
from bridge.spark import tables
from bridge.spark.jobs import bronze, compact, gaps, kafka, latest, live, replay, silver
from bridge.spark.jobs.common import format_of_arguments
from bridge.spark.table_places import opened
from tests.support.cut_line import CutLine
from tests.support.drained_files import drained_file_of, store
from tests.support.s3_server import make_bucket, s3_server

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

Said = pytest.CaptureFixture[str]

SCHEMA = """
[[payload]]
topic = "plant/0/#"
format = "json"
fields = { temp = "double" }
[[payload]]
topic = "plant/+/temp"
format = "msgpack"
fields = { temp = "double", note = { path = "more.note", type = "string" } }
"""


def payload(offset: int) -> bytes:
    """JSON of line 0, msgpack of the others; 13 is neither."""
    if offset == 13:
        return b"neither"
    said: dict[str, Any] = {"temp": offset * 1.5, "more": {"note": f"n{offset}"}}
    packed: bytes = json.dumps(said).encode() if offset % 4 == 0 else msgpack.packb(said)
    return packed


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    root = tmp_path / "lake"
    files = (drained_file_of(10 * seq, 10 * seq + 9, drain_seq=seq + 1, payload=payload) for seq in range(5))
    store(root, *files)
    return root


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    path = tmp_path / "payloads.toml"
    path.write_text(SCHEMA)
    return path


def told(capsys: Said) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def offsets(table: Path) -> list[int]:
    """For every reader: by file, without Spark."""
    tables = [pq.read_table(path, partitioning=None) for path in table.glob("*=*/*.parquet")]
    return sorted(offset for it in tables for offset in it["offset"].to_pylist())


def test_silver_is_typed_keeps_records_with_a_misfit_and_puts_what_does_not_decode_in_quarantine(
    spark: Any, lake: Path, schema: Path, tmp_path: Path, capsys: Said
) -> None:
    table, drifted = tmp_path / "silver", msgpack.packb({"temp": "hot", "more": {"note": "n50"}})
    store(lake, drained_file_of(50, 50, drain_seq=6, payload=lambda _: drifted))
    assert silver.main([str(lake), "--to", str(table), "--payloads", str(schema), "--json"]) == 0
    assert told(capsys) == {"table": str(table), "batches": 1, "records": 50, "quarantined": 1}
    rows = spark.read.parquet(str(table)).orderBy("offset").select("offset", "temp", "note").collect()
    good = [offset for offset in range(50) if offset != 13]
    assert [tuple(row) for row in rows[:-1]] == [(it, it * 1.5, f"n{it}" if it % 4 else None) for it in good]
    assert tuple(rows[-1]) == (50, None, "n50")
    (kept,) = spark.read.parquet(str(table)).where("_undecoded is not null").collect()
    assert (kept["offset"], kept["_undecoded"]) == (50, 'field temp: no double: "hot"')
    (bad,) = spark.read.parquet(f"{table}.state/quarantine").collect()
    assert (bad["offset"], bad["topic"], bytes(bad["_raw"])) == (13, "plant/1/temp", b"neither")
    assert bad["_corrupt_record"] == "no msgpack, or cut short"


def test_a_field_with_another_type_is_refused_by_a_plain_table(
    spark: Any, tmp_path: Path, capsys: Said
) -> None:
    lake, table, schema = tmp_path / "lake", tmp_path / "silver", tmp_path / "payloads.toml"

    def run(number: int, fields: str) -> int:
        schema.write_text(f'[[payload]]\ntopic = "#"\nformat = "json"\nfields = {{ {fields} }}\n')
        store(lake, drained_file_of(number, number, drain_seq=number + 1, payload=lambda _: b'{"temp": 2}'))
        return silver.main([str(lake), "--to", str(table), "--payloads", str(schema)])

    assert run(0, 'temp = "double", rpm = "int"') == 0
    (table / "batch=000000009" / "_temporary" / "0").mkdir(parents=True)  # killed
    (table / "batch=000000009" / "_temporary" / "0" / "part-0.parquet").touch()
    for number, name, before, after in (1, "temp", "double", "string"), (2, "rpm", "int", "double"):
        assert run(number, f'{name} = "{after}"') == 2
        assert f"column {name} is {before} in {table}, and would be {after}" in capsys.readouterr().err
    assert run(3, 'temp = "double", note = "string"') == 0
    assert spark.read.option("mergeSchema", True).parquet(str(table)).count() == 4


def test_compaction_keeps_the_columns_that_only_some_batches_have(spark: Any, tmp_path: Path) -> None:
    batches: list[dict[str, Any]] = [{"a": [1]}, {"a": [2], "b": ["x"]}, {"b": ["y"]}, {"a": [4]}, {"a": [5]}]
    for batch, columns in enumerate(batches):
        identity = {name: [batch] for name in bronze.IDENTITY}
        (directory := tmp_path / "table" / f"batch={batch:09d}").mkdir(parents=True)
        pq.write_table(pa.table({**identity, **columns}), directory / "part-0.parquet")
    assert compact.compact(spark, str(tmp_path / "table")).records == 3
    found = pq.read_table(tmp_path / "table" / "batch=000000002", partitioning=None).sort_by("offset")
    assert (found["a"].to_pylist(), found["b"].to_pylist()) == ([1, 2, None], [None, "x", "y"])


def test_the_latest_of_each_device_is_the_same_in_whatever_order_batches_came(
    spark: Any, lake: Path, tmp_path: Path, capsys: Said
) -> None:
    store(lake, drained_file_of(0, 2, edge="kiln", payload=payload))
    frame = spark.read.format("brim").load(str(lake))
    for order in ("offset", "payload"):
        frame.orderBy(order).write.mode("overwrite").parquet(str(tmp_path / "bronze"))
        to = ["--to", str(tmp_path / "latest")]
        assert latest.main([str(tmp_path / "bronze"), *to, "--edge", "edge-*", "--json"]) == 0
        found = told(capsys)
        assert found["devices"] == 4
        assert [(row["device"], row["offset"], row["records"]) for row in found["rows"]] == [
            ("plant/0/temp", 48, 13),
            ("plant/1/temp", 49, 13),
            ("plant/2/temp", 46, 12),
            ("plant/3/temp", 47, 12),
        ]


def test_a_range_is_replayed_into_a_place_of_its_own(
    spark: Any, lake: Path, schema: Path, tmp_path: Path, capsys: Said
) -> None:
    table = tmp_path / "again"
    two = [
        ["--option", "offsets=5-14"],
        ["--since", "2023-11-14T22:13:20.030", "--until", "2023-11-14T22:13:20.040"],
    ]
    for _ in range(2):  # what was there is replaced
        counted = []
        for range_ in two:
            assert replay.main([str(lake), "--to", str(table), *range_, "--json"]) == 0
            counted.append(told(capsys)["records"])
        assert counted == [10, 10]
    assert offsets(table) == [*range(5, 15), *range(30, 40)]
    typed = ["--payloads", str(schema), "--option", "topic=plant/1/#", "--json"]
    assert replay.main([str(lake), "--to", str(tmp_path / "typed"), *typed]) == 0
    assert {**told(capsys), "range": ""} == {"range": "", "records": 12, "left_out": 1}
    assert replay.main([str(lake), "--to", str(table)]) == 2
    assert "no range is given" in capsys.readouterr().err


def test_a_table_that_cannot_be_listed_is_not_taken_for_one_without_a_log(tmp_path: Path) -> None:
    table = tmp_path / "table"
    table.mkdir()
    (table / "file").touch()
    for nothing in (table, table / "none", table / "file", "place-of-spark://only/there"):
        assert tables.format_of(str(nothing)) == "parquet"
    (table / "_delta_log").symlink_to("_delta_log")  # which fails as a disk may, for root too
    with pytest.raises(TableUnreachable, match=r"_delta_log: its content cannot be listed: .* symbolic"):
        tables.format_of(str(table))
    with pytest.raises(TableUnreachable):
        bronze.opened_target(str(table), "", bronze.PLAIN)


def test_a_store_that_denies_or_is_away_holds_no_one_knows_what(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a Delta table as Parquet, what its compaction has replaced counts twice."""
    pytest.importorskip("moto", reason="needs moto: pip install 'moto[server]'")
    for name, value in {"ACCESS_KEY_ID": "who", "SECRET_ACCESS_KEY": "secret", "REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    with s3_server() as url, CutLine(int(url.rpartition(":")[2])) as line:
        make_bucket(url, "lake-of-tests")
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{line.port}")
        assert tables.format_of("s3a://lake-of-tests/table") == "parquet"
        line.cut("credentials")
        with pytest.raises(TableUnreachable, match="lake-of-tests/table/_delta_log: its content cannot"):
            tables.format_of("s3a://lake-of-tests/table")
        with pytest.raises(TableUnreachable):
            bronze.opened_target("s3a://lake-of-tests/table", "", bronze.PLAIN)
        line.mend()
        assert tables.format_of("s3a://lake-of-tests/table") == "parquet"


def test_a_new_plain_table_where_nothing_locks_it_is_refused_unless_it_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    pytest.importorskip("moto", reason="needs moto: pip install 'moto[server]'")
    for name, value in {"ACCESS_KEY_ID": "who", "SECRET_ACCESS_KEY": "secret", "REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    lake, table = tmp_path / "lake", "s3a://lake-of-tests/bronze"
    store(lake, drained_file_of(0, 9))
    (payloads := tmp_path / "payloads.toml").write_text(SCHEMA)

    def kind(place: str, *more: str) -> str:
        given = bronze.arguments().parse_args([str(lake), "--to", place, *more])
        return format_of_arguments(given).kind

    with s3_server() as url:
        make_bucket(url, "lake-of-tests")
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        for main, words in (
            (bronze.main, []),
            (silver.main, ["--payloads", str(payloads)]),
            (live.main, []),
            (kafka.main, ["topic"]),
        ):
            assert main([str(lake), *words, "--to", table]) == 2
            assert "lose or double records of a plain Parquet table" in (said := capsys.readouterr().err)
            assert "--format delta or iceberg, or --format parquet if" in said
        for kind_, more in (("delta", ["--format=delta"]), ("parquet", ["--format=parquet"])):
            assert kind(table, *more) == kind_
            assert ("warning: nothing locks" in capsys.readouterr().err) == (kind_ == "parquet")
        for local in (str(tmp_path / "bronze"), f"file://{tmp_path}/bronze"):
            assert (kind(local), capsys.readouterr().err) == ("parquet", "")
        filesystem, root = opened(table)
        filesystem.create_dir(f"{root}/batch=000000000")
        assert kind(table) == "parquet"
        assert "warning: nothing locks" in capsys.readouterr().err


def test_compaction_replaces_batches_in_a_store_that_moves_no_directories() -> None:
    """Else they would be deleted, and what takes their place stay where no reader looks."""
    pytest.importorskip("moto", reason="needs moto: pip install 'moto[server]'")
    with s3_server() as url:
        make_bucket(url, "lake-of-tests")
        said = f"region=us-east-1&scheme=http&endpoint_override={url.removeprefix('http://')}"
        who = "who:secret@"  # any will do
        filesystem, root = fs.FileSystem.from_uri(f"s3://{who}lake-of-tests/table?{said}")
        places = [f"batch=00000000{batch}/{name}" for batch in (0, 1, 2) for name in ("old-1", "old-2")]
        work = f"{root}.state/compact"
        made = [f"{work}/batch=000000001/{name}" for name in ("new-1", "new-2")]
        for place in (*(f"{root}/{it}" for it in places), *made):
            with filesystem.open_output_stream(place) as file:
                file.write(b"rows")
        note = {"batches": ["batch=000000000", "batch=000000001"], "target": "batch=000000001"}
        with filesystem.open_output_stream(f"{work}/replaces.json") as file:
            file.write(json.dumps({**note, "files": ["new-1", "new-2"]}).encode())
        assert compact.replaced(filesystem, root, work)
        there = filesystem.get_file_info(fs.FileSelector(root, recursive=True))
        assert sorted(it.path.removeprefix(f"{root}/") for it in there if it.is_file) == [
            *("batch=000000001/new-1", "batch=000000001/new-2"),
            *("batch=000000002/old-1", "batch=000000002/old-2"),
        ]


def test_compaction_keeps_each_record_and_goes_on_where_it_was_killed(
    spark: Any, lake: Path, tmp_path: Path, capsys: Said
) -> None:
    table = tmp_path / "bronze"
    assert bronze.main([str(lake), "--to", str(table), "--option=maxFilesPerTrigger=1"]) == 0
    capsys.readouterr()
    before = tmp_path / "before"
    shutil.copytree(table, before)
    assert compact.main([str(table), "--json"]) == 0
    assert told(capsys)["batches"] == 3
    assert sorted(it.name for it in table.glob("batch=*")) == [f"batch=00000000{it}" for it in (2, 3, 4)]
    assert offsets(table) == list(range(50))
    made = table / "batch=000000002"
    # Killed after its note: the batches are there, or some of them, or none; or all is done but the note.
    files = [it.name for it in made.iterdir()]
    said = {"batches": [f"batch=00000000{it}" for it in (0, 1, 2)], "target": made.name, "files": files}
    note = json.dumps(said)
    for gone in ((), ("batch=000000001",), ("batch=000000000", "batch=000000001", "batch=000000002")):
        killed, work = tmp_path / "killed", tmp_path / "killed.state" / "compact"
        shutil.rmtree(killed, ignore_errors=True)
        shutil.copytree(before, killed)
        shutil.copytree(made, work / made.name)
        (work / "replaces.json").write_text(note)
        for name in gone:
            shutil.rmtree(killed / name)
        assert compact.compact(spark, str(killed)).finished
        assert offsets(killed) == list(range(50))
        assert not work.exists()
    # Killed between two of the files that it moves; or behind the last.
    (work / made.name).mkdir(parents=True)
    shutil.move(killed / made.name / files[0], work / made.name / files[0])
    (work / "replaces.json").write_text(note)
    assert compact.compact(spark, str(killed)).finished
    assert offsets(killed) == list(range(50))
    work.mkdir(parents=True)
    (work / "replaces.json").write_text(note)
    assert compact.compact(spark, str(killed)).finished
    assert offsets(killed) == list(range(50))
    # The stream continues after it, and the gap report counts on it.
    store(lake, drained_file_of(50, 59, drain_seq=6, payload=payload))
    assert bronze.main([str(lake), "--to", str(table)]) == 0
    assert gaps.main([str(lake), "--table", str(table)]) == 0
