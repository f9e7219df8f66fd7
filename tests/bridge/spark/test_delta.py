"""Delta tables without a jar: whole batches, each once, wherever the job dies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the spark extra: pip install 'brim[spark]'")
pytest.importorskip("pyspark", reason="needs the spark extra: pip install 'brim[spark]'")
pytest.importorskip("deltalake", reason="needs the delta extra: pip install 'brim[delta]'")

import deltalake
from pyspark.errors import StreamingQueryException

from bridge.spark.jobs import bronze, compact, gaps, silver
from bridge.spark.tables import DeltaLog, read_table
from tests.support.drained_files import drained_file_of, store

pytestmark = [pytest.mark.java, pytest.mark.timeout(180)]

Said = pytest.CaptureFixture[str]


class Died(RuntimeError):
    """Kills a job at a chosen step."""


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    store(
        tmp_path / "lake", *(drained_file_of(10 * seq, 10 * seq + 9, drain_seq=seq + 1) for seq in range(2))
    )
    return tmp_path / "lake"


def run(lake: Path, table: Path, *more: str) -> int:
    how = ["--to", str(table), "--format=delta", "--option=maxFilesPerTrigger=1", *more]
    return bronze.main([str(lake), *how])


def offsets(table: Path) -> list[int]:
    """As any reader of Delta has them."""
    found: list[int] = deltalake.DeltaTable(table).to_pyarrow_table(columns=["offset"])["offset"].to_pylist()
    return sorted(found)


def test_killed_before_and_behind_its_commit_a_batch_is_there_once(
    spark: Any, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    table, commit = tmp_path / "bronze", DeltaLog.commit
    deaths = ["before", "behind"]

    def dies(log: DeltaLog, batch: int, directory: str) -> None:
        where = deaths.pop(0) if deaths else ""
        if where != "before":
            commit(log, batch, directory)
        if where:
            raise Died

    monkeypatch.setattr(DeltaLog, "commit", dies)
    for known in (None, 0):
        with pytest.raises(StreamingQueryException, match="Died"):
            run(lake, table)
        log = None if known is None else deltalake.DeltaTable(table)
        assert (log and log.transaction_version("brim")) == known
    assert run(lake, table) == 0
    assert offsets(table) == list(range(20))
    actions = deltalake.DeltaTable(table).get_add_actions(flatten=True)
    assert sum(actions["num_records"].to_pylist()) == 20
    assert (min(actions["min.offset"].to_pylist()), max(actions["max.offset"].to_pylist())) == (0, 19)
    # What lies there and does not count, as after compaction, is not seen by the jobs on a table.
    capsys.readouterr()
    assert compact.main([str(table), "--json"]) == 0
    done = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (done["batches"], done["files"]) == (2, 1)
    assert len(list(table.rglob("*.parquet"))) == 3
    assert gaps.main([str(lake), "--table", str(table)]) == 0
    store(lake, drained_file_of(20, 29, drain_seq=3))
    assert run(lake, table) == 0
    assert offsets(table) == list(range(30))


def test_a_silver_table_gains_new_fields_and_keeps_what_does_not_fit_its_columns(
    spark: Any, tmp_path: Path, capsys: Said
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
        assert silver.main([str(lake), "--to", str(table), "--payloads", str(schema), "--format=delta"]) == 0
    columns = ["offset", "temp", "note", "rpm", "_undecoded"]
    wanted = [
        (0, 1, "a", None, None),
        (1, 2, "5", 7, None),
        (2, None, "6", None, 'field rpm: no long: "x"; field temp: no long: 2.5'),
    ]
    for _ in ("as written", "compacted"):
        found = deltalake.DeltaTable(table).to_pyarrow_table(columns=columns).sort_by("offset")
        assert list(zip(*(found[name].to_pylist() for name in columns), strict=True)) == wanted
        rows = read_table(spark, str(table)).select(*columns).orderBy("offset").collect()
        assert list(map(tuple, rows)) == wanted
        assert compact.main([str(table)]) == 0
    capsys.readouterr()


def test_a_table_keeps_the_form_that_it_began_with(
    spark: Any, lake: Path, tmp_path: Path, capsys: Said
) -> None:
    for made, form, said in (
        ("_checkpoint/commits/0", "delta", "without a Delta log"),
        ("_delta_log/00000000000000000000.json", "parquet", "is a Delta table"),
    ):
        table = tmp_path / form
        (table / made).parent.mkdir(parents=True)
        (table / made).touch()
        assert bronze.main([str(lake), "--to", str(table), "--format", form]) == 2
        assert said in capsys.readouterr().err
