"""Producers by shared memory and ZeroMQ on a full stream with discard = "new": with `brim run`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brim import Letter, producer, publish
from persistence import LogReader, OsFiles
from ringbuf import REFUSAL_NO_ROOM, Ring, Writer
from tests.support.brim_process import BrimProcess
from tests.support.status_report import report_of
from tests.support.waiting import wait_until

CAP_BYTES = 3_000_000
BODY = bytes(8_000)
SETTINGS = f"""
[limits]
packet_max_bytes = 65536
topic_max_bytes = 1024
[log]
segment_bytes = 1048576
[[stream]]
name = "t"
topics = ["t/#"]
durability = "interval"
when_full = "block"
queue_timeout_ms = 20
sync_bytes = 65536
sync_interval_ms = 20
ring_bytes = 1048576
retain_bytes = {CAP_BYTES}
discard = "new"
[[producer]]
name = "cam"
stream = "t"
ring_bytes = 1048576
"""


@pytest.fixture
def broker(runtime_directory: Path, tmp_path: Path) -> Iterator[BrimProcess]:
    with BrimProcess(runtime_directory, tmp_path, SETTINGS, bridge=False) as running:
        yield running


def report(broker: BrimProcess) -> dict[str, Any]:
    return report_of(broker.runtime_dir)


def published_until_refused(broker: BrimProcess, writer: Writer) -> int:
    """Number of records accepted before the stream was full; the log is never far behind."""
    while not writer.refusal:
        writer.publish_many([BODY] * 20, key="t/1")
        wait_until(lambda: _lag_of_log(broker) == 0)
    return writer.end_offset


def _lag_of_log(broker: BrimProcess) -> int:
    (ring,) = [it for it in report(broker)["rings"] if it["name"] == "t@cam"]
    (lag,) = [it["lag"] for it in ring["readers"] if it["name"] == "log"]
    return int(lag)


def logged(directory: Path, ring: str) -> list[int]:
    """Offsets that the log has of it, in order."""
    reader = LogReader(OsFiles(), str(directory))
    reader.refresh()
    found: list[int] = []
    for epoch, first, _ in reader.epochs(ring):
        offset = first
        while ranges := reader.read(ring, epoch, offset, 1 << 20):
            for it in ranges:
                found += range(it.offset, it.offset + it.count)
            offset = found[-1] + 1
    return found


def test_a_local_producer_is_refused_rather_than_that_old_records_go(
    broker: BrimProcess, tmp_path: Path
) -> None:
    with producer("cam", "t", runtime_dir=broker.runtime_dir) as writer:
        count = published_until_refused(broker, writer)
        assert count * len(BODY) >= CAP_BYTES
        assert writer.refusal == REFUSAL_NO_ROOM
        refused = 5
        for _ in range(refused):
            assert writer.publish(BODY, key="t/1") is None
        assert writer.publish_many([BODY, BODY], key="t/1") == 0
        assert writer.end_offset == count
    found = report(broker)
    (ring,) = [it for it in found["rings"] if it["name"] == "t@cam"]
    assert ring["refused"]["no_room"] == refused + 1
    assert ring["refused"]["no_log"] == 0
    assert found["lost"]["t@cam: refused, the log or its stream was full"] == refused + 1
    broker.stop()
    assert logged(tmp_path / "state" / "log" / "producers", "t@cam") == list(range(count))


def test_a_publisher_by_zeromq_is_told_how_many_were_stored(broker: BrimProcess, tmp_path: Path) -> None:
    letters = [(Letter("t/1"), BODY)] * 20
    stored, now = 0, -1
    while now or report(broker)["log"]["maintenance"]["full_streams"] != ["t"]:
        now = publish(letters, runtime_dir=broker.runtime_dir)
        stored += now
    assert stored * len(BODY) >= CAP_BYTES
    broker.stop()
    assert logged(tmp_path / "state" / "log", "t-0") == list(range(stored))


def test_a_stream_without_a_log_refuses_nobody(runtime_directory: Path, tmp_path: Path) -> None:
    """Whatever an earlier broker, with other settings, has left in the ring."""
    settings = '[[stream]]\nname = "t"\ntopics = ["t/#"]\nring_bytes = 65536\nqueue_timeout_ms = 1\n'
    broker = BrimProcess(runtime_directory, tmp_path, settings, bridge=False)
    with broker, producer("cam", "t", runtime_dir=runtime_directory) as writer:
        broker.kill()  # otherwise it takes the refusal back
        with Ring.attach(runtime_directory / "t@cam") as ring:
            ring.refuse(REFUSAL_NO_ROOM)
        wait_until(lambda: writer.refusal == REFUSAL_NO_ROOM)
        assert writer.publish(BODY, key="t/1") is None
        broker.start()
        wait_until(lambda: writer.refusal == 0)
        assert writer.publish(BODY, key="t/1") == 0
