"""The leak guard of conftest.py sees each kind of thing that a test can leave behind, and nothing else."""

import os
import subprocess
import sys
import threading

import pytest

from tests.support import leaks
from tests.support.directories import memory_directory
from tests.support.leaks import Holdings, left_since


@pytest.fixture(autouse=True)
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "GRACE_S", 0.0)


def test_a_descriptor_left_open_is_found() -> None:
    before = Holdings.now()
    fd = os.open("/dev/null", os.O_RDONLY)
    assert left_since(before) == [f"file descriptor {fd}: /dev/null"]
    os.close(fd)
    assert left_since(before) == []


def test_a_descriptor_does_not_outlive_the_process_and_a_file_does() -> None:
    before = Holdings.now()
    with memory_directory() as path, open("/dev/null"):
        assert left_since(before, only_outside=True) == [str(path)]
    assert left_since(before) == []


def test_a_thread_that_runs_on_is_found() -> None:
    before = Holdings.now()
    done = threading.Event()
    thread = threading.Thread(target=done.wait, name="straggler")
    thread.start()
    assert left_since(before) == [f"thread straggler ({thread.ident})"]
    done.set()
    thread.join()
    assert left_since(before) == []


def test_a_child_that_was_not_waited_for_is_found_even_when_dead() -> None:
    before = Holdings.now()
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert [line for line in left_since(before) if line.startswith(f"child process {child.pid}")]
    child.wait()
    assert left_since(before) == []


def test_a_file_in_shared_memory_is_found() -> None:
    before = Holdings.now()
    with memory_directory() as path:
        (path / "x.ring").touch()
        assert left_since(before) == [str(path), str(path / "x.ring")]
    assert left_since(before) == []


def test_what_goes_away_within_the_grace_is_no_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "GRACE_S", 60.0)
    before = Holdings.now()
    thread = threading.Timer(0.05, lambda: None)
    thread.start()
    assert left_since(before) == []
