"""A local producer that damages its own ring: all other records are served, and the status is reported."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import brim
from edge.consumers import protocol as consumers
from edge.consumers.client_socket import RequestClient
from edge.mqtt import Publish
from tests.support.brim_process import BrimProcess
from tests.support.mqtt_socket import SocketClient
from tests.support.status_report import report_of
from tests.support.waiting import PATIENCE_S, wait_until

SETTINGS = """
[zmq]
enabled = true
[consumers]
enabled = true
[[stream]]
name = "t"
topics = ["#"]
ring_bytes = 65536
[[producer]]
name = "cam"
stream = "t"
ring_bytes = 65536
"""

# places in the ring's file (ringbuf/c/ring/layout.h)
GEOMETRY, END = slice(0, 0x80), slice(0x80, 0x100)


@pytest.fixture
def broker(runtime_directory: Path, tmp_path: Path) -> Iterator[BrimProcess]:
    with BrimProcess(runtime_directory, tmp_path, SETTINGS, bridge=False) as running:
        yield running


def damage(broker: BrimProcess, where: slice, filler: int) -> None:
    with (broker.runtime_dir / "t@cam.ring").open("r+b") as file:
        file.seek(where.start)
        file.write(bytes([filler]) * (where.stop - where.start))


def publish(broker: BrimProcess, *payloads: bytes) -> None:
    with SocketClient(broker.port, "writes") as client:
        for payload in payloads:
            client.send(Publish("a/1", payload, qos=1, packet_id=1))
            client.receive()


def arrived(subscriber: brim.ZmqSubscription) -> bytes:
    arrival = subscriber.read(PATIENCE_S)
    assert arrival is not None
    return bytes(arrival[2])


@pytest.mark.parametrize("where", [GEOMETRY, END], ids=["geometry", "end"])
@pytest.mark.parametrize("filler", [0x00, 0x7F, 0xFF])
@pytest.mark.parametrize("begun", [False, True], ids=["before", "while"])
def test_a_ring_that_its_producer_damages_stops_no_other(
    broker: BrimProcess, where: slice, filler: int, begun: bool
) -> None:
    """`begun`: consumers and subscribers are there before the damage."""
    directory = broker.runtime_dir
    with brim.producer("cam", "t", runtime_dir=directory) as cam:
        cam.publish(b"x", "cam/1")
        if not begun:
            damage(broker, where, filler)
        with (
            brim.consumer("g", "#", mode="queue", start="oldest", runtime_dir=directory) as consumer,
            brim.subscribe_zmq("a/#", runtime_dir=directory) as subscriber,
        ):
            wait_until(lambda: report_of(directory)["zmq"]["prefixes"] == 1)
            if begun:
                damage(broker, where, filler)
            publish(broker, b"1", b"2")
            found: list[bytes] = []
            while b"2" not in found:
                batch = consumer.read(PATIENCE_S)
                assert batch is not None
                found += [record.bytes() for record in batch]
                consumer.ack(batch)
            assert [arrived(subscriber) for _ in "12"] == [b"1", b"2"]
            with RequestClient(directory) as client:
                request = consumers.Groups(client.number(), consumers.VERSION)
                groups = client.request(request, consumers.GroupList)[0].groups
                assert [group.name for group in groups] == ["g"]
                assert groups[0].lag < 1 << 32
        assert report_of(directory)["rings"][0]["name"] == "t-0"
    assert "failed in one turn" not in broker.stop()
