"""Spill directories: one for each query, private, and none is left by a process that was killed."""

import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from edge.sql.spill_directory import remove_all, spill_directory
from tests.support.project import ROOT

ANOTHER = "from edge.sql.spill_directory import spill_directory as s\nwith s() as path: print(path)"


@pytest.fixture(autouse=True)
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary directory of this process."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_directory_is_private_and_gone_afterwards(parent):
    with spill_directory() as first, spill_directory() as second:
        (first / "spilled").write_bytes(b"records")
        assert first != second
        assert [path.stat().st_mode & 0o777 for path in (first, second)] == [0o700, 0o700]
    assert not list(parent.iterdir())


def test_a_leftover_is_removed_and_the_directory_of_a_living_process_stays(parent):
    leftover, living = parent / "brim-sql-killed", parent / "brim-sql-living"
    for directory in (leftover, living):
        directory.mkdir()
        (directory / "spilled").write_bytes(b"records")
    handle = os.open(living, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with spill_directory():
        assert (leftover.exists(), (living / "spilled").exists()) == (False, True)
    os.close(handle)


def test_a_directory_that_another_query_removes_at_once_is_made_again(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, made = tempfile.mkdtemp, []

    def removed_first(prefix: str) -> str:
        made.append(make(prefix=prefix))
        if len(made) == 1:
            os.rmdir(made[0])
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", removed_first)
    with spill_directory() as directory:
        assert (str(directory), directory.exists(), len(made)) == (made[1], True, 2)


def test_another_process_leaves_the_directory_of_a_query(parent):
    with spill_directory() as directory:
        command, variables = [sys.executable, "-c", ANOTHER], {**os.environ, "TMPDIR": str(parent)}
        other = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=True)
        assert Path(other.stdout.strip()).parent == parent
        assert list(parent.iterdir()) == [directory]


def test_files_and_links_with_such_a_name_stay(parent):
    (parent / "other").mkdir()
    (parent / "other" / "file").write_bytes(b"of somebody")
    (parent / "brim-sql-link").symlink_to(parent / "other")
    (parent / "brim-sql-file").write_bytes(b"")
    with spill_directory():
        pass
    assert {path.name for path in parent.iterdir()} == {"brim-sql-file", "brim-sql-link", "other"}
    assert (parent / "other" / "file").exists()


def test_all_directories_of_a_process_are_removed_when_it_ends_early(parent):
    with spill_directory(), spill_directory():
        remove_all()
        assert not list(parent.iterdir())
