"""A broker that finds its ring files damaged: it starts, serves nothing false, and reports what it lost."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge.local.protocol import Report, Status
from ringbuf import Ring
from ringbuf.constants import HEADER_BYTES
from ringbuf.ring import ring_file
from tests.support.logged_broker import LoggedBroker
from tests.support.paho_client import Paho
from tests.support.waiting import wait_until

LEVELS = {"memory": "process", "lazy": "interval", "safe": "disk"}
MESSAGES = 60
HIT = 20  # the message whose record is damaged


@pytest.fixture
def broker(runtime_directory: Path, tmp_path: Path) -> Iterator[LoggedBroker]:
    found = LoggedBroker(runtime_directory, tmp_path, LEVELS)
    yield found
    found.close()


def payload(number: int) -> bytes:
    return f"number {number:6} ".encode() * 30


def subscriber(broker: LoggedBroker, stream: str) -> Paho:
    return Paho(broker.port, f"reader of {stream}", clean=False, topic=f"{stream}/#")


def publish(broker: LoggedBroker, stream: str, numbers: range) -> None:
    client = Paho(broker.port, "writer")
    for number in numbers:
        client.client.publish(f"{stream}/{number % 3}", payload(number), 1)
    client.publish(f"{stream}/last", b"last")
    client.stop()


def left_behind(broker: LoggedBroker, stream: str) -> Path:
    """The ring of a broker that was killed while a session waited for what it holds."""
    broker.start()
    subscriber(broker, stream).stop()
    publish(broker, stream, range(MESSAGES))
    path = broker.runtime_dir / f"{stream}-0"
    if LEVELS[stream] != "process":
        with Ring.attach(path) as ring:
            wait_until(lambda: ring.extremes().durable_position == ring.extremes().end_position)
    broker.kill()
    return path


def damage(path: Path, change: Callable[[bytearray, int], None]) -> None:
    """Change the ring's file at the record of message HIT."""
    data = bytearray(ring_file(path).read_bytes())
    change(data, data.index(payload(HIT), HEADER_BYTES) + 5)
    ring_file(path).write_bytes(data)


def one_byte(data: bytearray, at: int) -> None:
    data[at] ^= 0x20


def a_sector_of_zeros(data: bytearray, at: int) -> None:
    at -= at % 512
    data[at : at + 512] = bytes(512)


def received(client: Paho) -> list[bytes]:
    """All payloads up to the last message."""
    found = []
    while (message := client.next()[1]) != b"last":
        found.append(message)
    return found


@pytest.mark.parametrize("stream", ["lazy", "safe"])
@pytest.mark.parametrize("change", [one_byte, a_sector_of_zeros])
def test_damaged_records_of_a_logged_ring_come_from_the_log(
    broker: LoggedBroker, stream: str, change: Callable[[bytearray, int], None]
) -> None:
    damage(left_behind(broker, stream), change)
    broker.start()
    publish(broker, stream, range(MESSAGES, 2 * MESSAGES))  # waits for each PUBACK
    reader = subscriber(broker, stream)
    both = received(reader) + received(reader)
    assert sorted(both) == [payload(number) for number in range(2 * MESSAGES)]
    reader.stop()
    errors = broker.stop()
    assert "damaged ring records restored from the log" in errors
    assert "damaged ring records lost" not in errors


@pytest.mark.parametrize("change", [one_byte, a_sector_of_zeros])
def test_damaged_records_that_no_log_has_are_lost_with_a_line_and_a_count_and_nothing_more(
    broker: LoggedBroker, change: Callable[[bytearray, int], None]
) -> None:
    path = left_behind(broker, "memory")
    damage(path, change)
    broker.start()
    publish(broker, "memory", range(MESSAGES, 2 * MESSAGES))
    reader = subscriber(broker, "memory")
    both = {*received(reader), *received(reader)}
    with Ring.attach(path) as ring, ring.reader(start="oldest", overrun="count") as counting:
        counting.read_many(1000)
        lost = counting.lost
    missing = {payload(number) for number in range(2 * MESSAGES)} - both
    assert payload(HIT) in missing
    assert len(missing) == lost <= 3
    assert len(both) == 2 * MESSAGES - lost
    with broker.control() as control:
        status = control.request(Status(), Report).report
    assert status["lost"]["memory-0: damaged in memory before the start"] == lost
    reader.stop()
    errors = broker.stop()
    line = rf"damaged ring records lost name=memory-0 epoch={ring.epoch} offset=(\d+) records={lost}$"
    found = re.findall(line, errors, re.MULTILINE)
    assert len(found) == 1
    assert int(found[0]) in (HIT - 1, HIT)


def test_a_damaged_header_of_a_ring_costs_no_record(broker: LoggedBroker) -> None:
    path = left_behind(broker, "memory")
    data = bytearray(ring_file(path).read_bytes())
    data[:512] = bytes(512)
    ring_file(path).write_bytes(data)
    broker.start()
    reader = subscriber(broker, "memory")
    assert len(received(reader)) == MESSAGES
    reader.stop()
    assert re.search('ring header repaired name=memory-0 parts="?geometry', broker.stop())
