"""A local producer whose broker dies, or is stopped, and comes back: what was logged is there by its offset,
and what comes next has the next one.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from brim import producer
from persistence import Log
from ringbuf import Ring, Writer, scan_records
from ringbuf.record import decode
from tests.support.brim_process import BrimProcess
from tests.support.status_report import report_of
from tests.support.waiting import wait_until

SETTINGS = """
[[stream]]
name = "t"
topics = ["t/#"]
durability = "interval"
when_full = "block"
sync_interval_ms = 20
sync_bytes = 16384
ring_bytes = 65536
[[producer]]
name = "cam"
stream = "t"
ring_bytes = 65536
[[producer]]
name = "bell"
stream = "t"
ring_bytes = 65536
"""
FEW, MANY = 50, 300  # several laps of a ring of 64 KiB
BODY = bytes(1_000)
PRODUCERS = Path("state") / "log" / "producers"


@pytest.fixture
def broker(runtime_directory: Path, tmp_path: Path) -> BrimProcess:
    return BrimProcess(runtime_directory, tmp_path, SETTINGS, bridge=False)


def publish(writer: Writer, first: int, count: int) -> None:
    for number in range(first, first + count):
        offset = None
        while offset is None:  # the log is behind, and the ring is small
            offset = writer.publish(b"%08d" % number + BODY, key="t/cam")
        assert offset == number


def synced(broker: BrimProcess) -> int:
    """Records that the producers' log has, and has synced, in this life of the broker."""
    logs = report_of(broker.runtime_dir)["log"]["logs"]
    (log,) = [it for it in logs if it["directory"].endswith("/producers")]
    return 0 if log["unsynced_bytes"] else int(log["records"])


def read_by_offset(directory: Path, ring: str, offset: int) -> list[int]:
    """Recovers a copy of the log: numbers of a ring from that offset on, all of one epoch."""
    found = []
    with TemporaryDirectory() as copy, Log(shutil.copytree(directory / PRODUCERS, Path(copy) / "log")) as log:
        log.recover()
        ((epoch, first, end),) = log.epochs(ring)
        assert first == 0
        while offset < end:
            for it in log.read(ring, epoch, offset, 1 << 16):
                data = bytes(it.view)
                assert scan_records(data, epoch).good_bytes == len(data)
                while data:
                    record, length = decode(data, epoch)
                    assert record.offset == int(record.payload[:8])
                    found.append(record.offset)
                    data = data[length:]
                offset = it.offset + it.count
    return found


@pytest.mark.parametrize("end", [BrimProcess.kill, BrimProcess.stop], ids=["killed", "stopped"])
def test_producers_go_on_over_a_restart_and_their_log_has_no_gap(
    broker: BrimProcess, tmp_path: Path, end: Callable[[BrimProcess], None]
) -> None:
    """One that lives on, and publishes while no broker runs; one that comes back with the broker."""
    with broker, producer("cam", "t", runtime_dir=broker.runtime_dir) as writer:
        publish(writer, 0, MANY)
        with producer("bell", "t", runtime_dir=broker.runtime_dir) as short:
            publish(short, 0, FEW)
        wait_until(lambda: synced(broker) == MANY + FEW)
        epoch = epoch_of(broker, "t@bell")
        end(broker)
        assert read_by_offset(tmp_path, "t@cam", MANY - 120) == list(range(MANY - 120, MANY))
        assert read_by_offset(tmp_path, "t@bell", 0) == list(range(FEW))
        publish(writer, MANY, 20)
        broker.start()
        publish(writer, MANY + 20, 10)
        with producer("bell", "t", runtime_dir=broker.runtime_dir) as short:
            assert (short.end_offset, epoch_of(broker, "t@bell")) == (FEW, epoch)
            publish(short, FEW, 1)
        wait_until(lambda: synced(broker) == 31)
    assert read_by_offset(tmp_path, "t@cam", 0) == list(range(MANY + 30))
    assert read_by_offset(tmp_path, "t@bell", 0) == list(range(FEW + 1))


def epoch_of(broker: BrimProcess, ring_name: str) -> int:
    with Ring.attach(broker.runtime_dir / ring_name) as ring:
        return ring.epoch
