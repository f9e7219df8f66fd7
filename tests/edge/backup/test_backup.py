"""A backup of a broker that runs, or not, gives back its sessions, messages and log in empty directories."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from edge.backup.manifest import read_manifest
from edge.cli import main
from edge.config.directory_lock import DirectoryLock
from edge.local.protocol import Connection
from tests.support.brim_process import BrimProcess
from tests.support.other_user import GROUP, USER, other_user_or_skip
from tests.support.paho_client import Paho
from tests.support.project import ROOT

SETTINGS = """
[log]
segment_bytes = 1048576
direct = false
[[stream]]
name = "plant"
topics = ["plant/#"]
durability = "disk"
ring_bytes = 1048576
"""
BODY = bytes(2000)
COMMAND_S = 60


class Scene:
    """A broker with a log, and the command `brim` with its configuration."""

    def __init__(self, directory: Path, runtime_dir: Path) -> None:
        self.broker = BrimProcess(runtime_dir, directory, SETTINGS, bridge=False)
        self.directory, self.runtime_dir = directory, runtime_dir
        self.backup = directory / "backup"
        self.published = 0  # acknowledged messages

    def brim(self, *words: object) -> tuple[int, str, str]:
        """Exit status and output of a command for this broker."""
        command = [sys.executable, "-m", "edge", *map(str, words), "--config", f"{self.directory}/brim.toml"]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=COMMAND_S, check=False
        )
        return done.returncode, done.stdout, done.stderr

    def publish(self, count: int, *, body: bytes = b"") -> None:
        """Publish numbered messages of QoS 1."""
        client = Paho(self.broker.port, "publisher")
        for _ in range(count):
            client.publish("plant/1", b"%d " % self.published + body)
            self.published += 1
        client.stop()

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """Messages one after another, meanwhile."""
        over = threading.Event()

        def work() -> None:
            while not over.is_set():
                self.publish(20)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def lose_everything(self) -> None:
        """Remove state, log and memory."""
        shutil.rmtree(self.directory / "state")
        for path in self.runtime_dir.iterdir():
            path.unlink()

    def received(self, count: int) -> list[int]:
        """Numbers of the first messages for the session that was away; it must still exist."""
        client = Paho(self.broker.port, "away", clean=False)
        assert client.session_present
        numbers = [int(client.message().payload.split()[0]) for _ in range(count)]
        client.stop()
        return numbers


@pytest.fixture
def scene(tmp_path: Path, runtime_directory: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path, runtime_directory)
    scene.broker.start()
    Paho(scene.broker.port, "away", clean=False, topic="plant/#").stop()
    yield scene
    if scene.broker.running:
        scene.broker.kill()


@pytest.mark.parametrize("is_live", [True, False])
def test_sessions_messages_and_retained_messages_come_back(is_live: bool, scene: Scene) -> None:
    client = Paho(scene.broker.port, "p")
    client.publish("kept", b"retained", retain=True)
    client.stop()
    scene.publish(50)
    before = scene.published
    if is_live:
        with scene.publishing():
            status, out, error = scene.brim("backup", scene.backup)
        scene.broker.kill()
    else:
        scene.broker.stop()
        status, out, error = scene.brim("backup", scene.backup)
    assert (status, error) == (1, ""), out  # the record of `kept` is in memory only
    assert 'not in the backup  ring default-0: records in memory (durability = "process"): 1\n' in out
    assert scene.brim("backup", scene.backup, "--verify")[0] == 0
    scene.lose_everything()

    status, out, error = scene.brim("restore", scene.backup)
    assert (status, error) == (1, ""), out
    assert "brim run --config" in out
    scene.broker.start()
    assert scene.received(before) == list(range(before))
    reader = Paho(scene.broker.port, "reader", topic="kept")
    assert reader.message().payload == b"retained"
    reader.stop()
    log = scene.broker.stop()
    assert "log ends before the session journal" not in log
    assert "ERROR" not in log


def test_segments_are_linked_and_a_removed_segment_is_not_written_again(scene: Scene) -> None:
    scene.publish(1200, body=BODY)
    scene.broker.stop()
    assert scene.brim("segments", "repair")[0] == 0  # makes the indexes: a segment with one never changes
    assert scene.brim("backup", scene.backup)[0] == 0
    log, copy = scene.directory / "state" / "log", scene.backup / "log"
    shared = [path.name for path in sorted(copy.glob("*.log")) if path.samefile(log / path.name)]
    assert len(shared) >= 2
    assert len(list(copy.glob("*.log"))) > len(shared)  # the last one is a copy
    copied = scene.directory / "copied"
    assert scene.brim("backup", copied, "--copy")[0] == 0
    assert not any(path.samefile(log / path.name) for path in copied.rglob("log/*.log"))
    assert scene.brim("backup", copied, "--verify")[0] == 0


def test_damage_of_a_backup_is_found_and_not_restored(scene: Scene) -> None:
    scene.publish(3)
    scene.broker.stop()
    assert scene.brim("backup", scene.backup)[0] == 0
    scene.lose_everything()
    [segment] = (scene.backup / "log").glob("*.log")
    data = bytearray(segment.read_bytes())
    data[5000] ^= 1
    segment.write_bytes(data)
    (scene.backup / "state" / "epochs").unlink()
    (scene.backup / "more").write_text("")
    status, out, _ = scene.brim("backup", scene.backup, "--verify", "--json")
    problems = json.loads(out)["problems"]
    assert status == 1
    assert [problem.partition(":")[0] for problem in problems] == [
        f"log/{segment.name}",
        "state/epochs",
        "more",
    ]
    status, _, error = scene.brim("restore", scene.backup)
    assert status == 2
    assert f"{segment} is damaged" in error
    (scene.backup / "manifest.json").unlink()
    assert "is not a complete backup" in scene.brim("backup", scene.backup, "--verify")[2]


def test_the_intact_files_of_a_damaged_backup_are_restored(scene: Scene) -> None:
    scene.publish(2_000, body=BODY)
    scene.broker.stop()
    assert scene.brim("backup", scene.backup)[0] == 0
    scene.lose_everything()
    first, *others = sorted((scene.backup / "log").glob("*.log"))
    assert len(others) > 1
    first.write_bytes(first.read_bytes()[:-1])
    (scene.backup / "state" / "epochs").unlink()
    status, _, error = scene.brim("restore", scene.backup)
    assert status == 2
    assert f"rm -r {scene.directory}/state" in error
    assert "--skip-damaged" in error
    shutil.rmtree(scene.directory / "state")

    status, out, error = scene.brim("restore", scene.backup, "--skip-damaged")
    assert (status, error) == (1, "")
    for name in (f"log/{first.name}", "state/epochs"):
        assert f"not restored  {name}: " in out
    scene.broker.start()
    client = Paho(scene.broker.port, "away", clean=False)
    numbers = [int(client.message().payload.split()[0])]
    while numbers[-1] < scene.published - 1:
        numbers.append(int(client.message().payload.split()[0]))
    client.stop()
    assert numbers[0] > 0
    assert numbers == list(range(numbers[0], scene.published))


def test_a_link_in_a_backup_is_damage_although_it_leads_to_the_same_bytes(scene: Scene) -> None:
    scene.publish(1)
    scene.broker.stop()
    assert scene.brim("backup", scene.backup)[0] == 0
    scene.lose_everything()
    for name in ("state/epochs", "log"):
        path = scene.backup / name
        path.rename(scene.directory / "elsewhere")
        path.symlink_to(scene.directory / "elsewhere")
        for words in (("backup", scene.backup, "--verify"), ("restore", scene.backup, "--skip-damaged")):
            status, out, error = scene.brim(*words)
            assert (status, "a symbolic link" in out) == (1, True), error
        path.unlink()
        (scene.directory / "elsewhere").rename(path)
        shutil.rmtree(scene.directory / "state")


@pytest.mark.parametrize("name", ["manifest.json", "state/epochs"])
def test_a_fifo_in_a_backup_is_damage_and_does_not_wait_for_its_writer(scene: Scene, name: str) -> None:
    scene.publish(1)
    scene.broker.stop()
    assert scene.brim("backup", scene.backup)[0] == 0
    (scene.backup / name).unlink()
    os.mkfifo(scene.backup / name)
    scene.lose_everything()
    status, out, error = scene.brim("backup", scene.backup, "--verify")
    assert (status in (1, 2), "not a regular file" in out + error) == (True, True)
    status, _, error = scene.brim("restore", scene.backup)
    assert (status, "not a regular file" in error) == (2, True)


def test_a_user_without_a_name_is_kept_by_number(scene: Scene) -> None:
    other_user_or_skip()
    scene.broker.stop()
    state = scene.directory / "state"
    os.chown(state, USER, GROUP)
    assert scene.brim("backup", scene.backup)[0] == 0
    assert json.loads((scene.backup / "manifest.json").read_text())["user"] == str(USER)
    scene.lose_everything()
    assert scene.brim("restore", scene.backup)[0] == 0
    assert {path.stat().st_uid for path in (state, *state.rglob("*"))} == {USER}


def test_the_disk_reserve_is_not_copied(scene: Scene) -> None:
    scene.broker.stop()
    assert (scene.directory / "state" / "reserve").exists()
    assert scene.brim("backup", scene.backup)[0] == 0
    assert list(scene.backup.rglob("reserve")) == []


def test_the_lock_names_the_command_that_works_on_the_directory(scene: Scene) -> None:
    scene.publish(1)
    scene.broker.stop()
    lock = scene.directory / "state" / "brim.lock"
    assert scene.brim("backup", scene.backup)[0] == 0
    assert lock.read_text().split()[1:] == ["backup"]  # others name it while the lock is held
    scene.lose_everything()
    assert scene.brim("restore", scene.backup)[0] == 0
    assert lock.read_text().split()[1:] == ["restore"]


def test_a_backup_waits_for_a_broker_that_starts(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.publish(1)
    scene.broker.stop()
    starting = DirectoryLock(scene.directory / "state")

    def start(_: float) -> None:
        monkeypatch.undo()
        starting.close()
        scene.broker.start()

    monkeypatch.setattr(time, "sleep", start)
    assert main(["backup", str(scene.backup), "--config", f"{scene.directory}/brim.toml"]) == 0
    assert read_manifest(scene.backup).is_live


def test_a_broker_that_ends_at_the_first_request_is_backed_up_as_a_stopped_one(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.publish(1)
    request = Connection.request

    def end(*arguments: Any) -> Any:
        monkeypatch.undo()
        scene.broker.stop()
        return request(*arguments)

    monkeypatch.setattr(Connection, "request", end)
    assert main(["backup", str(scene.backup), "--config", f"{scene.directory}/brim.toml"]) == 0
    assert not read_manifest(scene.backup).is_live


def test_nothing_is_overwritten(scene: Scene) -> None:
    scene.publish(1)
    assert scene.brim("backup", scene.backup)[0] == 0
    assert "is not empty" in scene.brim("backup", scene.backup)[2]
    assert "is in use by another broker" in scene.brim("restore", scene.backup)[2]
    scene.broker.stop()
    assert "is not empty" in scene.brim("restore", scene.backup)[2]
    shutil.rmtree(scene.directory / "state")
    status, _, error = scene.brim("restore", scene.backup)
    assert (status, "has rings: plant-0.ring" in error) == (2, True)
    assert not (scene.directory / "state" / "epochs").exists()
    (scene.directory / "other.partial").mkdir()
    assert "an earlier backup was interrupted" in scene.brim("backup", scene.directory / "other")[2]


def test_a_named_state_directory_is_not_taken_for_that_of_the_running_broker(scene: Scene) -> None:
    status, _, error = scene.brim("backup", scene.backup, "--state-dir", scene.directory / "other")
    assert (status, f"{scene.directory}/other does not exist" in error) == (2, True)
    assert not scene.backup.exists()


def test_a_backup_is_restored_where_another_installation_ran_and_left_no_records(scene: Scene) -> None:
    scene.publish(1)
    assert scene.brim("backup", scene.backup)[0] == 0
    scene.broker.kill()
    scene.lose_everything()
    scene.broker.start()  # another installation
    assert scene.broker.stop()
    shutil.rmtree(scene.directory / "state")
    assert (scene.runtime_dir / "installation").exists()
    assert scene.brim("restore", scene.backup)[0] == 0
    scene.broker.start()
    assert scene.broker.stop()


def test_a_backup_is_restored_where_a_broker_was_killed_and_its_rings_were_moved_away(scene: Scene) -> None:
    scene.publish(1)
    assert scene.brim("backup", scene.backup)[0] == 0
    scene.broker.kill()
    scene.lose_everything()
    scene.broker.start()  # another installation
    scene.publish(1)
    scene.broker.kill()
    shutil.rmtree(scene.directory / "state")
    assert scene.brim("restore", scene.backup)[0] == 2
    for ring in scene.runtime_dir.glob("*.ring"):
        ring.unlink()
    assert {"control.sock", "plant-0.cursors"} <= {path.name for path in scene.runtime_dir.iterdir()}
    assert scene.brim("restore", scene.backup)[0] == 0
    scene.broker.start()
    assert scene.broker.stop()


def test_a_restored_broker_begins_epochs_that_were_never_used(scene: Scene) -> None:
    scene.publish(1)
    assert scene.brim("backup", scene.backup)[0] == 0
    scene.broker.kill()
    for path in scene.runtime_dir.iterdir():
        path.unlink()
    scene.broker.start()  # epoch 2 of the first life
    scene.publish(1)
    scene.broker.kill()
    lives = _lives(scene)
    scene.lose_everything()
    assert scene.brim("restore", scene.backup)[0] == 0
    scene.broker.start()
    scene.publish(1)
    assert scene.broker.stop()
    assert _lives(scene)[-1] not in lives


def test_overwritten_messages_of_absent_sessions_are_listed(runtime_directory: Path, tmp_path: Path) -> None:
    small = '[[stream]]\nname = "small"\ntopics = ["small"]\nring_bytes = 65536'
    with BrimProcess(runtime_directory, tmp_path, small, bridge=False) as broker:
        Paho(broker.port, "away", clean=False, topic="small").stop()
        client = Paho(broker.port, "p")
        for _ in range(100):
            client.publish("small", BODY)
        client.stop()
        words = ["-m", "edge", "backup", str(tmp_path / "backup"), "--config", str(broker.config)]
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"that their rings have overwritten: {runtime_directory / 'sessions.spill'}" in done.stdout


def _lives(scene: Scene) -> list[tuple[int, int]]:
    """First epoch and random number of each life: an epoch in the lake has both."""
    data = (scene.directory / "state" / "installation").read_bytes()
    return [tuple(life) for life in json.loads(data[data.index(b'{"') :])["lives"]]
