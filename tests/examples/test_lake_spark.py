"""The table that Spark makes is the one that decoding the files by hand makes."""

import json
from pathlib import Path

import pytest

from examples.demo import lake
from tests.support.vital_files import drain


@pytest.mark.java
@pytest.mark.timeout(150)
@pytest.mark.usefixtures("spark")
def test_spark_finds_the_same_records_and_aggregates_as_decoding_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root, out = tmp_path / "drained", tmp_path / "out"
    out.mkdir()
    drain(root, 1, 0, 70)
    drain(root, 2, 70, 50)
    monkeypatch.setattr("sys.argv", ["lake", "--drained", str(root), "--out", str(out)])
    lake.main()
    made = lake.Lake.load(out)
    arrived, minutes, seconds = lake.read_drained(root)
    assert (made.records, made.twice, made.gaps) == (arrived.records, 0, 0) == (120, 0, 0)
    assert made.by_minute == minutes
    assert made.by_second == seconds
    assert list(made.tally.missing(arrived.tally)) == list(arrived.tally.missing(made.tally)) == []
    assert made.made_by.startswith("Spark 4")
    assert [name for name, _, _ in made.steps] == ["starting Spark", "bronze", "windows", "gaps", "ledger"]
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"step": "done", "records": 120}
