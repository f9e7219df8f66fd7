"""A data engineer's first minutes: the example over drained files, as it stands; and `brim spark`."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the spark extra: pip install 'brim[spark]'")
pytest.importorskip("pyspark", reason="needs the spark extra: pip install 'brim[spark]'")

from edge.cli import main as brim
from edge.cli.spark import JOBS
from tests.support.documents import block_of
from tests.support.drained_files import drained_file_of, store
from tests.support.project import ROOT

Said = pytest.CaptureFixture[str]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    store(tmp_path / "lake", drained_file_of(0, 99, payload=lambda offset: b'{"temp": %d.5}' % offset))
    return tmp_path / "lake"


@pytest.mark.java
@pytest.mark.timeout(400)
def test_the_example_reads_asks_and_draws(spark: Any, lake: Path, tmp_path: Path, capsys: Said) -> None:
    pytest.importorskip("matplotlib", reason="pip install matplotlib")
    from examples import first_look

    plot = tmp_path / "plot.png"
    first_look.main([str(lake), "--field", "temp", "--to", str(plot)])
    said = capsys.readouterr().out
    assert re.search(r"\|default\|plant/3/temp\|25 ", said)
    assert "complete: nothing is missing, lost or skipped" in said
    assert said.endswith(f"{plot}: 4 topics\n")
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert plot.stat().st_size > 10_000


def test_what_cannot_be_read_is_said_in_one_line_before_spark_starts(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pip install matplotlib")
    from examples import first_look

    with pytest.raises(SystemExit, match=r"is no directory\n  write the directory that the bridge drains to"):
        first_look.main([str(tmp_path / "lake")])


@pytest.mark.java
@pytest.mark.timeout(400)
def test_a_field_that_no_payload_has_is_named(spark: Any, lake: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pip install matplotlib")
    from examples import first_look

    with pytest.raises(SystemExit, match="no payload is JSON with a number in 'tmp'"):
        first_look.main([str(lake), "--field", "tmp", "--to", str(tmp_path / "plot.png")])


def test_a_job_is_a_verb(lake: Path, tmp_path: Path, capsys: Said) -> None:
    assert brim(["spark", "gaps", str(lake), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == 100
    page = tmp_path / "report.html"
    assert brim(["spark", "report", str(lake), "--to", str(page)]) == 0
    assert "nothing is missing, lost or skipped" in page.read_text()
    with pytest.raises(SystemExit):
        brim(["spark", "gold", str(lake)])
    assert "invalid choice: 'gold'" in capsys.readouterr().err


@pytest.mark.parametrize("job", ["bronze", "silver", "live", "replay"])
def test_a_mistake_in_a_source_is_said_in_one_line_before_spark_starts(
    job: str, lake: Path, tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.spark.session.check_java", lambda: pytest.fail("Spark is started"))
    monkeypatch.setenv("PATH", "")
    schema = tmp_path / "payloads.toml"
    schema.write_text('[[payload]]\ntopic = "#"\nformat = "json"\nfields = { temp = "double" }\n')
    more = ["--to", str(tmp_path / "table"), *(["--payloads", str(schema)] if job == "silver" else [])]
    for root, option, said in (
        (tmp_path / "nowhere", "edge=edge-1", "is no directory"),
        (lake / "edge=edge-1", "edge=edge-1", "is below the root"),
        (lake, "egde=edge-1", "no option 'egde'"),
    ):
        assert brim(["spark", job, str(root), *more, "--option", option]) == 2
        error, hint = capsys.readouterr().err.splitlines()
        assert said in error
        assert hint.startswith("  ")
    assert not (tmp_path / "table").exists()


@pytest.mark.java
@pytest.mark.timeout(400)
def test_a_mistake_that_spark_finds_is_said_in_one_line(
    spark: Any, lake: Path, tmp_path: Path, capsys: Said
) -> None:
    """Spark's own error for a Java and a Python of different versions has 60 lines."""
    nowhere = str(tmp_path / "nowhere")
    for job in (["gaps", str(lake), "--table", nowhere], ["latest", nowhere], ["windows", nowhere]):
        assert brim(["spark", *job]) == 2
        error, hint = capsys.readouterr().err.splitlines()
        assert "Path does not exist" in error
        assert "bronze" in hint
    table = tmp_path / "bronze"
    assert brim(["spark", "bronze", str(lake), "--to", str(table)]) == 0
    store(lake, drained_file_of(200, 299, drain_seq=3))
    file = next(lake.rglob("*3-default*"))
    os.utime(file, (0, 0))
    capsys.readouterr()
    assert brim(["spark", "bronze", str(lake), "--to", str(table)]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert "edge edge-1: drain_seq 2 is missing in the landing zone" in error
    assert "failOnDataLoss" in hint


def test_every_job_is_a_verb_and_explains_itself() -> None:
    files = (ROOT / "bridge" / "spark" / "jobs").glob("[a-z]*.py")
    jobs = {path.stem for path in files} - {"common"}
    assert set(JOBS) == jobs


@pytest.mark.campaign  # it starts a Java of its own
@pytest.mark.java
@pytest.mark.timeout(400)
def test_spark_submit_runs_a_job_where_it_is_told_to(lake: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "edge",
        "spark",
        "--submit",
        "--master local[1]",
        "gaps",
        str(lake),
        "--json",
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "complete"
    assert re.search(r"spark-submit --master 'local\[1\]' \S*/gaps\.py", done.stderr)


@pytest.mark.java
@pytest.mark.timeout(400)
def test_the_tutorial_for_data_engineers_runs_as_it_stands(spark: Any, tmp_path: Path, capsys: Said) -> None:
    from examples import sample_lake

    sample_lake.main([str(tmp_path / "sample-lake"), "--seconds", "1"])
    code = block_of("docs/tutorials/data-engineer.md", "python")
    code = code.replace('"sample-lake', f'"{tmp_path}/sample-lake')  # Java may have begun elsewhere
    capsys.readouterr()
    exec(compile(code, "data-engineer.md", "exec"), {})
    said = capsys.readouterr().out
    assert "|plant/3/data|   10|" in said
    assert "[{20, 59}]" in said
