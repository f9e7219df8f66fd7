"""A disk that takes no changes: the start, `brim doctor` and the log report it with a remedy."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge.cli import main
from edge.config.directories import is_read_only
from edge.config.loader import load
from edge.doctor.files import check_files
from edge.doctor.findings import Severity
from edge.mqtt import Properties, PubAck, Publish, SubAck, Subscribe, Subscription
from edge.server.mqtt_startup import _takes_changes
from persistence.durable_file import remedy_of
from tests.support.brim_process import BrimProcess
from tests.support.mqtt_socket import SocketClient
from tests.support.project import ROOT
from tests.support.small_disk import remount, small_disk

MIB = 1 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 64 * MIB) as found:
        yield found


def publish(broker: BrimProcess, topic: str = "t") -> None:
    with SocketClient(broker.port, "c") as client:
        client.send(Publish(topic, b"x", 1, packet_id=1))
        assert isinstance(client.receive(), PubAck)


def test_a_start_on_a_read_only_disk_names_the_remedy(
    runtime_directory: Path, disk: Path, tmp_path: Path
) -> None:
    broker = BrimProcess(runtime_directory, disk, bridge=False)
    with broker:
        publish(broker)
    remount(disk, "ro")
    command = [sys.executable, "-m", "edge", "run", "--config", str(broker.config)]
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert refused.returncode == 2  # not 78: a service manager tries again
    error, remedy, *_ = refused.stderr.splitlines()
    assert error == f"brim run: state_dir: the file system of {disk / 'state'} is read-only"
    assert remedy.startswith("  mount it for writing")
    found = {finding.check: finding for finding in check_files(load(broker.config), runs=False)}
    assert (found["state_dir"].state, found["state_dir"].fix[:20]) == (Severity.ERROR, "mount it for writing")
    remount(disk, "rw")
    with broker:
        publish(broker)


@pytest.mark.parametrize("killed", [True, False])
def test_a_log_without_a_stream_on_a_read_only_disk_is_read_and_does_not_prevent_a_start(
    runtime_directory: Path, disk: Path, tmp_path: Path, killed: bool
) -> None:
    log = f'[sessions]\ndurability = "process"\n[log]\ndirectory = "{disk / "log"}"\n'
    stream = '[[stream]]\nname = "s"\ntopics = ["t"]\ndurability = "disk"\n'
    kept: dict[str, Any] = {"clean_start": False, "properties": Properties(session_expiry_interval_s=600)}
    broker = BrimProcess(runtime_directory, tmp_path, log + stream, bridge=False)
    broker.start()
    with SocketClient(broker.port, "kept", **kept) as client:
        client.send(Subscribe(1, (Subscription("t", 1),)))
        assert isinstance(client.receive(), SubAck)
    publish(broker)
    (broker.kill if killed else broker.stop)()
    (runtime_directory / "s-0.ring").unlink()
    broker.config.write_text(broker.config.read_text().replace(stream, stream.replace("disk", "process")))
    remount(disk, "ro")
    before = {path: path.read_bytes() for path in (disk / "log").rglob("*") if path.is_file()}
    with broker:
        with SocketClient(broker.port, "kept", **kept) as client:
            message = client.receive()
            assert isinstance(message, Publish)
            assert bytes(message.payload) == b"x"
        publish(broker)
        broker.log_until("log without a stream is only read")
        assert before == {path: path.read_bytes() for path in (disk / "log").rglob("*") if path.is_file()}
        logged = '[[stream]]\nname = "more"\ntopics = ["more"]\ndurability = "disk"\n'
        broker.config.write_text(broker.config.read_text() + logged)
        words = ["reload", "--runtime-dir", str(runtime_directory)]
        assert main(words) != 0
        remount(disk, "rw")
        assert main(words) == 0  # the same log is opened for writing
        publish(broker, "more")


def test_a_disk_that_an_error_has_made_read_only_is_recognized(tmp_path: Path) -> None:
    """The kernel does not show this state to statvfs()."""
    image, disk = tmp_path / "image", tmp_path / "disk"
    disk.mkdir()
    image.touch()
    os.truncate(image, 8 * MIB)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    command = ["mount", "-o", "loop,errors=remount-ro", str(image), str(disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("NOT TESTED: no image can be mounted here")
    try:
        assert not is_read_only(disk)
        assert _takes_changes(disk)
        device = os.stat(disk).st_dev
        (block,) = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve().parts[-1:]
        Path(f"/sys/fs/ext4/{block}/trigger_fs_error").write_text("1")
        assert is_read_only(disk)
        assert not _takes_changes(disk)  # os.access() permits it
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_the_remedy_for_a_file_on_a_read_only_disk_removes_nothing() -> None:
    error = OSError(errno.EROFS, os.strerror(errno.EROFS), "/srv/state/sessions.state")
    assert remedy_of(error).startswith("mount that file system for writing")
