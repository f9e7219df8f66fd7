"""Delta and Iceberg tables without a jar: whole batches, each once, wherever the job dies."""

import json
import os
import shutil
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the spark extra: pip install 'brim[spark]'")
pytest.importorskip("pyspark", reason="needs the spark extra: pip install 'brim[spark]'")
pytest.importorskip("deltalake", reason="needs the delta extra: pip install 'brim[delta]'")
pytest.importorskip("pyiceberg", reason="needs the iceberg extra: pip install 'brim[iceberg]'")

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException

from bridge.errors import SourceOptionError, TableBusy
from bridge.spark import iceberg_log
from bridge.spark.delta_log import DeltaLog
from bridge.spark.iceberg_log import IcebergLog
from bridge.spark.jobs import bronze, compact, gaps, live, silver
from bridge.spark.table_places import table_lock
from bridge.spark.tables import TableFormat, log_of, read_table
from tests.support.drained_files import T0_NS, drained_file_of, store
from tests.support.open_tables import delta_of, iceberg_of, rows_of

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

Said = pytest.CaptureFixture[str]
FORMS = ("delta", "iceberg")
LOGS: dict[str, type[DeltaLog | IcebergLog]] = {"delta": DeltaLog, "iceberg": IcebergLog}
each_form = pytest.mark.parametrize("form", FORMS)


class Died(RuntimeError):
    """Kills a job at a chosen step."""


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    store(
        tmp_path / "lake", *(drained_file_of(10 * seq, 10 * seq + 9, drain_seq=seq + 1) for seq in range(2))
    )
    return tmp_path / "lake"


def run(lake: Path, table: Path, form: str, *more: str) -> int:
    how = ["--to", str(table), f"--format={form}", "--option=maxFilesPerTrigger=1", *more]
    return bronze.main([str(lake), *how])


def offsets(table: Path, form: str) -> list[int]:
    """As any reader of the format has them."""
    found: list[int] = rows_of(table, form, ["offset"])["offset"].to_pylist()
    return sorted(found)


@each_form
def test_killed_before_and_behind_its_commit_a_batch_is_there_once(
    spark: Any, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said, form: str
) -> None:
    table, log = tmp_path / "bronze", LOGS[form]
    commit: Callable[..., None] = log.commit
    deaths = ["before", "behind"]

    def dies(self: Any, *batch: Any) -> None:
        where = deaths.pop(0) if deaths else ""
        if where != "before":
            commit(self, *batch)
        if where:
            raise Died

    monkeypatch.setattr(log, "commit", dies)
    for known in (None, 0):
        with pytest.raises(StreamingQueryException, match="Died"):
            run(lake, table, form)
        there = log_of(str(table))
        assert (there and there.last_batch()) == known
    assert run(lake, table, form) == 0
    assert offsets(table, form) == list(range(20))
    # What lies there and does not count, as after compaction, is not seen by the jobs on a table.
    capsys.readouterr()
    assert compact.main([str(table), "--json"]) == 0
    done = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (done["batches"], done["files"]) == (2, 1)
    assert len(list(table.rglob("*.parquet"))) == 4  # two merged, one large, one of the attempt that died
    assert gaps.main([str(lake), "--table", str(table)]) == 0
    store(lake, drained_file_of(20, 29, drain_seq=3))
    assert run(lake, table, form) == 0
    assert offsets(table, form) == list(range(30))


