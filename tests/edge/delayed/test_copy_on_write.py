"""The store on a file system that writes each change to a new place, such as btrfs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from edge.config.directories import file_system
from edge.mqtt import Publish
from tests.support.children import Child
from tests.support.delayed_broker import broker_of, listed
from tests.support.mqtt_socket import SocketClient
from tests.support.project import ROOT
from tests.support.small_disk import btrfs_disk, fill
from tests.support.waiting import wait_until

MIB = 1 << 20
ROUNDS = 20
STORE = """
import sqlite3, sys
from pathlib import Path
from edge.delayed.store import DelayedMessage, DelayedStore, list_messages

store = DelayedStore(Path(sys.argv[1]), synced=False)
store.open()
for line in sys.stdin:
    if not (number := int(line)):
        break
    try:
        store.apply([DelayedMessage(number, "t", 0, b"", bytes(1000))], (), (), (1, number), (0, 1))
        print("stored", flush=True)
    except sqlite3.Error as error:
        print(error, flush=True)
print(len(list_messages(store.path, (-1, 0), 1000, 1)))
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with btrfs_disk(tmp_path / "a disk", 256 * MIB) as mounted:
        yield mounted


def test_a_full_disk_ends_no_process_that_has_opened_the_store(disk: Path) -> None:
    """SQLite would map a file there, and the kernel has no room for a copy of its page: SIGBUS."""
    with Child(STORE, disk / "delayed.sqlite") as child:
        answers = []

        def store(*numbers: int) -> None:
            for number in numbers:
                subprocess.run(["sync", "-f", disk], check=True)  # a page that is written needs a copy again
                child.say(str(number))
                answers.append(child.line())

        store(1, 2)
        filler = fill(disk)
        for number in range(3, ROUNDS):
            with filler.open("ab", buffering=0) as file, suppress(OSError):
                while file.write(bytes(4096)):
                    pass
            store(number)
        filler.unlink()
        store(ROUNDS, 0)
        assert "database or disk is full" in answers
        assert answers[-2:] == ["stored", str(answers.count("stored"))]


def test_a_file_system_is_found_by_its_longest_mount_point(disk: Path) -> None:
    """A subvolume has another device number than the mount."""
    subprocess.run(["btrfs", "-q", "subvolume", "create", disk / "part"], check=True)
    assert os.stat(disk / "part").st_dev != os.stat(disk).st_dev
    assert file_system(disk / "part") == "btrfs"
    assert file_system(disk.parent) != "btrfs"
    assert file_system(Path("/proc/self")) == "proc"


def test_a_backup_lists_the_messages_of_a_running_broker_as_missing(
    disk: Path, runtime_directory: Path, tmp_path: Path
) -> None:
    broker = broker_of(runtime_directory, disk)

    def backup(name: str) -> str:
        words = ["-m", "edge", "backup", str(tmp_path / name), "--config", str(broker.config)]
        done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout

    with broker:
        with SocketClient(broker.port, "p") as client:
            client.send(Publish("$delayed/3600/t", b"x", 1, packet_id=1))
            client.receive()
        wait_until(lambda: len(listed(broker)) == 1)
        assert "delayed messages: on this file system only a stopped broker's: " in backup("running")
    assert "delayed messages" not in backup("stopped")
    assert (tmp_path / "stopped" / "state" / "delayed.sqlite").exists()
