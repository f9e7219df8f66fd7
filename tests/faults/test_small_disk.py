"""Small disks: a broker with default limits never fills one, whatever is published, retained and kept."""

import json
import os
import re
import threading
from pathlib import Path
from typing import Self

import pytest

from edge.mqtt import Connect, PubAck, Publish, Subscribe, Subscription, Version
from edge.mqtt.properties import Properties
from edge.mqtt.reason_codes import ReasonCode
from persistence.free_disk_space import DiskRules, disk_step, floors, require_room, segment_bytes_for
from tests.support.children import ModuleChild
from tests.support.mqtt_socket import RawClient
from tests.support.ports import free_port
from tests.support.small_disk import small_disk

MIB = 1 << 20
DISKS = [64 * MIB, 256 * MIB, 1 << 30, 100 << 30]


class Disk:
    """Files of a disk of that size; only the size is simulated."""

    def __init__(self, free_bytes: int, total_bytes: int) -> None:
        self.disk = lambda _: (free_bytes, total_bytes)


@pytest.mark.parametrize("total", DISKS)
def test_each_disk_has_room_for_what_three_segments_of_two_logs_leave(total: int) -> None:
    segment = segment_bytes_for(Disk(0, total), "", 64 * MIB)  # type: ignore[arg-type]
    floor = floors(DiskRules(), total, segment)
    assert floor.warn > floor.delete > floor.read_only + 3 * segment
    assert floor.read_only >= min(32 * MIB, total // 4)
    assert floor.warn <= total * 3 // 4
    assert 6 * segment + floor.read_only <= total // 2
    steps = [disk_step(DiskRules(), free, total, segment) for free in (*floor, 0, total)]
    assert steps == ["warn", "delete", "read_only", "read_only", "ok"]


def test_shares_that_are_switched_off_keep_nothing_free() -> None:
    assert floors(DiskRules(101, 101, 101), 64 * MIB, MIB) == (0, 0, 0)
    assert disk_step(DiskRules(101, 101, 101), 0, 64 * MIB, MIB) == "ok"


def test_other_files_leave_the_last_room_of_a_disk() -> None:
    require_room(Disk(10 * MIB, 256 * MIB), "", 6 * MIB)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="free some space"):
        require_room(Disk(10 * MIB, 256 * MIB), "", 6 * MIB + 1)  # type: ignore[arg-type]


# ---- real ones ----


class LeastFree:
    """The fewest bytes that were free on a disk, looked at without a pause."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stopping = threading.Event()
        self.bytes = 1 << 62
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stopping.wait(0.0005):
            found = os.statvfs(self._directory)
            self.bytes = min(self.bytes, found.f_bavail * found.f_frsize)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()


def flood(port: int, total: int) -> list[ReasonCode]:
    """Twice the disk in messages of 100 kB to both streams, some retained, with a session that is kept; the
    failures among the answers.
    """
    failures: list[ReasonCode] = []
    kept = RawClient(port, Version.V5)
    kept.send(Connect("kept", clean_start=False, version=Version.V5, properties=Properties(
        session_expiry_interval_s=1000)), Subscribe(1, (Subscription("#", 1),)))  # fmt: skip
    assert kept.packet() is not None
    assert kept.packet() is not None
    kept.close()
    client = RawClient(port, Version.V5)
    client.send(Connect("flood", version=Version.V5))
    assert client.packet() is not None
    window, rounds = 20, 2 * total // (100_000 * 20)
    for at in range(rounds):
        packets = [
            Publish(
                f"{'disk' if number % 2 else 'interval'}/{(at * window + number) % 400}",
                bytes(100_000),
                1,
                retain=number % 4 == 0,
                packet_id=number + 1,
            )
            for number in range(window)
        ]
        client.send(*packets)
        for _ in packets:
            answer = client.packet()
            assert isinstance(answer, PubAck), answer
            if answer.reason_code.failed:
                failures.append(answer.reason_code)
    client.close()
    return failures


@pytest.mark.parametrize(
    "total",
    [
        pytest.param(64 * MIB, id="64 MiB"),
        pytest.param(256 * MIB, id="256 MiB", marks=pytest.mark.campaign),
        pytest.param(1 << 30, id="1 GiB", marks=pytest.mark.campaign),
    ],
)
@pytest.mark.parametrize("discard", ["old", "hold"])
def test_a_disk_never_fills_up_and_a_full_one_is_refused(
    runtime_directory: Path, tmp_path: Path, total: int, discard: str
) -> None:
    """With room made by retention, and where a bridge that cannot drain holds everything."""
    rings = "ring_bytes = 4194304\nsync_interval_ms = 20\n"
    settings = (
        f"runtime_dir = {json.dumps(str(runtime_directory))}\nstate_dir = {json.dumps(str(tmp_path / 'd'))}\n"
        "[limits]\npacket_max_bytes = 262144\n"
        f'[[stream]]\nname = "disk"\ntopics = ["disk/#"]\ndurability = "disk"\n{rings}'
        f'[[stream]]\nname = "interval"\ntopics = ["interval/#"]\ndurability = "interval"\n{rings}'
    )
    if discard == "hold":
        settings += "[log]\ndisk_delete_percent = 95\ndisk_warn_percent = 95\n"
    port = free_port()
    (tmp_path / "brim.toml").write_text(settings + f"[[listener]]\nport = {port}\n")
    with (
        small_disk(tmp_path / "d", total) as disk,
        LeastFree(disk) as least,
        ModuleChild("edge", "run", "--config", tmp_path / "brim.toml", "--log-level", "warning") as broker,
    ):
        broker.lines_until("brim status")
        failures = flood(port, total)
        status, _, log = broker.stop()
        assert status == 0, log
        assert least.bytes >= min(4 * MIB, total // 32), f"{least.bytes} bytes of {total} were free"
        assert re.search(r"room on the disk .*step=(warn|delete|read_only)", log)
        assert set(failures) <= {ReasonCode.QUOTA_EXCEEDED}
