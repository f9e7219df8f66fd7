"""The demo itself, small: what it prints, leaves behind, and says with its exit status."""

import argparse
import asyncio
import re
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from bridge.format.file_name import SUFFIX
from examples.demo import __main__ as demo
from examples.demo.plots import draw
from examples.demo.scene import Scene, Sink
from examples.demo.script import Script
from examples.demo.watch import TICK_S
from tests.support.children import ModuleChild
from tests.support.demo_report import make_report
from tests.support.waiting import wait_until


@pytest.fixture(scope="module", autouse=True)
def fonts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Matplotlib keeps the fonts that it has once used open; no test is to blame for that."""
    report = make_report()
    draw(report.lake, report.samples, report.outages, tmp_path_factory.mktemp("plots") / "plots.png")


def broker_in(lines: list[str]) -> int:
    """The process that the demo says is the broker."""
    found = re.search(r"process (\d+)", "".join(lines))
    assert found
    return int(found[1])


def children_of(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)


def arguments(out: Path, *more: str) -> argparse.Namespace:
    return demo.parse(["--no-spark", "--plain", "--seconds", "4", "--rate", "300", "--out", str(out), *more])


MEMORY = Path("/dev/shm")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Parent of the demo's working directory."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
    return directory


@pytest.mark.timeout(150)
def test_a_run_without_spark_loses_nothing_and_leaves_only_what_it_says(
    tmp_path: Path, temporary: Path
) -> None:
    before = set(MEMORY.glob("brim-demo-*"))
    out = tmp_path / "out"
    command = ("--no-spark", "--plain", "--seconds", "4", "--rate", "300", "--out", out)
    with ModuleChild("examples.demo", *command) as child:
        lines = child.lines_until("The ledger")
        status, rest, log = child.wait()
    text = "\n".join(lines) + rest
    assert status == 0, text + log
    assert "killed with -9" in text
    assert "the sink is cut off" in text
    assert "Without Spark (--no-spark)" in text
    assert "The ledger matches: 0 lost, 0 duplicated." in text
    assert re.search(r"in the table +[\d,]+ +[\d,]+ +\d+ +0 +0 +0", text)
    assert sorted(path.name for path in out.iterdir()) == ["index.html", "plots.png", "plots.svg"]
    assert list(temporary.iterdir()) == []
    assert set(MEMORY.glob("brim-demo-*")) == before


@pytest.mark.timeout(120)
def test_a_run_that_is_broken_off_ends_its_processes_and_cleans_up(tmp_path: Path, temporary: Path) -> None:
    before = set(MEMORY.glob("brim-demo-*"))
    with ModuleChild("examples.demo", "--no-spark", "--plain", "--out", tmp_path / "out") as child:
        lines = child.lines_until("publishers are connected")
        started = children_of(child.pid)
        assert broker_in(lines) in started
        status, _, log = child.stop(signal.SIGINT)
    assert status == 130
    assert "every process of the demo has ended" in log
    assert not any(is_running(pid) for pid in started)
    assert list(temporary.iterdir()) == []
    assert set(MEMORY.glob("brim-demo-*")) == before


@pytest.mark.timeout(120)
def test_a_run_that_is_killed_leaves_no_process_behind(tmp_path: Path, temporary: Path) -> None:
    before = set(MEMORY.glob("brim-demo-*"))
    with ModuleChild("examples.demo", "--no-spark", "--plain", "--out", tmp_path / "out") as child:
        lines = child.lines_until("publishers are connected")
        left = children_of(child.pid)
        assert broker_in(lines) in left
        assert len(left) == 6
        child.kill()
    wait_until(lambda: not any(is_running(pid) for pid in left))
    for directory in set(MEMORY.glob("brim-demo-*")) - before:
        shutil.rmtree(directory)


def test_without_java_the_demo_says_why_spark_is_left_out_and_what_would_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark", reason="without it that is what is said first")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    reason = demo.why_no_spark(demo.parse([]))
    assert "no java on PATH" in reason
    assert "apt-get install" in reason
    assert demo.why_no_spark(demo.parse(["--no-spark"])) == "--no-spark"


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


async def test_publishers_end_after_each_subscriber_has_a_record_of_the_new_broker() -> None:
    child = SimpleNamespace(latest={"places": {"host-0": [1, 5]}})
    script: Any = Script.__new__(Script)
    script._cast = SimpleNamespace(subscribers={"zmq": child}, look_after=lambda: None)
    script._watch = SimpleNamespace(rings=SimpleNamespace(ends=lambda: {"host-0": 5, "replay-0": 3}))
    waiting = asyncio.create_task(script._subscribed_again())
    await asyncio.wait([waiting], timeout=2 * TICK_S)
    assert not waiting.done()  # it has the last record of before the kill
    child.latest = {"places": {"host-0": [1, 6]}}
    await waiting


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
