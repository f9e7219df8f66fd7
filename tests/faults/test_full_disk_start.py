"""A start after a reboot with a full disk: streams in memory are served, the others are refused."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from edge.config.loader import load
from edge.doctor.files import check_files
from edge.doctor.findings import Severity
from edge.mqtt import Properties, PubAck, Publish, ReasonCode
from edge.server import disk_reserve
from edge.server.disk_reserve import FILE_NAME, RESERVE_BYTES
from tests.support.brim_process import BrimProcess
from tests.support.mqtt_socket import SocketClient
from tests.support.small_disk import fill, small_disk, take_inodes
from tests.support.waiting import wait_until

MIB = 1 << 20
SETTINGS = """
[log]
segment_bytes = 1048576
[[stream]]
name = "t"
topics = ["t/#"]
durability = "disk"
ring_bytes = 4194304
"""


def code_of(broker: BrimProcess, topic: str) -> ReasonCode:
    with SocketClient(broker.port, "p") as client:
        client.send(Publish(topic, b"x", 1, packet_id=1))
        answer = client.packet()
        assert isinstance(answer, PubAck)
        return answer.reason_code


def test_a_broker_starts_after_a_reboot_with_a_full_disk(runtime_directory: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64 * MIB) as disk:
        broker = BrimProcess(runtime_directory, disk, SETTINGS, bridge=False)
        reserve = disk / "state" / FILE_NAME
        kept = Properties(session_expiry_interval_s=600)
        with broker, SocketClient(broker.port, "kept", clean_start=False, properties=kept):
            assert not code_of(broker, "t/1").failed
            assert reserve.stat().st_blocks * 512 >= RESERVE_BYTES
            broker.stop()
        shutil.rmtree(runtime_directory)
        runtime_directory.mkdir()
        filler = fill(disk)
        with broker:
            broker.log_until("disk reserve removed: the disk is full")
            assert not reserve.exists()
            assert code_of(broker, "t/1") == ReasonCode.QUOTA_EXCEEDED
            assert not code_of(broker, "memory/1").failed
            filler.unlink()
            wait_until(lambda: not code_of(broker, "t/1").failed)
            broker.stop()
        assert reserve.stat().st_blocks * 512 >= RESERVE_BYTES


def test_a_broker_starts_after_a_reboot_without_free_inodes(runtime_directory: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64 * MIB, inodes=100) as disk:
        broker = BrimProcess(runtime_directory, disk, SETTINGS, bridge=False)
        with broker:
            assert not code_of(broker, "t/1").failed
        shutil.rmtree(runtime_directory)
        runtime_directory.mkdir()
        files = take_inodes(disk)
        found = {finding.check: finding for finding in check_files(load(broker.config), runs=False)}
        lack = found["disk space"]
        assert (lack.state, "no free inodes" in lack.value) == (Severity.ERROR, True)
        with broker:
            broker.log_until("disk reserve removed: the disk has no free inodes; remove files")
            assert not code_of(broker, "memory/1").failed
            for file in files:
                file.unlink()
            wait_until(lambda: not code_of(broker, "t/1").failed)
            broker.stop()
        assert (disk / "state" / FILE_NAME).exists()


def test_the_reserve_takes_no_part_of_a_disk_that_is_nearly_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", disk_reserve.ROOM * RESERVE_BYTES) as disk:
        disk_reserve.keep_reserve(disk)
        assert (disk / FILE_NAME).stat().st_size == RESERVE_BYTES
        disk_reserve.use_reserve(disk)
        assert (disk / FILE_NAME).exists()
        fill(disk)
        disk_reserve.use_reserve(disk)
        assert not (disk / FILE_NAME).exists()
        disk_reserve.keep_reserve(disk)
        assert not (disk / FILE_NAME).exists()


def test_a_reserve_that_cannot_be_created_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk_reserve.keep_reserve(tmp_path / "missing")
    assert "disk reserve not created" in caplog.text
    caplog.clear()
    os.mkfifo(tmp_path / FILE_NAME)
    disk_reserve.keep_reserve(tmp_path)
    assert "disk reserve not created" in caplog.text


def test_a_reserve_that_was_not_completed_is_completed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def over_quota(*_: int) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    with monkeypatch.context() as quota:
        quota.setattr(os, "posix_fallocate", over_quota)
        disk_reserve.keep_reserve(tmp_path)
    for _ in range(2):
        disk_reserve.keep_reserve(tmp_path)
        status = (tmp_path / FILE_NAME).stat()
        assert (status.st_size, status.st_blocks * 512 >= RESERVE_BYTES) == (RESERVE_BYTES, True)
