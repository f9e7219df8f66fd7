"""Delayed messages to a stream whose log is on a disk that stalls for longer than a sync may take."""

import time
from pathlib import Path

import pytest

from edge.delayed.store import FILE_NAME, list_messages
from edge.mqtt import PubAck, Publish, SubAck, Subscribe, Subscription
from tests.support.logged_broker import LoggedBroker
from tests.support.lossy_mount import LossyMount, missing
from tests.support.mqtt_socket import SocketClient
from tests.support.waiting import wait_until

STALL_S = 8.0

pytestmark = pytest.mark.skipif(missing() != "", reason=missing())


def test_a_message_comes_once_and_stays_stored_until_its_log_is_synced(
    runtime_directory: Path, tmp_path: Path
) -> None:
    with LossyMount() as mount:
        settings = '[delayed]\nenabled = true\ndurability = "disk"\n[sessions]\ndurability = "process"\n'
        broker = LoggedBroker(
            runtime_directory / "run", tmp_path, {"fast": "process", "plant": "disk"}, settings=settings
        )
        try:
            config = broker._config.read_text()
            broker._config.write_text(config.replace("[log]", f'[log]\ndirectory = "{mount.path}/log"'))
            broker.start()
            with SocketClient(broker.port, "device") as device, SocketClient(broker.port, "app") as app:
                app.send(Subscribe(1, (Subscription("#", 1),)))
                assert isinstance(app.receive(), SubAck)
                device.send(Publish("$delayed/2/plant/1", b"start", qos=1, packet_id=1))
                device.send(Publish("$delayed/3/fast/1", b"stop", qos=1, packet_id=2))
                assert isinstance(device.receive(), PubAck)
                assert isinstance(device.receive(), PubAck)
                mount.stall()
                came = [app.receive(), app.receive()]
                assert [each.topic for each in came if isinstance(each, Publish)] == ["plant/1", "fast/1"]
                time.sleep(STALL_S)
                device.send(Publish("fast/2", b"", qos=1, packet_id=3))
                assert isinstance(device.receive(), PubAck)
                assert [row["id"] for row in list_messages(tmp_path / FILE_NAME, (-1, 0), 9, 1)] == [1]
                mount.resume()
                wait_until(lambda: list_messages(tmp_path / FILE_NAME, (-1, 0), 9, 1) == [])
                last = app.receive()
                assert isinstance(last, Publish)
                assert last.topic == "fast/2"
                assert app.is_silent()
        finally:
            mount.resume()
            broker.close()
