"""The demo itself, small: what it prints, leaves behind, and says with its exit status."""

import argparse
import asyncio
import os
import re
import signal
from pathlib import Path

import pytest

from bridge.drained import SUFFIX
from examples.demo import __main__ as demo
from examples.demo.plots import draw
from examples.demo.scene import Scene, Sink
from examples.demo.script import Script
from tests.support.children import ModuleChild
from tests.support.demo_report import make_report


@pytest.fixture(scope="module", autouse=True)
def fonts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Matplotlib keeps the fonts that it has once used open; no test is to blame for that."""
    report = make_report()
    draw(report.lake, report.samples, report.outages, tmp_path_factory.mktemp("plots") / "plots.png")


def arguments(out: Path, *more: str) -> argparse.Namespace:
    return demo.parse(["--no-spark", "--plain", "--seconds", "4", "--rate", "300", "--out", str(out), *more])


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the demo makes its working directory."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
    return directory


@pytest.mark.timeout(150)
def test_a_run_without_spark_loses_nothing_and_leaves_only_what_it_says(
    tmp_path: Path, temporary: Path
) -> None:
    before = set(Path("/dev/shm").glob("brim-demo-*"))
    out = tmp_path / "out"
    command = ("--no-spark", "--plain", "--seconds", "4", "--rate", "300", "--out", out)
    with ModuleChild("examples.demo", *command) as child:
        lines = child.lines_until("The ledger")
        status, rest, log = child.wait()
    text = "\n".join(lines) + rest
    assert status == 0, text + log
    assert "killed with -9" in text
    assert "the sink is cut off" in text
    assert "SPARK WAS LEFT OUT" in text
    assert "The ledger matches: 0 lost, 0 duplicated." in text
    assert re.search(r"in the table +[\d,]+ +[\d,]+ +\d+ +0 +0 +0", text)
    assert sorted(path.name for path in out.iterdir()) == ["index.html", "plots.png", "plots.svg"]
    assert list(temporary.iterdir()) == []
    assert set(Path("/dev/shm").glob("brim-demo-*")) == before


@pytest.mark.timeout(120)
def test_a_run_that_is_broken_off_ends_its_processes_and_cleans_up(tmp_path: Path, temporary: Path) -> None:
    before = set(Path("/dev/shm").glob("brim-demo-*"))
    with ModuleChild("examples.demo", "--no-spark", "--plain", "--out", tmp_path / "out") as child:
        lines = child.lines_until("publishers are connected")
        broker = int(re.search(r"process (\d+)", "".join(lines))[1])  # type: ignore[index]
        status, _, log = child.stop(signal.SIGINT)
    assert status == 130
    assert "every process of the demo has ended" in log
    with pytest.raises(ProcessLookupError):
        os.kill(broker, 0)
    assert list(temporary.iterdir()) == []
    assert set(Path("/dev/shm").glob("brim-demo-*")) == before


def test_a_ledger_that_does_not_match_is_exit_status_1_and_the_files_are_kept(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def play(_: Script) -> object:
        await asyncio.sleep(0)
        return make_report(lose=2)

    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setattr(Script, "play", play)
    assert demo.run(arguments(tmp_path / "out")) == 1
    printed = capsys.readouterr()
    assert "The ledger does NOT match" in printed.out
    (kept,) = temporary.iterdir()
    assert f"kept: {kept}" in printed.err
    assert (kept / "brim.toml").exists()


def test_a_broker_that_does_not_start_is_named_with_its_last_words(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setattr("examples.demo.scene.CONFIG", "no_such_setting = 1\n")
    assert demo.run(arguments(tmp_path / "out")) == 1
    printed = capsys.readouterr()
    assert "there is no such setting" in printed.err
    assert len(list(temporary.iterdir())) == 1


def test_a_sink_that_is_cut_refuses_everybody_and_comes_back_whole(tmp_path: Path) -> None:
    sink = Sink(tmp_path / "drained")
    name = f"edge=e/dt=2026-01-01/{1:016d}-s-p{0:04d}-e{7:010d}-{0:020d}-{9:020d}{SUFFIX}"
    (sink.directory / name).parent.mkdir(parents=True)
    (sink.directory / name).touch()
    sink.cut()
    with pytest.raises(NotADirectoryError):  # root is refused too
        (sink.directory / name).touch()
    assert sink.held() == (1, 10)
    sink.mend()
    assert (sink.directory / name).exists()
    assert sink.held() == (1, 10)


def test_a_scene_leaves_nothing_unless_it_is_to_be_kept(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    gone, kept = Scene(), Scene()
    gone.close(keep=False)
    kept.close(keep=True)
    assert list(temporary.iterdir()) == [kept.root]
    assert not gone.runtime.exists()
    assert not kept.runtime.exists()
