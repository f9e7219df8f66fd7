"""The table that Spark makes is the one that decoding the files by hand makes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from examples.demo.lake import Lake, read_drained
from tests.support.house import ROOT
from tests.support.vital_files import drain


@pytest.mark.java
@pytest.mark.timeout(150)
def test_spark_finds_the_same_records_and_aggregates_as_decoding_by_hand(tmp_path: Path) -> None:
    root, out = tmp_path / "drained", tmp_path / "out"
    out.mkdir()
    drain(root, 1, 0, 70)
    drain(root, 2, 70, 50)
    command = [sys.executable, "-m", "examples.demo.lake", "--drained", str(root), "--out", str(out)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    lake = Lake.load(out)
    arrived, minutes, seconds = read_drained(root)
    assert (lake.records, lake.twice, lake.gaps) == (arrived.records, 0, 0) == (120, 0, 0)
    assert lake.by_minute == minutes
    assert lake.by_second == seconds
    assert list(lake.tally.missing(arrived.tally)) == list(arrived.tally.missing(lake.tally)) == []
    assert lake.made_by.startswith("Spark 4")
    assert [name for name, _, _ in lake.steps] == ["starting Spark", "bronze", "windows", "gaps", "ledger"]
    assert json.loads(run.stdout.splitlines()[-1]) == {"step": "done", "records": 120}
