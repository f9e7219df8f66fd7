"""The first start of a broker in new directories: what it logs, and the permissions of what it makes."""

import os
import signal
from pathlib import Path

import pytest

from edge.cli import main
from tests.support.brim_process import BrimProcess
from tests.support.children import ModuleChild


def log_of_a_life(runtime_dir: Path, state_dir: Path) -> str:
    """The log of a broker that is started and stopped."""
    directories = ("--runtime-dir", runtime_dir, "--state-dir", state_dir)
    with ModuleChild("edge", "run", "--port", 0, *directories) as child:
        child.lines_until("brim status")
        status, _, log = child.stop(signal.SIGTERM)
    assert status == 0, log
    return log


def test_a_first_start_warns_of_no_epochs_and_a_start_that_has_lost_them_does(
    runtime_directory: Path, tmp_path: Path
) -> None:
    (tmp_path / "passwords").touch()  # an operator's file is no trace of an earlier life
    assert "epochs rebuilt" not in log_of_a_life(runtime_directory, tmp_path)
    for name in ("epochs", "epochs.copy"):
        (tmp_path / name).unlink()
    assert "WARNING edge.streams.epochs: epochs rebuilt" in " ".join(
        log_of_a_life(runtime_directory, tmp_path).split()
    )


@pytest.mark.parametrize("former", [False, True])
def test_only_the_broker_may_read_the_journal_of_its_sessions(
    runtime_directory: Path, tmp_path: Path, former: bool
) -> None:
    """It has wills, and facts of clients; a former version made it 0640."""
    journal = runtime_directory / "sessions.ring"
    with BrimProcess(runtime_directory, tmp_path, bridge=False) as broker:
        if former:
            broker.kill()
            journal.chmod(0o640)
            broker.start()
        assert journal.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_the_files_of_the_state_directory_have_exact_permissions(
    runtime_directory: Path, tmp_path: Path, umask: int
) -> None:
    """A group that reads logs and rings also reads these two; retained payloads are only for the broker."""
    before = os.umask(umask)
    try:
        with BrimProcess(runtime_directory, tmp_path, bridge=False) as broker:
            assert main(["pub", "a", "x", "--retain", "-p", str(broker.port)]) == 0
            broker.stop()
    finally:
        os.umask(before)
    found = {
        path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "state").iterdir() if path.is_file()
    }
    shared = ("epochs", "epochs.copy", "installation", "installation.copy")
    assert {name: found[name] for name in shared} == dict.fromkeys(shared, 0o640)
    assert (runtime_directory / "installation").stat().st_mode & 0o777 == 0o640
    assert found["retained.state"] == 0o600
