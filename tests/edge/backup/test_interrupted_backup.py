"""A backup or restore that kill -9 interrupts, or whose broker it kills, is never taken for a whole one."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from edge.backup.creation import make_backup
from edge.backup.file_copy import Advance
from edge.backup.layout import BrokerFiles
from edge.backup.manifest import MANIFEST_NAME, partial_of, read_manifest
from edge.backup.restore import restore_backup, verify_backup
from edge.config import loader
from edge.errors import EdgeError
from edge.local.protocol import Connection, Save, Saved
from tests.edge.backup.test_backup import COMMAND_S, Scene, scene
from tests.support.project import ROOT

__all__ = ["scene"]

LARGE_BYTES = 16 << 30  # sparse; takes seconds to read, and the kill comes first
LOOK_S = 0.005


def _wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + COMMAND_S
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(LOOK_S)


@pytest.fixture
def copying(scene: Scene) -> Iterator[subprocess.Popen[str]]:
    """The command `brim backup` of a running broker, in the middle of a large file of the state."""
    scene.publish(5)
    with (scene.directory / "state" / "zz-large").open("wb") as file:
        file.truncate(LARGE_BYTES)
    command = [sys.executable, "-m", "edge", "backup", str(scene.backup), "--config"]
    process = subprocess.Popen(
        [*command, f"{scene.directory}/brim.toml"], cwd=ROOT, text=True, stderr=subprocess.PIPE
    )
    copy = partial_of(scene.backup) / "state" / "zz-large"
    _wait_until(lambda: copy.exists() and copy.stat().st_size > 0)
    yield process
    process.kill()
    process.communicate()


def test_a_killed_backup_is_refused_and_made_again(scene: Scene, copying: subprocess.Popen[str]) -> None:
    copying.kill()
    copying.wait()
    partial = partial_of(scene.backup)
    assert not scene.backup.exists()
    assert (partial / "state").is_dir()
    for directory in (scene.backup, partial):
        for verb in (["backup", directory, "--verify"], ["restore", directory]):
            status, _, error = scene.brim(*verb)
            assert (status, f"{directory} is not a complete backup" in error) == (2, True), verb
            assert f"rm -r {partial}" in error
    assert f"rm -r {partial}" in scene.brim("backup", scene.backup)[2]
    (scene.directory / "state" / "zz-large").unlink()
    shutil.rmtree(partial)
    assert scene.brim("backup", scene.backup)[0] == 0
    assert scene.brim("backup", scene.backup, "--verify")[0] == 0


def test_a_backup_whose_broker_is_killed_is_whole(scene: Scene, copying: subprocess.Popen[str]) -> None:
    """The snapshot was saved before, and the log has every acknowledged message."""
    scene.broker.kill()
    assert copying.poll() is None
    os.truncate(scene.directory / "state" / "zz-large", 0)  # the command reads its end, and continues
    _, error = copying.communicate(timeout=COMMAND_S)
    assert (copying.returncode, error) == (0, "")
    assert scene.brim("backup", scene.backup, "--verify")[0] == 0
    scene.lose_everything()
    assert scene.brim("restore", scene.backup)[0] == 0
    scene.broker.start()
    assert scene.received(scene.published) == list(range(scene.published))


def test_a_broker_killed_before_its_snapshot_ends_the_backup_with_an_error(scene: Scene) -> None:
    with Connection(scene.runtime_dir) as connection:
        scene.broker.kill()
        with pytest.raises(EdgeError, match="backup not made") as raised:
            make_backup(_files(scene), scene.backup, brim="0", save=lambda: connection.request(Save(), Saved))
    assert raised.value.hint == f"rm -r {partial_of(scene.backup)}; try again"
    assert not scene.backup.exists()
    with pytest.raises(EdgeError, match="is not a complete backup"):
        read_manifest(partial_of(scene.backup))


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free space, or name"),
        (errno.EACCES, "run as the broker's user"),
        (errno.EFBIG, "raise the limit of file sizes"),
    ],
)
def test_a_backup_that_cannot_be_written_has_the_remedy_of_its_cause(
    scene: Scene, number: int, remedy: str
) -> None:
    scene.broker.stop()

    def fail(_: float) -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(EdgeError, match="backup not made") as raised:
        make_backup(_files(scene), scene.backup, brim="0", advance=fail)
    assert raised.value.hint.startswith(remedy)
    assert raised.value.hint.endswith(f"; rm -r {partial_of(scene.backup)}")


def test_no_kill_between_two_files_leaves_a_manifest(scene: Scene) -> None:
    scene.publish(5)
    scene.broker.stop()
    files = _files(scene)
    steps = len(make_backup(files, scene.backup, brim="0").files)
    assert steps > 4
    for step in range(steps):
        shutil.rmtree(scene.backup, ignore_errors=True)
        _killed_at(step, lambda advance: make_backup(files, scene.backup, brim="0", advance=advance))
        partial = partial_of(scene.backup)
        assert not scene.backup.exists()
        assert not (partial / MANIFEST_NAME).exists()
        with pytest.raises(EdgeError, match="is not a complete backup"):
            read_manifest(partial)
        shutil.rmtree(partial)
    manifest = make_backup(files, scene.backup, brim="0")
    assert verify_backup(scene.backup, manifest) == []


def test_no_broker_starts_on_a_restore_that_was_killed(scene: Scene) -> None:
    scene.publish(5)
    scene.broker.stop()
    files = _files(scene)
    manifest = make_backup(files, scene.backup, brim="0")
    steps = len(manifest.files)
    for step in (0, steps // 2, steps - 1):
        scene.lose_everything()
        files.state_dir.mkdir()
        _killed_at(step, lambda advance: restore_backup(scene.backup, manifest, files, advance))
        for verb in (["run"], ["restore", scene.backup], ["backup", scene.directory / "other"]):
            status, _, error = scene.brim(*verb)
            assert (status, "its restore was interrupted" in error) == (2, True), (verb, error)
    scene.lose_everything()
    assert scene.brim("restore", scene.backup)[0] == 0
    scene.broker.start()
    assert scene.received(5) == list(range(5))


def _files(scene: Scene) -> BrokerFiles:
    return BrokerFiles.of_config(loader.load(scene.directory / "brim.toml"))


def _killed_at(step: int, work: Callable[[Advance], object]) -> None:
    """Run `work` in another process, which is killed after it has read part `step` of the files."""
    child = os.fork()
    if child == 0:
        left = [step]

        def advance(_: float) -> None:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)

        work(advance)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