def test_files_have_one_day_sorted_by_topic_and_statistics_by_which_readers_skip(
    spark: Any, lake: Path, tmp_path: Path
) -> None:
    for form in FORMS:
        assert run(lake, tmp_path / form, form) == 0
    actions = delta_of(tmp_path / "delta").get_add_actions(flatten=True)
    day = date(2023, 11, 14)
    assert set(actions["partition.dt"].to_pylist()) == {day}
    assert sum(actions["num_records"].to_pylist()) == 20
    for name, least, most in (("offset", 0, 19), ("topic", "plant/0/temp", "plant/3/temp")):
        ends = min(actions[f"min.{name}"].to_pylist()), max(actions[f"max.{name}"].to_pylist())
        assert ends == (least, most)
    log = iceberg_of(tmp_path / "iceberg")
    assert {file["partition"]["timestamp_day"] for file in log.inspect.files().to_pylist()} == {day}
    assert [it.summary["brim.batch"] for it in log.snapshots()] == ["0", "1"]
    for path in [*(tmp_path / "delta").rglob("*"), *(tmp_path / "iceberg").rglob("*.parquet")]:
        if path.suffix == ".parquet":
            topics = pq.read_table(path, partitioning=None)["topic"].to_pylist()
            assert topics == sorted(topics)
            assert pq.read_metadata(path).row_group(0).column(0).compression == "ZSTD"
    assert {row["dt"] for row in read_table(spark, str(tmp_path / "delta")).collect()} == {day}


@each_form
def test_a_silver_table_gains_new_fields_and_keeps_what_does_not_fit_its_columns(
    spark: Any, tmp_path: Path, capsys: Said, form: str
) -> None:
    lake, table, schema = tmp_path / "lake", tmp_path / "silver", tmp_path / "payloads.toml"
    said: list[dict[str, Any]] = [
        {"temp": 1, "note": "a"},
        {"temp": 2.0, "rpm": 7, "NOTE": 5},
        {"temp": 2.5, "NOTE": 6, "rpm": "x"},
    ]
    for at, fields in enumerate(
        ('temp = "long", note = "string"', 'rpm = "long", NOTE = "long", temp = "double"')
    ):
        schema.write_text(f'[[payload]]\ntopic = "#"\nformat = "json"\nfields = {{ {fields} }}\n')
        file = drained_file_of(
            at, 2 * at, drain_seq=at + 1, payload=lambda offset: json.dumps(said[offset]).encode()
        )
        store(lake, file)
        to = ["--to", str(table), f"--format={form}"]
        assert silver.main([str(lake), *to, "--payloads", str(schema)]) == 0
    columns = ["offset", "temp", "note", "rpm", "_undecoded"]
    wanted = [
        (0, 1, "a", None, None),
        (1, 2, "5", 7, None),
        (2, None, "6", None, 'field rpm: no long: "x"; field temp: no long: 2.5'),
    ]
    for _ in ("as written", "compacted"):
        found = rows_of(table, form, columns).sort_by("offset")
        assert list(zip(*(found[name].to_pylist() for name in columns), strict=True)) == wanted
        rows = read_table(spark, str(table)).select(*columns).orderBy("offset").collect()
        assert list(map(tuple, rows)) == wanted
        assert compact.main([str(table)]) == 0
    capsys.readouterr()


