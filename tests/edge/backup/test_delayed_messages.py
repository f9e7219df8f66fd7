"""A backup has the delayed messages that are acknowledged, or lists those that it lacks."""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from edge.backup.manifest import partial_of
from edge.delayed.store import read_ring_cursor
from tests.support.brim_process import BrimProcess
from tests.support.delayed_broker import broker_of
from tests.support.paho_client import Paho
from tests.support.waiting import wait_until

COUNT = 3


class Scene:
    """A broker that cannot store delayed messages: they are acknowledged, and in the ring only."""

    def __init__(self, broker: BrimProcess, directory: Path) -> None:
        self.broker, self.backup = broker, directory / "backup"
        self.store = directory / "state" / "delayed.sqlite"
        self._blocker = sqlite3.connect(self.store, isolation_level=None)
        self._blocker.execute("BEGIN IMMEDIATE")
        client = Paho(broker.port, "c")
        for number in range(COUNT):
            client.publish(f"$delayed/3600/t/{number}", b"v")
        client.stop()

    def unblock(self) -> None:
        """Let the broker store them. May be called twice."""
        self._blocker.close()

    def begin_backup(self) -> subprocess.Popen[str]:
        words = ["-m", "edge", "backup", str(self.backup), "--config", str(self.broker.config)]
        return subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True)


@pytest.fixture
def scene(runtime_directory: Path, tmp_path: Path) -> Iterator[Scene]:
    with broker_of(runtime_directory, tmp_path) as broker:
        scene = Scene(broker, tmp_path)
        yield scene
        scene.unblock()


def test_messages_that_a_killed_broker_has_not_stored_are_listed(scene: Scene) -> None:
    scene.broker.kill()
    scene.unblock()
    process = scene.begin_backup()
    out, _ = process.communicate()
    assert process.returncode == 1
    assert f"delayed messages: records that {scene.store} does not have yet: {COUNT}" in out


def test_the_backup_of_a_killed_broker_leaves_the_write_ahead_log(scene: Scene) -> None:
    """The next start reports damage to it."""
    scene.unblock()
    log = scene.store.with_name("delayed.sqlite-wal")
    wait_until(lambda: read_ring_cursor(scene.store)[1] == COUNT)
    scene.broker.kill()
    before = log.read_bytes()
    scene.begin_backup().communicate()
    assert log.read_bytes() == before


def test_the_backup_of_a_running_broker_waits_until_they_are_stored(scene: Scene) -> None:
    process = scene.begin_backup()
    wait_until((partial_of(scene.backup) / "state").exists)
    scene.unblock()
    out, _ = process.communicate()
    assert "delayed" not in out
    with closing(sqlite3.connect(scene.backup / "state" / "delayed.sqlite")) as copy:
        assert copy.execute("SELECT count(*) FROM message").fetchone() == (COUNT,)
