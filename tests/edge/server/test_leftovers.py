"""Leftovers of a killed broker or an earlier build: removed at a start, and no other file is."""

import fcntl
import os
from pathlib import Path

import pytest

from edge.config.schema import Config
from edge.server.leftovers import remove_leftovers
from tests.support.brim_process import BrimProcess
from tests.support.children import ModuleChild

STATE = (
    "epochs.new", "epochs.copy.new", "installation.0badcafe.new", "installation.00112233445566ff.tmp",
    "installation.copy.00112233445566ff.tmp", "retained.state.new", "sessions.state.copy.tmp",
)  # fmt: skip
KEPT = ("notes.new", "my.tmp", "epochs.new.txt", "installation.later.tmp", "password.tmp")


def dead_pid() -> int:
    child = ModuleChild("edge", "--version")
    child.wait()
    return child.pid


def leave(directory: Path, *names: str) -> None:
    directory.mkdir(exist_ok=True, parents=True)
    for name in names:
        (directory / name).write_bytes(b"half")


def left(directory: Path, *names: str) -> list[str]:
    return [name for name in names if (directory / name).exists()]


def test_a_start_removes_the_leftovers_and_no_other_file(runtime_directory: Path, tmp_path: Path) -> None:
    state, ring = tmp_path / "state", f".default-0.{dead_pid()}.new"
    leave(state, *STATE, *KEPT)
    leave(state / "consumers", "offsets.tmp", "offsets.new", "others.tmp")
    leave(state / "log", "installation.0badcafe.new")
    leave(
        runtime_directory, ring, "sessions.state.tmp", "installation.0badcafe.new", f".mine.{os.getpid()}.new"
    )
    with BrimProcess(runtime_directory, tmp_path, bridge=False):
        pass
    assert left(state, *STATE, *KEPT) == list(KEPT)
    assert left(state / "consumers", "offsets.tmp", "offsets.new", "others.tmp") == ["others.tmp"]
    assert left(state / "log", "installation.0badcafe.new") == []
    names = ring, "sessions.state.tmp", "installation.0badcafe.new", f".mine.{os.getpid()}.new"
    assert left(runtime_directory, *names) == [names[-1]], "this process is alive, and may create that ring"


def test_a_broker_with_the_number_of_the_killed_one_removes_its_ring(tmp_path: Path) -> None:
    """Such as the first process of a container."""
    leave(tmp_path, f".default-0.{os.getpid()}.new")
    remove_leftovers(Config(runtime_dir=tmp_path, state_dir=tmp_path / "state"))
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_another_process_may_be_writing_stays(tmp_path: Path) -> None:
    """A bridge holds this lock while it creates the identity of the installation."""
    leave(tmp_path, *STATE)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        remove_leftovers(Config(runtime_dir=tmp_path / "run", state_dir=tmp_path))
        assert left(tmp_path, *STATE) == list(STATE)
    finally:
        os.close(descriptor)
    remove_leftovers(Config(runtime_dir=tmp_path / "run", state_dir=tmp_path))
    assert left(tmp_path, *STATE) == []


def test_a_leftover_that_cannot_be_removed_does_not_prevent_a_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "epochs.new").mkdir()
    leave(tmp_path, "installation.0badcafe.new")
    remove_leftovers(Config(runtime_dir=tmp_path / "run", state_dir=tmp_path))
    assert left(tmp_path, "epochs.new", "installation.0badcafe.new") == ["epochs.new"]
    assert "leftover file not removed" in caplog.text