@each_form
def test_maintenance_deletes_old_days_and_what_no_version_has_and_nothing_else(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said, form: str
) -> None:
    lake, table = tmp_path / "lake", tmp_path / "bronze"
    day = 86_400_000  # in records, which are a millisecond apart
    today = (time.time_ns() - T0_NS) // 1_000_000
    store(lake, *(drained_file_of(at, at + 9, drain_seq=seq) for seq, at in ((1, 0), (2, today))))
    store(lake, drained_file_of(today + 10, today + 19, drain_seq=3))
    assert run(lake, table, form) == 0
    kept = sorted([*range(today, today + 20)])
    assert gaps_of(lake, table, capsys) == (0, [], 30)
    for _ in range(2):
        assert compact.main([str(table), "--retain-days=30"]) == 0
        assert offsets(table, form) == kept
        assert gaps_of(lake, table, capsys) == (10, [], 20)  # a declared retention is no loss
    (orphan := table / "batch-000000001" / "killed" / "dt=2023-11-14").mkdir(parents=True)
    pq.write_table(pa.table({"offset": [1]}), orphan / "part-killed.parquet")
    assert compact.main([str(table), "--clean-hours=1"]) == 0
    assert (orphan / "part-killed.parquet").exists()  # may be of a batch that is being written
    for path in table.rglob("*.parquet"):
        os.utime(path, (time.time() - 3 * 86_400,) * 2)
    store(lake, drained_file_of(today + 20, today + 20 + day // day, drain_seq=4))
    assert run(lake, table, form) == 0
    monkeypatch.setattr(compact, "CLEAN_MIN_HOURS", 0)
    assert compact.main([str(table), "--clean-hours=0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["deleted"] >= 4
    assert not (orphan / "part-killed.parquet").exists()
    assert offsets(table, form) == [*kept, today + 20, today + 21]
    log = log_of(str(table))
    assert log is not None
    counted = {Path(path.removeprefix("file://")) for path in log.paths()}
    assert counted == {path for path in table.rglob("*.parquet") if path.parent.name != "_delta_log"}
    assert run(lake, table, form) == 0  # its batches are still known
    assert offsets(table, form) == [*kept, today + 20, today + 21]
    log.delete_before(datetime.now(UTC).date() + timedelta(days=2))
    assert offsets(table, form) == []


@each_form
def test_a_batch_that_is_committed_during_a_compaction_stays_and_does_not_stop_it(
    spark: Any, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    table = tmp_path / "bronze"
    assert run(lake, table, form) == 0
    if form == "iceberg":  # as a table of an earlier version
        with iceberg_of(table).transaction() as changes:
            changes.remove_properties(*iceberg_log.ISOLATION)
    known = read_to_exchange(log := LOGS[form](str(table)))
    monkeypatch.setattr(log, "_opened", lambda: known)
    store(lake, drained_file_of(20, 29, drain_seq=3))
    assert run(lake, table, form) == 0
    assert log.compact(spark, 1 << 27) == (2, 1)
    assert offsets(table, form) == list(range(30))


def read_to_exchange(log: DeltaLog | IcebergLog) -> Any:
    """The table as maintenance begins with it."""
    return log._to_exchange() if isinstance(log, IcebergLog) else log._opened()


@each_form
def test_of_two_compactions_of_the_same_files_one_is_refused(
    spark: Any, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said, form: str
) -> None:
    table = tmp_path / "bronze"
    assert run(lake, table, form) == 0
    with table_lock(str(table), "compact"):
        capsys.readouterr()
        assert compact.main([str(table)]) == 2
        assert "is in use by another compact job" in capsys.readouterr().err
    late = LOGS[form](str(table))
    known = read_to_exchange(late)
    monkeypatch.setattr(late, "_opened", lambda: known)
    assert compact.main([str(table)]) == 0
    with pytest.raises(TableBusy) as error:
        late.compact(spark, 1 << 27)
    assert "run this again" in error.value.hint
    assert offsets(table, form) == list(range(20))


def test_of_two_compactions_of_a_delta_table_that_commit_at_once_one_is_refused(
    spark: Any, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have found all of their files in the log; deltalake alone would double them."""
    table = tmp_path / "bronze"
    assert run(lake, table, "delta") == 0
    one, two = DeltaLog(str(table)), DeltaLog(str(table))
    commit: Callable[..., None] = DeltaTable.create_write_transaction

    def is_overtaken(log: DeltaTable, *changes: Any, **named: Any) -> None:
        monkeypatch.setattr(DeltaTable, "create_write_transaction", commit)
        assert two.compact(spark, 1 << 27) == (2, 1)
        commit(log, *changes, **named)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", is_overtaken)
    with pytest.raises(TableBusy):
        one.compact(spark, 1 << 27)
    assert offsets(table, "delta") == list(range(20))
    store(lake, *(drained_file_of(10 * seq, 10 * seq + 9, drain_seq=seq + 1) for seq in range(2, 4)))
    assert run(lake, table, "delta") == 0
    assert one.compact(spark, 1 << 27) == (3, 1)  # it is no obstacle to the next one
    assert offsets(table, "delta") == list(range(40))


def test_rows_that_another_engine_deleted_do_not_come_back_by_a_compaction(
    spark: Any, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "bronze"
    assert run(lake, table, "delta") == 0
    monkeypatch.setattr(DeltaTable, "deletion_vectors", lambda _: iter(["of a file"]))
    with pytest.raises(SourceOptionError, match="deletion vectors"):
        DeltaLog(str(table)).compact(spark, 1 << 27)


def test_a_link_to_an_iceberg_table_a_copy_and_another_of_its_name_are_refused(
    spark: Any, lake: Path, tmp_path: Path, capsys: Said
) -> None:
    """Files count by their URLs: cleaning by another path would delete all of them."""
    table, catalog = tmp_path / "here" / "bronze", f"--catalog=sqlite:///{tmp_path}/catalog.db"
    assert run(lake, table, "iceberg", catalog) == 0
    (tmp_path / "link").symlink_to(tmp_path / "here")
    shutil.copytree(tmp_path / "here", tmp_path / "copy")
    for path in tmp_path.rglob("*.*"):
        os.utime(path, (time.time() - 3 * 86_400,) * 2)
    kept = sorted(tmp_path.rglob("*.*"))
    for place in ("link", "copy"):
        capsys.readouterr()
        assert compact.main([f"{tmp_path}/{place}/bronze", "--clean-hours=1"]) == 2
        assert f"bronze is in its catalogue as {table}" in capsys.readouterr().err
        store(lake, drained_file_of(20, 29, drain_seq=3))
        assert run(lake, tmp_path / place / "bronze", "iceberg") == 2
    assert run(lake, tmp_path / "other" / "bronze", "iceberg", catalog) == 2
    assert set(kept) <= set(tmp_path.rglob("*.*"))
    assert offsets(table, "iceberg") == list(range(20))


@each_form
def test_a_table_may_have_blanks_and_letters_of_any_language_in_its_path(
    spark: Any, lake: Path, tmp_path: Path, capsys: Said, form: str
) -> None:
    table = tmp_path / "Linie 3 süd" / "bronze"
    assert run(lake, table, form) == 0
    for path in table.rglob("*.*"):
        os.utime(path, (time.time() - 3 * 86_400,) * 2)
    assert compact.main([str(table), "--clean-hours=1"]) == 0
    assert offsets(table, form) == list(range(20))
    assert gaps_of(lake, table, capsys) == (0, [], 20)
    for character in "%" if form == "delta" else "%#?":
        assert run(lake, tmp_path / f"a{character}20b" / "bronze", form) == 2
        assert f"has {character} in its path" in capsys.readouterr().err


def test_a_catalogue_by_a_relative_path_is_the_same_from_every_directory(
    spark: Any, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "bronze"
    monkeypatch.chdir(tmp_path)
    assert run(lake, table, "iceberg", "--catalog=sqlite:///catalog.db") == 0
    monkeypatch.chdir("/")
    assert offsets(table, "iceberg") == list(range(20))
    assert not list(tmp_path.rglob("new-*"))
    monkeypatch.chdir(tmp_path)
    kept = Path(f"{table}.state", "iceberg.json")
    kept.write_text(kept.read_text().replace(f"{tmp_path}/", ""))  # as an earlier version wrote it
    assert run(lake, table, "iceberg", "--catalog=sqlite:///catalog.db") == 0


def gaps_of(lake: Path, table: Path, capsys: Said) -> tuple[int, list[Any], int]:
    """Records that were removed, missing ranges, and records that are there."""
    capsys.readouterr()
    gaps.main([str(lake), "--table", str(table), "--json"])
    (row,) = json.loads(capsys.readouterr().out.splitlines()[-1])["table"]
    return row["removed"], row["missing"], row["records"]


@each_form
def test_records_that_only_a_deletion_removed_are_missing_after_a_retention(
    spark: Any, lake: Path, tmp_path: Path, capsys: Said, form: str
) -> None:
    table = tmp_path / "bronze"
    assert run(lake, table, form) == 0
    log = log_of(str(table))
    assert log is not None
    log.delete_before(datetime.now(UTC).date())
    assert compact.main([str(table), "--retain-days=30"]) == 0
    assert gaps_of(lake, table, capsys) == (0, [[0, 19]], 0)
    (tmp_path / "bronze.state" / "removed.json").write_text("[{")
    assert gaps.main([str(lake), "--table", str(table)]) == 2
    assert "is damaged" in capsys.readouterr().err


@each_form
def test_closed_minutes_of_a_batch_are_one_commit(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    lake, table = tmp_path / "lake", tmp_path / "minutes"
    store(lake, drained_file_of(0, 9), drained_file_of(200_000, 200_000, drain_seq=2))
    log, commit = LOGS[form], LOGS[form].commit

    def dies(self: Any, *batch: Any) -> None:
        monkeypatch.undo()
        commit(self, *batch)
        raise Died

    monkeypatch.setattr(log, "commit", dies)
    how = ["--to", str(table), f"--format={form}", "--delay=0"]
    with pytest.raises(StreamingQueryException, match="Died"):
        live.main([str(lake), *how])
    assert live.main([str(lake), *how]) == 0
    found = rows_of(table, form, ["device", "count", "undecodable"]).to_pylist()
    assert sorted((row["device"], row["count"] + row["undecodable"]) for row in found) == [
        *(("plant/0/temp", 3), ("plant/1/temp", 3)),
        *(("plant/2/temp", 2), ("plant/3/temp", 2)),
    ]


def test_a_table_keeps_the_form_that_it_began_with(
    spark: Any, lake: Path, tmp_path: Path, capsys: Said
) -> None:
    for form in ("parquet", *FORMS):
        assert run(lake, tmp_path / form, form) == 0
    capsys.readouterr()
    for made, form, said in (
        ("parquet", "delta", "without a log of the format delta"),
        ("parquet", "iceberg", "without a log of the format iceberg"),
        ("delta", "parquet", "is a table of the format delta"),
        ("iceberg", "delta", "is a table of the format iceberg"),
    ):
        assert run(lake, tmp_path / made, form) == 2
        assert said in capsys.readouterr().err


def test_a_catalogue_is_written_down_once_and_has_no_password(
    spark: Any, lake: Path, tmp_path: Path, capsys: Said
) -> None:
    table, catalog = tmp_path / "bronze", f"sqlite:///{tmp_path}/catalog.db"
    assert run(lake, table, "iceberg", f"--catalog={catalog}", "--name=plant.raw") == 0
    assert offsets(table, "iceberg") == list(range(20))
    assert iceberg_of(table).name() == ("plant", "raw")
    for more, said in (
        (["--name=plant.other"], "has the name plant.raw, not plant.other"),
        (["--catalog=postgresql://me:secret@localhost/lake"], "has the catalog"),
    ):
        assert run(lake, table, "iceberg", *more) == 2
        assert said in capsys.readouterr().err
    secret = "--catalog=postgresql://me:secret@localhost/lake"
    assert run(lake, tmp_path / "other", "iceberg", secret) == 2
    assert "must have no password" in capsys.readouterr().err
    assert run(lake, tmp_path / "other", "delta", secret) == 2
    assert "has no catalogue" in capsys.readouterr().err
    # A catalogue that has lost the table is not a new table.
    (tmp_path / "catalog.db").unlink()
    assert run(lake, table, "iceberg") == 2
    assert "without a log" in capsys.readouterr().err


def test_state_inside_a_table_is_refused_with_the_commands_that_move_it(
    spark: Any, lake: Path, tmp_path: Path, capsys: Said
) -> None:
    table = tmp_path / "bronze"
    assert run(lake, table, "delta") == 0
    Path(f"{table}.state", "checkpoint").rename(table / "_checkpoint")
    for again in (lambda: run(lake, table, "delta"), lambda: compact.main([str(table)])):
        capsys.readouterr()
        assert again() == 2
        error = capsys.readouterr().err
        assert "has the state of its job inside" in error
    assert os.system(error.partition("move the state: ")[2]) == 0
    store(lake, drained_file_of(20, 29, drain_seq=3))
    assert run(lake, table, "delta") == 0
    assert offsets(table, "delta") == list(range(30))
    assert (
        bronze.opened_target(str(table), "", TableFormat("delta")).checkpoint == f"{table}.state/checkpoint"
    )
