"""Disks of logs that are exchanged between machines."""

from pathlib import Path

import pytest

from edge.mqtt import PubAck, Publish
from tests.support.brim_process import BrimProcess
from tests.support.directories import memory_directory
from tests.support.mqtt_socket import SocketClient

SETTINGS = """
[log]
segment_bytes = 1048576
[[stream]]
name = "t"
topics = ["t/#"]
durability = "disk"
ring_bytes = 4194304
"""


def publish(broker: BrimProcess) -> None:
    with SocketClient(broker.port, "sender") as client:
        client.send(Publish("t/1", b"x", 1, packet_id=1))
        assert isinstance(client.receive(), PubAck)


def test_a_disk_with_the_log_of_another_machine_is_refused(runtime_directory: Path, tmp_path: Path) -> None:
    """Although it is mounted in the state directory. A link to another disk stands for the mount."""
    machines = []
    with memory_directory() as first_disk, memory_directory() as second_disk:
        for edge, disk in (("one", first_disk), ("two", second_disk)):
            (tmp_path / edge / "state").mkdir(parents=True)
            if disk.stat().st_dev == (tmp_path / edge / "state").stat().st_dev:
                pytest.skip("NOT TESTED: /dev/shm and the temporary directory are one disk")
            (tmp_path / edge / "state/log").symlink_to(disk)
            (runtime_directory / edge).mkdir(mode=0o750)
            machines.append(
                BrimProcess(
                    runtime_directory / edge, tmp_path / edge, SETTINGS, bridge=False, edge=edge
                )
            )  # fmt: skip
            with machines[-1] as broker:
                publish(broker)
        log = tmp_path / "one/state/log"
        log.unlink()
        log.symlink_to(second_disk)
        with pytest.raises(AssertionError, match=f"{log} belongs to installation"):
            machines[0].start()
        log.unlink()
        log.symlink_to(first_disk)
        with BrimProcess(
            runtime_directory / "one", tmp_path / "one", SETTINGS, bridge=False, edge="one"
        ) as it:
            publish(it)
